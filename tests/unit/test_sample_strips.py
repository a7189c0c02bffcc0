"""Which samples are drawn: everything while it fits, then fewer, never without the extremes."""

from __future__ import annotations

import numpy as np
import polars as pl

from services.ui.sample_strips import MAX_FINISHED_SAMPLES, MAX_LIVE_SAMPLES, LayerChange, SampleStrips


def samples(count: int, configuration_index: int = 0, first_index: int = 0) -> pl.DataFrame:
    index = np.arange(first_index, first_index + count)
    return pl.DataFrame(
        {
            "run_id": ["r"] * count,
            "configuration_index": np.full(count, configuration_index),
            "sample_index": index,
            "duration_ns": 1000.0 + (index * 7919) % 10_007,
            "measured_unix_ns": np.full(count, 1_700_000_000_000_000_000),
        }
    )


def rows(change: LayerChange | None) -> pl.DataFrame:
    assert change is not None
    return change.rows


def test_a_growing_strip_gets_its_new_samples_only() -> None:
    strips = SampleStrips()
    first = strips.take(samples(10), (), 1)
    second = strips.take(samples(5, first_index=10), (), 1)
    assert rows(first.live).equals(samples(10))
    assert first.finished is None
    assert second.live is not None
    assert not second.live.is_new
    assert rows(second.live)["sample_index"].to_list() == [10, 11, 12, 13, 14]
    assert (strips.sample_count, strips.drawn_count) == (15, 15)


def test_a_long_strip_is_thinned_and_stays_within_its_limit() -> None:
    strips = SampleStrips()
    seen = 0
    for start in range(0, 40_000, 400):
        change = strips.take(samples(400, first_index=start), (), 1).live
        assert change is not None
        seen = change.rows.height if change.is_new else seen + change.rows.height
        assert seen == strips.drawn_count <= MAX_LIVE_SAMPLES
    assert strips.sample_count == 40_000


def test_a_measured_configuration_moves_to_the_finished_strips_with_its_extremes() -> None:
    strips = SampleStrips()
    strips.take(samples(5000), (), 100)
    change = strips.take(samples(50, configuration_index=1), {0}, 100)
    whole, drawn = samples(5000), rows(change.finished)
    assert change.live is not None
    assert change.live.is_new
    assert rows(change.live).equals(samples(50, configuration_index=1))
    assert drawn.height < 200
    assert (drawn["duration_ns"].min(), drawn["duration_ns"].max()) == (whole["duration_ns"].min(), whole["duration_ns"].max())
    assert strips.drawn_count == drawn.height + 50


def test_many_finished_strips_share_the_chart() -> None:
    strips = SampleStrips()
    drawn: list[pl.DataFrame] = []
    for index in range(120):
        change = strips.take(samples(1000, configuration_index=index), set(range(index + 1)), index + 1).finished
        assert change is not None
        drawn = [change.rows] if change.is_new else [*drawn, change.rows]
        assert sum(part.height for part in drawn) == strips.drawn_count <= MAX_FINISHED_SAMPLES
    by_strip = pl.concat(drawn).group_by("configuration_index").agg(low=pl.col("duration_ns").min(), high=pl.col("duration_ns").max())
    whole = samples(1000)["duration_ns"]
    assert by_strip.height == 120
    assert by_strip["low"].unique().to_list() == [whole.min()]
    assert by_strip["high"].unique().to_list() == [whole.max()]


def test_a_late_page_gets_finished_and_growing_strips_at_once() -> None:
    change = SampleStrips().take(pl.concat([samples(30), samples(20, configuration_index=1)]), {0}, 2)
    assert rows(change.finished).equals(samples(30))
    assert rows(change.live).equals(samples(20, configuration_index=1))
