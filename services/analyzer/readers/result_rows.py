"""Rows of configurations and of what was measured of each, as readers of other tools' results find them one by one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import polars as pl

from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.readers.documents import JsonObject, read_document
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import CEILINGS, CONFIGURATIONS, FAILURES, LOG_LINES, MEASUREMENTS, THRESHOLDS
from kernalyse.services.core.errors import InvalidTraceError
from kernalyse.services.core.file_formats import (
    BANDWIDTH,
    BYTES_PER_GB,
    COMPUTE_THRESHOLD,
    FILE_NAME,
    MEMBERS,
    MEMORY_THRESHOLD,
    OP_PER_TERA_OP,
    PEAK,
)
from kernalyse.services.core.kernel_categories import infer_category
from kernalyse.services.core.model import LogLevel, Thresholds

Row = dict[str, Any]

NOT_TIMED: Final = "NOT_TIMED"
FAILURE_CODE: Final = "FAILED_PRECONDITION"
SHOWN_COUNT: Final = 5
"""Of problems in the notes, which lists of runs carry; all of them are lines of the log."""


@dataclass(slots=True)
class ResultRows:
    """Rows as they are found. source: of the lines of the log."""

    source: str
    arrived_unix_ns: int
    device_id: str | None = None
    configurations: list[Row] = field(default_factory=list)
    measurements: list[Row] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)
    ceilings: Sequence[Row] = ()
    thresholds: Sequence[Row] = ()
    problems: list[str] = field(default_factory=list)
    _lines: list[Row] = field(default_factory=list)

    def add(self, configuration: Row, measured: Row) -> None:
        """A configuration that was measured.

        Args:
            configuration: columns of table configurations, parameters as a mapping; what it leaves out is null.
            measured: columns of table measurements that the configuration has not.
        """
        self.measurements.append(self._announced(configuration) | {"device_id": self.device_id} | measured)

    def add_unmeasured(self, configuration: Row, message: str, reason: str = NOT_TIMED) -> None:
        """A configuration without a duration or a rate."""
        announced = self._announced(configuration)
        row = {"code": FAILURE_CODE, "reason": reason, "message": message}
        self.failures.append({name: announced[name] for name in ("configuration_index", "label")} | row)

    def add_line(self, line: str) -> None:
        """What no column holds, as a line of the log."""
        self._lines.append({"level": LogLevel.INFO.value, "line": line})

    def add_lines(self, lines: Iterable[str]) -> None:
        """Add lines to the log."""
        for line in lines:
            self.add_line(line)

    def add_problem(self, line: str) -> None:
        """Add a warning to the log, and to the problems of the result."""
        self.problems.append(line)
        self._lines.append({"level": LogLevel.WARNING.value, "line": line})

    def _announced(self, configuration: Row) -> Row:
        row: Row = {"category": infer_category(configuration["kernel_name"])} | configuration
        row |= {
            "configuration_index": len(self.configurations),
            "parameters": json.dumps(configuration["parameters"]),
        }
        self.configurations.append(row)
        return row

    def frames(self, file_name: str) -> dict[str, pl.DataFrame]:
        """Of all that was found. Raises InvalidTraceError when that is nothing."""
        if not self.configurations:
            raise InvalidTraceError(
                f"file {file_name}", found="no result in it", expected="at least one", remedy="Measure something first."
            )
        written = {"event_unix_ns": self.arrived_unix_ns, "source": self.source}
        return {
            CONFIGURATIONS.table_name: frame_from_rows(CONFIGURATIONS, self.configurations),
            MEASUREMENTS.table_name: frame_from_rows(MEASUREMENTS, self.measurements),
            FAILURES.table_name: frame_from_rows(FAILURES, self.failures),
            CEILINGS.table_name: frame_from_rows(CEILINGS, self.ceilings),
            THRESHOLDS.table_name: frame_from_rows(THRESHOLDS, self.thresholds),
            LOG_LINES.table_name: frame_from_rows(LOG_LINES, [line | written for line in self._lines]),
        }

    def problem_notes(self) -> list[str]:
        """The first problems, and how many there are."""
        more = len(self.problems) - SHOWN_COUNT
        return self.problems[:SHOWN_COUNT] + ([f"And {more} more of that kind: table log_lines has them."] if more > 0 else [])


def label_of(kernel_name: str, parameters: Mapping[str, int], variant: str) -> str:
    """Return the label of a configuration: kernel, parameters, variant."""
    return " ".join((kernel_name, *(f"{name}={value}" for name, value in parameters.items()), *([variant] if variant else ())))


# ---------------------------------------------------------------- roofline config
# roofline_config.json beside a list of operations or kernels: what their device can do at most, and what counts as inefficient.


@dataclass(frozen=True, slots=True)
class RooflineConfig:
    """None: not stated."""

    peak_flop_per_s: float | None
    memory_bytes_per_s: float | None
    memory_inefficient_ratio: float | None
    compute_inefficient_ratio: float | None
    notes: tuple[str, ...]

    def ceilings(self, device_id: str, dtypes: Iterable[str]) -> list[Row]:
        """Rows of table ceilings: its one peak holds for every data type."""
        compute = [("flop_per_s", dtype, "fma", self.peak_flop_per_s) for dtype in dtypes]
        rows = [("bytes_per_s", "dram", "copy", self.memory_bytes_per_s), *compute]
        shared = {"device_id": device_id, "source": "user", "confidence": "", "note": FILE_NAME}
        return [
            {"unit": unit, "ceiling_name": name, "path": path, "value": value} | shared
            for unit, name, path, value in rows
            if value is not None
        ]

    def thresholds(self, device_id: str) -> list[Row]:
        """Rows of table thresholds; none when it states none."""
        stated = {
            name: value for name in ("memory_inefficient_ratio", "compute_inefficient_ratio") if (value := getattr(self, name)) is not None
        }
        known = replace(Thresholds(), **stated)
        row = {
            "device_id": device_id,
            "memory_inefficient_ratio": known.memory_inefficient_ratio,
            "compute_inefficient_ratio": known.compute_inefficient_ratio,
        }
        return [row] if stated else []


def roofline_config(files: TraceFiles) -> RooflineConfig | None:
    """What lies beside the file; None: nothing. Raises InvalidTraceError when it cannot be read, or a value that makes no sense."""
    path = files.companions.get(FILE_NAME)
    if path is None:
        return None
    document = read_document(TraceFiles(FILE_NAME, path, files.arrived_unix_ns))
    unknown = [name for name in document.members if name not in MEMBERS]
    return RooflineConfig(
        peak_flop_per_s=_rate(document, PEAK, OP_PER_TERA_OP),
        memory_bytes_per_s=_rate(document, BANDWIDTH, BYTES_PER_GB),
        memory_inefficient_ratio=_ratio(document, MEMORY_THRESHOLD),
        compute_inefficient_ratio=_ratio(document, COMPUTE_THRESHOLD),
        notes=(
            f"Ceilings are those of {FILE_NAME}; a multiply-add counts as two of its operations.",
            *([f"Left out of it, for nothing here knows them: {', '.join(unknown)}."] if unknown else ()),
        ),
    )


def _rate(document: JsonObject, name: str, factor: float) -> float | None:
    value = document.optional_number(name)
    if value is not None and not 0 < value * factor < float("inf"):
        document.refuse(name, "a number over zero")
    return None if value is None else value * factor


def _ratio(document: JsonObject, name: str) -> float | None:
    percentage = document.optional_number(name)
    if percentage is not None and not 0 <= percentage <= 100:
        document.refuse(name, "a percentage from 0 to 100")
    return None if percentage is None else percentage / 100
