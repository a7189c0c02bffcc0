"""Record of counted launches, line by line in a file: a profiler stands between their process and the worker."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path


class LaunchStep(StrEnum):
    """The state of a counted launch."""

    PREPARING = "preparing"
    LAUNCHED = "launched"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LaunchNote:
    """A line of the record."""

    configuration_index: int
    step: LaunchStep
    label: str
    message: str = ""  # why it failed


class LaunchRecord:
    """The file, for whoever writes it and for whoever reads it while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def write(self, note: LaunchNote) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(note)) + "\n")

    def read(self) -> list[LaunchNote]:
        """Return what has been added since the last call. A line that is still being written comes with the next one."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            whole, _, _ = file.read().rpartition(b"\n")
        self._position += len(whole) + 1 if whole else 0
        entries = [json.loads(line) for line in whole.splitlines()]
        return [LaunchNote(**{**entry, "step": LaunchStep(entry["step"])}) for entry in entries]
