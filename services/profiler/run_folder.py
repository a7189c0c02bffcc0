"""Files of a run beside the journal: its spec for the worker, its working folder, and the artifacts it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import Final

from services.core import wire
from services.core.errors import ArtifactNotFoundError
from services.core.model import RunSpec

_LOCK_INTERVAL_S: Final = 0.05


class RunFolder:
    """The folder of one run, below the folder of all."""

    def __init__(self, runs_folder: Path, run_id: str) -> None:
        self._folder = runs_folder / run_id
        self._run_id = run_id
        self.spec_file = self._folder / "spec.pb"
        self.working_folder = self._folder / "work"
        self.temporary_folder = self.working_folder / "tmp"
        self._artifacts = self.working_folder / "artifacts"

    def prepare(self, spec: RunSpec, bundles: dict[str, Path]) -> None:
        """Make the folder. bundles: unpacked bundles by digest, which appear under `bundles/` in the working folder."""
        self._folder.mkdir(parents=True, mode=0o700)
        self.spec_file.write_bytes(wire.encode_bytes(spec))
        for folder in (self.temporary_folder, self._artifacts):
            folder.mkdir(parents=True)
        for digest, path in bundles.items():
            link = self.working_folder / "bundles" / digest.removeprefix("sha256:")
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(path, target_is_directory=True)

    def lock(self) -> int:
        """Return a descriptor that every process of the run inherits; the lock on it falls when the last of them has ended."""
        lock_file = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        return lock_file

    async def wait_for_processes(self, time_limit_s: float) -> bool:
        """Wait until no process of the run is left; False when one still is after `time_limit_s`."""
        deadline = time.monotonic() + time_limit_s
        try:
            lock_file = os.open(self._folder / "lock", os.O_RDWR)
        except FileNotFoundError:
            return True  # it had none yet
        try:
            while True:
                try:
                    fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        return False
                    await asyncio.sleep(_LOCK_INTERVAL_S)
        finally:
            os.close(lock_file)

    def keep_artifacts_only(self) -> None:
        """Delete what the run has no more use for."""
        if not self.working_folder.is_dir():
            return
        for path in self.working_folder.iterdir():
            if path == self._artifacts and not path.is_symlink():
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):  # a leftover does not change what the run has come to
                    path.unlink()

    def artifacts_size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._artifacts.rglob("*") if file.is_file())

    def delete_artifacts(self) -> None:
        shutil.rmtree(self._artifacts, ignore_errors=True)

    def delete(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def artifact(self, artifact_name: str) -> Path:
        """Return a file that the run has left. Raises ArtifactNotFoundError for anything else, in or out of the folder."""
        path = self._artifacts / artifact_name
        top = self._artifacts.resolve()
        if "\0" in artifact_name or not path.resolve().is_relative_to(top) or not path.is_file():
            names = ", ".join(sorted(str(file.relative_to(self._artifacts)) for file in self._artifacts.rglob("*") if file.is_file()))
            raise ArtifactNotFoundError(
                f"artifact {artifact_name} of run {self._run_id}",
                found="no such file",
                expected=f"one of {names}" if names else "nothing: the run has left no artifact",
                remedy="Events of type ArtifactStored name them.",
            )
        return path
