"""Ceilings of this machine's OpenCL devices, measured once a day for all tests.

A sweep that finds none measures them first, and again afterwards where the host was busy: seconds for every test with a sweep.

python -m tests.known_ceilings FILE
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

FILE_NAME: Final = "ceilings.json"
MAX_AGE_S: Final = 20 * 3600
"""The profiler takes none that are older than a day; the rest of it is for the tests to run."""

NOTHING_ELSE_RAN: Final = 0.0
"""Busy ratio of the host as it is written down. What the tests do side by side would have every sweep measure anew."""


def known_ceilings(folder: Path) -> Path:
    """The file, measured first where it is missing or old; several processes may ask at once."""
    file = folder / FILE_NAME
    with (folder / f"{FILE_NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists() or time.time() - file.stat().st_mtime > MAX_AGE_S:
            subprocess.run([sys.executable, "-m", "tests.known_ceilings", str(file)], check=True)
    return file


def measure(file: Path) -> None:
    """In a tenth of the launches, on arrays that a cache may hold: tests ask for ceilings, not for those of this machine."""
    from services.profiler.measuring import ceiling_bench, memory_ceilings

    ceiling_bench.MIN_REPETITION_NS = 8_000_000  # type: ignore[misc]
    memory_ceilings.DRAM_ARRAY_BYTES = 32 * 2**20  # type: ignore[misc]
    from services.core.errors import BackendUnavailableError
    from services.profiler.backends.opencl import OpenCLBackend
    from services.profiler.measuring.ceilings import measure_ceilings
    from services.profiler.measuring.clocks import open_clock_meter
    from services.profiler.workloads.ceilings import load_sources, write_ceilings

    for runtime in ("intel", "pocl"):
        try:
            session = OpenCLBackend(runtime).open()
        except BackendUnavailableError:
            continue  # its tests are skipped, and say so
        measured = measure_ceilings(session, load_sources(), open_clock_meter(session.device), lambda _index, _plan: None)
        write_ceilings(file, session.device, measured.ceilings, NOTHING_ELSE_RAN)


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
