"""Which samples of a run are drawn in its strips, and what that changes on the page.

A configuration that is being measured has a small layer of its own, so that an update costs the browser that layer alone
and not every strip before it. Once measured, it moves to the layer of finished strips, thinned to its share of the chart.
Thinning keeps every 2^k-th sample, and the fastest and slowest of each configuration.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import polars as pl

MAX_LIVE_SAMPLES: Final = 1_500
"""Drawn of the strips that still grow: a browser takes a few milliseconds for these, ten times a second."""

MAX_FINISHED_SAMPLES: Final = 6_000
"""Drawn of all finished strips together: every update of the chart draws them again, 20 000 took 30 ms and more."""

MIN_STRIP_SAMPLES: Final = 24
"""Of a finished strip, however many there are: fewer no longer show how samples are spread."""

CONFIGURATION: Final = ["run_id", "configuration_index"]


@dataclass(frozen=True, slots=True)
class LayerChange:
    """What a layer gets: rows to add or, with is_new, instead of those it has."""

    rows: pl.DataFrame
    is_new: bool


@dataclass(frozen=True, slots=True)
class StripsChange:
    """None: the layer stays as it is."""

    live: LayerChange | None = None
    finished: LayerChange | None = None


class SampleStrips:
    """The strips of one run. Frames are of the table samples."""

    def __init__(self) -> None:
        self.sample_count = 0  # that have arrived
        self._live: pl.DataFrame | None = None  # every sample of the configurations that go on
        self._live_step = 1
        self._finished: pl.DataFrame | None = None  # as drawn
        self._finished_indexes: set[int] = set()
        self._drawn_live_count = 0

    @property
    def drawn_count(self) -> int:
        return self._drawn_live_count + (0 if self._finished is None else self._finished.height)

    def take(self, new: pl.DataFrame | None, finished_indexes: Collection[int], configuration_count: int) -> StripsChange:
        """Takes in samples and the configurations that have ended.

        Args:
            new: samples since the last call.
            finished_indexes: of all configurations that have a measurement or a failure by now.
            configuration_count: that share the chart.
        """
        if new is not None:
            self.sample_count += new.height
            self._live = new if self._live is None else pl.concat([self._live, new], how="vertical_relaxed")
        ended = set(finished_indexes) - self._finished_indexes
        self._finished_indexes |= ended
        if ended and self._live is not None:
            has_ended = pl.col("configuration_index").is_in(sorted(self._finished_indexes))
            done, self._live = self._live.filter(has_ended), self._live.filter(~has_ended)
            return StripsChange(self._redraw_live(), self._finish(done, configuration_count))
        return StripsChange(self._extend_live(new)) if new is not None else StripsChange()

    def _extend_live(self, new: pl.DataFrame) -> LayerChange:
        added = _every(new, self._live_step)
        if self._drawn_live_count + added.height > MAX_LIVE_SAMPLES:
            return self._redraw_live()
        self._drawn_live_count += added.height
        return LayerChange(added, is_new=False)

    def _redraw_live(self) -> LayerChange:
        assert self._live is not None
        # Half full after thinning: the next thinning is then as many samples away.
        drawn, self._live_step = _thinned(self._live, MAX_LIVE_SAMPLES // 2)
        self._drawn_live_count = drawn.height
        return LayerChange(drawn, is_new=True)

    def _finish(self, done: pl.DataFrame, configuration_count: int) -> LayerChange | None:
        if done.is_empty():
            return None
        share = max(MIN_STRIP_SAMPLES, min(MAX_LIVE_SAMPLES, MAX_FINISHED_SAMPLES // max(1, configuration_count)))
        added = pl.concat([_thinned(strip, share)[0] for strip in done.partition_by(CONFIGURATION, maintain_order=True)])
        if self._finished is None:
            self._finished = added
            return LayerChange(added, is_new=True)
        self._finished = pl.concat([self._finished, added], how="vertical_relaxed")
        if self._finished.height <= MAX_FINISHED_SAMPLES:
            return LayerChange(added, is_new=False)
        share = max(MIN_STRIP_SAMPLES, MAX_FINISHED_SAMPLES // 2 // len(self._finished_indexes))
        self._finished = pl.concat([_thinned(strip, share)[0] for strip in self._finished.partition_by(CONFIGURATION, maintain_order=True)])
        return LayerChange(self._finished, is_new=True)


def _thinned(samples: pl.DataFrame, limit: int) -> tuple[pl.DataFrame, int]:
    """Every 2^k-th sample with the smallest k that keeps about `limit`, and the step."""
    step = 1
    while samples.height > step * limit:
        step *= 2
    kept = _every(samples, step)
    while kept.height > 2 * limit and step < samples.height:  # rows that were thinned before hold indexes of a larger step
        step *= 2
        kept = _every(samples, step)
    return kept, step


def _every(samples: pl.DataFrame, step: int) -> pl.DataFrame:
    if step == 1:
        return samples
    duration = pl.col("duration_ns")
    is_extreme = (duration == duration.min().over(CONFIGURATION)) | (duration == duration.max().over(CONFIGURATION))
    return samples.filter((pl.col("sample_index") % step == 0) | is_extreme)
