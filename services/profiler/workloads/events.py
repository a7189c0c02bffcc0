"""Where a workload's events go, and how they are made."""

from __future__ import annotations

import hashlib
import mimetypes
import shutil
from pathlib import Path
from typing import Final, Protocol

from services.core.errors import KernalyseError
from services.core.listings import LISTING_TITLES
from services.core.model import ArtifactStored, EventPayload, RunError

ARTIFACTS_FOLDER: Final = "artifacts"
SOURCE_MEDIA_TYPE: Final = "text/plain"
BINARY_MEDIA_TYPE: Final = "application/octet-stream"
BINARY_ENDINGS: Final = (".nsys-rep", ".qdstrm", ".ncu-rep", ".parquet", ".sqlite")


class EventSink(Protocol):
    def write(self, payload: EventPayload) -> None: ...


class Unheard:
    """A sink for what nobody is to hear."""

    def write(self, payload: EventPayload) -> None:
        pass


def run_error(error: KernalyseError) -> RunError:
    """The error as an event carries it."""
    return RunError(code=error.code, reason=error.reason, message=error.message, metadata=tuple(sorted(error.metadata.items())))


def keep_artifact(folder: Path, artifact_name: str, file: Path) -> ArtifactStored:
    """Moves a file below the run's folder, where it becomes an artifact; the event that announces it. Raises OSError."""
    target = folder / ARTIFACTS_FOLDER / artifact_name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(file, target)
    with target.open("rb") as stored:
        digest = hashlib.file_digest(stored, "sha256").hexdigest()
    return _stored(artifact_name, digest, target.stat().st_size)


def store_artifact(folder: Path, artifact_name: str, data: bytes) -> ArtifactStored:
    """Writes `data` below the run's folder; the event that announces it."""
    artifacts = folder / ARTIFACTS_FOLDER
    artifacts.mkdir(parents=True, exist_ok=True)
    (artifacts / artifact_name).write_bytes(data)
    return _stored(artifact_name, hashlib.sha256(data).hexdigest(), len(data))


def _stored(artifact_name: str, digest: str, size_bytes: int) -> ArtifactStored:
    return ArtifactStored(artifact_name, f"sha256:{digest}", size_bytes, _media_type(artifact_name))


def _media_type(artifact_name: str) -> str:
    """Listings first: systems take .cl, .ptx and .sass for what else ends so."""
    if artifact_name.endswith(tuple(f".{ending}" for ending in LISTING_TITLES)):
        return SOURCE_MEDIA_TYPE
    guessed, _ = mimetypes.guess_type(artifact_name)
    return guessed or (BINARY_MEDIA_TYPE if artifact_name.endswith(BINARY_ENDINGS) else SOURCE_MEDIA_TYPE)
