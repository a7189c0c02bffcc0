"""Tables of a file that nobody has imported: read, answered and forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from services.analyzer.readers.trace import TraceFiles


def tables_of_file(path: Path, table_names: Sequence[str], reports: Sequence[Path] = ()) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """The tables and the reader's notes.

    Args:
        table_names: none for the kernels.
        reports: of ncu, of the same program.

    Raises:
        InvalidTraceError: no reader takes the file, or it is damaged; a report is no report, or of another program.
        TableNotFoundError: there is no such table.
        UsageError: a table that the file has to be imported for.
    """
    import time

    from services.analyzer.readers.trace import TraceFiles
    from services.analyzer.trace_answers import PLAIN_QUESTION, TRACE_ANALYSES, trace_frames

    names = list(dict.fromkeys(table_names or ["kernels"]))
    files = TraceFiles(path.name, path, time.time_ns(), report_files(reports))
    frames, notes = _read(files, names)
    trace = trace_frames(frames)
    answers = {name: TRACE_ANALYSES[name].answer(trace, PLAIN_QUESTION) if name in TRACE_ANALYSES else trace[name] for name in names}
    return {name: _own_columns(frame.collect()) for name, frame in answers.items()}, notes


def report_files(reports: Sequence[Path]) -> dict[str, Path]:
    """Reports of ncu by the names that they go by beside a trace. Raises UsageError: one is none, or two have one name."""
    from services.analyzer.readers.ncu_trace import NcuReader
    from services.analyzer.readers.registry import HEAD_BYTES
    from services.cli.usage import UsageError

    found: dict[str, Path] = {}
    for path in reports:
        with path.open("rb") as file:
            is_report = NcuReader().matches(file.read(HEAD_BYTES))
        if not is_report or path.name in found:
            raise UsageError(
                f"option --counters {path}",
                found="a second report of this name" if is_report else "a file of another kind",
                expected="reports of ncu, each with its own name",
                remedy="Write one with: ncu --csv --page raw.",
            )
        found[path.name] = path
    return found


def _read(files: TraceFiles, names: Sequence[str]) -> tuple[dict[str, pl.DataFrame], list[str]]:
    from services.analyzer.readers.selection import Selection
    from services.analyzer.schema import table_named
    from services.analyzer.trace_answers import answerable, inputs
    from services.analyzer.trace_reading import read_with_counters
    from services.cli.usage import UsageError

    for name in names:
        if not answerable(name):
            raise UsageError(
                f"table {table_named(name).table_name} of file {files.file_name}",
                found="a table that is no trace's",
                expected="kernels, layers, breakdown or a table of the trace",
                remedy="Import the file, then show the run.",
            )
    read = read_with_counters(files, Selection.of(inputs(names)))
    return dict(read.frames), read.notes.splitlines()


def _own_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Without those of a store."""
    return frame.drop("run_id", "event_index", strict=False)
