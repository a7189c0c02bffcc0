"""The reader of traces that PyTorch's profiler (Kineto) exports, and of Chrome traces with events of its categories.

It reads JSON, plain or gzip, of 2021 to today, of CUDA and HIP, one file per rank. Times are decimal microseconds and become
integer nanoseconds without loss. The notes state which events were dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from kernalyse.services.analyzer.numeric.correlation import NULL_INDEX
from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.kineto.attribution import FORWARD, GRAPH, MODULE
from kernalyse.services.analyzer.readers.kineto.clock import KinetoFile, KinetoTrace, build_trace
from kernalyse.services.analyzer.readers.kineto.decompress import trace_bytes, unpacked_head
from kernalyse.services.analyzer.readers.kineto.document import read_events
from kernalyse.services.analyzer.readers.kineto.events import Field, KinetoEvents, Token
from kernalyse.services.analyzer.readers.kineto.frames import KinetoFrames
from kernalyse.services.core.errors import LimitReachedError

FORMAT: Final = "kineto"
HEAD_BYTES: Final = 64 * 1024

OPENING: Final = re.compile(rb"\s*+(?:\xef\xbb\xbf)?\s*+(?:\{\s*\"|\[\s*\{)")
SIGN: Final = re.compile(rb'"(?:traceEvents|deviceProperties|schemaVersion|torch_profiler_kwargs)"\s*:|"ph"\s*:\s*"')
OTHER_SIGN: Final = re.compile(rb'"cat"\s*:\s*"Session"')
"""Profiles of ONNX Runtime are Chrome traces too; they begin with an event of this category."""

MAX_TEXT_BYTES: Final = 64 * 1024 * 1024
"""Length of a name or an argument such as input shapes. The largest models have thousands of bytes; a table with two texts of this
length would not fit a message."""

SHOWN_BYTES: Final = 40

OPERATORS_FOR_KERNELS: Final = (
    "No device was traced: operators of the CPU take the place of kernels, namely those that call no operator of equal or higher cost. "
    "Their times are the host's and include the profiler's overhead of some microseconds each."
)

LAUNCH_LINKS: Final = ("ac2g", "async")
"""Categories of links from calls to the operations they launched, which correlation ids provide already."""


class KinetoReader:
    """The reader of Kineto and Chrome traces."""

    format = FORMAT
    description = "a trace of PyTorch's profiler or of Chrome, JSON or .json.gz"

    def matches(self, head: bytes) -> bool:
        """Return whether the file, once unpacked, begins like a trace of Kineto or Chrome."""
        head = unpacked_head(head, HEAD_BYTES)
        return OPENING.match(head) is not None and SIGN.search(head) is not None and OTHER_SIGN.search(head) is None

    def read(self, files: TraceFiles) -> ReadResult:
        """Read the trace.

        Raises:
            InvalidTraceError: the file is damaged or no trace.
            LimitReachedError: it unpacks to more than fits in memory.
        """
        trace = build_trace(_file(files))
        frames = KinetoFrames(trace)
        start_ns = trace.session_start_unix_ns
        last_ns = int((trace.start_ns + np.maximum(trace.duration_ns, 0)).max(initial=0))
        return ReadResult(
            frames=frames.all(),
            notes="\n".join(_notes(trace, frames)),
            start_time=None if start_ns is None else _time(start_ns),
            end_time=None if start_ns is None else _time(start_ns + last_ns),
        )


def _file(files: TraceFiles) -> KinetoFile:
    with trace_bytes(files) as source:
        events = read_events(source, files.file_name)
    _check_texts(files, events)
    return KinetoFile(files.file_name, events)


def _check_texts(files: TraceFiles, events: KinetoEvents) -> None:
    longest = max(map(_json, events.tokens), key=len, default=b"")
    if len(longest) > MAX_TEXT_BYTES:
        raise LimitReachedError(
            f"file {files.file_name}",
            found=f"a name or argument of {len(longest)} bytes: {longest[:SHOWN_BYTES].decode('utf-8', 'replace')}…",
            expected=f"at most {MAX_TEXT_BYTES} bytes",
            remedy="Find it in the file and shorten it; nothing else is wrong there.",
        )


def _json(token: Token) -> bytes:
    """Return a token as it is written in the file, except for escapes."""
    return token if isinstance(token, bytes) else f'"{token}"'.encode("utf-8", "replace")


def _time(unix_ns: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=unix_ns // 1000)


def _notes(trace: KinetoTrace, frames: KinetoFrames) -> Iterator[str]:
    events = trace.events
    yield f"Kineto trace of {events.event_count} events."
    kernel_count = frames.kernel_calls.size
    if kernel_count == 0:
        yield "It has no kernels: no device was traced, or nothing ran on one."
    if frames.is_host_only:
        yield OPERATORS_FOR_KERNELS
    without_call = int((frames.kernel_calls == NULL_INDEX).sum())
    if without_call and not frames.is_host_only:
        yield f"{without_call} of {kernel_count} kernels have no runtime call: their thread and range are not known."
    sources = frames.placing.source
    if kernel_count and not np.isin(sources, (MODULE, FORWARD, GRAPH, GRAPH)).any():
        yield "Its kernels are in no module: record with with_modules or with_stack to have layers by module."
    graph_count = int((sources == GRAPH).sum())
    if graph_count:
        yield f"{graph_count} kernels of CUDA graphs are counted for the range in which they were captured, by their order in the graph."
    forward_count = int((sources == FORWARD).sum())
    if forward_count:
        yield f"{forward_count} kernels of the backward pass are counted for the module of their forward operator."
    if (frames.kernels.events.column(Field.SHARED_BYTES) > 0).any():
        yield "Shared memory of kernels is recorded as one sum: the static and the dynamic part are not known."
    counts = trace.counts
    if counts.without_duration:
        yield f"{counts.without_duration} events have no duration: it counts as 0."
    if counts.negative:
        yield f"{counts.negative} events end before they start; their times are kept as they are."
    if counts.unpaired:
        yield f"{counts.unpaired} begins and ends of events without their counterpart are skipped."
    skipped = [
        f"{count} {category or 'without category'} ({phase or 'no phase'})"
        for (category, phase), count in sorted(events.dropped_counts.items(), key=lambda item: -item[1])
        if category not in LAUNCH_LINKS
    ]
    if skipped:
        yield f"Skipped, since no table holds them: {', '.join(skipped)}."
