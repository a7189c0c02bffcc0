"""The ring that watchers of a run read from, which must not outgrow the run's own rows by far."""

from __future__ import annotations

import polars as pl

from kernalyse.services.analyzer.analysis.roofline import RooflineModel
from kernalyse.services.analyzer.collect.run_feed import COLUMN_BYTES, RING_BYTES, RunBuffer, Segment
from kernalyse.services.analyzer.tables.runs import MEASUREMENTS


def test_commits_of_a_row_each_are_counted_with_what_their_frames_take() -> None:
    """A sweep of thousands of configurations brings thousands of them, and the values are the least of it."""
    feed = RunBuffer()
    frame = MEASUREMENTS.empty().clear(1)
    for number in range(3_000):
        feed.append(Segment(number, number + 1, None, {"measurements": frame}))
    assert len(feed.segments) <= RING_BYTES // (frame.width * COLUMN_BYTES)
    assert feed.next_number == 3_000
    assert feed.since(feed.first_number)[0].next_event_index == feed.first_number + 1


def test_what_measurements_are_held_against_is_worked_out_again_when_it_has_changed() -> None:
    """Also when the change is told while it is being worked out."""
    feed = RunBuffer()
    asked: list[str] = []

    def compute() -> RooflineModel:
        asked.append("once")
        if len(asked) == 1:
            feed.hardware_change_count += 1
        return RooflineModel(*[pl.LazyFrame({"number": [len(asked)]})] * 4)

    found = [feed.current_roofline_model(compute).memory.collect().item() for _ in range(3)]
    assert found == [1, 2, 2]
    feed.hardware_change_count += 1
    assert feed.current_roofline_model(compute).memory.collect().item() == 3
