"""Every reader there is, and the choice of one by what a file contains: names lie, and pipes have none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, cast

from services.analyzer.readers.trace import ImportedTables, Reader, TraceFiles
from services.core.errors import InvalidTraceError

HEAD_BYTES: Final = 64 * 1024
"""Looked at to tell formats apart. NVBench writes the command line first: less may end within a long one."""

SHOWN_BYTES: Final = 40

READERS: Final = {
    "nsys_sqlite": "NsysSqliteReader",
    "nsys_folder": "NsysFolderReader",
    "nsys_report": "NsysReportReader",
    "results": "ResultsReader",
    "nvbench": "NvbenchReader",
    "proton": "ProtonReader",
    "onnxruntime": "OnnxRuntimeReader",
    "kineto.reader": "KinetoReader",
    "ncu_trace": "NcuReader",
    "commands": "CommandsReader",
    "kernel_benchmarker": "KernelBenchmarkerReader",
    "model_profiles": "ModelProfilesReader",
    "benchmark_list": "BenchmarkListReader",
}
"""Module and class. The first that matches takes a file: those that know least of it, lists of anything with a name and a figure,
come last. Each is loaded when its turn comes: all of them would take longer than most traces do."""


@cache
def _reader(module_name: str) -> Reader:
    module = import_module(f"services.analyzer.readers.{module_name}")
    return cast(Reader, getattr(module, READERS[module_name])())


def _readers() -> Iterator[Reader]:
    return map(_reader, READERS)


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
    from services.analyzer.readers.other_kinds import other_kind

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
