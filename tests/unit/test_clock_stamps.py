"""Clocks from stamps; a sample is two stamps of cycles and nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest

from services.profiler.backends.clock_stamps import sample_clocks

LATE = 2**63  # counters may be beyond what a signed integer holds


@pytest.mark.parametrize(
    ("before", "after", "clock_hz"),
    [
        ((1_000, 5_000), (16_000, 15_000), 1.5e9),
        ((LATE, LATE), (LATE + 20_000, LATE + 10_000), 2e9),
        ((0, 0), (16_000, 15_000), None),
        ((1_000, 5_000), (0, 0), None),
        ((1_000, 5_000), (900, 15_000), None),
        ((1_000, 5_000), (2_000, 6_279), None),
        ((1_000, 5_000), (2_280, 6_280), 1e9),
    ],
    ids=["plain", "large counters", "no stamp before", "no stamp after", "backwards", "39.97 steps", "40 steps"],
)
def test_clock_is_cycles_over_time(before: tuple[int, int], after: tuple[int, int], clock_hz: float | None) -> None:
    clocks = sample_clocks(np.array([[before, after]], np.uint64), 32)
    assert clocks.shape == (1,)
    assert np.isnan(clocks[0]) if clock_hz is None else clocks[0] == pytest.approx(clock_hz)


def test_a_timer_that_stands_still_tells_nothing() -> None:
    assert np.isnan(sample_clocks(np.array([[(1, 5), (9, 9)]], np.uint64), 0)).all()


def test_no_samples_have_no_clocks() -> None:
    assert sample_clocks(np.empty((0, 2, 2), np.uint64), 32).shape == (0,)
