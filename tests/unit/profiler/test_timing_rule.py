"""kernalyse.services.profiler.measuring.benchmark: the stated rule, line by line."""

from __future__ import annotations

import pytest

from kernalyse.services.core.errors import InvalidParameterError
from kernalyse.services.core.model import CacheMode, TimingMethod
from kernalyse.services.profiler.backends.base import Timing
from kernalyse.services.profiler.measuring.benchmark import choose_timing

ALL = frozenset({TimingMethod.SINGLE, TimingMethod.BATCHED, TimingMethod.GRAPH})
NO_GRAPH = ALL - {TimingMethod.GRAPH}


@pytest.mark.parametrize(
    ("cache_mode", "launch_ns", "known", "expected"),
    [
        (CacheMode.COLD, 1_000.0, ALL, Timing(TimingMethod.SINGLE, CacheMode.COLD)),
        (CacheMode.HOT, 10_000.0, ALL, Timing(TimingMethod.SINGLE, CacheMode.HOT)),
        (CacheMode.HOT, 9_999.0, ALL, Timing(TimingMethod.GRAPH, CacheMode.HOT, 11)),
        (CacheMode.HOT, 4_000.0, NO_GRAPH, Timing(TimingMethod.BATCHED, CacheMode.HOT, 25)),
        (CacheMode.HOT, 1.0, NO_GRAPH, Timing(TimingMethod.BATCHED, CacheMode.HOT, 1_024)),
        (CacheMode.HOT, 0.0, frozenset({TimingMethod.SINGLE}), Timing(TimingMethod.SINGLE, CacheMode.HOT)),
    ],
)
def test_auto_follows_the_rule(cache_mode: CacheMode, launch_ns: float, known: frozenset[TimingMethod], expected: Timing) -> None:
    assert choose_timing(TimingMethod.AUTO, cache_mode, launch_ns, known) == expected


def test_what_was_asked_for_is_done() -> None:
    assert choose_timing(TimingMethod.BATCHED, CacheMode.HOT, 60_000.0, ALL) == Timing(TimingMethod.BATCHED, CacheMode.HOT, 2)
    assert choose_timing(TimingMethod.SINGLE, CacheMode.HOT, 10.0, ALL) == Timing(TimingMethod.SINGLE, CacheMode.HOT)


def test_a_batch_of_cold_launches_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match=r"batched: found cold samples.*--cache hot"):
        choose_timing(TimingMethod.BATCHED, CacheMode.COLD, 1_000.0, ALL)


def test_a_method_that_the_backend_lacks_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match=r"graph: found a backend without it; expected one of batched, single"):
        choose_timing(TimingMethod.GRAPH, CacheMode.HOT, 1_000.0, NO_GRAPH)
