"""Peak of the resident memory of this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

PEAK_RESET_FILE: Final = Path("/proc/self/clear_refs")
PEAK_RESET: Final = "5"
"""Makes the peak what is resident now: proc(5), /proc/pid/clear_refs."""

STATUS_FILE: Final = Path("/proc/self/status")
SLACK_BYTES: Final = 1024 * 1024
"""Between a peak that was just reset and what is resident a moment later; more says that it was not reset."""


@dataclass(frozen=True, slots=True)
class ResidentPeak:
    """Peak from `begin` on. start_bytes: resident then; None: this system does not tell, or does not begin anew."""

    start_bytes: int | None

    @classmethod
    def begin(cls) -> Self:
        try:
            PEAK_RESET_FILE.write_text(PEAK_RESET)
            start_bytes = _status_bytes("VmRSS")
            return cls(start_bytes if _status_bytes("VmHWM") <= start_bytes + SLACK_BYTES else None)
        except OSError:
            return cls(None)

    def grown_bytes(self) -> int | None:
        """Return how much has been resident at most since `begin`."""
        return None if self.start_bytes is None else max(0, _status_bytes("VmHWM") - self.start_bytes)


def _status_bytes(name: str) -> int:
    """Read a field of the process's status. Raises OSError: the system tells no such thing."""
    for line in STATUS_FILE.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise OSError(f"{STATUS_FILE} has no {name}")
