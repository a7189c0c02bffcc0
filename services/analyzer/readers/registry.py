"""The list of readers, and the selection of one by the content of a file, since file names may mislead and pipes have none."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import starmap
from pathlib import Path
from typing import Final, cast

from kernalyse.services.analyzer.readers.base import Reader, ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.nsys.reader import holds_table, is_export
from kernalyse.services.core.errors import InvalidTraceError

HEAD_BYTES: Final = 64 * 1024
"""Beginning of a file that formats are recognized by. NVBench writes the command line first: less may end within a long one."""

SHOWN_BYTES: Final = 40

READERS: Final = (
    ("nsys.reader", "NsysSqliteReader"),
    ("nsys.reader", "NsysDirectoryReader"),
    ("nsys.reader", "NsysReportReader"),
    ("results", "ResultsReader"),
    ("nvbench", "NvbenchReader"),
    ("proton", "ProtonReader"),
    ("onnxruntime", "OnnxRuntimeReader"),
    ("kineto.reader", "KinetoReader"),
    ("ncu.reader", "NcuReader"),
    ("operation_list", "CommandsReader"),
    ("script_results", "KernelBenchmarkerReader"),
    ("script_results", "ModelProfilesReader"),
    ("benchmark_list", "BenchmarkListReader"),
)
"""Module and class of each reader. The first that matches reads a file, so the least specific ones, lists of anything with a name
and a number, come last. Each is imported when its turn comes: importing all would take longer than reading most traces."""


@cache
def _reader(module_name: str, class_name: str) -> Reader:
    module = import_module(f"kernalyse.services.analyzer.readers.{module_name}")
    return cast(Reader, getattr(module, class_name)())


def _readers() -> Iterator[Reader]:
    return starmap(_reader, READERS)


def select_reader(files: TraceFiles) -> Reader:
    """Return the reader for the file.

    Raises:
        InvalidTraceError: no reader accepts it; it names the known formats.
    """
    return select_reader_by_head(files.file_name, _head(files.path))


def select_reader_by_head(file_name: str, head: bytes) -> Reader:
    """Return the reader for a file with this beginning.

    The time must be linear in the length of `head`, whatever its content, since a sender waits meanwhile.

    Args:
        file_name: name of the file, for the error.
        head: its first HEAD_BYTES, or all of it.

    Raises:
        InvalidTraceError: no reader accepts it; it names the known formats.
    """
    for reader in _readers():
        if reader.matches(head):
            return reader

    other = recognize_other_file(head)
    if other is not None:
        raise InvalidTraceError(f"file {file_name}", found=other.found, expected=formats(), remedy=other.remedy)
    raise InvalidTraceError(
        f"file {file_name}",
        found=f"content that begins with {head[:SHOWN_BYTES]!r}" if head else "nothing in it",
        expected=formats(),
        remedy="Give a file of one of these formats.",
    )


def is_readable(path: Path) -> bool:
    """Return whether a file begins like one of the formats. Raises OSError."""
    head = _head(path)
    return any(reader.matches(head) for reader in _readers())


def formats() -> str:
    """Return the descriptions of all formats as one text."""
    return " or ".join(reader.description for reader in _readers())


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def read_trace(files: TraceFiles) -> ReadResult:
    """Read a trace with the reader for its format.

    Raises:
        InvalidTraceError: no reader accepts the file, or its content is damaged.
    """
    return select_reader(files).read(files)


# ---------------------------------------------------------------- other files
# Files that people mistake for traces, for which the error can say what they are and what to do instead.


@dataclass(frozen=True, slots=True)
class OtherKind:
    """A kind of file that is no trace. sign: pattern that such a file begins with; found, remedy: texts of its error."""

    sign: re.Pattern[bytes]
    found: str
    remedy: str


OTHER_KINDS: Final = (
    OtherKind(  # GPU-Roofline-Profiler writes one next to its ncu reports
        re.compile(rb"(?:\xef\xbb\xbf)?(?>[^\n]*?\bpeak_(?:flops|bandwidth)\b)[^\n,]*+,"),
        "a table of a device's peaks, which is no trace",
        "Ceilings are measured with kernalyse ceilings, or set for a device of a node (UpdateHardware).",
    ),
    OtherKind(
        re.compile(rb"\x08[\x01-\x20]\x12[\x01-\x40](?:pytorch|tf2onnx|skl2onnx|onnx)"),
        "an ONNX model, which has no times",
        "Run it with profiling on (SessionOptions.enable_profiling) and give the profile.",
    ),
)


def recognize_other_file(head: bytes) -> OtherKind | None:
    """Return the kind of a file that no reader accepts; None when it is not known. head: its beginning."""
    return next((kind for kind in OTHER_KINDS if kind.sign.match(head)), None)


# ---------------------------------------------------------------- trace paths
# Finding traces at a path: most are one file, some are a directory of tables.


def is_trace(path: Path) -> bool:
    """Return whether a file begins like one of the formats, or a directory is one trace. Raises OSError."""
    return is_export(path) if path.is_dir() else path.is_file() and is_readable(path)


def find_traces(path: Path) -> list[Path]:
    """Return the path itself if it is a file or one trace, else the traces in the directory and below, in order of path.

    Files that cannot be opened are included, so that reading them reports the error. Links to directories are not followed.
    """
    if not path.is_dir():
        return [path]
    found: list[Path] = []
    for directory, inner_names, file_names in os.walk(path):
        if _may_be_trace(Path(directory)):
            found.append(Path(directory))
            inner_names.clear()
        else:
            found += [file for name in file_names if _may_be_trace(file := Path(directory, name))]
    return sorted(found)


def trace_files(path: Path, arrived_unix_ns: int) -> TraceFiles:
    """Return the files of the trace at a path; of a directory, the tables come before other files.

    Raises:
        InvalidTraceError: the directory is no trace.
        OSError: it cannot be read.
    """
    if not path.is_dir():
        return TraceFiles(path.name, path, arrived_unix_ns)
    if not is_export(path):
        raise InvalidTraceError(
            f"directory {path}",
            found="no tables of an export in it",
            expected="a trace",
            remedy="Name one of the traces in it, or import the directory.",
        )
    first, *others = sorted((file for file in path.iterdir() if file.is_file()), key=lambda file: (not holds_table(file), file.name))
    names = {file: f"{path.absolute().name}/{file.name}" for file in (first, *others)}
    return TraceFiles(names[first], first, arrived_unix_ns, {names[file]: file for file in others})


def _may_be_trace(path: Path) -> bool:
    try:
        return is_trace(path)
    except OSError:
        return not path.is_dir()
