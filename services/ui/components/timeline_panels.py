"""What stands around a timeline: the choice of its run, the search, the chosen event, the marked stretch."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import panel as pn
import polars as pl
from markupsafe import Markup

from kernalyse.services.core.model import Run
from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import Component, Text, card, field, flow, html, joined
from kernalyse.services.ui.components.filters import Filters
from kernalyse.services.ui.components.runs import MAX_LISTED_RUNS
from kernalyse.services.ui.components.table import Column, Rows
from kernalyse.services.ui.components.timeline import TimelineChart
from kernalyse.services.ui.data.filters import whole
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.data.timeline_questions import Event, TimeWindow, event_of
from kernalyse.services.ui.view import View, to_query

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

TYPING_S: Final = 0.25
"""After the last letter until it is searched."""

MAX_SEARCH_LENGTH: Final = 1000
MAX_LISTED_SUBJECTS: Final = 12
WIDE_FACT_LENGTH: Final = 24
DEVICE_COLUMNS: Final = (
    Column("Device"),
    Column("Busy", 120, is_number=True),
    *(Column(title, 88, is_number=True) for title in ("Idle", "Computing", "Communicating", "Both", "Copying", "Kernels")),
)
SUBJECT_COLUMNS: Final = (
    Column("What took longest"),
    Column("Device", 110),
    *(Column(title, 90, is_number=True) for title in ("Time", "Share", "Count")),
)


class TimelineFilters(Filters):
    """The run, the search with its matches, and what bars are coloured by."""

    def __init__(self, context: Context, chart: TimelineChart) -> None:
        super().__init__(context, field(pn.widgets.Select, chart.view.param.color_by))
        self._chart = chart
        self._count: Question[int] = Question(context.wake)
        self._typing: asyncio.TimerHandle | None = None
        self._searched = ""  # as the field has it
        self._run = pn.widgets.Select(label="Run", options={"": ""}, sizing_mode="stretch_width", margin=0)
        self._run.param.watch(self._choose_run, "value")
        self._search = pn.widgets.TextInput(
            label="Search", placeholder="part of a name", max_length=MAX_SEARCH_LENGTH, sizing_mode="stretch_width", margin=0
        )
        self._search.param.watch(self._typed, "value_input")
        self._matches = Text(classes=("matches",), sizing_mode=None)
        self._steps = [
            pn.widgets.Button(label=label, margin=0, on_click=lambda _, step=step: context.carry_out(chart.go_to_match(step)))
            for label, step in (("‹ Previous match", -1), ("Next match ›", 1))
        ]
        self._jumps = flow(*self._steps, self._matches, classes=("jumps",), visible=False)
        fields: Any = self.layout
        fields[:] = [self._run, self._search, self._jumps, *fields]

    def close(self) -> None:
        self._count.stop()
        if self._typing is not None:
            self._typing.cancel()

    def update(self) -> None:
        self.offer({})
        self._show_runs()
        view, chart, outline = self._chart.view, self._chart, self._chart.outline
        if view.search != self._searched:  # a link leads to it
            self._searched = view.search
            self._search.param.update(value=view.search, value_input=view.search)
        is_searched = bool(view.search) and outline is not None
        if is_searched and outline is not None:
            self._count.ask(
                (outline.run_id, chart.searched),
                partial(chart.ask.match_count, outline.run_id, chart.searched),
                self.context.overview.revision,
            )
        if self._jumps.visible != is_searched:
            self._jumps.visible = is_searched
        count = None if self._count.is_on_its_way else self._count.answer
        for button in self._steps:
            button.disabled = not count
        if self._count.problem:
            self._matches.show(html('<span class="problem" role="status">{}</span>', self._count.problem))
        else:
            self._matches.show(html('<span role="status">{}</span>', "searching" if count is None else self._place(count)))

    def _place(self, count: int) -> str:
        """Of the match that was jumped to among all."""
        if self._chart.match is not None:
            return f"{theme.count(self._chart.match.index + 1)} of {theme.count(count)}"
        return f"{theme.count(count)} match{'' if count == 1 else 'es'}"

    def _typed(self, event: Any) -> None:
        """Search when nothing more is typed for a moment."""
        if self._typing is not None:
            self._typing.cancel()
        if event.new != self._searched:
            self._typing = asyncio.get_running_loop().call_later(TYPING_S, self._search_for, event.new)

    def _search_for(self, text: str) -> None:
        self._chart.view.search = self._searched = text

    def _show_runs(self) -> None:
        """Offer the newest runs with a timeline, and the one that is shown."""
        overview, chosen = self.context.overview, next(iter(self.context.view.runs), "")
        listed = [run for run in overview.runs if run.has_timeline][:MAX_LISTED_RUNS]
        shown = self._chart.run
        if chosen and shown is not None and shown not in listed:
            listed.append(shown)
        options = {"newest": ""}
        for run in listed:
            title = _title(run)
            options[title if title not in options else f"{title} · {theme.short_run_id(run.run_id)}"] = run.run_id
        if chosen not in options.values():
            options[theme.short_run_id(chosen)] = chosen
        if options != self._run.options or self._run.value != chosen:
            self._run.param.update(options=options, value=chosen)

    def _choose_run(self, event: Any) -> None:
        """Another trace has other times, events and rows."""
        if event.new != next(iter(self.context.view.runs), ""):
            self._chart.view.param.update(window="", stretch="", event="", folded=[], hidden=[])
            self.context.view.runs = [event.new] if event.new else []


def _title(run: Run) -> str:
    return f"{run.title[:40]} · {theme.moment(int(run.create_time.timestamp() * 1e9))[5:16]}"


class ChosenEvent(Component):
    """All that the trace tells of the chosen kernel, copy, range or call, and where it leads."""

    def __init__(self, context: Context, chart: TimelineChart) -> None:
        super().__init__(context)
        self._chart = chart
        self._shown: object = None
        self._name, self._facts, self._links = Text(), Text(), Text(classes=("links",), sizing_mode=None)

        def button(label: str, do: Any) -> Any:
            return pn.widgets.Button(label=label, margin=0, on_click=lambda _: do())

        self._launch = button("From its launch on", self._go_to_launch)
        self._other = button("", self._choose_other)
        self._same = [button(label, partial(self._step, step)) for label, step in (("‹ Previous launch", -1), ("Next launch ›", 1))]
        clear = button("Clear", lambda: chart.view.param.update(event=""))
        self._jumps = flow(self._launch, self._other, *self._same, self._links, clear, classes=("jumps",), visible=False)
        self.layout = card(Text(html("<h2>Chosen</h2>")), self._name, self._jumps, self._facts, classes=("chosen",))

    def update(self) -> None:
        event, problem = self._chart.chosen_event()
        is_chosen = event_of(self._chart.view.event) is not None
        shown = (event and (event.text, event.name, event.layer), problem, is_chosen, self._links_of(event))
        if shown == self._shown:
            return
        self._shown = shown
        self._jumps.visible = event is not None
        if event is None:
            waiting = "Asking for it." if is_chosen else "Click a bar: all that the trace tells of it stands here."
            self._name.show(html('<p class="{}">{}</p>', "problem" if problem else "empty", problem or waiting))
            self._facts.show("")
            return
        self._name.show(html('<p class="event-name"><code>{}</code></p>', event.name))
        self._launch.visible = event.row.get("launch_start_ns") is not None
        self._other.param.update(label="Its call" if event.call else "What it started", visible=event.other is not None)
        for same in self._same:
            same.visible = event.track == "kernels"
        self._links.show(self._links_of(event))
        facts = [("Start", f"{theme.count(event.start_ns)} ns"), ("Took", theme.duration(event.row["duration_ns"])), *facts_of(event)]
        listed = joined(
            html('<div class="{}"><dt>{}</dt><dd>{}</dd></div>', "wide" if len(text) > WIDE_FACT_LENGTH else "", title, text)
            for title, text in facts
            if text
        )
        self._facts.show(html('<dl class="facts">{}</dl>', listed))

    def _links_of(self, event: Event | None) -> Markup:
        outline, view = self._chart.outline, self.context.view
        if event is None or outline is None or event.track != "kernels":
            return html("")
        runs = view.runs or [outline.run_id]
        kernel = to_query(View(runs=runs, theme=view.theme, kernel=whole(event.name)), table="launched")
        links = [html('<a href="/kernels?{}">This kernel</a>', kernel)]
        if event.layer:
            links.append(
                html('<a href="/layers?{}">Its layer</a>', to_query(View(runs=runs, theme=view.theme), layer_name=whole(event.layer)))
            )
        return joined(links)

    def _go_to_launch(self) -> None:
        event, _ = self._chart.chosen_event()
        if event is not None and event.row.get("launch_start_ns") is not None:
            launch_ns = event.row["launch_start_ns"]
            self._chart.go_to(TimeWindow(launch_ns, max(event.end_ns, launch_ns + 1)))

    def _choose_other(self) -> None:
        event, _ = self._chart.chosen_event()
        self._chart.choose(event and event.other)

    def _step(self, step: int) -> None:
        self.context.carry_out(self._chart.go_to_launch(step))


class MarkedStretch(Component):
    """What the devices did in the marked stretch, and what took longest."""

    def __init__(self, context: Context, chart: TimelineChart) -> None:
        super().__init__(context)
        self._chart = chart
        self._summary: Question[pl.DataFrame] = Question(context.wake)
        self._shown: object = None
        view = chart.view
        self._length = Text(classes=("stretch-length",), sizing_mode=None)
        self._zoom = pn.widgets.Button(label="Zoom to it", margin=0, on_click=lambda _: self._zoom_to_it())
        mark = pn.widgets.Button(label="Of all that is shown", margin=0, on_click=lambda _: chart.mark_what_is_shown())
        self._clear = pn.widgets.Button(label="Clear", margin=0, on_click=lambda _: view.param.update(stretch=""))
        self._said = Text()
        self._devices = Rows(DEVICE_COLUMNS, "The trace has no device.", visible=False)
        self._subjects = Rows(SUBJECT_COLUMNS, "Nothing ran.", visible=False)
        self._more = Text(classes=("note",))
        jumps = flow(self._length, self._zoom, mark, self._clear, classes=("jumps",))
        title = Text(html("<h2>Stretch</h2>"))
        self.layout = card(title, self._said, jumps, self._devices.table, self._subjects.table, self._more, classes=("stretch",))

    def close(self) -> None:
        self._summary.stop()

    def update(self) -> None:
        outline, window = self._chart.outline, TimeWindow.of(self._chart.view.stretch)
        if outline is not None and window is not None:
            ask = partial(self._chart.ask.summary, outline.run_id, window)
            self._summary.ask((outline.run_id, window), ask, self.context.overview.revision)
        is_answered = self._chart.is_answered(self._summary, window)
        problem = self._summary.problem if is_answered else ""
        summary = self._summary.answer if is_answered and not problem else None
        if (window, problem, id(summary)) == self._shown:
            return
        self._shown = (window, problem, id(summary))
        self._length.show("" if window is None else html("<strong>{}</strong>", theme.duration(window.length_ns)))
        self._zoom.visible = self._clear.visible = window is not None
        if window is None:
            said = html(
                '<p class="empty">{}</p>',
                "Drag on the time axis, or with Shift over the rows: what the devices did in that stretch stands here.",
            )
        elif problem:
            said = html('<p class="problem">{}</p>', problem)
        else:
            said = html("") if summary is not None else html('<p class="empty">Working it out.</p>')
        self._said.show(said)
        self._show_rows(window, [] if summary is None else summary.to_dicts(), is_known=summary is not None)

    def _show_rows(self, window: TimeWindow | None, rows: list[dict[str, Any]], *, is_known: bool) -> None:
        """rows: of table window_summary."""
        self._devices.table.visible = self._subjects.table.visible = is_known
        devices = [row for row in rows if row["subject_kind"] == "device"]
        subjects = [row for row in rows if row["subject_kind"] != "device"]
        names = {(row["process_id"], row["device_index"]): _number("device ", row["device_index"]) or "device" for row in devices}
        if len({process_id for process_id, _ in names}) > 1:
            names = {key: f"{name} · process {key[0]}" for key, name in names.items()}
        if window is not None:
            self._devices.show([_device_cells(row, names[row["process_id"], row["device_index"]], window) for row in devices])
        self._subjects.show(
            [_subject_cells(row, names.get((row["process_id"], row["device_index"]), "")) for row in subjects[:MAX_LISTED_SUBJECTS]]
        )
        left_out = len(subjects) - MAX_LISTED_SUBJECTS
        self._more.show(html("<p>{} more took less.</p>", theme.count(left_out)) if left_out > 0 else "")

    def _zoom_to_it(self) -> None:
        window = TimeWindow.of(self._chart.view.stretch)
        if window is not None:
            self._chart.go_to(window)


def _device_cells(row: dict[str, Any], name: str, window: TimeWindow) -> tuple[str, ...]:
    ratio = row["busy_ns"] / window.length_ns
    meter = html('<span class="meter" aria-hidden="true"><span style="width:{:.1f}%"></span></span>{}', 100 * ratio, theme.percent(ratio))
    durations = (theme.duration(row[f"{what}_ns"]) for what in ("idle", "compute", "communication", "overlap", "memory"))
    return (html("{}", name), meter, *(html("{}", text) for text in durations), html("{}", theme.count(row["op_count"])))


def _subject_cells(row: dict[str, Any], device: str) -> tuple[str, ...]:
    figures = (theme.duration(row["duration_sum_ns"]), theme.percent(row["share_ratio"]), theme.count(row["op_count"]))
    return (html('<span title="{0}">{0}</span>', row["subject"]), *(html("{}", text) for text in (device, *figures)))


# ---------------------------------------------------------------- facts


def facts_of(event: Event) -> list[tuple[str, str]]:
    """Return what is told of an event besides its name and time: title and text, empty where it is not known."""
    row, call, work = event.row, event.call, event.work
    caller = "" if call is None else f"{call.name}, {theme.duration(call.row['duration_ns'])}, thread {call.row['thread_id']}"
    match event.track:
        case "kernels":
            shared = (
                row["shared_bytes"] if row["shared_bytes"] is not None else _sum(row["static_shared_bytes"], row["dynamic_shared_bytes"])
            )
            delay_ns = None if row["launch_start_ns"] is None else event.start_ns - row["launch_start_ns"]
            return [
                *(
                    (title, _number("", row[name]))
                    for title, name in (("Device", "device_index"), ("Stream", "stream_index"), ("Process", "process_id"))
                ),
                *(("Grid", _size(row, "grid")), ("Block", _size(row, "block"))),
                ("Registers a thread", _number("", row["registers_per_thread"])),
                ("Shared memory a block", "" if shared is None else theme.memory(shared)),
                ("Layer", event.layer + (f" (told by {row['layer_source']})" if event.layer and row["layer_source"] else "")),
                ("Launched by", caller),
                ("Queued for", "" if delay_ns is None else theme.duration(delay_ns)),
                ("Correlation", _number("", row["correlation_id"])),
                ("Graph node", _number("", row["graph_node_id"])),
            ]
        case "memory":
            is_rated = row["bytes"] is not None and (row["duration_ns"] or 0) > 0
            return [
                ("Bytes", "" if row["bytes"] is None else theme.memory(row["bytes"])),
                ("Rate", theme.byte_rate(row["bytes"] / row["duration_ns"] * 1e9) if is_rated else ""),
                ("Device", _number("", row["device_index"])),
                ("Stream", _number("", row["stream_index"])),
                ("Started by", caller),
                ("Correlation", _number("", row["correlation_id"])),
            ]
        case "calls":
            others = f" and {event.work_count - 1} more" if event.work_count > 1 else ""
            return [
                ("Thread", _number("", row["thread_id"])),
                ("Process", _number("", row["process_id"])),
                ("Started", "" if work is None else f"{work.name}{others}"),
                ("Queued for", "" if work is None else theme.duration(work.start_ns - event.start_ns)),
                ("Correlation", _number("", row["correlation_id"])),
                ("Returned", "0 (success)" if row["return_value"] == 0 else _number("", row["return_value"])),
            ]
        case _:
            return [
                ("Kind", str(row["kind"] or "").replace("_", " ")),
                ("Thread", _number("", row["thread_id"])),
                ("Depth", _number("", row["depth"])),
                ("Flop", "" if row["flop"] is None else theme.si(row["flop"], "flop")),
                ("Shapes", row["input_shapes"] or ""),
                ("Data types", row["input_dtypes"] or ""),
                ("Still open at the end", "yes" if row["is_open"] else ""),
            ]


def _sum(*parts: int | None) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _number(before: str, value: Any) -> str:
    return "" if value is None else f"{before}{value}"


def _size(row: dict[str, Any], kind: str) -> str:
    return "" if row[f"{kind}_x"] is None else " × ".join(str(row[f"{kind}_{axis}"] or 1) for axis in "xyz")
