"""The points of a run that goes on: worked out once for all tabs, and never more than a browser draws in time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernalyse.services.ui.data.live_points import MAX_LIVE_POINTS, LivePoints
from kernalyse.services.ui.data.memory import RunMemory
from kernalyse.services.ui.theme import LIGHT
from tests.unit.ui.test_charts import points

NOTHING_HIDDEN: frozenset[int] = frozenset()


class Tab:
    """What one has drawn."""

    def __init__(self, memory: RunMemory, hidden_indexes: frozenset[int] = NOTHING_HIDDEN) -> None:
        self._memory, self._hidden_indexes = memory, hidden_indexes
        self._position = 0
        self.points = LivePoints()
        self.drawn_labels: list[str] = []
        self.redrawn_count = 0

    def update(self) -> None:
        new = self._memory.since("roofline", self._position)
        self._position = new.position
        self.points = self.points.and_new(new, LIGHT, self._hidden_indexes, self._memory)
        if self.points.added is None:
            self.drawn_labels, self.redrawn_count = self.points.points["label"].tolist(), self.redrawn_count + 1
        else:
            self.drawn_labels += self.points.added["label"].tolist()


def arrive(memory: RunMemory, *indexes: int, **changes: Any) -> None:
    """Rates from 1 Gflop/s on, tenfold every thousand configurations."""
    rows = [
        {"configuration_index": index, "label": f"k N={index}", "achieved_flop_per_s": 1e9 * 10 ** (index / 1_000)} | changes
        for index in indexes
    ]
    memory.receive(None, {"roofline": points(*rows)}, 0)


def test_tabs_at_one_place_share_what_was_worked_out_and_a_late_one_draws_the_same() -> None:
    memory = RunMemory("r")
    first, second, late = Tab(memory), Tab(memory), Tab(memory)
    for index in range(3):
        arrive(memory, index)
        first.update()
        second.update()
    late.update()
    assert first.points is second.points
    assert first.drawn_labels == second.drawn_labels == late.drawn_labels == ["k N=0", "k N=1", "k N=2"]
    arrive(memory, 3)
    for tab in (first, late):
        tab.update()
    assert first.points is late.points
    assert late.drawn_labels[-1] == "k N=3"


def test_a_configuration_measured_anew_takes_the_place_of_its_point() -> None:
    memory = RunMemory("r")
    tab = Tab(memory)
    arrive(memory, 0, 1)
    tab.update()
    arrive(memory, 1, achieved_flop_per_s=7e9)
    tab.update()
    assert (tab.drawn_labels, tab.points.count) == (["k N=0", "k N=1"], 2)
    assert tab.points.points["rate"].tolist() == [1e9, 7e9]


def test_what_is_hidden_or_has_no_place_is_counted_apart() -> None:
    memory = RunMemory("r")
    tab, other = Tab(memory, frozenset({1})), Tab(memory)
    arrive(memory, 0, 1)
    arrive(memory, 2, intensity_flop_per_byte=None)
    for one in (tab, other):
        one.update()
    assert (tab.drawn_labels, tab.points.count) == (["k N=0"], 1)
    assert (other.drawn_labels, other.points.count) == (["k N=0", "k N=1"], 2)
    assert tab.points.rows is not None
    assert tab.points.rows.height == 3


@pytest.mark.parametrize("batch", [50, 4_000])
def test_thousands_of_points_are_thinned_evenly_and_seldom(batch: int) -> None:
    memory = RunMemory("r")
    tab = Tab(memory)
    for start in range(0, 4_000, batch):
        arrive(memory, *range(start, start + batch), dtype="float64" if start else "float32")
        tab.update()
        assert len(tab.drawn_labels) == tab.points.drawn_count <= MAX_LIVE_POINTS
    assert tab.points.count == 4_000
    assert tab.points.dtypes == ({"float32", "float64"} if batch < 4_000 else {"float32"})
    assert tab.redrawn_count < 10
    decades = np.sort(np.log10(tab.points.points["rate"])) - 9
    assert decades[0] < 0.1
    assert decades[-1] > 3.9
    assert np.diff(decades).max() < 0.1
