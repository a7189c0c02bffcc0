"""A process that reads traces for the analyzer: tasks come as lines, results go as lines, rows into files.

A damaged file may crash it, take all memory or keep it busy for an hour: the analyzer may kill this process at any moment. It
exits when the analyzer does, as its input ends then.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Final, TextIO

import polars as pl

from kernalyse.services.analyzer.ingest.ranks import RankTrace, join_traces
from kernalyse.services.analyzer.ingest.reading import build_imported_run, read_with_counters, with_event_indexes
from kernalyse.services.analyzer.ingest.worker_pool import ReadingResult, ReadingTask, StagedTrace, error_line
from kernalyse.services.analyzer.readers.base import MAX_TITLE_LENGTH, ReadResult, TraceFiles, limit_texts, shorten_text
from kernalyse.services.analyzer.readers.ncu.reader import FORMAT as REPORT_FORMAT
from kernalyse.services.analyzer.readers.registry import select_reader
from kernalyse.services.analyzer.store.parquet import take_parts, write_frames
from kernalyse.services.analyzer.store.trace_parts import PARTS, TABLES_IN_PARTS, TraceParts
from kernalyse.services.analyzer.tables.traces import TRACE_NAMES
from kernalyse.services.core.errors import InvalidTraceError, KernalyseError, LimitReachedError, StorageFullError
from kernalyse.services.core.model import ImportedTrace

STAGED_NAME: Final = "trace.json"
PARENT_GONE_STATUS: Final = 3


def main(commands: TextIO, answers: TextIO) -> None:
    """Execute tasks one after the other until the input ends."""
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(commands, lines), daemon=True).start()
    while True:
        answers.write(answer(lines.get()) + "\n")
        answers.flush()


def _listen(commands: TextIO, lines: SimpleQueue[str]) -> None:
    """Queue the tasks from a thread of its own, so that the end of the input ends the process in the middle of a task."""
    for line in commands:
        lines.put(line)
    os._exit(PARENT_GONE_STATUS)


def answer(line: str) -> str:
    """Return the line that answers one task: its result or its error."""
    task = ReadingTask.of_line(line)
    try:
        return execute(task).line()
    except KernalyseError as error:
        return error_line(error)
    except UnicodeEncodeError as error:
        return error_line(
            InvalidTraceError(
                task.subject,
                found=f"text with {error.object[error.start : error.end]!r} in it, half a character",
                expected="Unicode text",
                remedy="The file is damaged: write it again.",
            )
        )
    except MemoryError:
        return error_line(LimitReachedError(task.subject, found="more than the memory of this machine", remedy="Import a smaller part."))
    except Exception as error:  # content that the reader does not expect
        traceback.print_exc(file=sys.stderr)
        return error_line(
            InvalidTraceError(
                task.subject,
                found=f"content at which the reader fails: {type(error).__name__}: {error}",
                expected="a complete trace",
                remedy="Write or copy the file again; if it is complete, report this with the analyzer's log.",
            )
        )


def execute(task: ReadingTask) -> ReadingResult:
    """Execute one task.

    Raises:
        InvalidTraceError: the content is damaged.
        LimitReachedError: a trace exceeds a limit of its reader.
        StorageFullError: there is no room for the rows.
    """
    task.directory.mkdir()
    if not task.run_id:
        _stage(task)
        return ReadingResult()
    if task.staged:
        return _join(task)
    tables, reader_format = _read(task.traces[0])
    frames, next_event_index = with_event_indexes(
        task.run_id, {name: frame.lazy() for name, frame in tables.frames.items() if frame.height}
    )
    with _storage_errors(task):
        write_frames(task.directory, frames)
    return _result(task, tables, reader_format, next_event_index)


def _result(task: ReadingTask, tables: ReadResult, reader_format: str, next_event_index: int) -> ReadingResult:
    work = ImportedTrace(shorten_text(task.file_name, MAX_TITLE_LENGTH), task.digest, reader_format)
    return ReadingResult(build_imported_run(task.run_id, work, limit_texts(tables, task.file_name)), next_event_index)


def _read(files: TraceFiles) -> tuple[ReadResult, str]:
    return read_with_counters(files), select_reader(files).format


def _stage(task: ReadingTask) -> None:
    """Write the rows of a trace to files from which another task joins them with those of others. Raises InvalidTraceError."""
    files = task.traces[0]
    tables, reader_format = _read(files)
    tables = limit_texts(tables, files.file_name)
    if TRACE_NAMES.table_name not in tables.frames:
        raise InvalidTraceError(
            f"file {files.file_name}",
            found=f"results ({reader_format})",
            expected="a trace, as the other files of its run",
            remedy="Import it alone.",
        )
    with _storage_errors(task):
        write_frames(task.directory, known_columns(tables.frames))
        (task.directory / STAGED_NAME).write_text(StagedTrace.of(files.file_name, reader_format, tables).line())


def known_columns(frames: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the tables that have values, without the columns that have none."""
    known = {name: frame.select(column for column in frame if column.null_count() < frame.height) for name, frame in frames.items()}
    return {name: frame for name, frame in known.items() if frame.width}


def _join(task: ReadingTask) -> ReadingResult:
    """Make one trace of staged ones: their large tables stay in the files that they are in. Raises InvalidTraceError, StorageFullError."""
    staged = [StagedTrace.of_line((directory / STAGED_NAME).read_text()) for directory in task.staged]
    _check_kinds(staged)
    joined = join_traces(
        [
            RankTrace(trace.file_name, {path.stem: pl.scan_parquet(path) for path in sorted(directory.glob("*.parquet"))})
            for trace, directory in zip(staged, task.staged, strict=True)
        ]
    )
    frames, next_event_index = with_event_indexes(task.run_id, joined.frames)
    names = [table.table_name for table in TABLES_IN_PARTS]
    event_indexes = {name: frames.pop(name).select("event_index").head(1).collect().item() for name in names if name in frames}
    parts = TraceParts(task.run_id, event_indexes, {name: joined.row_counts[name] for name in names}, joined.maps)
    with _storage_errors(task):
        write_frames(task.directory, {**frames, PARTS: parts.frame()})
        take_parts(task.directory, task.staged)
    tables = ReadResult(
        frames={},
        title=f"{staged[0].file_name} and {len(staged) - 1} more",
        notes="\n".join(
            (
                f"{len(staged)} files, read as one trace: {', '.join(trace.file_name for trace in staged)}.",
                *joined.notes,
                *_notes(staged),
            )
        ),
        start_time=min((trace.start_time for trace in staged if trace.start_time is not None), default=None),
        end_time=max((trace.end_time for trace in staged if trace.end_time is not None), default=None),
    )
    return _result(task, tables, ",".join(sorted({trace.format for trace in staged})), next_event_index)


def _check_kinds(staged: Sequence[StagedTrace]) -> None:
    """Raise InvalidTraceError if a report of ncu is among the traces: as another process it would count their launches twice."""
    reports = [trace.file_name for trace in staged if trace.format == REPORT_FORMAT]
    if reports and len(reports) < len(staged):
        raise InvalidTraceError(
            f"file {', '.join(reports)}",
            found="a report of ncu among the traces of a job",
            expected="traces of its processes",
            remedy="Send it with the trace whose launches it counts: import TRACE --counters REPORT, or `reports` of the client.",
        )


def _notes(staged: Sequence[StagedTrace]) -> Iterator[str]:
    """Yield the notes of the readers, each line once, with the files it applies to."""
    files: dict[str, list[str]] = {}
    for trace in staged:
        for line in trace.notes.splitlines():
            files.setdefault(line, []).append(trace.file_name)
    for line, names in files.items():
        yield f"{'Each file' if len(names) == len(staged) else ', '.join(names)}: {line}"


@contextmanager
def _storage_errors(task: ReadingTask) -> Iterator[None]:
    try:
        yield
    except (OSError, pl.exceptions.ComputeError) as error:
        raise StorageFullError(
            f"rows of {task.file_name}",
            found=str(error),
            expected="room to write",
            remedy="Free space on the disk of the store or delete runs, then import again.",
        ) from error


if __name__ == "__main__":
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # so that a library's prints do not mix with results
    main(sys.stdin, results)
