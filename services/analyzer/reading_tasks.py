"""What is told to a process that reads traces, and what it answers: one line of JSON each.

Rows travel as files: Arrow IPC between the reading of several traces and their joining, Parquet for what is stored.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from services.analyzer.readers.trace import ImportedTables, TraceFiles
from services.core import wire
from services.core.errors import KernalyseError, error_class
from services.core.model import Run


@dataclass(frozen=True, slots=True)
class ReadingTask:
    """Reads traces into a run, or one trace for another task.

    traces: those to read.
    staged: folders of traces that other tasks have read.
    folder: for the rows; made here. Nothing but this task writes below it.
    run_id: of the run to make; empty: rows of one trace are left for another task.
    file_name, digest: of the run.
    """

    folder: Path
    traces: tuple[TraceFiles, ...] = ()
    staged: tuple[Path, ...] = ()
    run_id: str = ""
    file_name: str = ""
    digest: str = ""

    def line(self) -> str:
        return json.dumps(dataclasses.asdict(self), default=str)

    @classmethod
    def of_line(cls, line: str) -> Self:
        fields = json.loads(line)
        traces = tuple(
            TraceFiles(
                trace["file_name"],
                Path(trace["path"]),
                trace["arrived_unix_ns"],
                {name: Path(path) for name, path in trace["companions"].items()},
                None if trace["op_registry_folder"] is None else Path(trace["op_registry_folder"]),
            )
            for trace in fields["traces"]
        )
        staged = tuple(map(Path, fields["staged"]))
        return cls(Path(fields["folder"]), traces, staged, fields["run_id"], fields["file_name"], fields["digest"])


@dataclass(frozen=True, slots=True)
class ReadingAnswer:
    """run: None where none was to be made. next_event_index: one more than that of its last row."""

    run: Run | None = None
    next_event_index: int = 0

    def line(self) -> str:
        run = None if self.run is None else wire.encode_json(self.run).decode()
        return json.dumps({"run": run, "next_event_index": self.next_event_index})

    @classmethod
    def of_line(cls, line: str) -> Self:
        """Raises the KernalyseError that the process has answered with."""
        fields = json.loads(line)
        if "reason" in fields:
            raise error_class(fields.pop("reason"))(fields.pop("subject"), **fields)
        run = fields["run"]
        return cls(None if run is None else wire.decode_json(run.encode(), Run), fields["next_event_index"])


def error_line(error: KernalyseError) -> str:
    return json.dumps(
        {
            "reason": error.reason,
            "subject": error.subject,
            "found": error.found,
            "expected": error.expected,
            "remedy": error.remedy,
        }
    )


@dataclass(frozen=True, slots=True)
class StagedTrace:
    """What is known of a trace that was read, besides its rows."""

    file_name: str
    format: str
    notes: str
    start_time: datetime | None
    end_time: datetime | None

    @classmethod
    def of(cls, file_name: str, reader_format: str, tables: ImportedTables) -> Self:
        return cls(file_name, reader_format, tables.notes, tables.start_time, tables.end_time)

    def line(self) -> str:
        return json.dumps(dataclasses.asdict(self), default=datetime.isoformat)

    @classmethod
    def of_line(cls, line: str) -> Self:
        fields: dict[str, Any] = json.loads(line)
        for name in ("start_time", "end_time"):
            fields[name] = None if fields[name] is None else datetime.fromisoformat(fields[name])
        return cls(**fields)
