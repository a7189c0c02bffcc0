"""The chosen row of the page Kernels: its figures, its samples, and what the compiler left of its kernel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import panel as pn
import param
from markupsafe import Markup

from kernalyse.services.core.statistics import MedianInterval
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import distribution
from kernalyse.services.ui.charts.metrics import configuration_key
from kernalyse.services.ui.charts.roofline import VERIFICATION_TEXTS
from kernalyse.services.ui.components.base import Component, Text, card, html, joined
from kernalyse.services.ui.components.chart import ChartCard, LegendEntry, hidden_names, hideable
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.components.table import ASKING, REFRESH_INTERVAL_S, choose_href, efficiency_cell, progress_of
from kernalyse.services.ui.data.chosen_row import MAX_SHOWN_SAMPLES, ChosenRow, Listing, ask_chosen
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.data.row_facts import RowLink, RowLinks, artifact_href, facts_of
from kernalyse.services.ui.view import KernelsView

if TYPE_CHECKING:
    import holoviews as hv

    from kernalyse.services.ui.tab import Context
    from kernalyse.services.ui.theme import Palette

MAX_SHOWN_LINES: Final = 4_000
MAX_SHOWN_BYTES: Final = 400_000
MAX_FETCHED_BYTES: Final = 16 * 2**20
"""Larger ones are for the download alone: to show a part of one, all of it would have to come."""

MAX_LISTED_CONFIGURATIONS: Final = 12
"""The table of measurements has all of them, in pages."""

WIDE_TEXT_LENGTH: Final = 44
LONG_TITLE_LENGTH: Final = 120
NO_SAMPLE: Final = "No sample of it has been kept: results that other tools wrote often have none."
NO_LISTING: Final = (
    "The compiler has left nothing of this kernel: PTX, SASS and ptxas' report come from nvcc, the translated source from OpenCL; "
    "imported results have none."
)


def _empty_order(palette: Palette) -> hv.Overlay:
    nothing = distribution.median_columns(None, is_upright=False, start=0, end=1)
    return distribution.order_chart(distribution.no_samples(), *nothing, palette)


def _empty_distribution(palette: Palette) -> hv.Overlay:
    nothing = distribution.median_columns(None, is_upright=True, start=0, end=1)
    return distribution.distribution_chart(distribution.no_bins(), distribution.no_steps(), *nothing, palette)


def _empty_clocks(palette: Palette) -> hv.Overlay:
    return distribution.clock_chart(distribution.no_clocks(), palette)


ORDER: Final = RenderedChart(_empty_order)
DISTRIBUTION: Final = RenderedChart(_empty_distribution)
CLOCKS: Final = RenderedChart(_empty_clocks)


class Chosen(Component):
    """What the parts of the detail stand on: the chosen row.

    Attributes:
        row: None: nothing is chosen, or it has not come.
        problem: why it has not; empty: it has been asked for.
        made: its samples as they are drawn; None: it has none.
    """

    def __init__(self, context: Context, view: KernelsView) -> None:
        super().__init__(context)
        self.view = view
        self.row: ChosenRow | None = None
        self.problem = ""
        self.made: distribution.Distribution | None = None
        self.hidden: set[str] = set()  # kinds of samples
        self._rows: Question[ChosenRow] = Question(context.wake)
        self._update_count = -1

    def close(self) -> None:
        self._rows.stop()

    def update(self) -> None:
        if self._update_count == self.context.update_count:
            return
        self._update_count = self.context.update_count
        key, overview = self.view.configuration, self.context.overview
        if not key:
            self.row, self.problem, self.made = None, "", None
            return
        run_id = key.rpartition(".")[0]
        progress = progress_of((run for run in overview.runs if run.run_id == run_id), overview)
        self._rows.ask(key, partial(ask_chosen, self.context.client, key), progress, REFRESH_INTERVAL_S)
        row, hidden = self._rows.answer_to(key), hidden_names(distribution.MARKERS, self.view.hidden)
        self.problem = self._rows.problem if row is None and self._rows.answered == key else ""
        if row is not self.row or hidden != self.hidden:
            self.row, self.hidden = row, hidden
            has_samples = row is not None and not row.samples.is_empty()
            self.made = (
                distribution.distribution(row.samples, self.context.palette, interval_of(row), hidden) if row and has_samples else None
            )


def interval_of(row: ChosenRow) -> MedianInterval | None:
    """Return the interval as measured, which the row's verdicts stand on."""
    low, median, high = (row.figures.get(f"duration_median{end}_ns") for end in ("_low", "", "_high"))
    return None if low is None or median is None or high is None else MedianInterval(low, median, high)


class SampleChart(Component):
    """A chart of the chosen row's samples.

    Args:
        chosen: None: its own, where the chart stands alone.

    Attributes:
        has_rows: whether there is something to draw.
    """

    def __init__(self, context: Context, view: KernelsView, chosen: Chosen | None, title: str, figure: Figure) -> None:
        super().__init__(context)
        self.view = view
        self.chosen = chosen or Chosen(context, view)
        self.has_rows = False
        self.figure = figure
        self.card = ChartCard(title, figure)
        self.layout = self.card.layout
        self._drawn: distribution.Distribution | None = None
        self._key = ""

    def close(self) -> None:
        self.chosen.close()

    def update(self) -> None:
        self.chosen.update()
        row, made = self.chosen.row, self.chosen.made
        if row is None or made is None:
            self.has_rows = False
            if not self._key:
                self.card.note.show("" if row is None else NO_SAMPLE)
            return
        if made is not self._drawn:
            self._drawn = made
            if row.key != self._key:
                self._key = row.key
                self.figure.forget_moves()
            self.draw(row, made)
            self.has_rows = self.can_draw(made)

    def can_draw(self, made: distribution.Distribution) -> bool:
        """Return whether there is something to draw."""
        return True

    def draw(self, row: ChosenRow, made: distribution.Distribution) -> None:
        """Draw the samples of the row."""
        raise NotImplementedError

    def follow_order(self, row: ChosenRow) -> tuple[float, float]:
        """Show all samples along the horizontal axis, and return where it begins and ends."""
        first, last = (row.samples["sample_index"][place] for place in (0, -1))
        self.figure.follow("x", first - 1.0, last + 1.0)
        return first - 1.0, last + 1.0

    def draw_median(self, made: distribution.Distribution, start: float, end: float, *, is_upright: bool) -> None:
        """Draw the median and its interval, from start to end of the other axis."""
        line, box = distribution.median_columns(made.interval, is_upright=is_upright, start=start, end=end)
        self.figure.replace("median", line)
        self.figure.replace("interval", box)


class OrderChart(SampleChart):
    """Samples in their order."""

    def __init__(self, context: Context, view: KernelsView, chosen: Chosen | None = None) -> None:
        figure = Figure("order", ORDER, context.palette, ("interval", "median", "samples"))
        super().__init__(context, view, chosen, "Samples of the chosen row", figure)

    def draw(self, row: ChosenRow, made: distribution.Distribution) -> None:
        samples = made.samples_without(self.chosen.hidden)
        durations = samples["duration"] if len(samples["duration"]) else made.samples["duration"]
        self.figure.replace("samples", samples)
        self.draw_median(made, *self.follow_order(row), is_upright=False)
        self.figure.follow("y", max(float(durations.min()), 0.1) / 1.08, float(durations.max()) * 1.08)
        colors = distribution.kind_colors(self.context.palette)
        entries = [LegendEntry(kind, colors[kind], distribution.SYMBOLS[kind]) for kind in distribution.MARKERS]
        self.card.show_legend(hideable(entries, self.view.hidden))
        self.card.note.show(samples_note(row, made))


class DistributionChart(SampleChart):
    """How often samples took how long."""

    def __init__(self, context: Context, view: KernelsView, chosen: Chosen | None = None) -> None:
        figure = Figure("distribution", DISTRIBUTION, context.palette, ("bins", "interval", "median", "steps"))
        super().__init__(context, view, chosen, "Distribution of the chosen row", figure)

    def draw(self, row: ChosenRow, made: distribution.Distribution) -> None:
        self.figure.replace("bins", made.bins)
        self.figure.replace("steps", made.steps)
        self.draw_median(made, 0.0, 1.0, is_upright=True)
        self.figure.follow("x", *made.span_ns)
        beyond = f"{theme.count(made.beyond_count)} are beyond the chart's edges: zoom out to see them."
        self.card.note.show(beyond if made.beyond_count else "")


class ClockChart(SampleChart):
    """The clock of the device at each sample."""

    def __init__(self, context: Context, view: KernelsView, chosen: Chosen | None = None) -> None:
        figure = Figure("clocks", CLOCKS, context.palette, ("clocks",))
        super().__init__(context, view, chosen, "Clock of the chosen row", figure)

    def can_draw(self, made: distribution.Distribution) -> bool:
        return len(made.clocks["clock"]) > 0

    def draw(self, row: ChosenRow, made: distribution.Distribution) -> None:
        self.figure.replace("clocks", made.clocks)
        self.follow_order(row)
        clocks = made.clocks["clock"]
        if len(clocks):
            self.figure.follow("y", float(clocks.min()) * 0.98, float(clocks.max()) * 1.02)


def samples_note(row: ChosenRow, made: distribution.Distribution) -> str:
    """Return how many samples there are, and which of them count."""
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
    return " ".join(notes)


class Arrival(pn.custom.JSComponent):
    """Brings what is around it into view when another row has been chosen. Panel scrolls within columns alone."""

    key = param.String(doc="Of the row; empty: it stays where it is.")

    _esm = Path(__file__).with_suffix(".js")


class RowHead(Component):
    """Title, links and figures of the chosen row, and the configurations of a kernel of a sweep."""

    def __init__(self, context: Context, chosen: Chosen) -> None:
        super().__init__(context)
        self._chosen = chosen
        self._links = RowLinks(context.client, context.wake)
        self._text = Text(classes=("detail",))
        self._arrival = Arrival(sizing_mode=None, margin=0)
        self._made: object = None
        self._first_key: str | None = None  # shown when the page was opened
        self.layout = card(self._arrival, self._text)

    def close(self) -> None:
        self._links.stop()

    def update(self) -> None:
        self._chosen.update()
        row, key = self._chosen.row, self._chosen.view.configuration
        if self._first_key is None:
            self._first_key = key
        if not key:
            self._first_key = ""
            return
        links = self._links.of(row, self.context.overview.reach) if row is not None else []
        made = (key, row, links, self._chosen.problem)
        if self._made is not None and made[0] == self._made[0] and row is self._made[1] and made[2:] == self._made[2:]:  # type: ignore[index]
            return
        self._made = made
        self._text.show(self._told(row, links))
        if row is not None and key not in (self._first_key, self._arrival.key):
            self._arrival.key, self._first_key = key, ""

    def _told(self, row: ChosenRow | None, links: list[RowLink]) -> Markup:
        title = "Chosen row" if row is None else row.label
        focus = Markup(' tabindex="0"') if len(title) > LONG_TITLE_LENGTH else ""
        shown = joined(html('<a class="button" href="{}">{}</a>', link.href or choose_href(link.row), link.title) for link in links)
        close = html('<a class="button" role="button" href="{}">Close</a>', choose_href(""))
        head = html('<div class="detail-head"><h2{}>{}</h2><div class="links">{}{}</div></div>', focus, title, shown, close)
        if row is None:
            problem = self._chosen.problem
            return head + (html('<p class="problem block">{}</p>', problem) if problem else html('<p class="empty">{}</p>', ASKING))
        term = "<div{}><dt>{}</dt><dd{}>{}</dd></div>"
        facts = joined(
            html(
                term,
                Markup(' class="wide"') if len(fact.text) > WIDE_TEXT_LENGTH else "",
                fact.title,
                Markup(' class="problem"') if fact.is_bad else "",
                fact.text,
            )
            for fact in facts_of(row.figures, row.kind)
        )
        said = html('<p class="note">{}</p>', NO_SAMPLE) if row.samples.is_empty() and row.kind != "swept kernel" else ""
        return head + html('<dl class="facts">{}</dl>', facts) + said + configurations_of(row)


CONFIGURATIONS: Final = (
    '<h3>Its configurations, the best first</h3><div class="scroll" tabindex="0"><table><thead><tr>'
    '<th>Configuration</th><th class="n">Median</th><th class="n">Flop rate</th><th class="n">Byte rate</th>'
    '<th class="n">Efficiency</th><th>Result</th>'
    "</tr></thead><tbody>{}</tbody></table></div>"
)
CONFIGURATION: Final = (
    '<tr><td title="{}"><a class="choose" href="{}">{}</a></td><td class="n">{}</td><td class="n">{}</td><td class="n">{}</td>'
    '<td class="n">{}</td><td{}>{}</td></tr>'
)


def configurations_of(row: ChosenRow) -> Markup:
    """Return the configurations of a kernel of a sweep, each a way to its own row; of other rows nothing."""
    if row.configurations is None:
        return Markup()
    listed = row.configurations.head(MAX_LISTED_CONFIGURATIONS).to_dicts()
    rows = joined(_configuration(configuration, row.kernel_name) for configuration in listed)
    hidden_count = row.configurations.height - len(listed)
    more = html('<p class="note">{} more are under “All its configurations”.</p>', theme.count(hidden_count)) if hidden_count else ""
    return html(CONFIGURATIONS, rows) + more


def _configuration(configuration: Mapping[str, Any], kernel_name: str) -> Markup:
    """Under what tells it from the others: all begin with the name of the kernel."""
    label, (result, is_bad) = configuration["label"], result_of(configuration)
    return html(
        CONFIGURATION,
        label,
        choose_href(configuration_key(configuration)),
        label.removeprefix(kernel_name).strip() or label,
        theme.duration(configuration["duration_median_ns"]),
        theme.flop_rate(configuration["achieved_flop_per_s"], configuration["dtype"]),
        theme.byte_rate(configuration["achieved_bytes_per_s"]),
        efficiency_cell(configuration["efficiency_ratio"]),
        Markup(' class="problem"') if is_bad else "",
        result,
    )


def result_of(configuration: Mapping[str, Any]) -> tuple[str, bool]:
    """Return how a configuration did, in words, and whether something is wrong."""
    if configuration["reason"]:
        return f"failed: {configuration['reason'].replace('_', ' ').lower()}", True
    if not configuration["is_measured"]:
        return "not measured", False
    if configuration["is_implausible"]:
        return "implausible", True
    state = configuration["verification_state"]
    return ("", False) if state is None else (VERIFICATION_TEXTS.get(state, state.lower()), state == "FAILED")


class Listings(Component):
    """What the compiler left of the chosen row's kernel."""

    def __init__(self, context: Context, chosen: Chosen) -> None:
        super().__init__(context)
        self._chosen = chosen
        self._contents: Question[bytes] = Question(context.wake)
        self._tabs = Text(classes=("listings",))
        self._text = Text()
        self.layout = card(Text(html("<h2>Compiler output</h2>")), self._tabs, self._text)

    def close(self) -> None:
        self._contents.stop()

    @property
    def has_rows(self) -> bool:
        row = self._chosen.row
        return row is not None and (bool(row.listings) or not row.is_of_trace)

    def update(self) -> None:
        self._chosen.update()
        row, name = self._chosen.row, self._chosen.view.listing
        if row is None or not self.has_rows:
            return
        shown = next((listing for listing in row.listings if listing.artifact_name == name), next(iter(row.listings), None))
        self._tabs.show(_listing_tabs(row, shown))
        self._text.show("" if shown is None else self._content(row.run_id, shown))

    def _content(self, run_id: str, listing: Listing) -> Markup:
        if listing.size_bytes > MAX_FETCHED_BYTES:
            return _said(f"{theme.memory(listing.size_bytes)} are too much for a page: download the file.")
        subject = (run_id, listing.artifact_name)
        self._contents.ask(subject, partial(self.context.client.artifact, *subject), self.context.overview.reach)
        content = self._contents.answer_to(subject)
        if content is None:
            return _said(self._contents.problem if self._contents.answered == subject else "Fetching it from its node.")
        return listing_text(content)


def _listing_tabs(row: ChosenRow, shown: Listing | None) -> Markup:
    if shown is None:
        return html('<p class="empty">{}</p>', NO_LISTING)
    tab = '<a class="button" href="?{}" title="{}"{}>{}</a>'
    tabs = joined(
        html(
            tab,
            urlencode({"listing": listing.artifact_name}),
            listing.artifact_name,
            Markup(' aria-current="true"') if listing is shown else "",
            listing.title,
        )
        for listing in row.listings
    )
    href = artifact_href(row.run_id, shown.artifact_name)
    return html('<div class="links">{}<a class="button" href="{}" download>Download</a></div>', tabs, href)


def _said(sentence: str) -> Markup:
    return html('<p class="empty">{}</p>', sentence)


@lru_cache(8)
def listing_text(content: bytes) -> Markup:
    """Return the content as HTML with line numbers; of long ones the beginning."""
    lines = content[:MAX_SHOWN_BYTES].decode(errors="replace").splitlines()
    shown = lines[:MAX_SHOWN_LINES]
    is_whole = len(shown) == len(lines) and len(content) <= MAX_SHOWN_BYTES
    said = f"The first {theme.count(len(shown))} lines of {theme.memory(len(content))}; the download has all."
    numbers = "\n".join(map(str, range(1, len(shown) + 1)))
    listing = (
        '<div class="listing" tabindex="0" role="region" aria-label="What the compiler left">'
        '<pre class="numbers" aria-hidden="true">{}</pre>'
        '<pre class="listing-text">{}</pre></div>'
    )
    return html(listing, numbers, "\n".join(shown)) + ("" if is_whole else html('<p class="note">{}</p>', said))
