"""Every reader there is, and the choice of one by what a file contains: names lie, and pipes have none."""

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

from kernalyse.services.analyzer.readers.base import ImportedTables, Reader, TraceFiles
from kernalyse.services.analyzer.readers.nsys.reader import holds_table, is_export
from kernalyse.services.core.errors import InvalidTraceError

HEAD_BYTES: Final = 64 * 1024
"""Looked at to tell formats apart. NVBench writes the command line first: less may end within a long one."""

SHOWN_BYTES: Final = 40

READERS: Final = (
    ("nsys.reader", "NsysSqliteReader"),
    ("nsys.reader", "NsysFolderReader"),
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
"""Module and class. The first that matches takes a file: those that know least of it, lists of anything with a name and a figure,
come last. Each is loaded when its turn comes: all of them would take longer than most traces do."""


@cache
def _reader(module_name: str, class_name: str) -> Reader:
    module = import_module(f"kernalyse.services.analyzer.readers.{module_name}")
    return cast(Reader, getattr(module, class_name)())


def _readers() -> Iterator[Reader]:
    return starmap(_reader, READERS)


def reader_of(files: TraceFiles) -> Reader:
    """The reader that takes the file. Raises InvalidTraceError that names the formats there are."""
    return reader_of_head(files.file_name, _head(files.path))


def reader_of_head(file_name: str, head: bytes) -> Reader:
    """As `reader_of`, of a file that begins so. head: the first HEAD_BYTES of it, or all; its work grows with its length alone,
    whatever stands in it, for it is done while a sender waits.
    """
    for reader in _readers():
        if reader.matches(head):
            return reader

    other = other_kind(head)
    if other is not None:
        raise InvalidTraceError(f"file {file_name}", found=other.found, expected=formats(), remedy=other.remedy)
    raise InvalidTraceError(
        f"file {file_name}",
        found=f"content that begins with {head[:SHOWN_BYTES]!r}" if head else "nothing in it",
        expected=formats(),
        remedy="Give a file of one of these formats.",
    )


def is_readable(path: Path) -> bool:
    """Whether a file begins as one of the formats does. Raises OSError."""
    head = _head(path)
    return any(reader.matches(head) for reader in _readers())


def formats() -> str:
    """Of all readers, in words."""
    return " or ".join(reader.description for reader in _readers())


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def read_trace(files: TraceFiles) -> ImportedTables:
    """Raises InvalidTraceError: no reader takes the file, or its content is damaged."""
    return reader_of(files).read(files)


# ---------------------------------------------------------------- other kinds
# Files that people take for traces, or have beside them: what they are, and what to do instead.


@dataclass(frozen=True, slots=True)
class OtherKind:
    """sign: that the beginning of such a file has. found, remedy: what its error says."""

    sign: re.Pattern[bytes]
    found: str
    remedy: str


OTHER_KINDS: Final = (
    OtherKind(  # GPU-Roofline-Profiler writes one beside its reports of ncu
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


def other_kind(head: bytes) -> OtherKind | None:
    """What a file is that no reader takes, when that is known. head: its beginning."""
    return next((kind for kind in OTHER_KINDS if kind.sign.match(head)), None)


# ---------------------------------------------------------------- trace paths
# Which traces lie at a path, and the files of each: most are one file, some are a folder of tables.


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
