"""Reports of ncu that runs leave, as rows of table counters: read, and held against what the run says it launched."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from services.analyzer.counter_tables import COUNTERS
from services.analyzer.kernel_names import base_name
from services.analyzer.readers.ncu import NcuReport, read_ncu_report
from services.core.errors import KernalyseError
from services.core.model import CountersStored, RunEvent

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
