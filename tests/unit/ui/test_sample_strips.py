"""Which samples are drawn: everything while it fits, then fewer, never without the extremes."""

from __future__ import annotations

import numpy as np
import polars as pl

from kernalyse.services.ui.data.sample_strips import (
    DISCARDED,
    MAX_FINISHED_SAMPLES,
    MAX_LIVE_SAMPLES,
    MAX_STRIPS,
    NOTHING_DRAWN,
    OUTLIER,
    PLAIN,
    LayerPosition,
    SampleRows,
    SampleStrips,
    StripLayer,
)


def samples(count: int, configuration_index: int = 0, first_index: int = 0) -> pl.DataFrame:
    index = np.arange(first_index, first_index + count)
    return pl.DataFrame(
        {
            "configuration_index": np.full(count, configuration_index),
            "sample_index": index,
            "duration_ns": 1000.0 + (index * 7919) % 10_007,
            "measured_unix_ns": np.full(count, 1_700_000_000_000_000_000),
            "is_discarded": np.zeros(count, dtype=np.bool_),
        }
    )


class Drawing:
    """What a page has drawn of a layer."""

    def __init__(self, layer: StripLayer) -> None:
        self._layer = layer
        self._position: LayerPosition = NOTHING_DRAWN
        self.rows = SampleRows.none()
        self.new_count = 0

    def update(self) -> int:
        """The number of rows drawn after it."""
        change, self._position = self._layer.since(self._position)
        if change is not None:
            self.new_count += change.is_new
            self.rows = change.rows if change.is_new else SampleRows.joined([self.rows, change.rows])
        return len(self.rows)


def test_a_growing_strip_gets_its_new_samples_only() -> None:
    strips = SampleStrips()
    page = Drawing(strips.live)
    strips.add(samples(10))
    page.update()
    strips.add(samples(5, first_index=10))
    page.update()
    assert page.new_count == 1
    assert page.rows.sample_index.tolist() == list(range(15))
    assert (strips.sample_count, strips.drawn_count) == (15, 15)
    assert strips.live.since(page._position)[0] is None


def test_a_long_strip_is_thinned_and_stays_within_its_limit() -> None:
    strips = SampleStrips()
    page = Drawing(strips.live)
    for start in range(0, 40_000, 400):
        strips.add(samples(400, first_index=start))
        assert page.update() == strips.drawn_count <= MAX_LIVE_SAMPLES
    assert strips.sample_count == 40_000


def test_a_measured_configuration_moves_to_the_finished_strips_with_its_extremes() -> None:
    strips = SampleStrips()
    live, finished = Drawing(strips.live), Drawing(strips.finished)
    strips.add(pl.concat([samples(5000), samples(50, configuration_index=1)]))
    live.update()
    strips.finish([0], 100)
    live.update()
    finished.update()
    whole = samples(5000)["duration_ns"]
    assert set(live.rows.configuration_index) == {1}
    assert len(live.rows) == 50
    assert set(finished.rows.configuration_index) == {0}
    assert len(finished.rows) < 200
    assert (finished.rows.duration_ns.min(), finished.rows.duration_ns.max()) == (whole.min(), whole.max())


def test_many_finished_strips_share_the_chart_and_keep_their_extremes() -> None:
    strips = SampleStrips()
    page = Drawing(strips.finished)
    for index in range(120):
        strips.add(samples(1000, configuration_index=index))
        strips.finish([index], index + 1)
        assert page.update() <= MAX_FINISHED_SAMPLES
    whole = samples(1000)["duration_ns"]
    for index in range(120):
        drawn = page.rows.duration_ns[page.rows.configuration_index == index]
        assert (drawn.min(), drawn.max()) == (whole.min(), whole.max())


def test_thousands_of_strips_are_drawn_within_the_limit_and_seldom_anew() -> None:
    strips = SampleStrips()
    page = Drawing(strips.finished)
    for index in range(3_000):
        strips.add(samples(30, configuration_index=index))
        strips.finish([index], 3_000)
        assert page.update() <= MAX_FINISHED_SAMPLES
    drawn = np.unique(page.rows.configuration_index)
    assert len(drawn) >= MAX_STRIPS // 4
    assert set(np.diff(drawn)) == {drawn[1]}, "strips are left out evenly"
    assert page.new_count < 15


def test_interleaved_configurations_grow_side_by_side() -> None:
    strips = SampleStrips()
    page = Drawing(strips.live)
    strips.add(pl.concat([samples(3), samples(3, configuration_index=1), samples(3, first_index=3)]))
    page.update()
    assert page.rows.configuration_index.tolist() == [0] * 3 + [1] * 3 + [0] * 3


def test_a_page_that_comes_late_draws_what_the_others_have() -> None:
    strips = SampleStrips()
    early = Drawing(strips.finished)
    for index in range(10):
        strips.add(samples(500, configuration_index=index))
        strips.finish([index], 10)
        early.update()
    late = Drawing(strips.finished)
    assert late.update() == len(early.rows)
    assert np.array_equal(np.sort(late.rows.duration_ns), np.sort(early.rows.duration_ns))


def test_an_ended_configuration_without_samples_changes_nothing() -> None:
    strips = SampleStrips()
    strips.finish([3], 4)
    assert strips.finished.since(NOTHING_DRAWN)[0] is not None
    assert strips.drawn_count == 0


def test_outliers_and_discarded_samples_are_marked() -> None:
    """Tukey's fences of these are 1 and 1 apart from the quartiles 10 and 12; a discarded sample moves no quartile."""
    durations = [10.0, 11.0, 12.0] * 20 + [900.0, 1_000.0, 4.0]
    frame = samples(len(durations)).with_columns(
        duration_ns=pl.Series(durations), is_discarded=pl.Series([False] * 60 + [False, True, False])
    )
    strips = SampleStrips()
    strips.add(frame)
    live = SampleRows.joined(strips.live.parts)
    strips.finish([0], 1)
    finished = SampleRows.joined(strips.finished.parts)
    for rows in (live, finished):
        assert rows.mark.tolist() == [PLAIN] * 60 + [OUTLIER, DISCARDED, OUTLIER]


def test_few_samples_have_no_outliers() -> None:
    strips = SampleStrips()
    strips.add(samples(5).with_columns(duration_ns=pl.Series([1.0, 1.0, 1.0, 1.0, 1e6])))
    assert SampleRows.joined(strips.live.parts).mark.tolist() == [PLAIN] * 5
