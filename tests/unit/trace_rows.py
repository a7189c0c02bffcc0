"""Traces of a few rows, as frames of the canonical tables: what a row does not say is null or the row's number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kernalyse.services.analyzer.queries.registry import Frames
from kernalyse.services.analyzer.tables.traces import TRACE_TABLES

Rows = Sequence[Mapping[str, Any]]

INDEXES: Final = {
    "trace_names": "name_index",
    "kernel_launches": "launch_index",
    "api_calls": "call_index",
    "ranges": "range_index",
    "memory_ops": "op_index",
}


def trace_of(**rows_of: Rows) -> Frames:
    """Tables by name; those that are not named have no rows."""
    frames = {}
    for table in TRACE_TABLES:
        index = INDEXES.get(table.table_name)
        rows = [
            [({index: number} | dict(row)).get(column) for column in table.column_names]
            for number, row in enumerate(rows_of.get(table.table_name, ()))
        ]
        frames[table.table_name] = table.frame(rows).lazy()
    return frames


def names(*texts: str) -> Rows:
    return [{"name": text} for text in texts]
