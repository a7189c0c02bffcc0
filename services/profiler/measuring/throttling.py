"""Throttling: which samples were taken at a reduced clock and do not count, and the error when none is left."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from services.core.errors import UnmetConditionError

MIN_CLOCK_RATIO: Final = 0.75
"""Of the clock seen so far. NVBench discards below 75 % of the default clock too; but a large GPU runs every dense kernel
well below that under its power cap, for good, and discarding those samples would leave none."""

REMEMBERED_COUNT: Final = 256  # clocks of the latest samples that count: a lasting change of clock becomes the new normal


class ThrottleFilter:
    """Tells throttled samples of one configuration by their SM clock."""

    def __init__(self) -> None:
        self._clocks_hz: deque[float] = deque(maxlen=REMEMBERED_COUNT)

    def discarded(self, sm_clock_hz: npt.NDArray[np.float64] | None) -> npt.NDArray[np.bool_] | None:
        """Return the mask of the samples, shape (n,), that do not count. None: no clock is known, so all of them do."""
        if sm_clock_hz is None:
            return None
        known = sm_clock_hz[np.isfinite(sm_clock_hz)]
        usual_hz = float(np.median([*self._clocks_hz, *known])) if known.size or self._clocks_hz else 0.0
        is_slow: npt.NDArray[np.bool_] = np.nan_to_num(sm_clock_hz, nan=usual_hz) < MIN_CLOCK_RATIO * usual_hz
        self._clocks_hz.extend(sm_clock_hz[np.isfinite(sm_clock_hz) & ~is_slow].tolist())
        return is_slow


def throttled_error(subject: str, found: str) -> UnmetConditionError:
    """Return the error for samples of which throttling has left nothing to go by."""
    return UnmetConditionError(
        subject, found=found, expected="a device that is not throttled", remedy="Look after its cooling and power supply, then try again."
    )
