"""Tables of a file that nobody has imported: read, answered and forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from services.analyzer.readers.trace import Reader, TraceFiles


def tables_of_file(
    path: Path, table_names: Sequence[str], op_registry_folder: Path | None = None
) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """The tables and the reader's notes.

    Args:
        table_names: none for the kernels of a trace, the measurements of results.
        op_registry_folder: of op_registry.py, for files of operations.

    Raises:
        InvalidTraceError: no reader takes the file, or it is damaged.
        TableNotFoundError: there is no such table.
        UsageError: a table that the file has to be imported for.
    """
    import time

    from kernalyse.trace_upload import companions_of
    from services.analyzer.readers.registry import reader_of
    from services.analyzer.readers.selection import SelectiveReader
    from services.analyzer.readers.trace import TraceFiles
    from services.analyzer.trace_answers import PLAIN_QUESTION, TRACE_ANALYSES, trace_frames

    companions = {file.relative_to(path.parent).as_posix(): file for file in companions_of(path)}
    files = TraceFiles(path.name, path, time.time_ns(), companions, op_registry_folder)
    reader = reader_of(files)
    if not isinstance(reader, SelectiveReader):
        from services.analyzer.file_tables import has_results

        read = reader.read(files)
        if has_results(read.frames):
            return _results(read.frames, table_names or ["measurements"]), read.notes.splitlines()
    names = list(dict.fromkeys(table_names or ["kernels"]))
    frames, notes = _read(reader, files, names)
    trace = trace_frames(frames)
    answers = {name: TRACE_ANALYSES[name].answer(trace, PLAIN_QUESTION) if name in TRACE_ANALYSES else trace[name] for name in names}
    return {name: _own_columns(frame.collect()) for name, frame in answers.items()}, notes


def _results(frames: Mapping[str, pl.DataFrame], names: Sequence[str]) -> dict[str, pl.DataFrame]:
    from services.analyzer.file_tables import results_table
    from services.analyzer.schema import table_named

    return {name: results_table(frames, table_named(name)).collect() for name in names}


def _read(reader: Reader, files: TraceFiles, names: Sequence[str]) -> tuple[dict[str, pl.DataFrame], list[str]]:
    from services.analyzer.readers.selection import Selection, SelectiveReader
    from services.analyzer.schema import table_named
    from services.analyzer.trace_answers import answerable, inputs
    from services.cli.usage import UsageError

    for name in names:
        if not answerable(name):
            raise UsageError(
                f"table {table_named(name).table_name} of file {files.file_name}",
                found="a table that is no trace's",
                expected="kernels, layers, breakdown or a table of the trace",
                remedy="Import the file, then show the run.",
            )
    selection = Selection.of(inputs(names))
    read = reader.read_columns(files, selection) if isinstance(reader, SelectiveReader) else reader.read(files)
    return dict(read.frames), read.notes.splitlines()


def _own_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Without those of a store."""
    return frame.drop("run_id", "event_index", strict=False)
