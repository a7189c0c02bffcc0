"""Reads the results document that this project writes itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.documents import JsonObject, fits, read_document, shown
from kernalyse.services.analyzer.tables.base import COUNT, FLAG, NUMBER, TEXT, Column, Table
from kernalyse.services.analyzer.tables.event_rows import time_from_unix_ns
from kernalyse.services.analyzer.tables.results_document import (
    ADDED_TABLES,
    DERIVED_TABLES,
    FORMAT,
    OBJECT_COLUMNS,
    ROW_TABLES,
    VERSION,
    document_columns,
    json_schema,
)
from kernalyse.services.analyzer.tables.runs import LOG_LINES, RUNS, SAMPLES
from kernalyse.services.core.errors import InvalidTraceError
from kernalyse.services.core.model import Device, DeviceKind, LogLevel, Revision

BEGINNING: Final = re.compile(rb'\A\s*\{\s*"schema"\s*:\s*"' + FORMAT.encode() + rb"/")
EXPECTED: Final[dict[object, str]] = {
    TEXT: "text or null",
    COUNT: "a whole number of 64 bits or null",
    NUMBER: "a number or null",
    FLAG: "true, false or null",
}


class ResultsReader:
    """Reader of kernalyse's own results documents."""

    format = FORMAT
    description = "results of kernalyse (bench --json, export --format json)"

    def matches(self, head: bytes) -> bool:
        """Return whether a file begins as one of this format."""
        return BEGINNING.match(head) is not None

    def read(self, files: TraceFiles) -> ReadResult:
        """Read the file. Raises InvalidTraceError."""
        document = read_document(files)
        if document.text("schema") != VERSION:
            raise InvalidTraceError(
                f"file {files.file_name}",
                found=f"schema {document.text('schema')}",
                expected=VERSION,
                remedy="Read it with the version of kernalyse that wrote it, or export it again with this one.",
            )
        run = document.object("run")
        rows = {table: _rows(document, table) for table in (*ROW_TABLES, SAMPLES)}
        frames = {table: _frame(table, rows[table]) for table in ROW_TABLES if table not in DERIVED_TABLES}
        frames[SAMPLES] = _samples(rows[SAMPLES])
        frames[LOG_LINES] = pl.concat([frames[LOG_LINES], _device_lines(document, files.arrived_unix_ns)])
        return ReadResult(
            frames={table.table_name: frame for table, frame in frames.items()},
            title=_text(run, "title"),
            notes="\n".join(_notes(document, run, rows)),
            device_id=run.optional_text("device_id"),
            start_time=time_from_unix_ns(run.optional_count("start_unix_ns")),
            end_time=time_from_unix_ns(run.optional_count("end_unix_ns")),
            revision=_revision(run),
            tags=tuple(tag for tag in _text(run, "tags").split(",") if tag),
            node_id=run.optional_text("node_id"),
            devices=tuple(_device(device) for device in document.objects("devices")),
        )


# ---------------------------------------------------------------- the run


def _rows(document: JsonObject, table: Table) -> list[JsonObject]:
    return (document.optional_objects if table in ADDED_TABLES else document.objects)(table.table_name)


def _text(run: JsonObject, name: str) -> str:
    return run.optional_text(name) or ""


def _revision(run: JsonObject) -> Revision | None:
    commit = run.optional_text("git_commit")
    return None if commit is None else Revision(commit, run.optional_flag("git_is_dirty") or False)


def _device(device: JsonObject) -> Device:
    """With what tells it from others."""
    kind = device.text("kind")
    if kind not in DeviceKind.__members__.values():
        device.refuse("kind", " or ".join(DeviceKind))
    return Device(device.text("device_id"), device.text("name"), DeviceKind(kind), backends=(), uuid=device.optional_text("uuid"))


def _notes(document: JsonObject, run: JsonObject, rows: dict[Table, list[JsonObject]]) -> Iterator[str]:
    """Where it comes from, what was noted there, and what this version has no place for."""
    ended = " ".join(part for part in (_text(run, "state"), _text(run, "error_message")) if part)
    yield f"Run {_text(run, 'run_id')} of {_text(run, 'host_name') or _text(run, 'node_id') or 'an import'}: {ended}"
    if _text(run, "notes"):
        yield _text(run, "notes")
    unknown = [*_unknown("", document.members, json_schema()["properties"]), *_unknown("run.", run.members, _names(RUNS))]
    for table in ROW_TABLES:
        names = dict.fromkeys(name for row in rows[table] for name in row.members)
        unknown += _unknown(f"{table.table_name}.", names, _names(table))
    if unknown:
        yield f"Left out, for this version does not know them: {', '.join(unknown)}."


def _names(table: Table) -> list[str]:
    return [column.name for column in document_columns(table)]


def _unknown(prefix: str, found: Any, known: Any) -> list[str]:
    return [f"{prefix}{name}" for name in found if name not in known]


def _device_lines(document: JsonObject, arrived_unix_ns: int) -> pl.DataFrame:
    """What is known of the devices is kept as lines of the log: no table holds it."""
    lines = [f"device {json.dumps(device.members)}" for device in document.objects("devices")]
    columns = {"event_unix_ns": arrived_unix_ns, "level": LogLevel.INFO.value, "source": FORMAT}
    return LOG_LINES.conform(pl.LazyFrame({"line": lines}, schema={"line": TEXT}).with_columns(**_literals(columns))).collect()


def _literals(values: dict[str, Any]) -> dict[str, pl.Expr]:
    return {name: pl.lit(value) for name, value in values.items()}


# ---------------------------------------------------------------- rows


def _frame(table: Table, rows: Sequence[JsonObject]) -> pl.DataFrame:
    columns = document_columns(table)
    values = {column.name: [_cell(row, column) for row in rows] for column in columns}
    return table.conform(pl.LazyFrame(values, schema={column.name: column.dtype for column in columns})).collect()


def _cell(row: JsonObject, column: Column) -> Any:
    value = row.members.get(column.name)
    if value is None:
        return None
    if column.name in OBJECT_COLUMNS:
        return json.dumps(_integers(row, column.name))
    return value if fits(value, column.dtype) else row.refuse(column.name, EXPECTED[column.dtype])


def _integers(row: JsonObject, name: str) -> dict[str, int]:
    values = row.object(name)
    return {key: values.count(key) for key in values.members}


# ---------------------------------------------------------------- samples


def _samples(configurations: Sequence[JsonObject]) -> pl.DataFrame:
    parts = [_samples_of(configuration) for configuration in configurations]
    return pl.concat([SAMPLES.empty(), *parts])


def _samples_of(part: JsonObject) -> pl.DataFrame:
    durations = _checked(part, "duration_ns", NUMBER)
    sample_count = len(durations)
    batches = part.object("batches")
    batch_sizes = _checked(batches, "sample_count", COUNT)
    if any(size is None or size < 0 for size in batch_sizes) or sum(batch_sizes) != sample_count:
        batches.refuse("sample_count", f"sizes that add up to {sample_count}, the samples there are")
    times = _checked(batches, "measured_unix_ns", COUNT, len(batch_sizes))
    clocks = [None] * sample_count if part.members.get("sm_clock_hz") is None else _checked(part, "sm_clock_hz", COUNT, sample_count)
    is_discarded = np.zeros(sample_count, dtype=np.bool_)
    for place in _checked(part, "discarded_sample_indexes", COUNT):
        if place is None or not 0 <= place < sample_count:
            part.refuse("discarded_sample_indexes", f"places from 0 to {sample_count - 1}")
        is_discarded[place] = True
    return pl.DataFrame(
        {
            "run_id": pl.repeat(None, sample_count, dtype=TEXT, eager=True),
            "event_index": pl.repeat(None, sample_count, dtype=COUNT, eager=True),
            "configuration_index": pl.repeat(part.count("configuration_index"), sample_count, dtype=COUNT, eager=True),
            "sample_index": np.arange(sample_count),
            "duration_ns": pl.Series(durations, dtype=NUMBER, strict=False),
            "measured_unix_ns": pl.Series(times, dtype=COUNT).gather(np.repeat(np.arange(len(times)), batch_sizes)),
            "sm_clock_hz": pl.Series(clocks, dtype=COUNT),
            "is_discarded": is_discarded,
        },
        schema=SAMPLES.schema,
    )


def _checked(part: JsonObject, name: str, dtype: object, count: int | None = None) -> list[Any]:
    """An array of such values or nulls. count: how many there must be; None: any number."""
    values = part.values(name)
    if count is not None and len(values) != count:
        part.refuse(name, f"{count} values")
    unfit = next((value for value in values if not (value is None or fits(value, dtype))), None)
    if unfit is not None:
        raise InvalidTraceError(f"{part.place}: {name}", found=shown(unfit), expected=f"an array of {EXPECTED[dtype]}")
    return values
