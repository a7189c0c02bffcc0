"""Clocks from stamps; a sample is two stamps of cycles and nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest

from kernalyse.services.profiler.backends.cuda.timing import sample_clocks

LATE = 2**63  # counters may be beyond what a signed integer holds


@pytest.mark.parametrize(
    ("before", "after", "clock_hz"),
    [
        ((1_000, 5_000), (16_000, 15_000), 1.5e9),
        ((LATE, LATE), (LATE + 20_000, LATE + 10_000), 2e9),
        ((0, 0), (16_000, 15_000), None),
        ((1_000, 5_000), (0, 0), None),
        ((1_000, 5_000), (900, 15_000), None),
        ((1_000, 5_000), (2_000, 8_199), None),
        ((1_000, 5_000), (4_200, 8_200), 1e9),
    ],
    ids=["plain", "large counters", "no stamp before", "no stamp after", "backwards", "99.97 steps", "100 steps"],
)
def test_clock_is_cycles_over_time(before: tuple[int, int], after: tuple[int, int], clock_hz: float | None) -> None:
    clocks = sample_clocks(np.array([[before, after]], np.uint64), 32)
    assert clocks.shape == (1,)
    assert np.isnan(clocks[0]) if clock_hz is None else clocks[0] == pytest.approx(clock_hz)


def test_a_timer_that_stands_still_tells_nothing() -> None:
    assert np.isnan(sample_clocks(np.array([[(1, 5), (9, 9)]], np.uint64), 0)).all()


def test_no_samples_have_no_clocks() -> None:
    assert sample_clocks(np.empty((0, 2, 2), np.uint64), 32).shape == (0,)


def test_short_samples_take_their_neighbours_in() -> None:
    """Ten samples of 1 us, back to back, at a clock that falls half way: each has the clock of its own stretch of 3.2 us."""
    ends = np.arange(1, 11) * 1_000
    cycles = np.where(ends <= 5_000, ends * 2, 10_000 + (ends - 5_000))
    after = np.stack([cycles, ends], axis=1) + 10_000
    before = np.concatenate([[[10_000, 10_000]], after[:-1]])
    clocks = sample_clocks(np.stack([before, after], axis=1).astype(np.uint64), 32)
    assert clocks[:3] == pytest.approx(2e9)
    assert clocks[-3:] == pytest.approx(1e9)
    assert 1e9 < clocks[4] < 2e9


def test_a_sample_without_stamps_has_its_neighbours_clock() -> None:
    stamps = np.array([[(1, 1), (20_001, 10_001)], [(0, 0), (0, 0)], [(40_001, 20_001), (60_001, 30_001)]], np.uint64)
    assert sample_clocks(stamps, 32) == pytest.approx([2e9, 2e9, 2e9])
