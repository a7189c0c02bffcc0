"""Which traces lie at a path, and the files of each: most are one file, some are a folder of tables."""

from __future__ import annotations

import os
from pathlib import Path

from services.analyzer.readers.nsys_folder import holds_table, is_export
from services.analyzer.readers.registry import is_readable
from services.analyzer.readers.trace import TraceFiles
from services.core.errors import InvalidTraceError


def is_trace(path: Path) -> bool:
    """Whether a file begins as one of the formats does, or a folder is one trace. Raises OSError."""
    return is_export(path) if path.is_dir() else path.is_file() and is_readable(path)


def traces_at(path: Path) -> list[Path]:
    """The path itself when it is a file or a folder that is one trace; else the traces in the folder and below, in order of path.

    What cannot be opened counts: it is named when its turn comes. Links to folders are not followed.
    """
    if not path.is_dir():
        return [path]
    found: list[Path] = []
    for folder, inner_names, file_names in os.walk(path):
        if _may_be_trace(Path(folder)):
            found.append(Path(folder))
            inner_names.clear()
        else:
            found += [file for name in file_names if _may_be_trace(file := Path(folder, name))]
    return sorted(found)


def trace_files(path: Path, arrived_unix_ns: int) -> TraceFiles:
    """A trace as a reader takes it: of a folder its tables first. Raises InvalidTraceError: a folder that is none; OSError."""
    if not path.is_dir():
        return TraceFiles(path.name, path, arrived_unix_ns)
    if not is_export(path):
        raise InvalidTraceError(
            f"folder {path}",
            found="no tables of an export in it",
            expected="a trace",
            remedy="Name one of the traces in it, or import the folder.",
        )
    first, *others = sorted((file for file in path.iterdir() if file.is_file()), key=lambda file: (not holds_table(file), file.name))
    names = {file: f"{path.absolute().name}/{file.name}" for file in (first, *others)}
    return TraceFiles(names[first], first, arrived_unix_ns, {names[file]: file for file in others})


def _may_be_trace(path: Path) -> bool:
    try:
        return is_trace(path)
    except OSError:
        return not path.is_dir()
