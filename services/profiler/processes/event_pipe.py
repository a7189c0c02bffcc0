"""The event pipe from a worker to the service, and the crash marker."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from google.protobuf.message import DecodeError

from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import InternalError, WorkerCrashedError
from kernalyse.services.core.model import EventPayload, RunEvent
from kernalyse.v1 import run_pb2

# ---------------------------------------------------------------- event channel
# A frame is a length (4 bytes, big endian) and a serialized RunEvent of which only the payload is set; the service adds index, journal,
# run and time. The worker's side takes payloads of the model. The service's side stays with messages: it journals and forwards them
# unread, and converting each into a dataclass and back would cost more than all the rest.

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Far above any event; a length beyond it means that something else has written to the pipe."""

PIPE_BYTES: Final = 1024 * 1024
"""Kernel buffer of the pipe: some tenths of a second of samples, so that a busy service does not stall the measuring."""

READ_BYTES: Final = 256 * 1024

_LENGTH_BYTES: Final = 4


class EventWriter:
    """The worker's end of the pipe. Threads may share it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def write(self, payload: EventPayload) -> None:
        """Send one event; wait while the pipe is full.

        Raises:
            InternalError: the event is larger than a frame may be.
            BrokenPipeError: the service is gone.
        """
        data = event_data(payload)
        if len(data) > MAX_FRAME_BYTES:
            raise InternalError(
                f"event {type(payload).__name__}", found=f"{len(data)} bytes", expected=f"at most {MAX_FRAME_BYTES}", remedy="Split it."
            )
        frame = memoryview(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
        with self._lock:
            while frame:  # a signal handler can cut a write short
                frame = frame[os.write(self._fd, frame) :]


def event_data(payload: EventPayload) -> bytes:
    """Return the serialized RunEvent with this payload alone."""
    return protobuf.encode_bytes(RunEvent(event_index=0, journal_id="", run_id="", event_unix_ns=0, payload=payload))


def event_message(payload: EventPayload) -> run_pb2.RunEvent:
    """Return the RunEvent with this payload as a message."""
    return run_pb2.RunEvent.FromString(event_data(payload))


def open_pipe() -> tuple[int, int]:
    """Read and write end of a pipe for events, with a large buffer where the system allows it."""
    read_fd, write_fd = os.pipe()
    with contextlib.suppress(OSError):  # over the user's share of pipe memory: the default works, with less slack
        fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read_fd, write_fd


async def read_events(reader: asyncio.StreamReader) -> AsyncIterator[list[run_pb2.RunEvent]]:
    """Yield everything that has arrived, batch by batch, until the worker's end closes.

    A frame cut off by the end of the stream is dropped: its writer died, which its exit status tells.

    Raises:
        WorkerCrashedError: what arrived is no frame, or an event without payload.
    """
    buffer = bytearray()
    while data := await reader.read(READ_BYTES):
        buffer += data
        events: list[run_pb2.RunEvent] = []
        try:
            used = _parse(buffer, events)
        except WorkerCrashedError:
            if events:
                yield events  # what came before the garbage was measured all the same
            raise
        del buffer[:used]
        if events:
            yield events


def _parse(buffer: bytearray, events: list[run_pb2.RunEvent]) -> int:
    """Add the complete frames at the start of `buffer` to `events`; return the bytes they take."""
    position = 0
    with memoryview(buffer) as view:
        while len(buffer) - position >= _LENGTH_BYTES:
            size = int.from_bytes(view[position : position + _LENGTH_BYTES], "big")
            if not 0 < size <= MAX_FRAME_BYTES:
                raise _garbage(f"a frame of {size} bytes", f"1 to {MAX_FRAME_BYTES}")
            end = position + _LENGTH_BYTES + size
            if end > len(buffer):
                break
            events.append(_event(bytes(view[position + _LENGTH_BYTES : end])))
            position = end
    return position


def _event(data: bytes) -> run_pb2.RunEvent:
    try:
        event = run_pb2.RunEvent.FromString(data)
    except DecodeError as error:
        raise _garbage("bytes that do not parse", "a serialized RunEvent") from error
    if event.WhichOneof("payload") is None:
        raise _garbage("an event without payload", "one of the payloads of RunEvent")
    return event


def _garbage(found: str, expected: str) -> WorkerCrashedError:
    return WorkerCrashedError(
        "event pipe of the worker", found=found, expected=expected, remedy="Something in the worker has written over its pipe."
    )


# ---------------------------------------------------------------- crash marker
# While two configurations alternate on the device, a file names the active one, so that a crash can be attributed to it.
#
# A trial takes milliseconds. An event for each would cost a core that is needed for measuring; overwriting some bytes of a file takes
# about a microsecond, and the bytes survive the process.

CRASH_MARKER_FILE: Final = "turn"  # in the run's working directory


@dataclass(frozen=True, slots=True)
class MarkedTrial:
    """A trial of one configuration on the device."""

    configuration_index: int
    label: str
    is_measurement: bool  # False: it is measured already, and only compared once more

    def record(self) -> bytes:
        """Return the line that the crash marker holds for the turn."""
        return f"{self.configuration_index} {self.is_measurement:d} {self.label}\n".encode()


class CrashMarker:
    """A file that names the configuration on the device while two of them alternate.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: Path, trials: Sequence[MarkedTrial]) -> None:
        length = max(len(trial.record()) for trial in trials)
        self._records = {trial.configuration_index: trial.record().ljust(length) for trial in trials}  # each covers the other
        self._file = directory / CRASH_MARKER_FILE
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        self._file.unlink(missing_ok=True)

    def write(self, configuration_index: int) -> None:
        """Record that a trial of a configuration begins."""
        os.pwrite(self._descriptor, self._records[configuration_index], 0)


def read_crash_marker(directory: Path) -> MarkedTrial | None:
    """Return the trial in which the run's worker ended; None where it was in none."""
    try:
        index, is_measurement, label = (directory / CRASH_MARKER_FILE).read_text().split(maxsplit=2)
    except (OSError, ValueError):
        return None
    return MarkedTrial(int(index), label.rstrip(), is_measurement == "1")
