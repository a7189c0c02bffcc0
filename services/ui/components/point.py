"""The chosen point of a roofline: what limits it, what there is to gain, and every figure with its meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import polars as pl
from markupsafe import Markup

from kernalyse.services.core.model import Filter, ImportedTrace, Run, SortKey, TableQuery
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.roofline_points import LEVEL_TITLES
from kernalyse.services.ui.components.base import Component, card
from kernalyse.services.ui.components.roofline import RooflineChart
from kernalyse.services.ui.components.text import Text, html, joined
from kernalyse.services.ui.diagnosis import Diagnosis, diagnosis, rows_of_point
from kernalyse.services.ui.memory import RunMemory
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.result_rows import ResultRow, result_rows
from kernalyse.services.ui.theme import Outline, efficiency_style

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

LONG_TITLE: Final = 120
"""Characters beyond which a title scrolls, and has to be reached by keyboard."""

GONE: Final = html(
    '<h2>Point not shown</h2><p class="empty">The chosen point is not among those of these runs and filters, or has not been read yet.</p>'
)


class PointPanel(Component):
    """What is known of the chosen point; it takes no room while there is none."""

    def __init__(self, context: Context, chart: RooflineChart) -> None:
        super().__init__(context)
        self._chart = chart
        self._occupancy: Question[pl.DataFrame] = Question(context.wake)
        self._made: object = None
        self._text = Text(classes=("point",))
        self.layout = card(self._text, classes=("point-card",))
        self.layout.visible = False

    def close(self) -> None:
        self._occupancy.stop()

    def update(self) -> None:
        shown, key = self._chart.shown, self._chart.view.point
        revision = self.context.overview.revision
        made = (id(shown), key, self._chart.neighbours, revision, self._occupancy.answered, self.context.palette)
        if made == self._made:
            return
        self._made = made
        is_shown = bool(key) and shown is not None
        if self.layout.visible != is_shown:
            self.layout.visible = is_shown
        if shown is not None and is_shown:
            self._text.show(self._told(rows_of_point(shown.rows, key), shown.placed, key, revision))

    def _told(self, chosen: pl.DataFrame, placed: pl.DataFrame, key: str, revision: int) -> Markup:
        """chosen: rows of the point, one for each memory level shown; none: it is not shown."""
        close = html('<a class="close" role="button" aria-label="Close" href="?point=">✕</a>')
        if chosen.is_empty():
            return html('<div class="point-head"><div>{}</div>{}</div>', GONE, close)
        row = chosen.row(0, named=True)
        memory = next(memory for memory in self._chart.rows.memories if memory.run_id == row["run_id"])
        told = diagnosis(row, _measurement_of(row, memory), self._occupancy_of(row, revision), in_macs=_is_in_macs(memory.run))
        run_title = memory.run.title if memory.run else theme.short_run_id(row["run_id"])
        focus = Markup(' tabindex="0"') if len(told.title) > LONG_TITLE else ""
        levels = [LEVEL_TITLES.get(level, level) for level in chosen["memory_level"]]
        neighbours = [other for other in self._chart.neighbours if other != key] if key in self._chart.neighbours else []
        return joined(
            (
                html('<div class="point-head"><h2{}>{}</h2>{}</div><p class="note">{}</p>', focus, told.title, close, run_title),
                self._verdict(told, is_implausible=bool(row["is_implausible"])),
                html('<p class="headroom">{}</p>', told.headroom) if told.headroom else Markup(),
                html('<ul class="hints">{}</ul>', joined(html("<li>{}</li>", hint) for hint in told.hints)) if told.hints else Markup(),
                _levels(levels, result_rows(chosen)) if chosen.height > 1 else Markup(),
                html('<dl class="terms">{}</dl>', joined(html(TERM, term.name, term.value, term.meaning) for term in told.terms)),
                self._close_by(neighbours, placed),
            )
        )

    def _verdict(self, told: Diagnosis, *, is_implausible: bool) -> Markup:
        palette = self.context.palette
        color = palette.bad if is_implausible else efficiency_style(told.category, palette).color
        symbol = theme.IMPLAUSIBLE_SYMBOL if is_implausible else Outline.of(told.category).symbol
        badge = html('<strong class="badge"><span style="color:{}" aria-hidden="true">{}</span> {}</strong> ', color, symbol, told.category)
        return html('<p class="verdict" role="status">{}{}</p>', badge if told.category else "", told.limit)

    def _close_by(self, neighbours: Sequence[str], placed: pl.DataFrame) -> Markup:
        found = [(key, rows_of_point(placed, key)) for key in neighbours]
        links = joined(html('<a href="?{}">{}</a> ', urlencode({"point": key}), rows["label"][0]) for key, rows in found if rows.height)
        return html('<div class="neighbours"><span class="note">Close by:</span> {}</div>', links) if links else Markup()

    def _occupancy_of(self, row: dict[str, Any], revision: int) -> dict[str, Any] | None:
        """Of a trace's kernel: its launch configuration that took longest."""
        if row["configuration_index"] is not None or not row["kernel_name"]:
            return None
        subject = (row["run_id"], row["kernel_name"])
        of_kernel = (Filter("kernel_name", row["kernel_name"]),)
        query = TableQuery("occupancy", (row["run_id"],), filters=of_kernel, order_by=(SortKey("duration_sum_ns", True),), limit=1)

        async def longest() -> pl.DataFrame:
            return (await self.context.client.table(query)).rows

        self._occupancy.ask(subject, longest, revision)
        answer = self._occupancy.answer_to(subject)
        return None if answer is None or answer.is_empty() else answer.row(0, named=True)


TERM: Final = "<div><dt>{}</dt><dd><strong>{}</strong><span>{}</span></dd></div>"
LEVELS: Final = (
    '<table class="levels"><thead><tr><th>Level</th><th class="n">Byte rate</th><th class="n">Intensity</th>'
    '<th class="n">Efficiency</th></tr></thead><tbody>{}</tbody></table>'
)
LEVEL: Final = '<tr><td>{}</td><td class="n">{}</td><td class="n">{}</td><td class="n">{}</td></tr>'


def _levels(names: Sequence[str], rows: Sequence[ResultRow]) -> Markup:
    figures = [
        (theme.byte_rate(row.achieved_bytes_per_s), theme.intensity(row.intensity_flop_per_byte), theme.percent(row.efficiency_ratio))
        for row in rows
    ]
    return html(LEVELS, joined(html(LEVEL, name, *values) for name, values in zip(names, figures, strict=True)))


def _measurement_of(row: dict[str, Any], memory: RunMemory) -> dict[str, Any] | None:
    measurements = memory.table("measurements")
    if row["configuration_index"] is None or measurements is None:
        return None
    found = measurements.filter(pl.col("configuration_index") == row["configuration_index"])
    return None if found.is_empty() else found.row(-1, named=True)


def _is_in_macs(run: Run | None) -> bool:
    """Operations of an accelerator are counted so."""
    return run is not None and isinstance(run.spec.work, ImportedTrace) and run.spec.work.format == "commands"
