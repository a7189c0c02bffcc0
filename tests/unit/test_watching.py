"""The ring that watchers of a run read from, which must not outgrow the run's own rows by far."""

from __future__ import annotations

from services.analyzer.schema import MEASUREMENTS
from services.analyzer.watching import COLUMN_BYTES, RING_BYTES, RunFeed, Segment


def test_commits_of_a_row_each_are_counted_with_what_their_frames_take() -> None:
    """A sweep of thousands of configurations brings thousands of them, and the values are the least of it."""
    feed = RunFeed()
    frame = MEASUREMENTS.empty().clear(1)
    for number in range(3_000):
        feed.append(Segment(number, number + 1, None, {"measurements": frame}))
    assert len(feed.segments) <= RING_BYTES // (frame.width * COLUMN_BYTES)
    assert feed.next_number == 3_000
    assert feed.since(feed.first_number)[0].next_event_index == feed.first_number + 1
