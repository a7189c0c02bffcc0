"""The list of runs to choose from, and the run that is looked at: what it is, how far it is, what can be done with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, Final

import panel as pn
from markupsafe import Markup

from kernalyse.services.core.model import Run
from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import Component, Confirmation, Text, card, flow, html, joined
from kernalyse.services.ui.components.live import LiveChart, LiveRoofline, LiveRun
from kernalyse.services.ui.data.memory import RunMemory
from kernalyse.services.ui.data.runs import RunCard, run_card

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context
    from kernalyse.services.ui.view import LiveView


MAX_LISTED_RUNS: Final = 40


class RunList(Component):
    """The newest runs as links to the view that shows them.

    Args:
        href: of the view in which the run of an id has been chosen, or is no longer.
        shown: ids of the runs that are shown.
        note: above the list.
    """

    def __init__(self, context: Context, href: Callable[[str], str], shown: Callable[[], Collection[str]], note: str = "") -> None:
        super().__init__(context)
        self._href = href
        self._shown = shown
        self._list = Text(classes=("runs",))
        self.layout = card(Text(html("<h2>Runs</h2>") + (html('<p class="note">{}</p>', note) if note else "")), self._list)

    def update(self) -> None:
        overview = self.context.overview
        if not overview.is_known:
            self._list.show(html('<p class="empty">Waiting for the analyzer\'s list.</p>'))
        elif not overview.runs:
            self._list.show(html('<p class="empty">No runs yet.</p>'))
        else:
            now_unix_s, shown, with_node = time.time(), self._shown(), len(overview.nodes) > 1
            rows = joined(
                self._row(run, run_card(run, overview, now_unix_s), run.run_id in shown, with_node)
                for run in overview.runs[:MAX_LISTED_RUNS]
            )
            left_out = len(overview.runs) - MAX_LISTED_RUNS
            note = html('<p class="note">{} older runs are not listed.</p>', theme.count(left_out)) if left_out > 0 else ""
            self._list.show(html("<ul>{}</ul>", rows) + note)

    def _row(self, run: Run, told: RunCard, is_shown: bool, with_node: bool) -> Markup:
        tags = joined(html(' <span class="tag">{}</span>', tag) for tag in told.tags)
        bar = html('<span class="bar" aria-hidden="true"><span style="width:{:.1f}%"></span></span>', (told.progress_ratio or 0) * 100)
        return html(
            '<li><a href="{href}" class="run-row{mark}"{current} data-run="{run_id}">'
            '<span class="run-title" title="{title}">{title}{tags}</span>'
            '<span class="run-sub">{sub}</span><span class="state {state}">{state}</span>{bar}</a></li>',
            href=self._href(run.run_id),
            mark=" selected" if is_shown else "",
            current=Markup(' aria-current="true"') if is_shown else "",
            run_id=run.run_id,
            title=told.title,
            tags=tags,
            sub=" · ".join(_figures(told, with_node)),
            state=told.state.lower(),
            bar=bar if told.is_active else "",
        )


def _figures(told: RunCard, with_node: bool) -> list[str]:
    node = [told.node_name] if with_node or told.is_imported else []
    if told.is_imported:
        return [*node, told.create_text[5:10]]
    of_all = f"/{theme.count(told.total)}" if told.total else ""
    done = told.collector or "profile" if told.command else f"{theme.count(told.completed)}{of_all}"
    return [*node, done, told.create_text[5:16] if told.left_s is None else f"{theme.span(told.left_s)} left"]


MAX_SHOWN_FAILURES: Final = 5
PROGRESS_STEPS: Final = 1000
EXPORTS: Final = {
    "html": ("HTML page", ".html"),
    "pdf": ("PDF report", ".pdf"),
    "pptx": ("PowerPoint", ".pptx"),
    "png": ("Pictures, PNG", "-png.zip"),
    "svg": ("Drawings, SVG", "-svg.zip"),
    "markdown": ("Markdown", ".md"),
}
"""Documents of a run: what they are called, and how their file's name ends."""


class RunHeader(LiveChart):
    """Title, progress and facts of the run, its documents, its notes, and the buttons that cancel or delete it."""

    def __init__(self, context: Context, view: LiveView, run: LiveRun, chart: LiveRoofline) -> None:
        super().__init__(context, view, run)
        self._chart = chart
        self._cancelling = ""
        self._told: object = None
        self._title = Text(classes=("run-name",), styles={"flex": "1 1 200px"})
        self._exports = Text(classes=("menu",), sizing_mode=None)
        self._cancel = pn.widgets.Button(label="Cancel", color="danger", visible=False, margin=0, on_click=self._asked_to_cancel)
        self._progress = pn.indicators.Progress(
            value=0, max=PROGRESS_STEPS, visible=False, sizing_mode="stretch_width", height=7, margin=(0, 0, 8, 0)
        )
        self._facts = Text()
        self._tags = pn.widgets.TextInput(
            label="Tags", placeholder="nightly, before", max_length=300, sizing_mode="stretch_width", margin=0
        )
        self._notes = pn.widgets.TextAreaInput(label="Notes", rows=4, max_length=8000, sizing_mode="stretch_width", margin=0)
        save = pn.widgets.Button(label="Save", color="primary", margin=0, on_click=lambda _: self._start(self._save()))
        self._delete = pn.widgets.Button(label="Delete the run…", color="danger", margin=0, on_click=self._asked_to_delete)
        self._notes_card = pn.Card(
            self._tags, self._notes, pn.Row(self._delete, save, css_classes=["buttons"]), title="Tags and notes", collapsed=True,
            css_classes=["fold"], sizing_mode="stretch_width", visible=False,
        )  # fmt: skip
        self._ask_cancel = Confirmation("Cancel this run?", "The worker is stopped. What was measured so far is kept.",
                                     "Keep it running", "Cancel the run", lambda: self._start(self._cancel_run()))  # fmt: skip
        self._ask_delete = Confirmation("Delete this run?", "All that was measured in it goes, for everybody.",
                                     "Keep it", "Delete the run", lambda: self._start(self._delete_run()))  # fmt: skip
        head = flow(self._title, self._cancel, self._exports, classes=("run-head",))
        self.layout = card(
            head, self._progress, self._facts, self._notes_card, self._ask_cancel.modal, self._ask_delete.modal, classes=("run-card",)
        )

    # ------------------------------------------------------------ what is shown

    def clear(self, *, is_other: bool) -> None:
        self._failures: list[dict[str, Any]] = []
        if is_other:
            self._noted: tuple[str, str] | None = None

    def read(self, memory: RunMemory) -> None:
        new = self.reader.new_rows(memory, "failures").frame
        if new is not None:
            self._failures += new.select("label", "message").to_dicts()

    def update(self) -> None:
        super().update()
        memory, overview, run = self.run.memory, self.context.overview, self.run.run
        problem = memory.problem if memory else ""
        told = (overview, run, problem, self._cancelling, self._chart.points.count > 0, len(self._failures), int(time.time()))
        if told == self._told:
            return
        self._told = told
        if run is None:
            waiting = html('<p class="empty">Waiting for the run.</p>')
            missing = html('<p class="problem">This run cannot be shown: {}</p>', problem) if problem else waiting
            self._show_parts(is_shown=False)
            self._title.show("")
            self._facts.show(missing)
            return
        self._show(run, run_card(run, overview, time.time()), problem)

    def _show_parts(self, *, is_shown: bool) -> None:
        for part in (self._progress, self._cancel, self._notes_card, self._exports):
            if part.visible != is_shown:
                part.visible = is_shown

    def _show(self, run: Run, told: RunCard, problem: str) -> None:
        tags = joined(html('<span class="tag">{}</span>', tag) for tag in told.tags)
        self._title.show(html('<h1>{}</h1><span class="state {}">{}</span>{}', told.title, told.state.lower(), told.state.lower(), tags))
        links = joined(
            html('<a href="/export/{0}.{1}" class="drawn" download="kernalyse-{0}{3}">{2}</a>', told.run_id, name, text, ending)
            for name, (text, ending) in EXPORTS.items()
        )
        self._exports.show(
            html('<details><summary aria-label="This run as a document">Export</summary><div class="pop">{}</div></details>', links)
        )
        self._cancel.param.update(
            visible=told.is_active,
            disabled=self._cancelling == told.run_id,
            label="Cancelling…" if self._cancelling == told.run_id else "Cancel",
        )
        color = {"failed": "danger", "lost": "danger", "cancelled": "warning", "succeeded": "success"}.get(told.state.lower(), "primary")
        value = round((told.progress_ratio or 0) * PROGRESS_STEPS)
        self._progress.param.update(visible=not told.is_trace, value=value, bar_color=color)
        self._notes_card.visible = True
        self._delete.visible = not told.is_active
        noted = (", ".join(told.tags), told.notes)
        if noted != self._noted:  # what somebody types meanwhile stays
            self._noted = noted
            self._tags.value, self._notes.value = noted
        self._facts.show(self._fact_list(told) + self._sentences(told, problem))

    def _fact_list(self, told: RunCard) -> Markup:
        facts: list[tuple[str, object]] = []
        if not told.is_trace:
            done = html("{}{}", theme.count(told.completed), f" of {theme.count(told.total)}" if told.total else "")
            if told.failed:
                what = "without a measurement" if told.is_imported else "failed"
                done += html(' <span class="problem">({} {})</span>', theme.count(told.failed), what)
            facts.append(("Configurations", done))
        if told.is_trace and told.is_active:
            facts.append(("Runs for", theme.span(told.elapsed_s)))
        else:
            facts.append(("Time left", theme.span(told.left_s)) if told.is_active else ("Took", theme.span(told.elapsed_s)))
        if told.collector:
            facts.append(("Collector", told.collector))
        overview = self.context.overview
        names = {device.device_id: device.name for status in overview.nodes if status.node for device in status.node.devices}
        device = names.get(told.device_id or "", told.device_id)
        if not told.is_trace or device:
            facts.append(("Device", device or theme.UNKNOWN))
        facts.append(("Node", told.node_name))
        facts.append((f"{'Imported' if told.is_imported else 'Submitted'} (UTC)", told.create_text))
        facts.append(("Run", told.run_id))
        if told.is_active or told.activity:
            facts.append(("Now", told.activity or ("waiting for its device" if told.state == "QUEUED" else theme.UNKNOWN)))
        return html('<dl class="facts">{}</dl>', joined(html("<div><dt>{}</dt><dd>{}</dd></div>", name, value) for name, value in facts))

    def _sentences(self, told: RunCard, problem: str) -> Markup:
        run_id, said = told.run_id, []
        if told.command and told.command not in told.title:
            said.append(html('<pre class="command"><code>{}</code></pre>', told.command))
        page = '<a href="/{0}?runs={1}">{0}</a>'
        if told.is_trace and not told.is_active and told.activity:
            said.append(html("<p>The program has ended; kernels, layers and roofline follow when its trace has been read.</p>"))
        elif told.is_trace and not told.is_active:
            pages = [html(page, name, run_id) for name in ("kernels", "layers", "roofline", "timeline")]
            said.append(html("<p>Its {}, {}, {} and {} have pages of their own.</p>", *pages))
        elif told.is_model:
            timeline = (
                html(" and {} have pages of their own", html(page, "timeline", run_id))
                if told.has_timeline
                else " have a page of their own"
            )
            said.append(html("<p>Its {}{}.</p>", html(page, "layers", run_id), timeline))
        if told.continues_run_id:
            said.append(
                html(
                    '<p>It continues <a href="/live?runs={0}">{0}</a>, and shows here what it measures itself. '
                    '<a href="/kernels?runs={1}">Kernels</a> has the whole sweep.</p>',
                    told.continues_run_id,
                    run_id,
                )
            )
        if told.notes:
            said.append(html('<p class="note lines">{}</p>', told.notes))
        said += [html('<p class="problem block">{}</p>', sentence) for sentence in (told.problem, problem) if sentence]
        failure = '<p class="problem block source" tabindex="0"><strong>{label}</strong>{message}</p>'
        said += [html(failure, **failed) for failed in self._failures[:MAX_SHOWN_FAILURES]]
        left_out = len(self._failures) - MAX_SHOWN_FAILURES
        if left_out > 0:
            what = "without a measurement" if told.is_imported else "failures"
            said.append(html('<p class="note">{} more {}.</p>', theme.count(left_out), what))
        return joined(said)

    # ------------------------------------------------------------ what is done

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self.context.carry_out(work)

    async def _cancel_run(self) -> None:
        run = self.run.run
        if run is not None:
            self._cancelling = run.run_id
            try:
                await self.context.client.cancel_run(run.run_id)
            except BaseException:
                self._cancelling = ""
                raise

    def _asked_to_cancel(self, _event: Any) -> None:
        self._ask_cancel.show()

    def _asked_to_delete(self, _event: Any) -> None:
        self._ask_delete.show()

    async def _delete_run(self) -> None:
        run = self.run.run
        if run is not None:
            await self.context.client.delete_run(run.run_id)
            self.context.view.runs = []

    async def _save(self) -> None:
        run = self.run.run
        if run is not None:
            await self.context.client.annotate_run(run.run_id, tags_of(self._tags.value or ""), (self._notes.value or "").strip())
            self._notes_card.collapsed = True


def tags_of(text: str) -> tuple[str, ...]:
    """Return the tags of a list with commas; each once, in its order."""
    return tuple(dict.fromkeys(tag for part in text.split(",") if (tag := part.strip())))
