"""Counters of a run from its ncu report, matched by kernel name."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import polars as pl

from kernalyse.services.analyzer.readers.ncu.csv_report import NcuReport, read_ncu_report
from kernalyse.services.analyzer.tables.runs import COUNTERS
from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import CountersStored, RunEvent

# ---------------------------------------------------------------- counter reports
# ncu reports of runs as rows of table counters, checked against the launches that the run recorded.

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CounterReport:
    """The content of a run's ncu report. rows: rows of table counters. notes: remarks for the run's log."""

    rows: pl.DataFrame
    notes: tuple[str, ...] = ()


def counter_report(event: RunEvent, stored: CountersStored, data: bytes) -> CounterReport:
    """Return the rows of the report that an event refers to. It never raises: a report that cannot be read becomes a note."""
    try:
        report = read_ncu_report(data)
    except KernalyseError as error:
        return missing_report(stored, error.message)
    except Exception as error:
        # Any error in a foreign file must end here, or collecting would retry this event forever.
        logger.exception("Report %s of run %s cannot be read", stored.artifact_name, event.run_id)
        return missing_report(stored, f"{type(error).__name__}: {error}")
    configuration_indexes, problems = match_configurations(report.launches["kernel_name"].to_list(), stored)
    notes = [f"{stored.artifact_name}: {note}" for note in (*problems, *report.notes)]
    return CounterReport(_rows(event, report, configuration_indexes), tuple(notes))


def missing_report(stored: CountersStored, found: str) -> CounterReport:
    """Return a report without rows, with a note that says why."""
    return CounterReport(COUNTERS.empty(), (f"Counters of {stored.artifact_name} are missing: {found}",))


def match_configurations(kernel_names: Sequence[str | None], stored: CountersStored) -> tuple[list[int | None], list[str]]:
    """Return the configuration index of each launch of a report, None where it does not match the run, and a note per mismatch.

    Args:
        kernel_names: kernel names of the report's launches, as ncu writes them.
        stored: the launches that the run recorded.
    """
    indexes = stored.configuration_indexes
    if len(kernel_names) != len(indexes):
        what = f"it has {len(kernel_names)} launches where the run profiled {len(indexes)}"
        return [None] * len(kernel_names), [f"{what}, so its counters belong to no configuration."]
    if not stored.function_names:
        return list(indexes), []
    matched: list[int | None] = []
    problems = []
    for position, (found, index, expected) in enumerate(zip(kernel_names, indexes, stored.function_names, strict=False)):
        is_match = found is None or is_function(found, expected)
        matched.append(index if is_match else None)
        if not is_match:
            problems.append(
                f"its launch {position} is {found} where the run launched {expected}, so its counters belong to no configuration."
            )
    if len(matched) < len(kernel_names):
        return [None] * len(kernel_names), [f"the run names {len(matched)} functions for {len(kernel_names)} launches."]
    return matched, problems


def is_function(kernel_name: str, function_name: str) -> bool:
    """Return whether a kernel name (mangled, or demangled with or without signature) is that of the function."""
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
# Tools write the name of one kernel differently: with or without parameters, template arguments and namespaces, or mangled.

UNNAMED: Final = re.compile(r"\(anonymous namespace\)::|<?unnamed>::|_GLOBAL__N_\w*::")
"""The spellings of the anonymous namespace; one report has it cut to "unnamed>::"."""

CAST: Final = re.compile(r"\((?:[\w:]|\s|\*)+\)(?=-?[\d(])")
LITERAL_ENDING: Final = re.compile(r"(?<=\d)(?:ul|ull|u|l|ll)\b", re.IGNORECASE)
FLAGS: Final = (("true", "1"), ("false", "0"))
CONST: Final = re.compile(r"\bconst\b")
SPACE: Final = re.compile(r"\s+")
CLONE: Final = re.compile(r"\s*\[clone [^\]]*\]")
MANGLED: Final = re.compile(r"_ZL?(N)?[VK]*")
IDENTIFIER: Final = re.compile(r"L?(\d{1,4})")
QUALIFIER: Final = re.compile(r"\b(\w+)::")
LAMBDA: Final = re.compile(r"\{lambda[^{}]*\}?#(\d+)\}|\[lambda[^\[\]]*\(instance (\d+)\)\]")
"""A lambda as c++filt and as ncu write it, with its number: {lambda(int)#1}, [lambda(int) (instance 1)]."""

INNER_PARAMETERS: Final = re.compile(r"\([^()]*\)")


@dataclass(frozen=True, slots=True)
class KernelNameSpellings:
    """The normalized spellings of a kernel name, from the most to the least specific.

    signature: the complete name. instance: without parameters. function: without template arguments, namespaces and return
    type as well. Of a mangled name only the function is decoded.
    """

    signature: str
    instance: str
    function: str

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the spellings of a name, mangled or not."""
        plain = CLONE.sub("", name).strip()
        if plain.startswith("_Z"):
            return cls(plain, plain, _mangled_function(plain))
        plain = UNNAMED.sub("", plain).removeprefix("void ")  # only some tools write the return type, which is always void
        without_parameters = _without_group(plain, "(", ")")
        function = _last_word(_without_group(without_parameters, "<", ">")) or base_name(plain)
        return cls(_normalize(plain), _normalize(without_parameters), function)

    @property
    def most_specific_first(self) -> tuple[str, str, str]:
        """The spellings, the most specific first."""
        return self.signature, self.instance, self.function


def qualifiers(names: Iterable[str]) -> frozenset[str]:
    """Return what stands before :: anywhere in the names."""
    return frozenset(word for name in names for word in QUALIFIER.findall(name))


def template_spelling(name: str, omitted: frozenset[str]) -> str:
    """Return a demangled name with its template arguments, but without any parameters, namespaces that the other tool omits, and casts.

    ncu leaves out inline namespaces (at::native), writes parameters by the names of a template's arguments (const T1 &), and spells lambdas
    in its own way.

    Args:
        name: of a kernel.
        omitted: qualifiers that this tool writes and the other one does not.
    """
    text = LAMBDA.sub(lambda found: f"lambda{found[1] or found[2]}", UNNAMED.sub("", CLONE.sub("", name)))
    while (shorter := INNER_PARAMETERS.sub("", text)) != text:
        text = shorter
    text = QUALIFIER.sub(lambda found: "" if found[1] in omitted else found[0], text)
    return _normalize(re.sub(r"\bvoid\s+(?!\*)", "", text))


def base_name(name: str) -> str:
    """Return a name without return type, namespaces, template arguments and parameters; it may be cut off anywhere after itself."""
    return _last_word(UNNAMED.sub("", name).partition("(")[0].partition("<")[0])


def _last_word(text: str) -> str:
    return (text.rpartition("::")[2].split() or [""])[-1]


def _without_group(text: str, opening: str, closing: str) -> str:
    """Return the text without the bracketed group at its end, unchanged if there is none."""
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


def _normalize(text: str) -> str:
    """Return a name without blanks and qualifiers, its template constants without casts and literal suffixes."""
    for word, digit in FLAGS:
        text = re.sub(rf"\b{word}\b", digit, text)
    return SPACE.sub("", CONST.sub("", LITERAL_ENDING.sub("", CAST.sub("", text))))


def _mangled_function(name: str) -> str:
    """Return the last identifier of a mangled name (Itanium C++ ABI, 5.1: each identifier follows its length)."""
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
