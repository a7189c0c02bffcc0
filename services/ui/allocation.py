"""How the dashboard's process takes memory from the system, and gives it back."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

LARGE_BYTES: Final = 128 * 1024
ARENA_COUNT: Final = 1

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of glibc's malloc.h


def give_back_soon() -> None:
    """Columns of live charts are made anew ten times a second: glibc would keep what they once took, for each thread.

    Does nothing where the C library is another one.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((_TRIM_THRESHOLD, LARGE_BYTES), (_MMAP_THRESHOLD, LARGE_BYTES), (_ARENA_MAX, ARENA_COUNT)):
            mallopt(parameter, value)
