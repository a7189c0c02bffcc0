"""Where a workload's events go, and how they are made."""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path
from typing import Final, Protocol

from services.core.errors import KernalyseError
from services.core.model import ArtifactStored, EventPayload, RunError

ARTIFACTS_FOLDER: Final = "artifacts"
SOURCE_MEDIA_TYPE: Final = "text/plain"


class EventSink(Protocol):
    def write(self, payload: EventPayload) -> None: ...


def run_error(error: KernalyseError) -> RunError:
    """The error as an event carries it."""
    return RunError(code=error.code, reason=error.reason, message=error.message, metadata=tuple(sorted(error.metadata.items())))


def store_artifact(folder: Path, artifact_name: str, data: bytes) -> ArtifactStored:
    """Writes `data` below the run's folder; the event that announces it."""
    artifacts = folder / ARTIFACTS_FOLDER
    artifacts.mkdir(parents=True, exist_ok=True)
    (artifacts / artifact_name).write_bytes(data)
    return ArtifactStored(
        artifact_name=artifact_name,
        digest=f"sha256:{hashlib.sha256(data).hexdigest()}",
        size_bytes=len(data),
        media_type=mimetypes.guess_type(artifact_name)[0] or SOURCE_MEDIA_TYPE,
    )
