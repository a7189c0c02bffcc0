"""The multiprocessors' clock during each sample: cycles of one of them over nanoseconds of the device's global timer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.profiler.backends.clock_stamps import sample_clocks

STAMP_BYTES: Final = 16  # two 64-bit counters: cycles, then nanoseconds


class SampleClock:
    """Stamps of one batch of samples on the device.

    Args:
        driver: of PyCUDA.
        enqueue: puts kernalyse_write_stamp on the stream, with the address of a stamp.
        step_ns: of the global timer.
    """

    def __init__(self, driver: Any, stream: Any, enqueue: Callable[[int], None], step_ns: int, max_sample_count: int) -> None:
        self._driver = driver
        self._stream = stream
        self._enqueue = enqueue
        self._step_ns = step_ns
        self._buffer = driver.mem_alloc(2 * max_sample_count * STAMP_BYTES)

    def clear(self, sample_count: int) -> None:
        self._driver.memset_d32_async(self._buffer, 0, 2 * sample_count * STAMP_BYTES // 4, self._stream)

    def stamp_before(self, sample_index: int) -> None:
        self._stamp(2 * sample_index)

    def stamp_after(self, sample_index: int) -> None:
        self._stamp(2 * sample_index + 1)

    def _stamp(self, index: int) -> None:
        self._enqueue(int(self._buffer) + index * STAMP_BYTES)

    def read(self, sample_count: int) -> npt.NDArray[np.float64]:
        """Return the clocks of the samples since `clear`, once the stream is idle, shape (sample_count,)."""
        stamps = np.zeros((sample_count, 2, 2), np.uint64)
        self._driver.memcpy_dtoh(stamps, self._buffer)
        return sample_clocks(stamps, self._step_ns)

    def close(self) -> None:
        self._buffer.free()
