"""The multiprocessors' clock during each sample: cycles of one of them over nanoseconds of the device's global timer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

STAMP_BYTES: Final = 16  # two 64-bit counters: cycles, then nanoseconds
MIN_STEP_COUNT: Final = 100
"""Steps of the global timer between two stamps for a clock to be told. Each stamp is late by up to one step, so the time
between two is off by less than one: 1 %. A timer that steps once a microsecond would leave short kernels without a clock."""

Clocks = npt.NDArray[np.float64]
Stamps = npt.NDArray[np.uint64]


def sample_clocks(stamps: Stamps, step_ns: int) -> Clocks:
    """SM clock of each sample in Hz, NaN where it cannot be told, shape (n,).

    The time between a sample's own stamps is taken where it is long enough; else, step by step, its neighbours on both sides
    are taken in. So a clock is always the mean over the shortest stretch around the sample that tells it to 1 %.

    Args:
        stamps: before and after each sample, cycles and nanoseconds: shape (n, 2, 2). Zeros: the stamp was not taken.
        step_ns: of the global timer.
    """
    count = stamps.shape[0]
    clocks = np.full(count, np.nan)
    cycles, times_ns = stamps[..., 0].astype(np.int64), stamps[..., 1].astype(np.int64)
    needed_ns = MIN_STEP_COUNT * step_ns
    taken_ns = times_ns[times_ns > 0]
    if taken_ns.size < 2 or np.ptp(taken_ns) < needed_ns:
        return clocks
    for neighbour_count in range(count):
        waiting = np.flatnonzero(np.isnan(clocks))
        if not waiting.size:
            break
        first, last = np.maximum(waiting - neighbour_count, 0), np.minimum(waiting + neighbour_count, count - 1)
        passed_ns = times_ns[last, 1] - times_ns[first, 0]
        passed_cycles = cycles[last, 1] - cycles[first, 0]
        is_told = (times_ns[first, 0] > 0) & (times_ns[last, 1] > 0) & (passed_ns >= needed_ns) & (passed_cycles > 0)
        clocks[waiting[is_told]] = passed_cycles[is_told] / passed_ns[is_told] * 1e9
    return clocks


class SampleClock:
    """Stamps of one batch of samples on the device.

    Args:
        driver: of PyCUDA.
        enqueue: puts kernalyse_stamp of timing.cu on the stream, with the address of the stamps and the index of one.
        step_ns: of the global timer.
    """

    def __init__(self, driver: Any, stream: Any, enqueue: Callable[[int, int], None], step_ns: int, max_sample_count: int) -> None:
        self._driver = driver
        self._stream = stream
        self._enqueue = enqueue
        self._step_ns = step_ns
        self._buffer = driver.mem_alloc(2 * max_sample_count * STAMP_BYTES)

    def clear(self, sample_count: int) -> None:
        self._driver.memset_d32_async(self._buffer, 0, 2 * sample_count * STAMP_BYTES // 4, self._stream)

    def stamp_before(self, sample_index: int) -> None:
        self._enqueue(int(self._buffer), 2 * sample_index)

    def stamp_after(self, sample_index: int) -> None:
        self._enqueue(int(self._buffer), 2 * sample_index + 1)

    def read(self, sample_count: int) -> Clocks:
        """Clocks of the samples since `clear`, once the stream is idle, shape (sample_count,)."""
        stamps = np.zeros((sample_count, 2, 2), np.uint64)
        self._driver.memcpy_dtoh(stamps, self._buffer)
        return sample_clocks(stamps, self._step_ns)

    def close(self) -> None:
        self._buffer.free()
