"""Events of a workload: sinks, progress, errors and artifacts."""

from __future__ import annotations

import hashlib
import mimetypes
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from kernalyse.services.core.artifacts import LISTING_TITLES
from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import ArtifactStored, ConfigurationFailed, EventPayload, Progress, RunError, RunLimits

if TYPE_CHECKING:
    from kernalyse.services.profiler.backends.base import DeviceSession

ARTIFACTS_DIRECTORY: Final = "artifacts"
SOURCE_MEDIA_TYPE: Final = "text/plain"
BINARY_MEDIA_TYPE: Final = "application/octet-stream"
BINARY_ENDINGS: Final = (".nsys-rep", ".qdstrm", ".ncu-rep", ".parquet", ".sqlite")


class EventSink(Protocol):
    """A receiver of the events of a run."""

    def write(self, payload: EventPayload) -> None:
        """Send one event."""
        ...


class NullSink:
    """A sink that drops every event."""

    def write(self, payload: EventPayload) -> None:
        """Drop the event."""
        pass


@dataclass(slots=True)
class ProgressReporter:
    """The counts of finished and failed configurations, reported with a status message.

    Attributes:
        completed_count: failed ones included.
        configuration_index: of the configuration being measured: it has failed if the worker ends over it.
    """

    sink: EventSink
    total_count: int
    device_id: str | None = None
    completed_count: int = 0
    failed_count: int = 0
    configuration_index: int | None = None

    def report(self, activity: str) -> None:
        """Report the counts with a status message."""
        self.sink.write(
            Progress(
                completed_configuration_count=self.completed_count,
                failed_configuration_count=self.failed_count,
                total_configuration_count=self.total_count,
                activity=activity,
                device_id=self.device_id,
                configuration_index=self.configuration_index,
            )
        )

    def complete(self, count: int = 1) -> None:
        """Count `count` more configurations as done."""
        self.completed_count += count
        self.report("")

    def fail(self, configuration_index: int, error: KernalyseError) -> None:
        """Report a configuration that could not be measured, and count it as done."""
        self.sink.write(ConfigurationFailed(configuration_index, run_error(error)))
        self.failed_count += 1
        self.complete()


def run_error(error: KernalyseError) -> RunError:
    """Return the error as an event carries it."""
    return RunError(code=error.code, reason=error.reason, message=error.message, metadata=tuple(sorted(error.metadata.items())))


def keep_artifact(directory: Path, artifact_name: str, file: Path) -> ArtifactStored:
    """Move a file to the run's artifacts; return the event that reports it. Raises OSError."""
    target = directory / ARTIFACTS_DIRECTORY / artifact_name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(file, target)
    with target.open("rb") as stored:
        digest = hashlib.file_digest(stored, "sha256").hexdigest()
    return _stored(artifact_name, digest, target.stat().st_size)


def store_artifact(directory: Path, artifact_name: str, data: bytes) -> ArtifactStored:
    """Write `data` as an artifact of the run; return the event that reports it."""
    artifacts = directory / ARTIFACTS_DIRECTORY
    artifacts.mkdir(parents=True, exist_ok=True)
    (artifacts / artifact_name).write_bytes(data)
    return _stored(artifact_name, hashlib.sha256(data).hexdigest(), len(data))


def _stored(artifact_name: str, digest: str, size_bytes: int) -> ArtifactStored:
    return ArtifactStored(artifact_name, f"sha256:{digest}", size_bytes, _media_type(artifact_name))


def _media_type(artifact_name: str) -> str:
    """Return the media type by file name. Compiler output comes first: systems take .cl, .ptx and .sass for other formats."""
    if artifact_name.endswith(tuple(f".{ending}" for ending in LISTING_TITLES)):
        return SOURCE_MEDIA_TYPE
    guessed, _ = mimetypes.guess_type(artifact_name)
    return guessed or (BINARY_MEDIA_TYPE if artifact_name.endswith(BINARY_ENDINGS) else SOURCE_MEDIA_TYPE)


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The context that the worker gives an ML model to run in."""

    open_session: Callable[[], DeviceSession]  # on the run's backend and device; raises what opening them raises
    sink: EventSink
    directory: Path  # of the run: its artifacts, and its bundle if it has one
    limits: RunLimits
    ceilings_file: Path | None  # where measured ceilings are stored between runs
    cache_directory: Path | None  # where compiled kernels and built models are cached between runs
