"""The real worker, for tests that ask for ceilings and not for those of this machine: their measurement takes a tenth of the time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

from kernalyse.services.profiler import worker
from kernalyse.services.profiler.measuring import ceiling_bench, ceilings

MIN_REPETITION_NS: Final = 8_000_000
DRAM_ARRAY_BYTES: Final = 32 * 2**20  # a cache may hold it

QUICK_WORKER: Final = (sys.executable, "-P", str(Path(__file__)))


@contextmanager
def measuring_quickly() -> Iterator[None]:
    with (
        patch.object(ceiling_bench, "MIN_REPETITION_NS", MIN_REPETITION_NS),
        patch.object(ceilings, "DRAM_ARRAY_BYTES", DRAM_ARRAY_BYTES),
    ):
        yield


if __name__ == "__main__":
    with measuring_quickly():
        worker._exit(worker.main())
