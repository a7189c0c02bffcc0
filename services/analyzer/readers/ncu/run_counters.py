"""Counters of a run from its ncu report, matched by kernel name."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import polars as pl

from kernalyse.services.analyzer.readers.ncu.csv_report import NcuReport, read_ncu_report
from kernalyse.services.analyzer.tables.runs import COUNTERS
from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import CountersStored, RunEvent

# ---------------------------------------------------------------- counter reports
# Reports of ncu that runs leave, as rows of table counters: read, and held against what the run says it launched.

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CounterReport:
    """What a run's report adds to its tables. rows: of table counters. notes: what there is to say of it, for the run's log."""

    rows: pl.DataFrame
    notes: tuple[str, ...] = ()


def counter_report(event: RunEvent, stored: CountersStored, data: bytes) -> CounterReport:
    """The rows of the report that an event names. Never raises: a report that cannot be read is a note."""
    try:
        report = read_ncu_report(data)
    except KernalyseError as error:
        return missing_report(stored, error.message)
    except Exception as error:
        # Whatever is in a file of another program: collecting would come back to this event again and again.
        logger.exception("Report %s of run %s cannot be read", stored.artifact_name, event.run_id)
        return missing_report(stored, f"{type(error).__name__}: {error}")
    configuration_indexes, problems = matched_configurations(report.launches["kernel_name"].to_list(), stored)
    notes = [f"{stored.artifact_name}: {note}" for note in (*problems, *report.notes)]
    return CounterReport(_rows(event, report, configuration_indexes), tuple(notes))


def missing_report(stored: CountersStored, found: str) -> CounterReport:
    return CounterReport(COUNTERS.empty(), (f"Counters of {stored.artifact_name} are missing: {found}",))


def matched_configurations(kernel_names: Sequence[str | None], stored: CountersStored) -> tuple[list[int | None], list[str]]:
    """Configuration of each launch of a report, and what does not fit; a launch that does not is given to none.

    Args:
        kernel_names: of the report's launches, as ncu writes them.
    """
    indexes = stored.configuration_indexes
    if len(kernel_names) != len(indexes):
        what = f"it has {len(kernel_names)} launches where the run profiled {len(indexes)}"
        return [None] * len(kernel_names), [f"{what}, so its counters belong to no configuration."]
    if not stored.function_names:
        return list(indexes), []
    matched: list[int | None] = []
    problems = []
    for place, (found, index, expected) in enumerate(zip(kernel_names, indexes, stored.function_names, strict=False)):
        is_match = found is None or is_function(found, expected)
        matched.append(index if is_match else None)
        if not is_match:
            problems.append(f"its launch {place} is {found} where the run launched {expected}, so its counters belong to no configuration.")
    if len(matched) < len(kernel_names):
        return [None] * len(kernel_names), [f"the run names {len(matched)} functions for {len(kernel_names)} launches."]
    return matched, problems


def is_function(kernel_name: str, function_name: str) -> bool:
    """Whether a kernel's name, demangled with or without its signature or mangled, is that of the function."""
    function = base_name(function_name)
    return base_name(kernel_name) == function or (kernel_name.startswith("_Z") and f"{len(function)}{function}" in kernel_name)


def _rows(event: RunEvent, report: NcuReport, configuration_indexes: Sequence[int | None]) -> pl.DataFrame:
    launches = report.launches.with_columns(
        run_id=pl.lit(event.run_id),
        event_index=pl.lit(event.event_index, dtype=pl.Int64),
        configuration_index=pl.Series(configuration_indexes, dtype=pl.Int64),
    )
    return report.counters.join(launches, on="launch_index", how="left", maintain_order="left").select(COUNTERS.column_names)


# ---------------------------------------------------------------- kernel names
# Names of one kernel as different tools write them: with or without parameters, template arguments, namespaces, mangled.

UNNAMED: Final = re.compile(r"\(anonymous namespace\)::|<?unnamed>::|_GLOBAL__N_\w*::")
"""The namespace without a name; one report has it cut to "unnamed>::"."""

CAST: Final = re.compile(r"\((?:[\w:]|\s|\*)+\)(?=-?[\d(])")
LITERAL_ENDING: Final = re.compile(r"(?<=\d)(?:ul|ull|u|l|ll)\b", re.IGNORECASE)
FLAGS: Final = (("true", "1"), ("false", "0"))
CONST: Final = re.compile(r"\bconst\b")
SPACE: Final = re.compile(r"\s+")
CLONE: Final = re.compile(r"\s*\[clone [^\]]*\]")
MANGLED: Final = re.compile(r"_ZL?(N)?[VK]*")
IDENTIFIER: Final = re.compile(r"L?(\d{1,4})")


@dataclass(frozen=True, slots=True)
class KernelForms:
    """A name from its finest form to its coarsest.

    signature: all of it, written one way; instance: without parameters; function: without template arguments, namespaces and
    return type too. Mangled names tell the function alone.
    """

    signature: str
    instance: str
    function: str

    @classmethod
    def of(cls, name: str) -> Self:
        plain = CLONE.sub("", name).strip()
        if plain.startswith("_Z"):
            return cls(plain, plain, _mangled_function(plain))
        plain = UNNAMED.sub("", plain).removeprefix("void ")  # kernels return nothing: some tools say so
        without_parameters = _without_group(plain, "(", ")")
        function = _last_word(_without_group(without_parameters, "<", ">")) or base_name(plain)
        return cls(_one_way(plain), _one_way(without_parameters), function)

    @property
    def finest_first(self) -> tuple[str, str, str]:
        return self.signature, self.instance, self.function


def base_name(name: str) -> str:
    """Without return type, namespaces, template arguments and parameters, of a name that may be cut anywhere behind them."""
    return _last_word(UNNAMED.sub("", name).partition("(")[0].partition("<")[0])


def _last_word(text: str) -> str:
    return (text.rpartition("::")[2].split() or [""])[-1]


def _without_group(text: str, opening: str, closing: str) -> str:
    """The text without the bracketed group that it ends with; as it is where there is none."""
    if not text.endswith(closing):
        return text
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        if text[index] == closing and text[index - 1 : index + 1] != "->":
            depth += 1
        elif text[index] == opening:
            depth -= 1
            if depth == 0:
                return text[:index]
    return text


def _one_way(text: str) -> str:
    """Constants of template arguments without casts and endings, no qualifiers, no blanks."""
    for word, digit in FLAGS:
        text = re.sub(rf"\b{word}\b", digit, text)
    return SPACE.sub("", CONST.sub("", LITERAL_ENDING.sub("", CAST.sub("", text))))


def _mangled_function(name: str) -> str:
    """Last identifier of the (nested) name, by the Itanium C++ ABI, 5.1: lengths before words."""
    opening = MANGLED.match(name)
    position = 0 if opening is None else opening.end()
    is_nested = opening is not None and opening[1] is not None
    found = ""
    while (length := IDENTIFIER.match(name, position)) is not None:
        end = length.end() + int(length[1])
        if end > len(name):
            break
        found, position = name[length.end() : end], end
        if not is_nested:
            break
    return found or name
