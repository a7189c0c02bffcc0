"""A wall clock that tests set, for services that are started while it is there: a small library that is preloaded into them.

Debian's libfaketime would shift what Python sleeps by as well. This one leaves every clock alone but the time of day, as setting it does.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

SOURCE: Final = Path(__file__).with_name("clock_shim.c")


class Clock:
    """The clock of the processes that have the library. file: its offset, nanoseconds as int64, which they have mapped."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._file.write_bytes(struct.pack("=q", 0))

    def set(self, offset_s: float) -> None:
        """Put it that much before or behind the host's."""
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", int(offset_s * 1e9)))


COMPILER: Final = shutil.which("cc") or shutil.which("gcc")
WHY_NO_CLOCK: Final = "" if COMPILER else "no C compiler (cc, gcc) to build a clock with that can be set"


@contextmanager
def settable_clock(directory: Path) -> Iterator[Clock]:
    """Of whatever is started while the block runs. Skips where no compiler is."""
    if COMPILER is None:
        pytest.skip(WHY_NO_CLOCK)
    library, file = directory / "clock.so", directory / "clock_offset_ns"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE)], check=True)
    clock = Clock(file)
    preloaded = f"{library} {os.environ.get('LD_PRELOAD', '')}".strip()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("LD_PRELOAD", preloaded)
        monkeypatch.setenv("LD_CLOCK_OFFSET_FILE", str(file))
        yield clock
