"""Runs that are replayed: what another node has measured comes again, as fast as it came there.

A recording is a zip file with `devices.json`, what the search for devices printed on that node, and for each run N

    N/run.pb        the run, a message Run
    N/events.pb     its events, one message ProfilerServiceWatchRunResponse
    N/artifacts/    its artifacts
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final, Self

from google.protobuf.message import DecodeError

from kernalyse.services.core.errors import InvalidSettingError, KernalyseError, UnmetConditionError
from kernalyse.services.core.model import (
    ArtifactStored,
    Device,
    EventPayload,
    LogLevel,
    LogLines,
    Measurement,
    Run,
    RunEvent,
    RunSpec,
    SampleBatch,
    StateChanged,
    Telemetry,
)
from kernalyse.services.core.protobuf import decode, decode_bytes
from kernalyse.services.profiler.backends.discovery import read_probe
from kernalyse.services.profiler.workloads.events import EventSink, store_artifact
from kernalyse.v1.profiler_service_pb2 import ProfilerServiceWatchRunResponse

H200: Final = Path(__file__).parents[1] / "recordings" / "h200.zip"
"""The recording that the package brings."""

DEVICES_FILE: Final = "devices.json"
RUN_FILE: Final = "{}/run.pb"
EVENTS_FILE: Final = "{}/events.pb"
ARTIFACT_FILE: Final = "{}/artifacts/{}"
SERVICE: Final = "service"
"""Source of log lines of the node's service, which are about that node."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording: the devices of the node that measured, and its runs in their order."""

    path: Path
    devices: tuple[Device, ...]
    runs: tuple[Run, ...]

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read all but events and artifacts. Raises InvalidSettingError for a file that is no recording."""
        try:
            with zipfile.ZipFile(path) as archive:
                devices, _ = read_probe(archive.read(DEVICES_FILE).decode())
                count = sum(name.endswith(RUN_FILE.format("")) for name in archive.namelist())
                runs = tuple(decode_bytes(archive.read(RUN_FILE.format(number)), Run) for number in range(count))
        except (OSError, zipfile.BadZipFile, KeyError, UnicodeDecodeError, DecodeError, KernalyseError) as error:
            raise InvalidSettingError(
                f"recording {path}",
                found=f"a file that cannot be read as one ({error})",
                expected=f"a zip file with {DEVICES_FILE} and the files of each run",
                remedy="Correct the setting replay, or leave it out.",
            ) from error
        return cls(path, devices, runs)

    def find(self, spec: RunSpec) -> Run:
        """Return the recorded run that did the same work. Raises UnmetConditionError where none has."""
        for run in self.runs:
            if run.spec.work == spec.work:
                return run
        raise UnmetConditionError(
            f"run {spec.title}".rstrip(),
            found="work that has not been recorded, on a node that replays a recording and measures nothing",
            expected=f"one of the runs recorded: {'; '.join(run.spec.title for run in self.runs)}",
            remedy="Start it on a node that measures.",
        )

    def events(self, run: Run) -> tuple[RunEvent, ...]:
        """Return the events of a recorded run."""
        with zipfile.ZipFile(self.path) as archive:
            recorded = ProfilerServiceWatchRunResponse.FromString(archive.read(EVENTS_FILE.format(self.runs.index(run))))
        return tuple(decode(event, RunEvent) for event in recorded.events)

    def artifact(self, run: Run, artifact_name: str) -> bytes:
        """Return an artifact of a recorded run."""
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(ARTIFACT_FILE.format(self.runs.index(run), artifact_name))

    def measured_on(self, run: Run) -> date:
        """Return the day on which the run was measured, in UTC."""
        assert run.start_time is not None, run
        return run.start_time.date()


def replay(
    recording: Recording,
    spec: RunSpec,
    directory: Path,
    sink: EventSink,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    unix_clock_ns: Callable[[], int] = time.time_ns,
) -> None:
    """Write the events of the recorded run that did the same work, each as long after the first as it came then.

    Times in them are moved to now. What the service tells of itself is left to the service that replays.

    Args:
        directory: of the run; its artifacts are stored there.

    Raises:
        UnmetConditionError: no such run has been recorded.
    """
    run = recording.find(spec)
    device_names = ", ".join(device.name for device in recording.devices)
    note = f"Nothing is measured: this is a recording of {recording.measured_on(run)}, from {device_names}."
    sink.write(LogLines(LogLevel.INFO, "worker", (note,)))
    events = recording.events(run)
    recorded_unix_ns, begin_ns = events[0].event_unix_ns, clock_ns()
    shift_ns = unix_clock_ns() - recorded_unix_ns
    for event in events:
        wait_ns = event.event_unix_ns - recorded_unix_ns - (clock_ns() - begin_ns)
        if wait_ns > 0:
            sleep(wait_ns / 1e9)
        if not _is_of_service(event.payload):
            if isinstance(event.payload, ArtifactStored):
                name = event.payload.artifact_name
                store_artifact(directory, name, recording.artifact(run, name))
            sink.write(_moved(event.payload, shift_ns))


def _is_of_service(payload: EventPayload) -> bool:
    match payload:
        case StateChanged():
            return True
        case Telemetry(device_id=device_id):
            return device_id is None  # of the host
        case LogLines(source=source):
            return source == SERVICE
        case _:
            return False


def _moved(payload: EventPayload, shift_ns: int) -> EventPayload:
    match payload:
        case SampleBatch() | Measurement() | Telemetry():
            return replace(payload, measured_unix_ns=payload.measured_unix_ns + shift_ns)
        case _:
            return payload
