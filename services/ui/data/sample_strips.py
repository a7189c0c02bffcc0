"""Which samples of a run are drawn in its strips, worked out once for all pages that show the run.

A configuration that is being measured is drawn in a small layer of its own, so that an update costs a browser that layer
alone and not every strip before it. Once measured it moves to the layer of finished strips, thinned to its share of the
chart. Thinning keeps every 2^k-th sample, and the fastest and slowest of each configuration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import polars as pl

MAX_LIVE_SAMPLES: Final = 800
"""Drawn of the strips that still grow."""

MAX_FINISHED_SAMPLES: Final = 2_400
"""Drawn of all finished strips together. Every update of the chart draws them again: a browser without a GPU takes 7 µs for each."""

MIN_STRIP_SAMPLES: Final = 1
"""Of a finished strip beside its two extremes: of hundreds beside each other no more can be seen."""

MAX_STRIPS: Final = MAX_FINISHED_SAMPLES // (MIN_STRIP_SAMPLES + 2)
"""Finished ones with samples, evenly chosen: of thousands each is narrower than a pixel, and their medians are all there."""


PLAIN: Final = 0
OUTLIER: Final = 1
DISCARDED: Final = 2
"""Marks of a sample. An outlier lies beyond Tukey's fences, 1.5 interquartile ranges outside the quartiles of its configuration."""

FENCE_RANGES: Final = 1.5
MIN_FENCED_SAMPLES: Final = 20
"""Fewer have no quartiles to speak of, and no outliers."""

_NO_INTEGERS: Final[npt.NDArray[np.int64]] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Rows of the table samples as arrays, all of one length."""

    configuration_index: npt.NDArray[np.int64]
    sample_index: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.float64]
    measured_unix_ns: npt.NDArray[np.int64]
    mark: npt.NDArray[np.int64]  # PLAIN, OUTLIER or DISCARDED

    @classmethod
    def of(cls, frame: pl.DataFrame) -> Self:
        """Of rows of the table samples; none is an outlier yet."""
        is_discarded = frame["is_discarded"].fill_null(value=False).to_numpy()
        read = {name: frame[name].to_numpy() for name in cls.__slots__ if name in frame.columns}
        return cls(**read, mark=np.where(is_discarded, DISCARDED, PLAIN))

    @classmethod
    def joined(cls, parts: Sequence[SampleRows]) -> SampleRows:
        return parts[0] if len(parts) == 1 else cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))

    @classmethod
    def none(cls) -> Self:
        return cls(_NO_INTEGERS, _NO_INTEGERS, np.empty(0), _NO_INTEGERS, _NO_INTEGERS)

    def __len__(self) -> int:
        return len(self.duration_ns)

    def chosen(self, rows: npt.NDArray[Any]) -> SampleRows:
        """Those that an index array or a mask selects."""
        return SampleRows(*(getattr(self, name)[rows] for name in self.__slots__))

    def marked(self, fences: Fences) -> SampleRows:
        """With those outside the fences as outliers; a discarded one stays what it is."""
        is_outside = (self.duration_ns < fences.low_ns) | (self.duration_ns > fences.high_ns)
        return replace(self, mark=np.where(self.mark == DISCARDED, DISCARDED, np.where(is_outside, OUTLIER, PLAIN)))


@dataclass(frozen=True, slots=True)
class Fences:
    """Where outliers of a configuration begin, and how many samples that stands on."""

    low_ns: float = -math.inf
    high_ns: float = math.inf
    sample_count: int = 0

    @classmethod
    def of(cls, rows: SampleRows) -> Self:
        kept = rows.duration_ns[rows.mark != DISCARDED]
        if len(kept) < MIN_FENCED_SAMPLES:
            return cls()
        lower, upper = np.quantile(kept, (0.25, 0.75))
        reach = FENCE_RANGES * (upper - lower)
        return cls(float(lower - reach), float(upper + reach), len(rows))


@dataclass(slots=True)
class GrowingStrip:
    """Every sample of a configuration that is being measured."""

    parts: list[SampleRows] = field(default_factory=list)
    sample_count: int = 0
    fences: Fences = Fences()

    def add(self, rows: SampleRows) -> SampleRows:
        """Answers with the rows marked by what is known so far; quartiles are found anew when the samples have doubled."""
        self.parts.append(rows)
        self.sample_count += len(rows)
        if self.sample_count >= max(MIN_FENCED_SAMPLES, 2 * self.fences.sample_count):
            self.fences = Fences.of(SampleRows.joined(self.parts))
        return rows.marked(self.fences)

    def whole(self) -> SampleRows:
        rows = SampleRows.joined(self.parts)
        self.fences = Fences.of(rows)
        return rows.marked(self.fences)


@dataclass(frozen=True, slots=True)
class LayerPosition:
    """How much of a layer a page has drawn."""

    generation: int
    part_count: int


NOTHING_DRAWN: Final = LayerPosition(generation=-1, part_count=0)


@dataclass(frozen=True, slots=True)
class LayerChange:
    """Rows to add or, with is_new, instead of those drawn."""

    rows: SampleRows
    is_new: bool


@dataclass(slots=True)
class StripLayer:
    """What one layer of the chart shows. A new generation starts it over."""

    generation: int = 0
    parts: list[SampleRows] = field(default_factory=list)
    row_count: int = 0

    def add(self, rows: SampleRows) -> None:
        if len(rows):
            self.parts.append(rows)
            self.row_count += len(rows)

    def replace(self, rows: SampleRows) -> None:
        self.generation += 1
        self.parts = [rows]
        self.row_count = len(rows)

    def since(self, position: LayerPosition) -> tuple[LayerChange | None, LayerPosition]:
        """What has changed after the position, and the position after that."""
        is_new = position.generation != self.generation
        parts = self.parts if is_new else self.parts[position.part_count :]
        now = LayerPosition(self.generation, len(self.parts))
        if not parts:
            return (LayerChange(SampleRows.none(), is_new=True) if is_new else None), now
        return LayerChange(SampleRows.joined(parts), is_new), now


class SampleStrips:
    """The strips of one run, in two layers."""

    def __init__(self) -> None:
        self.live = StripLayer()
        self.finished = StripLayer()
        self.sample_count = 0  # that have arrived
        self._growing: dict[int, GrowingStrip] = {}  # by configuration_index
        self._live_step = 1
        self._finished: dict[int, SampleRows] = {}  # as drawn, by index
        self.strip_step = 1  # one strip of so many is drawn

    @property
    def drawn_count(self) -> int:
        return self.live.row_count + self.finished.row_count

    def add(self, samples: pl.DataFrame) -> None:
        """Takes in rows of the table samples."""
        self.sample_count += samples.height
        for index, rows in _by_configuration(SampleRows.of(samples)):
            self.live.add(_every(self._growing.setdefault(index, GrowingStrip()).add(rows), self._live_step))
        if self.live.row_count > MAX_LIVE_SAMPLES:
            self._redraw_live()

    def finish(self, configuration_indexes: Iterable[int], configuration_count: int) -> None:
        """Takes configurations as measured or failed. configuration_count: that share the chart."""
        ended = [(index, self._growing.pop(index).whole()) for index in configuration_indexes if index in self._growing]
        if not ended:
            return
        share = max(MIN_STRIP_SAMPLES, min(MAX_LIVE_SAMPLES, MAX_FINISHED_SAMPLES // max(1, configuration_count)))
        for index, rows in ended:
            if index % self.strip_step == 0:
                self._finished[index] = _thinned(rows, share)
                self.finished.add(self._finished[index])
        if self.finished.row_count > MAX_FINISHED_SAMPLES:
            self._thin_finished()
        self._redraw_live()

    def _thin_finished(self) -> None:
        """To half of what there is room for: the next time is then as many strips away."""
        while len(self._finished) > MAX_STRIPS // 2:
            self.strip_step *= 2
            self._finished = {index: rows for index, rows in self._finished.items() if index % self.strip_step == 0}
        share = max(MIN_STRIP_SAMPLES, MAX_FINISHED_SAMPLES // 2 // len(self._finished) - 2)
        self._finished = {index: _thinned(rows, share) for index, rows in self._finished.items()}
        self.finished.replace(SampleRows.joined(list(self._finished.values())))

    def _redraw_live(self) -> None:
        whole = {index: strip.whole() for index, strip in self._growing.items()}
        count = sum(len(rows) for rows in whole.values())
        self._live_step = 1
        while count > self._live_step * MAX_LIVE_SAMPLES // 2:
            self._live_step *= 2
        self.live.replace(SampleRows.joined([_every(rows, self._live_step) for rows in whole.values()] or [SampleRows.none()]))


def _by_configuration(rows: SampleRows) -> Iterable[tuple[int, SampleRows]]:
    """Consecutive rows of one configuration each: samples arrive batch by batch."""
    starts = [0, *(np.flatnonzero(np.diff(rows.configuration_index)) + 1).tolist(), len(rows)]
    for start, end in pairwise(starts):
        if end > start:
            yield int(rows.configuration_index[start]), rows.chosen(np.arange(start, end))


def _thinned(rows: SampleRows, limit: int) -> SampleRows:
    """Every 2^k-th sample, with the smallest k that keeps about `limit`."""
    step, kept = 1, rows
    while len(kept) > limit + 2:  # the two extremes are always kept
        step *= 2
        kept = _every(rows, step)
    return kept


def _every(rows: SampleRows, step: int) -> SampleRows:
    if step == 1:
        return rows
    is_kept = rows.sample_index % step == 0
    is_kept[[np.argmin(rows.duration_ns), np.argmax(rows.duration_ns)]] = True
    return rows.chosen(is_kept)
