"""What a caller should know and did not ask for: what was assumed, what runs where, what failed.

Notices are logged as warnings, which Python shows on stderr unless told otherwise.
"""

from __future__ import annotations

import logging
from typing import Final

LOGGER: Final = logging.getLogger("KernelBenchmarker")

_told: Final[set[str]] = set()


def tell(notice: str) -> None:
    LOGGER.warning("%s", notice)


def tell_once(notice: str) -> None:
    """For what stays true: scripts benchmark in loops."""
    if notice not in _told:
        _told.add(notice)
        tell(notice)


def forget_notices() -> None:
    """Lets everything be said again."""
    _told.clear()
