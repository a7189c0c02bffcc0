"""The chosen row of the Kernels page: figures, samples, and what the compiler left of its kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import Any, Final

import holoviews as hv

from kernalyse.services.core.statistics import MedianInterval
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import distribution
from kernalyse.services.ui.chosen_row import MAX_SHOWN_SAMPLES, ChosenRow, Listing, ask_chosen
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.legend import LegendEntry, hidden_names, hideable, legend_fragment
from kernalyse.services.ui.live_figure import LiveFigure
from kernalyse.services.ui.pages.kernel_configurations import configurations_fragment
from kernalyse.services.ui.pages.row_facts import facts_of
from kernalyse.services.ui.pages.row_links import RowLinks, artifact_href
from kernalyse.services.ui.pages.shell import fragment
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.state import ViewState
from kernalyse.services.ui.theme import Palette

REFRESH_INTERVAL_S: Final = 1.5
MAX_SHOWN_LINES: Final = 4_000
MAX_SHOWN_BYTES: Final = 400_000
MAX_FETCHED_BYTES: Final = 16 * 2**20
"""Larger ones are for the download alone: to show a part of one, all of it would have to come."""

NO_SAMPLE: Final = "No sample of it has been kept: results that other tools wrote often have none."


@EmptyChart
def _order_chart(palette: Palette) -> hv.Overlay:
    nothing = distribution.median_columns(None, is_upright=False, start=0, end=1)
    return distribution.order_chart(distribution.no_samples(), *nothing, palette)


@EmptyChart
def _distribution_chart(palette: Palette) -> hv.Overlay:
    nothing = distribution.median_columns(None, is_upright=True, start=0, end=1)
    return distribution.distribution_chart(distribution.no_bins(), distribution.no_steps(), *nothing, palette)


@EmptyChart
def _clock_chart(palette: Palette) -> hv.Overlay:
    return distribution.clock_chart(distribution.no_clocks(), palette)


class RowDetail:
    """Asks and draws.

    Args:
        wake: called when an answer has come.
    """

    def __init__(self, client: AnalyzerClient, palette: Palette, wake: Callable[[], None]) -> None:
        self._client = client
        self._palette = palette
        self._row: Question[ChosenRow] = Question(wake)
        self._text: Question[bytes] = Question(wake)
        self._links = RowLinks(client, wake)
        self._drawn: ChosenRow | None = None
        self._hidden: set[str] = set()  # kinds of samples
        self._note = ""
        self._headed: tuple[ChosenRow, object] | None = None
        self._head = ""
        self.order = LiveFigure("order", _order_chart, palette, ("interval", "median", "samples"))
        self.distribution = LiveFigure("distribution", _distribution_chart, palette, ("bins", "interval", "median", "steps"))
        self.clocks = LiveFigure("clocks", _clock_chart, palette, ("clocks",))

    def roots(self) -> dict[str, Any]:
        return {"order": self.order.figure, "distribution": self.distribution.figure, "clocks": self.clocks.figure}

    def stop(self) -> None:
        self._row.stop()
        self._text.stop()
        self._links.stop()

    def fragments(self, state: ViewState, progress: object, reach: Hashable) -> dict[str, str]:
        """progress: what changes with the rows of the run. reach: of the overview."""
        key = state.configuration
        if not key:
            return {"detail": "", "samples_note": "", "samples_legend": "", "listings": "", "listing": ""}
        self._row.ask(key, partial(ask_chosen, self._client, key), progress, REFRESH_INTERVAL_S)
        row = self._row.answer if self._row.answer is not None and self._row.answer.key == key else None
        hidden = hidden_names(distribution.MARKERS, state.hidden)
        if row is not None and (row is not self._drawn or hidden != self._hidden):
            self._hidden = hidden
            self._draw(row)
        return {
            "detail": self._head_of(row, reach) if row else self._waiting(key),
            "samples_note": self._note if row else "",
            "samples_legend": self._legend(state) if row else "",
            **self._listing(state, row, reach),
        }

    def _waiting(self, key: str) -> str:
        problem = self._row.problem if self._row.answered == key else ""
        return fragment("detail.html", key=key, row=None, problem=problem)

    def _head_of(self, row: ChosenRow, reach: Hashable) -> str:
        links = self._links.of(row, reach)
        if self._headed is None or self._headed[0] is not row or self._headed[1] != links:
            self._headed = (row, links)
            self._head = fragment(
                "detail.html",
                key=row.key,
                row=row,
                problem="",
                facts=facts_of(row.figures, row.kind),
                links=links,
                configurations=configurations_fragment(row),
                has_samples=not row.samples.is_empty(),
                has_clocks=row.samples["sm_clock_hz"].count() > 0,
                has_listings=bool(row.listings) or not row.is_of_trace,
            )
        return self._head

    def _draw(self, row: ChosenRow) -> None:
        is_other = self._drawn is None or self._drawn.key != row.key
        self._drawn = row
        if row.samples.is_empty():
            self._note = "" if row.kind == "swept kernel" else NO_SAMPLE
            return
        self._draw_samples(row, is_other=is_other)

    def _draw_samples(self, row: ChosenRow, *, is_other: bool) -> None:
        made = distribution.distribution(row.samples, self._palette, _interval(row), self._hidden)
        (first, last), (low, high) = (row.samples["sample_index"][place] for place in (0, -1)), made.span_ns
        samples = made.samples_without(self._hidden)
        durations = samples["duration"] if len(samples["duration"]) else made.samples["duration"]
        lowest, highest = float(durations.min()), float(durations.max())
        self.order.replace("samples", samples)
        self.distribution.replace("bins", made.bins)
        self.distribution.replace("steps", made.steps)
        self.clocks.replace("clocks", made.clocks)
        for figure, is_upright, start, end in ((self.order, False, first - 1.0, last + 1.0), (self.distribution, True, 0.0, 1.0)):
            line, box = distribution.median_columns(made.interval, is_upright=is_upright, start=start, end=end)
            figure.replace("median", line)
            figure.replace("interval", box)
        spans = [
            (self.order, "x", first - 1.0, last + 1.0),
            (self.order, "y", max(lowest, 0.1) / 1.08, highest * 1.08),
            (self.distribution, "x", low, high),
            (self.clocks, "x", first - 1.0, last + 1.0),
        ]
        clocks = made.clocks["clock"]
        if len(clocks):
            spans.append((self.clocks, "y", float(clocks.min()) * 0.98, float(clocks.max()) * 1.02))
        for figure, axis, start, end in spans:
            (figure.show if is_other else figure.follow)(axis, start, end)
        self._note = _samples_note(row, made)

    def _legend(self, state: ViewState) -> str:
        colors = distribution.kind_colors(self._palette)
        entries = [LegendEntry(kind, colors[kind], distribution.SYMBOLS[kind]) for kind in distribution.MARKERS]
        return legend_fragment(hideable(entries, state.hidden))

    # ------------------------------------------------------------ what the compiler left

    def _listing(self, state: ViewState, row: ChosenRow | None, reach: Hashable) -> dict[str, str]:
        if row is None:
            return {"listings": "", "listing": ""}
        chosen = next((listing for listing in row.listings if listing.artifact_name == state.listing), next(iter(row.listings), None))
        entries = [{"name": listing.artifact_name, "title": listing.title, "is_chosen": listing is chosen} for listing in row.listings]
        href = "" if chosen is None else artifact_href(row.run_id, chosen.artifact_name)
        tabs = fragment("listings.html", entries=entries, href=href, is_of_trace=row.is_of_trace)
        return {"listings": tabs, "listing": "" if chosen is None else self._listing_text(row.run_id, chosen, reach)}

    def _listing_text(self, run_id: str, listing: Listing, reach: Hashable) -> str:
        if listing.size_bytes > MAX_FETCHED_BYTES:
            return _said(f"{theme.memory(listing.size_bytes)} are too much for a page: download the file.")
        subject = (run_id, listing.artifact_name)
        self._text.ask(subject, partial(self._client.artifact, *subject), reach)
        text = self._text.answer_to(subject)
        if text is None:
            return _said(self._text.problem if self._text.answered == subject else "Fetching it from its node.")
        return listing_text(text)


@lru_cache(8)
def listing_text(content: bytes) -> str:
    """As HTML with line numbers; of long ones the beginning."""
    lines = content[:MAX_SHOWN_BYTES].decode(errors="replace").splitlines()
    shown = lines[:MAX_SHOWN_LINES]
    is_whole = len(shown) == len(lines) and len(content) <= MAX_SHOWN_BYTES
    left_out = "" if is_whole else f"The first {theme.count(len(shown))} lines of {theme.memory(len(content))}; the download has all."
    numbers = "\n".join(map(str, range(1, len(shown) + 1)))
    return fragment("listing.html", numbers=numbers, text="\n".join(shown), left_out=left_out)


def _said(sentence: str) -> str:
    return fragment("said.html", sentence=sentence)


def _interval(row: ChosenRow) -> MedianInterval | None:
    """As measured: the interval that its verdicts stand on."""
    low, median, high = (row.figures.get(f"duration_median{end}_ns") for end in ("_low", "", "_high"))
    return None if low is None or median is None or high is None else MedianInterval(low, median, high)


def _samples_note(row: ChosenRow, made: distribution.Distribution) -> str:
    what = "launches" if row.is_of_trace else "samples"
    shown, total = row.samples.height, row.total_sample_count
    all_of_them = f"{theme.count(total)} {what}."
    notes = [all_of_them if shown >= total else f"The first {theme.count(MAX_SHOWN_SAMPLES)} of {all_of_them}"]
    if made.interval is not None:
        low, high = theme.duration(made.interval.low), theme.duration(made.interval.high)
        notes.append(f"Line and band: median {theme.duration(made.interval.median)}, its 95 % interval {low} to {high}.")
    outliers, discarded = made.counts[distribution.OUTLIER], made.counts[distribution.DISCARDED]
    if outliers:
        reach = f"{distribution.FENCE_RATIO:g} interquartile ranges"
        notes.append(f"{theme.count(outliers)} outliers lie more than {reach} from the quartiles; they count.")
    if discarded:
        notes.append(f"{theme.count(discarded)} were taken while the clock was throttled; they do not count.")
    if made.beyond_count:
        notes.append(f"{theme.count(made.beyond_count)} are beyond the right chart's edges: zoom out to see them.")
    return " ".join(notes)
