"""The SM clock during each sample, from stamps of a multiprocessor's cycles and the device's time."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

MIN_STEP_COUNT: Final = 40
"""Steps of the device's timer between two stamps. Each is off by up to one step, so the clock is by at most 5 %; with more,
kernels of some microseconds would have no clock on devices whose timer steps every 32 ns."""


def sample_clocks(stamps: npt.NDArray[np.uint64], timer_step_ns: int) -> npt.NDArray[np.float64]:
    """Clocks in Hz, shape (n,); NaN where they cannot be told.

    Args:
        stamps: shape (n, 2, 2): before and after each sample, cycles and nanoseconds; 0 where there is no stamp.
        timer_step_ns: of the device's timer; 0: it does not move.
    """
    cycles, elapsed_ns = (stamps[:, 1] - stamps[:, 0]).astype(np.int64).T
    is_known = (stamps > 0).all(axis=(1, 2)) & (cycles > 0) & (elapsed_ns >= max(1, MIN_STEP_COUNT * timer_step_ns))
    if timer_step_ns == 0:
        is_known[:] = False
    return np.where(is_known, cycles / np.maximum(elapsed_ns, 1) * 1e9, np.nan)
