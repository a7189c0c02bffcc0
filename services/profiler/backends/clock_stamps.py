"""The SM clock during each sample, from stamps of a multiprocessor's cycles and the device's time."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

MIN_STEP_COUNT: Final = 100
"""Steps of the device's timer between two stamps for a clock to be told. Each stamp is off by up to one step, so the clock is
by at most 2 %, a fraction of what throttling takes away. With more, a timer that steps once a microsecond would give short
kernels the mean clock of a whole batch."""


def sample_clocks(stamps: npt.NDArray[np.uint64], timer_step_ns: int) -> npt.NDArray[np.float64]:
    """Return clocks in Hz, shape (n,); NaN where they cannot be told.

    The time between a sample's own stamps is taken where it is long enough; else, step by step, its neighbours on both sides
    are taken in. So a clock is the mean over the shortest stretch around the sample that tells it.

    Args:
        stamps: of consecutive samples, shape (n, 2, 2): before and after each, cycles and nanoseconds; 0 where there is no stamp.
        timer_step_ns: of the device's timer; 0: it does not move.
    """
    count = stamps.shape[0]
    clocks_hz = np.full(count, np.nan)
    is_stamped = stamps.min(axis=2) > 0
    for neighbour_count in range(count if timer_step_ns > 0 else 0):
        waiting = np.flatnonzero(np.isnan(clocks_hz))
        if not waiting.size:
            break
        first, last = np.maximum(waiting - neighbour_count, 0), np.minimum(waiting + neighbour_count, count - 1)
        cycles, elapsed_ns = (stamps[last, 1] - stamps[first, 0]).astype(np.int64).T
        is_told = is_stamped[first, 0] & is_stamped[last, 1] & (cycles > 0) & (elapsed_ns >= MIN_STEP_COUNT * timer_step_ns)
        clocks_hz[waiting[is_told]] = cycles[is_told] / elapsed_ns[is_told] * 1e9
    return clocks_hz
