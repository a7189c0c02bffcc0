"""Every reader there is, and the choice of one by what a file contains: names lie, and pipes have none."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from services.analyzer.readers.benchmark_list import BenchmarkListReader
from services.analyzer.readers.commands import CommandsReader
from services.analyzer.readers.kernel_benchmarker import KernelBenchmarkerReader
from services.analyzer.readers.kineto import KinetoReader
from services.analyzer.readers.model_profiles import ModelProfilesReader
from services.analyzer.readers.ncu_trace import NcuReader
from services.analyzer.readers.nsys_folder import NsysFolderReader
from services.analyzer.readers.nsys_report import NsysReportReader
from services.analyzer.readers.nsys_sqlite import NsysSqliteReader
from services.analyzer.readers.nvbench import NvbenchReader
from services.analyzer.readers.onnxruntime import OnnxRuntimeReader
from services.analyzer.readers.other_kinds import other_kind
from services.analyzer.readers.proton import ProtonReader
from services.analyzer.readers.results import ResultsReader
from services.analyzer.readers.trace import ImportedTables, Reader, TraceFiles
from services.core.errors import InvalidTraceError

HEAD_BYTES: Final = 64 * 1024
"""Looked at to tell formats apart. NVBench writes the command line first: less may end within a long one."""

SHOWN_BYTES: Final = 40

READERS: Final[tuple[Reader, ...]] = (
    *(ResultsReader(), NvbenchReader()),
    *(NsysSqliteReader(), NsysFolderReader(), NsysReportReader()),
    *(ProtonReader(), OnnxRuntimeReader(), KinetoReader(), NcuReader()),
    *(CommandsReader(), KernelBenchmarkerReader(), ModelProfilesReader(), BenchmarkListReader()),
)
"""The first that matches takes a file: those that know least of it, lists of anything with a name and a figure, come last."""


def reader_of(files: TraceFiles) -> Reader:
    """The reader that takes the file. Raises InvalidTraceError that names the formats there are."""
    head = _head(files.path)
    for reader in READERS:
        if reader.matches(head):
            return reader
    other = other_kind(head)
    if other is not None:
        raise InvalidTraceError(f"file {files.file_name}", found=other.found, expected=formats(), remedy=other.remedy)
    raise InvalidTraceError(
        f"file {files.file_name}",
        found=f"content that begins with {head[:SHOWN_BYTES]!r}" if head else "nothing in it",
        expected=formats(),
        remedy="Give a file of one of these formats.",
    )


def is_readable(path: Path) -> bool:
    """Whether a file begins as one of the formats does. Raises OSError."""
    head = _head(path)
    return any(reader.matches(head) for reader in READERS)


def formats() -> str:
    """Of all readers, in words."""
    return " or ".join(reader.description for reader in READERS)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def read_trace(files: TraceFiles) -> ImportedTables:
    """Raises InvalidTraceError: no reader takes the file, or its content is damaged."""
    return reader_of(files).read(files)
