"""Two runs beside each other: which they are, what else differs between them, and how their rows and sources compare."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import panel as pn
import polars as pl
from markupsafe import Markup

from kernalyse.services.core.formatting import footnote_lines
from kernalyse.services.core.model import Run
from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import Component, Text, card, field, flow, fold, html, joined
from kernalyse.services.ui.components.filters import Filters
from kernalyse.services.ui.components.runs import MAX_LISTED_RUNS
from kernalyse.services.ui.components.table import Column, Extent, Heading, PagedRows, extent_of
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.data.chosen_row import sources_of
from kernalyse.services.ui.data.compared_rows import (
    Compared,
    ComparedColumn,
    Fact,
    FileDifference,
    SourceLine,
    chosen_pair,
    columns_of,
    compared,
    disturbances,
    facts,
    has_layers,
    reason_marks,
    source_difference,
    table_rows,
    tiles,
)
from kernalyse.services.ui.data.memory import Overview, RunMemory
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.data.runs import run_card
from kernalyse.services.ui.view import CompareView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

REFRESH_INTERVAL_S: Final = 2.0
"""Between questions while one of the runs goes on: each costs the analyzer a bootstrap of every configuration."""

NOT_ALIKE: Final = "One of these is a trace and the other has measurements: choose two traces, or two runs of measurements."
ONE_RUN: Final = "Both sides are of one run, and of the same sources."
SAME_RUN: Final = "Both sides are one and the same run, so there is nothing to compare: choose another run on one of them."
NO_LAYERS: Final = "This run has its model in one variant only: choose two of them when it is started."
NO_TURNS: Final = "This run has compared none of its configurations in turns; such a run is made by: kernalyse bench A B --paired"
NO_PAIR: Final = "There are no two runs to compare yet."
ASKING: Final = "Asking the analyzer."
COLUMN_WIDTHS_PX: Final = {"verdict": 180, "interval": 170, "median_ratio": 170, "occurrence": 80}
COLUMN_WIDTH_PX: Final = 102


class Pair(Component):
    """What the page's components stand on: both runs, and the rows that say how they compare.

    Attributes:
        before, after: the runs; None: not chosen, or not known.
        memories: of both, one where both sides are of one run; none unless they can be compared.
        problem: why there is no comparison; empty: there is one, or it has been asked for.
        answer: of this pair; None: it has not come.
        refused: differences that stand against it, since nobody has said that they are meant.
        rows: of the answer that the filters leave, sorted.
        version: another when any of these is.
    """

    def __init__(self, context: Context, view: CompareView) -> None:
        super().__init__(context)
        self.view = view
        self.before: Run | None = None
        self.after: Run | None = None
        self.memories: tuple[RunMemory, ...] = ()
        self.problem: str = ASKING
        self.answer: Compared | None = None
        self.refused: tuple[str, ...] = ()
        self.rows = pl.DataFrame()
        self.version = 0
        self._compared: Question[Compared] = Question(context.wake)
        self._update_count = -1
        self._shown: object = None

    @property
    def run_ids(self) -> tuple[str, str]:
        """The ids of both; empty: none."""
        return run_id_of(self.before), run_id_of(self.after)

    @property
    def can_have_layers(self) -> bool:
        return self.before is not None and self.after is not None and has_layers(self.before, self.after)

    @property
    def shown(self) -> Compared | None:
        """The answer, where nothing stands against it and there is something to compare."""
        return None if self.refused or (self.answer is not None and self.answer.is_of_nothing) else self.answer

    def close(self) -> None:
        self._compared.stop()

    def update(self) -> None:
        if self._update_count == self.context.update_count:
            return
        self._update_count = self.context.update_count
        overview, view = self.context.overview, self.view
        self.before, self.after = self._sides(overview)
        self.problem = self._problem_of(overview)
        self.memories, self.answer = (), None
        if self.before is not None and self.after is not None and not self.problem:
            self.memories = self.context.memories(list(dict.fromkeys(self.run_ids)))
            self.answer = self._answer(self.before, self.after, overview)
            self.problem = self._compared.problem if self.answer is None else ""
        differences = () if self.answer is None else self.answer.differences
        self.refused = tuple(name for name in differences if name not in view.allow.split(","))
        filtered = tuple(getattr(self.context.view, name) for name in self.context.view.names())
        shown = (self.answer, self.refused, self.problem, self.run_ids, filtered, view.verdict, view.sort, view.descending)
        if shown != self._shown:
            self._shown = shown
            self.version += 1
            self.rows = pl.DataFrame() if self.shown is None else self._filtered(self.shown)

    def _sides(self, overview: Overview) -> tuple[Run | None, Run | None]:
        """Only the newest runs are in the overview: older ones that are named are looked at for their own sake."""
        view, overlaid = self.view, self.context.view.runs
        named = {run_id for run_id in (view.baseline, view.candidate, *overlaid[:2]) if run_id}
        older = sorted(named - {run.run_id for run in overview.runs})
        found = tuple(memory.run for memory in self.context.memories(older) if memory.run is not None)
        return chosen_pair(replace(overview, runs=(*overview.runs, *found)), view.baseline, view.candidate, overlaid)

    def _problem_of(self, overview: Overview) -> str:
        if not overview.is_known:
            return "Waiting for the analyzer's list."
        for run_id, run in ((self.view.baseline, self.before), (self.view.candidate, self.after)):
            if run_id and run is None:
                (memory,) = self.context.memories([run_id])
                return f"Run {run_id} is not there; it may have been deleted. Choose another." if memory.problem else ASKING
        if self.before is None or self.after is None:
            return NO_PAIR
        return NOT_ALIKE if self.before.is_trace != self.after.is_trace else ""

    def _answer(self, before: Run, after: Run, overview: Overview) -> Compared | None:
        points = self.view.points
        subject = (before.run_id, after.run_id, points if has_layers(before, after) else "")
        progress = (overview.revision, *((run.state, run.is_settled, run.completed_configuration_count) for run in (before, after)))
        self._compared.ask(subject, partial(compared, self.context.client, before, after, points), progress, REFRESH_INTERVAL_S)
        return self._compared.answer if self._compared.answered == subject and not self._compared.problem else None

    def _filtered(self, answer: Compared) -> pl.DataFrame:
        view = self.view
        rows = filters.filtered(answer.rows, self.context.view, (answer.name_column if answer.is_of_traces else "kernel_name",))
        if view.verdict and not answer.is_of_traces:
            rows = rows.filter(pl.col("occurrence" if view.verdict in ("NEW", "GONE") else "verdict") == view.verdict)
        if view.sort in rows.columns:
            return rows.sort(view.sort, descending=view.descending, nulls_last=True, maintain_order=True)
        return rows if answer.is_of_traces else rows.sort("duration_ratio", descending=True, nulls_last=True, maintain_order=True)


def run_id_of(run: Run | None) -> str:
    return "" if run is None else run.run_id


class SideChoice(Component):
    """Which run is held against which."""

    def __init__(self, context: Context, pair: Pair) -> None:
        super().__init__(context)
        self._pair = pair
        self._choices = {
            name: pn.widgets.Select(label=label, options={"choose a run": ""}, sizing_mode="stretch_width", min_width=0, margin=0)
            for name, label in (("baseline", "Baseline (as is)"), ("candidate", "Candidate (to be)"))
        }
        for name, choice in self._choices.items():
            choice.param.watch(partial(self._choose, name), "value")
        swap = pn.widgets.Button(label="⇄ Swap", description="Swap baseline and candidate", margin=0, align="end", on_click=self._swap)
        self.layout = pn.Column(
            self._choices["baseline"], swap, self._choices["candidate"], css_classes=["sides"], sizing_mode="stretch_width"
        )
        self._made: object = None

    def update(self) -> None:
        self._pair.update()
        pair, overview = self._pair, self.context.overview
        sides = (pair.before, pair.after)
        listed = list(overview.runs[:MAX_LISTED_RUNS])
        listed += [run for run in dict.fromkeys(sides) if run is not None and run not in listed]
        made = ([(run.run_id, run.title) for run in listed], pair.run_ids)
        if made == self._made:
            return
        self._made = made
        cards = [run_card(run, overview, 0.0) for run in listed]
        options = {f"{told.title[:60]} · {told.create_text[5:16]} · {theme.short_run_id(told.run_id)}": told.run_id for told in cards}
        for choice, run in zip(self._choices.values(), sides, strict=True):
            offered = options if run is not None else {"choose a run": "", **options}
            choice.param.update(options=offered, value=run_id_of(run))

    def _choose(self, side: str, event: Any) -> None:
        """Both are named from then on: what nobody has chosen must not change under the one that somebody has."""
        sides = dict(zip(("baseline", "candidate"), self._pair.run_ids, strict=True))
        if event.new and event.new != sides[side]:
            self._pair.view.param.update(**{**sides, side: event.new}, allow="")

    def _swap(self, _event: Any) -> None:
        before, after = self._pair.run_ids
        self._pair.view.param.update(baseline=after, candidate=before)


class Difference(Component):
    """What else differs between the runs, and the question whether that is meant."""

    def __init__(self, context: Context, pair: Pair) -> None:
        super().__init__(context)
        self._pair = pair
        self._refusal = Text(sizing_mode=None)
        allow = pn.widgets.Button(label="Compare anyway", margin=0, on_click=self._allow)
        self._question = flow(self._refusal, allow, classes=("refusal",), visible=False)
        self._summary = Text()
        self._facts = Text(classes=("differences",))
        self._fold = fold(self._summary, self._facts)
        self._made: object = None
        self.layout = pn.Column(self._question, self._fold, sizing_mode="stretch_width")

    def update(self) -> None:
        self._pair.update()
        pair, memories = self._pair, self._pair.memories
        positions = tuple(memory.since(name, 2**62).position for memory in memories for name in ("measurements", "roofline"))
        made = (pair.refused, pair.run_ids, tuple(memory.run for memory in memories), positions, self.context.overview.nodes)
        if made == self._made:
            return
        self._made = made
        found = facts(memories[0], memories[-1], self.context.overview) if len(memories) == 2 else []
        different = ", ".join(fact.title for fact in found if fact.is_different) or "nothing that was recorded"
        said = '<p role="alert">These runs differ in {}: their ratios would tell of that as well as of the kernels.</p>'
        self._refusal.show(html(said, " and ".join(pair.refused)) if pair.refused else "")
        self._summary.show(html("What differs: {}", different))
        self._facts.show(_fact_table(found))
        self._question.visible = bool(pair.refused)
        self._fold.param.update(visible=bool(found), collapsed=not pair.refused)

    def _allow(self, _event: Any) -> None:
        self._pair.view.allow = ",".join(name for name in (*self._pair.view.allow.split(","), *self._pair.refused) if name)


def _fact_table(found: Sequence[Fact]) -> Markup:
    row = '<tr class="{}"><th scope="row">{}</th><td>{}</td><td>{}</td></tr>'
    rows = joined(html(row, "different" if fact.is_different else "", fact.title, fact.before, fact.after) for fact in found)
    return html(
        '<table><thead><tr><td></td><th scope="col">Before</th><th scope="col">After</th></tr></thead><tbody>{}</tbody></table>', rows
    )


class Tiles(Component):
    """What the comparison comes to."""

    def __init__(self, context: Context, pair: Pair) -> None:
        super().__init__(context)
        self._pair = pair
        self._text = Text(classes=("tiles",))
        self._made: object = None
        self.layout = card(self._text, classes=("summary",))

    def update(self) -> None:
        answer = self._pair.shown
        if answer is not self._made and answer is not None:
            self._made = answer
            self._text.show(
                joined(html('<div class="tile"><span>{name}</span><strong>{value}</strong></div>', **tile) for tile in tiles(answer))
            )


class CompareFilters(Filters):
    """Filters with the choice of a verdict, and of what rows are."""

    def __init__(self, context: Context, pair: Pair) -> None:
        self._verdict, self._points = (field(pn.widgets.Select, pair.view.param[name]) for name in ("verdict", "points"))
        super().__init__(context, self._verdict, self._points)
        self._pair = pair

    def update(self) -> None:
        self._pair.update()
        answer = self._pair.shown
        self.offer({} if self._pair.answer is None else filters.values_of(self._pair.answer.rows))
        for choice, is_shown in (
            (self._verdict, answer is not None and not answer.is_of_traces),
            (self._points, self._pair.can_have_layers),
        ):
            if choice.visible != is_shown:
                choice.visible = is_shown


class ComparedTable(PagedRows):
    """Every row that is in either run."""

    def __init__(self, context: Context, pair: Pair) -> None:
        super().__init__(context, pair.view, "compare", "Compared")
        self._pair = pair
        self._made: object = None

    def update(self) -> None:
        self._pair.update()
        pair, view = self._pair, self._pair.view
        made = (pair.version, view.row, view.row_count, view.written(), self.context.view.written())
        if made == self._made:
            return
        self._made = made
        answer, extent = pair.shown, extent_of(view, pair.rows.height)
        if answer is None or not extent.total:
            self.show_rows((), (), Extent(0, view.row_count, 0), html('<div class="empty">{}</div>', self._empty()))
            return
        shown = pair.rows.slice(extent.first, extent.step)
        marks = reason_marks(shown)
        columns = columns_of(answer)
        headings = [_heading(column, column.name in answer.rows.columns) for column in columns]
        rows = [_cells(columns, row) for row in table_rows(answer, shown, marks, self.context.palette)]
        notes = (*footnote_lines(marks), *disturbances(answer.rows))
        self.show_rows(headings, rows, extent, joined(html("<p>{}</p>", note) for note in notes))

    def _empty(self) -> str:
        pair = self._pair
        if pair.problem:
            return pair.problem
        if pair.answer is None:
            return ASKING
        if pair.refused:
            return "Not compared: say above that the difference is meant."
        if pair.answer.rows.height:
            return "No row matches these filters."
        if pair.answer.is_of_one_run:
            return f"{SAME_RUN} {NO_LAYERS if pair.view.points == 'layer' else NO_TURNS}"
        return "Neither run has measured anything that could be compared."


def _heading(column: ComparedColumn, can_sort: bool) -> Heading:
    is_name = column.is_text and column.name not in COLUMN_WIDTHS_PX
    width_px = None if is_name else COLUMN_WIDTHS_PX.get(column.name, COLUMN_WIDTH_PX)
    return Heading(Column(column.title, width_px, is_number=not column.is_text), column.name if can_sort else "")


def _cells(columns: Sequence[ComparedColumn], row: dict[str, Any]) -> tuple[Markup, ...]:
    return tuple(_cell(column, text, row) for column, text in zip(columns, row["cells"], strict=True))


def _cell(column: ComparedColumn, text: str, row: dict[str, Any]) -> Markup:
    if column.name != "verdict" or row["verdict"] is None:
        return html('<span title="{0}">{0}</span>', text) if column.is_text else html("{}", text)
    why = html('<span class="why">{}</span>', row["reason"]) if row["reason"] else ""
    return html('<span class="swatch" style="color:{color}" aria-hidden="true">{symbol}</span>{word}', **row["verdict"]) + why


class Sources(Component):
    """How the kernels' sources of both runs differ."""

    def __init__(self, context: Context, pair: Pair) -> None:
        super().__init__(context)
        self._pair = pair
        self._found: Question[tuple[tuple[FileDifference, ...], str]] = Question(context.wake)
        self._note = Text()
        self._files = pn.Column(sizing_mode="stretch_width")
        self._made: object = None
        self.layout = card(Text(html("<h2>Sources</h2>")), self._note, self._files, classes=("sources",))

    def close(self) -> None:
        self._found.stop()

    def update(self) -> None:
        self._pair.update()
        before, after = self._pair.before, self._pair.after
        if before is None or after is None or not self._pair.memories:
            return
        subject = self._pair.run_ids
        self._found.ask(subject, partial(self._difference, before, after), self.context.overview.reach)
        files, note = self._found.answer_to(subject) or ((), "")
        if self._found.answered != subject:
            said = "Asking for the sources."
        else:
            said = self._found.problem or note or ("" if files else "Neither run has sources.")
        made = (said, files)
        if made != self._made:
            self._made = made
            self._note.show(html('<p class="empty">{}</p>', said) if said else "")
            self._files[:] = [] if said else [_file(file) for file in files]

    async def _difference(self, before: Run, after: Run) -> tuple[tuple[FileDifference, ...], str]:
        """File by file, or why there is nothing to compare."""
        if before.run_id == after.run_id:
            return (), ONE_RUN
        old, new = await asyncio.gather(sources_of(self.context.client, before), sources_of(self.context.client, after))
        if old.missing or new.missing:
            return (), " ".join(dict.fromkeys(text for text in (old.missing, new.missing) if text))
        return await asyncio.to_thread(source_difference, old.texts, new.texts), ""


def _file(file: FileDifference) -> Any:
    if file.is_same:
        return Text(html('<p class="same"><code>{}</code> <span class="note">the same in both</span></p>', file.name))
    counts = '<code>{}</code> <span class="added">+{}</span> <span class="removed">−{}</span>'
    lines = '<div class="diff" tabindex="0" role="region" aria-label="Difference of {}"><table><tbody>{}</tbody></table></div>'
    more = html('<p class="note">{} more lines.</p>', theme.count(file.hidden_count)) if file.hidden_count else ""
    content = Text(html(lines, file.name, joined(_line(line) for line in file.lines)) + more)
    return fold(
        Text(html(counts, file.name, file.added_count, file.removed_count)),
        content,
        collapsed=not (file.added_count and file.removed_count),
    )


def _line(line: SourceLine) -> Markup:
    row = '<tr class="{}"><td class="number">{}</td><td class="number">{}</td><td class="sign">{}</td><td><code>{}</code></td></tr>'
    sign = {"added": "+", "removed": "−", "gap": "⋯"}.get(line.kind, "")
    return html(row, line.kind, line.number_before or "", line.number_after or "", sign, line.text)
