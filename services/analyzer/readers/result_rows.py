"""Rows of configurations and of what was measured of each, as readers of other tools' results find them one by one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from services.analyzer.event_rows import frame_of
from services.analyzer.schema import CEILINGS, CONFIGURATIONS, FAILURES, LOG_LINES, MEASUREMENTS
from services.analyzer.threshold_table import THRESHOLDS
from services.core.errors import InvalidTraceError
from services.core.kernel_categories import category_of_name
from services.core.model import LogLevel

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

    def add_unmeasured(self, configuration: Row, message: str) -> None:
        """A configuration without a duration or a rate."""
        announced = self._announced(configuration)
        row = {"code": FAILURE_CODE, "reason": NOT_TIMED, "message": message}
        self.failures.append({name: announced[name] for name in ("configuration_index", "label")} | row)

    def add_line(self, line: str) -> None:
        """What no column holds, as a line of the log."""
        self._lines.append({"level": LogLevel.INFO.value, "line": line})

    def add_problem(self, line: str) -> None:
        self.problems.append(line)
        self._lines.append({"level": LogLevel.WARNING.value, "line": line})

    def _announced(self, configuration: Row) -> Row:
        category = configuration.get("category") or category_of_name(configuration["kernel_name"])
        row = configuration | {
            "category": category,
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
            CONFIGURATIONS.table_name: frame_of(CONFIGURATIONS, self.configurations),
            MEASUREMENTS.table_name: frame_of(MEASUREMENTS, self.measurements),
            FAILURES.table_name: frame_of(FAILURES, self.failures),
            CEILINGS.table_name: frame_of(CEILINGS, self.ceilings),
            THRESHOLDS.table_name: frame_of(THRESHOLDS, self.thresholds),
            LOG_LINES.table_name: frame_of(LOG_LINES, [line | written for line in self._lines]),
        }

    def problem_notes(self) -> list[str]:
        """The first problems, and how many there are."""
        more = len(self.problems) - SHOWN_COUNT
        return self.problems[:SHOWN_COUNT] + ([f"And {more} more of that kind: table log_lines has them."] if more > 0 else [])


def label_of(kernel_name: str, parameters: Mapping[str, int], variant: str) -> str:
    return " ".join((kernel_name, *(f"{name}={value}" for name, value in parameters.items()), *([variant] if variant else ())))
