"""Writes a run as the results document, which `kernalyse.services.analyzer.tables.results_document` describes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import polars as pl

from kernalyse.services.analyzer.tables.results_document import OBJECT_COLUMNS, ROW_TABLES, STORE_COLUMN, VERSION
from kernalyse.services.analyzer.tables.runs import RUNS, SAMPLES
from kernalyse.services.core.model import Device

TABLE_NAMES: Final = (RUNS.table_name, *(table.table_name for table in ROW_TABLES), SAMPLES.table_name)
"""The tables that the document contains."""


@dataclass(frozen=True, slots=True)
class RunResults:
    """The results of one run, for any file format.

    frames: the tables TABLE_NAMES of the run. devices: those that it measured on, as far as they are known.
    """

    frames: Mapping[str, pl.DataFrame]
    devices: tuple[Device, ...]

    @property
    def run(self) -> dict[str, Any]:
        """The run's row of table runs."""
        return self.frames[RUNS.table_name].row(0, named=True)


def results_document(results: RunResults) -> str:
    """Return the document with a line for each row, so that it is readable and small differences stay small."""
    members: dict[str, str] = {
        "schema": _json(VERSION),
        "kernalyse_version": _json(version("kernalyse")),
        "run": _json(_row(results.run)),
        "devices": _lines(_json(dataclasses.asdict(device)) for device in results.devices),
        **{table.table_name: table_document(results.frames[table.table_name]) for table in ROW_TABLES},
        SAMPLES.table_name: _lines(map(_json, sample_columns(results.frames[SAMPLES.table_name]))),
    }
    return "{" + ",\n".join(f"{_json(name)}: {text}" for name, text in members.items()) + "}\n"


def table_document(frame: pl.DataFrame) -> str:
    """Return the rows as an array of objects, a line for each. Columns that hold JSON become objects."""
    if not any(name in frame.columns for name in OBJECT_COLUMNS):
        return frame.drop(STORE_COLUMN, strict=False).write_json()
    return _lines(_json(_row(row)) for row in frame.iter_rows(named=True))


def sample_columns(samples: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield one object per configuration with its samples as arrays, in the order they were taken."""
    ordered = samples.sort("configuration_index", "sample_index")
    for (configuration_index,), part in ordered.group_by("configuration_index", maintain_order=True):
        clocks = part["sm_clock_hz"]
        batches = part["measured_unix_ns"].rle().struct.unnest()
        yield {
            "configuration_index": configuration_index,
            "duration_ns": [_finite(duration) for duration in part["duration_ns"]],
            "sm_clock_hz": None if clocks.null_count() == part.height else clocks.to_list(),
            "discarded_sample_indexes": part["is_discarded"].fill_null(False).arg_true().to_list(),
            "batches": {"sample_count": batches["len"].to_list(), "measured_unix_ns": batches["value"].to_list()},
        }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(name, value) for name, value in row.items() if name != STORE_COLUMN}


def _value(name: str, value: Any) -> Any:
    if name in OBJECT_COLUMNS and value is not None:
        return json.loads(value)
    return _finite(value) if isinstance(value, float) else value


def _finite(value: float | None) -> float | None:
    """Return the value, or None for NaN and infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def _lines(texts: Iterator[str]) -> str:
    lines = ",\n".join(texts)
    return f"[\n{lines}\n]" if lines else "[]"


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
