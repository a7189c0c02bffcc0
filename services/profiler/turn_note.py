"""Crash marker: whose turn it is while two configurations alternate on the device, noted where it outlives the worker.

A turn takes milliseconds. An event for each would cost a core what it is to measure with; writing over some bytes of a file
takes about a microsecond, and what a process has written is there also after a kernel has ended it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

TURN_FILE: Final = "turn"  # in the run's working folder


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of one configuration on the device."""

    configuration_index: int
    label: str
    is_measurement: bool  # False: it is measured already, and only compared once more

    def record(self) -> bytes:
        return f"{self.configuration_index} {self.is_measurement:d} {self.label}\n".encode()


class CrashMarker:
    """Open while turns are taken.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path, turns: Sequence[Turn]) -> None:
        length = max(len(turn.record()) for turn in turns)
        self._records = {turn.configuration_index: turn.record().ljust(length) for turn in turns}  # each covers the other
        self._file = folder / TURN_FILE
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        self._file.unlink(missing_ok=True)

    def write(self, configuration_index: int) -> None:
        """Note that a configuration's turn begins."""
        os.pwrite(self._descriptor, self._records[configuration_index], 0)


def read_crash_marker(folder: Path) -> Turn | None:
    """Return the turn in which the run's worker has ended. None: nothing alternated then."""
    try:
        index, is_measurement, label = (folder / TURN_FILE).read_text().split(maxsplit=2)
    except (OSError, ValueError):
        return None
    return Turn(int(index), label.rstrip(), is_measurement == "1")
