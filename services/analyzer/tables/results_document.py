"""The results document: the format that `--json` and `export` write and `import` reads.

One JSON object: the run, its devices, rows of the tables below with all their columns, and all samples by configuration.
Version 1 may gain columns and tables; removing one or changing its meaning makes version 2.
"""

from __future__ import annotations

import dataclasses
import types
from enum import StrEnum
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from kernalyse.services.analyzer.tables.base import COUNT, FLAG, NUMBER, TEXT, Column, Table
from kernalyse.services.analyzer.tables.derived import PAIRED_COMPARISONS, ROOFLINE
from kernalyse.services.analyzer.tables.runs import (
    BEST,
    CEILINGS,
    CONFIGURATIONS,
    COUNTED_WORK,
    COUNTER_REPORTS,
    COUNTERS,
    FAILURES,
    LOG_LINES,
    MEASUREMENTS,
    RUNS,
    SAMPLES,
    TELEMETRY,
    THRESHOLDS,
)
from kernalyse.services.core.model import Device

FORMAT: Final = "kernalyse-results"
VERSION: Final = f"{FORMAT}/1"

DERIVED_TABLES: Final = (ROOFLINE, BEST, COUNTED_WORK)
"""In the document for its readers; kernalyse computes them anew from the other tables on import."""

ROW_TABLES: Final = (
    *(CONFIGURATIONS, MEASUREMENTS, ROOFLINE, CEILINGS, PAIRED_COMPARISONS, BEST, FAILURES),
    *(COUNTER_REPORTS, COUNTERS, COUNTED_WORK, TELEMETRY, LOG_LINES, THRESHOLDS),
)
"""Tables whose rows the document has: all that was measured or logged. Artifacts of the run stay on its node."""

ADDED_TABLES: Final = (THRESHOLDS,)
"""Documents of this version that were written earlier lack them."""

OBJECT_COLUMNS: Final = ("parameters", "macros")
"""JSON text in the tables, objects in the document."""

STORE_COLUMN: Final = "event_index"
"""Position in the journal that the rows came from; it means nothing outside the store."""

JSON_TYPES: Final[dict[object, str]] = {TEXT: "string", COUNT: "integer", NUMBER: "number", FLAG: "boolean"}


def document_columns(table: Table) -> tuple[Column, ...]:
    """Return the columns of a table that its rows in the document have."""
    return tuple(column for column in table.columns if column.name != STORE_COLUMN)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the document, draft 2020-12."""
    properties: dict[str, Any] = {
        "schema": {"const": VERSION, "description": "Name and version of this format."},
        "kernalyse_version": {"type": "string", "description": "Of the program that wrote the document."},
        "run": {"$ref": "#/$defs/run"},
        "devices": {
            "type": "array",
            "items": {"$ref": "#/$defs/device"},
            "description": "Devices that the run measured on, as their node last described them; not known for imported results.",
        },
        **{
            table.table_name: {"type": "array", "items": {"$ref": f"#/$defs/{table.table_name}"}, "description": table.description}
            for table in ROW_TABLES
        },
        "samples": {
            "type": "array",
            "items": {"$ref": "#/$defs/samples"},
            "description": "One object per configuration that has samples, each figure an array over them in the order they were taken.",
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{VERSION.replace('/', ':')}",
        "title": "Results of one run of kernalyse",
        "description": "Units are in the names: _ns nanoseconds, _hz hertz, _ratio 0 to 1. Null is unknown or not applicable, never zero.",
        **_object(properties),
        "$defs": {
            "run": {"description": RUNS.description, **_object(_row(RUNS))},
            "device": _device(),
            **{table.table_name: _object(_row(table)) for table in ROW_TABLES},
            "samples": _samples(),
        },
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _row(table: Table) -> dict[str, Any]:
    return {column.name: _column(column) for column in document_columns(table)}


def _column(column: Column) -> dict[str, Any]:
    if column.name in OBJECT_COLUMNS:
        return {"type": ["object", "null"], "additionalProperties": {"type": "integer"}, "description": "Integers by name."}
    found = JSON_TYPES[column.dtype]
    return {"type": found if column.name == "run_id" else [found, "null"], "description": column.description}


def _samples() -> dict[str, Any]:
    described = {column.name: column.description for column in SAMPLES.columns}
    return _object(
        {
            "configuration_index": {"type": "integer", "description": described["configuration_index"]},
            "duration_ns": {"type": "array", "items": {"type": ["number", "null"]}, "description": described["duration_ns"]},
            "sm_clock_hz": {
                "type": ["array", "null"],
                "items": {"type": ["integer", "null"]},
                "description": f"{described['sm_clock_hz']} Null instead of an array: of none.",
            },
            "discarded_sample_indexes": {
                "type": "array",
                "items": {"type": "integer", "minimum": 0},
                "description": "Positions, from 0, of samples that were taken while the clock was throttled: they do not count.",
            },
            "batches": _object(
                {
                    "sample_count": {"type": "array", "items": {"type": "integer"}, "description": "Of each batch; together, all of them."},
                    "measured_unix_ns": {
                        "type": "array",
                        "items": {"type": ["integer", "null"]},
                        "description": described["measured_unix_ns"],
                    },
                }
            ),
        }
    )


def _device() -> dict[str, Any]:
    hints = get_type_hints(Device)
    return {
        "description": "A device as its runtime describes it.",
        **_object({field.name: _field(hints[field.name]) for field in dataclasses.fields(Device)}),
    }


def _field(hint: Any) -> dict[str, Any]:
    if get_origin(hint) in (types.UnionType, Union):
        inner = _field(next(part for part in get_args(hint) if part is not types.NoneType))
        return {**inner, "type": [inner["type"], "null"]}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _field(get_args(hint)[0])}
    if dataclasses.is_dataclass(hint):
        return _object({name: _field(part) for name, part in get_type_hints(hint).items()})
    if issubclass(hint, StrEnum):
        return {"type": "string", "enum": [member.value for member in hint]}
    return {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[hint]}
