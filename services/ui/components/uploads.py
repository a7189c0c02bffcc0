"""Files that are chosen or dropped on the page, and the imports that are made of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import panel as pn
import param
from markupsafe import Markup
from panel.viewable import Viewable

from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import Component, Text, card, flow, html, joined, locked
from kernalyse.services.ui.uploads.imports import ImportState, TraceImport
from kernalyse.services.ui.view import View, to_query

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

NO_IMPORTS: Final = html(
    '<p class="empty">None yet. A trace that is dropped here is sent, read and listed with its kernels and layers.</p>'
)
STATE_CLASSES: Final = {"done": "succeeded", "failed": "failed", "cancelled": "cancelled"}
PAGES_OF_TRACES: Final = {"live": "Overview", "kernels": "Kernels", "layers": "Layers", "roofline": "Roofline"}
MAX_PROBLEMS: Final = 20


class FilePicker(pn.custom.JSComponent):
    """Buttons that choose files, and the page as a place to drop them. Panel has no part for it: its FileInput sends a file whole, over
    the WebSocket, into the server's memory.

    Args:
        said: called with what the browser tells: {"show": form}, {"problem": sentence}, or a file that was given to a form.
    """

    form = param.String(doc="The form that is shown.")
    buttons = param.List(default=[], item_type=dict, doc="text, label, accept and of_directories of each.")
    together = param.String(default="apart", doc='What several files are: "apart", "job" or "trace".')
    kinds = param.List(default=[], item_type=list, doc="Endings of names, as patterns, and the form each is for; others are imported.")
    problems = param.Dict(default={}, doc="What is wrong in fields, by their labels.")
    numbers = param.List(default=[], item_type=str, doc="Labels of fields for numbers.")

    _esm = Path(__file__).with_suffix(".js")

    def __init__(self, said: Callable[[dict[str, Any]], None], **params: Any) -> None:
        super().__init__(margin=0, css_classes=["file-picker"], **params)
        self.on_msg(locked(lambda event: said(dict(event.data))))


class ImportRow:
    """One import: how far it is, and what can be done with it."""

    def __init__(self, context: Context, upload_id: str) -> None:
        self._context = context
        self._upload_id = upload_id
        self._shown: ImportCard | None = None
        self._head = Text(classes=("import-head",), styles={"flex": "1 1 200px"})
        self._button = pn.widgets.Button(label="Cancel", margin=0, on_click=lambda _: self._end())
        self._rest = Text(classes=("import-rest",))
        head = flow(self._head, self._button, classes=("import-line",))
        self.layout = pn.Column(head, self._rest, css_classes=["import"], sizing_mode="stretch_width")

    def show(self, shown: ImportCard) -> None:
        """Show how far it is."""
        if shown == self._shown:
            return
        self._shown = shown
        head = '<strong>{}</strong><span class="state {}">{}</span><span class="note">{}</span>'
        self._head.show(html(head, shown.title, STATE_CLASSES.get(shown.state, "running"), shown.state, shown.text))
        self._button.label = f"Cancel {shown.title}" if shown.is_under_way else f"Clear {shown.title}"
        self._rest.show(_rest(shown, self._context.view))

    def _end(self) -> None:
        imports = self._context.uploads.imports
        if self._shown is not None and self._shown.is_under_way:
            self._context.carry_out(self._cancel())
        else:
            imports.forget(self._upload_id)

    async def _cancel(self) -> None:
        await self._context.uploads.imports.find(self._upload_id).cancel(self._context.client)


class ImportList(Component):
    """All imports of this dashboard, whoever has begun them, the newest first; above them what could not be sent."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._unwatch = context.uploads.imports.watch(context.wake)
        self._rows: dict[str, ImportRow] = {}
        self._sentences: list[str] = []
        self._problems = Text(classes=("upload-problems",))
        self._none = Text(NO_IMPORTS)
        self._list = pn.Column(self._none, css_classes=["imports"], sizing_mode="stretch_width")
        self.layout = card(Text(html("<h2>Imports</h2>")), self._problems, self._list)

    def tell(self, sentence: str) -> None:
        """Show why a file could not be sent."""
        self._sentences = [*self._sentences, sentence][-MAX_PROBLEMS:]
        self._problems.show(joined(html('<p class="problem block" role="alert">{}</p>', one) for one in self._sentences))

    def update(self) -> None:
        cards = [import_card(upload) for upload in self.context.uploads.imports.newest_first()]
        for one in cards:
            self._rows.setdefault(one.upload_id, ImportRow(self.context, one.upload_id)).show(one)
        self._rows = {one.upload_id: self._rows[one.upload_id] for one in cards}
        shown: list[Viewable] = [row.layout for row in self._rows.values()] or [self._none]
        if list(self._list) != shown:
            self._list[:] = shown

    def close(self) -> None:
        self._unwatch()


def _rest(shown: ImportCard, view: View) -> Markup:
    said = []
    if shown.is_under_way:
        percent = None if shown.progress_ratio is None else f"{shown.progress_ratio * 100:.0f}"
        known = "" if percent is None else html(' aria-valuemin="0" aria-valuemax="100" aria-valuenow="{}"', percent)
        bar = '<div class="bar" role="progressbar" aria-label="Import of {}"{}><span class="{}" style="width:{}%"></span></div>'
        said.append(html(bar, shown.title, known, "busy" if percent is None else "", percent or "100"))
    if shown.problem:
        said.append(html('<p class="problem block">{}</p>', shown.problem))
    if shown.run_id:
        query = to_query(View(theme=view.theme, runs=[shown.run_id]))
        links = (html('<a href="/{}?{}">{}</a>', page, query, title) for page, title in PAGES_OF_TRACES.items())
        said.append(html('<p class="links">{}</p>', Markup(" ").join(links)))
        if shown.notes:
            said.append(html('<p class="note lines">{}</p>', shown.notes))
    return joined(said)


# ---------------------------------------------------------------- words


SILENT_S = 5.0
"""Without a byte: somebody should be told."""


@dataclass(frozen=True, slots=True)
class ImportCard:
    upload_id: str
    title: str
    state: str
    text: str
    progress_ratio: float | None
    is_under_way: bool
    run_id: str
    notes: str
    problem: str


def import_card(upload: TraceImport) -> ImportCard:
    others = len(upload.files) - 1
    return ImportCard(
        upload_id=upload.upload_id,
        title=upload.files[0].file_name.rpartition("/")[2] + (f" and {others} more" if others else ""),
        state=upload.state.value,
        text=_text(upload),
        progress_ratio=upload.arrived_bytes / max(1, upload.size_bytes) if upload.state is ImportState.RECEIVING else None,
        is_under_way=not upload.state.is_final,
        run_id="" if upload.run is None else upload.run.run_id,
        notes="" if upload.run is None else upload.run.notes,
        problem=upload.problem,
    )


def _text(upload: TraceImport) -> str:
    size = theme.memory(upload.size_bytes)
    match upload.state:
        case ImportState.RECEIVING:
            now = time.monotonic()
            arrived = f"{theme.memory(upload.arrived_bytes)} of {size}"
            if now - upload.last_arrival_s > SILENT_S:
                return f"{arrived}; nothing arrives any more. Choose the same file again, and it goes on from there."
            elapsed_s = now - upload.begin_s
            rate = theme.byte_rate(upload.arrived_bytes / elapsed_s) if elapsed_s > 1 else ""
            return f"{arrived}{', ' if rate else ''}{rate}"
        case ImportState.READING:
            progress = upload.progress
            of = f" ({progress.read_trace_count} of {progress.trace_count})" if progress.trace_count > 1 else ""
            return f"{size}, being read{of}"
        case ImportState.STORING:
            return f"{size}, being put together"
        case ImportState.DONE if upload.is_known:
            return f"{size}, imported before: delete that run to read the file anew"
        case _:
            return size
