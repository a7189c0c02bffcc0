"""Ceilings of this machine's OpenCL devices, measured once a day for all tests.

A sweep that finds none measures them first, and again afterwards where the host was busy: seconds for every test with a sweep.

python -m tests.known_ceilings FILE
"""

from __future__ import annotations

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


def known_ceilings(directory: Path) -> Path:
    """The file, measured first where it is missing or old; without a device in it where there is none. One process at a time may ask."""
    file = directory / FILE_NAME
    if not file.exists() or time.time() - file.stat().st_mtime > MAX_AGE_S:
        subprocess.run([sys.executable, "-m", "tests.known_ceilings", str(file)], check=True)
    return file


def measure(file: Path) -> None:
    """Quickly: tests ask for ceilings, not for those of this machine."""
    from kernalyse.services.core.errors import BackendUnavailableError
    from kernalyse.services.profiler.backends.opencl.backend import OpenCLBackend
    from kernalyse.services.profiler.measuring.ceilings import measure_ceilings
    from kernalyse.services.profiler.measuring.device_state import open_clock_meter
    from kernalyse.services.profiler.workloads.ceilings import load_sources, write_ceilings
    from tests.integration.quick_worker import measuring_quickly

    for runtime in ("intel", "pocl"):
        try:
            backend = OpenCLBackend(runtime)
        except BackendUnavailableError:
            continue  # its tests are skipped, and say so
        if not backend.usable_devices()[0]:
            continue  # they as well
        session = backend.open()
        with measuring_quickly():
            measured = measure_ceilings(session, load_sources(), open_clock_meter(session.device), lambda _index, _plan: None)
        write_ceilings(file, session.device, measured.ceilings, NOTHING_ELSE_RAN)
    file.touch()


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
