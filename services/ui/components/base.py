"""What all parts of a page have in common: text, cards, ticks, dialogs. Text from outside is escaped on its way into HTML."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import panel as pn
from markupsafe import Markup
from panel.viewable import Viewable, Viewer

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


def html(pattern: str, *values: object, **named: object) -> Markup:
    """Return the pattern, which is HTML, with the values in its braces; those that are no Markup are escaped."""
    return Markup(pattern).format(*values, **named)


def joined(parts: Iterable[Markup]) -> Markup:
    """Return the parts one after the other."""
    return Markup("").join(parts)


class Text(pn.pane.HTML):
    """HTML that takes no room while it is empty.

    Args:
        content: made by `html`.
        classes: of its element.
    """

    def __init__(self, content: str = "", *, classes: tuple[str, ...] = (), **params: Any) -> None:
        super().__init__(
            str(content), css_classes=["text", *classes], visible=bool(content), **{"sizing_mode": "stretch_width", "margin": 0, **params}
        )

    def show(self, content: str) -> None:  # type: ignore[override]  # Panel's own starts a server
        """Show the content in the place of what was shown. content: made by `html`, or text, which is escaped."""
        escaped = str(Markup.escape(content))
        if escaped != self.object:
            self.param.update(object=escaped, visible=bool(escaped))


class Component(Viewer):
    """A part of a page. `update` brings what it shows up to date; it is called often, and does nothing where nothing has changed.

    Args:
        context: of the tab that shows it.
    """

    layout: Viewable
    out = ""  # of a page: address that the key Escape leads to; empty: none

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.parts: tuple[Component, ...] = ()  # components within it, in the order in which they are brought up to date

    def update(self) -> None:
        """Take in what is new. Called with the document locked."""
        for part in self.parts:
            part.update()

    def close(self) -> None:
        """Give up what was asked for: the tab is gone."""
        for part in self.parts:
            part.close()

    def __panel__(self) -> Viewable:
        return self.layout


def on_loop(call: Callable[..., None]) -> Callable[..., None]:
    """Return a callback for events of Bokeh's own models, which Bokeh 3.10 calls on any thread: pages change on the server's loop alone."""

    @wraps(call)
    def called(*arguments: Any) -> None:
        if is_loop_running():
            call(*arguments)
        else:
            locked(call)(*arguments)

    return called


def locked(call: Callable[..., None]) -> Callable[..., None]:
    """Return a callback for messages of own JavaScript that change what is shown: Panel passes them on without the document's lock."""

    @wraps(call)
    def called(*arguments: Any) -> None:
        async def entered() -> None:
            call(*arguments)

        if pn.state.curdoc is None:
            call(*arguments)
        else:
            pn.state.curdoc.add_next_tick_callback(entered)  # type: ignore[arg-type]  # Bokeh awaits it

    return called


def is_loop_running() -> bool:
    """Return whether this thread is that of a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def lay_out(context: Context, column: Any, parts: Sequence[Any]) -> None:
    """Show these parts below each other, unless they are shown already. The browser draws them before they change again."""
    if list(column) != list(parts):
        column[:] = list(parts)
        context.has_new_inputs = True


def card(*parts: Any, classes: tuple[str, ...] = ()) -> pn.Column:
    """Return a surface with the parts below each other."""
    return pn.Column(*parts, css_classes=["card", *classes], sizing_mode="stretch_width")


def flow(*parts: Any, classes: tuple[str, ...] = (), **params: Any) -> pn.Row:
    """Return the parts beside each other, each as wide as what is in it; those that find no room go on below."""
    return pn.Row(*parts, css_classes=["flow", *classes], **{"sizing_mode": "stretch_width", "margin": 0, **params})


def fold(summary: Any, *content: Any, **params: Any) -> pn.Card:
    """Return a card that opens below its summary."""
    return pn.Card(*content, header=summary, **{"collapsed": True, "css_classes": ["fold"], "sizing_mode": "stretch_width", **params})


class Tick(pn.widgets.CheckBoxGroup):
    """A box to tick with its words. Panel's own Checkbox has no name for those who do not see its label.

    Args:
        parameter: a param.Boolean that is true while the box is ticked.
    """

    def __init__(self, parameter: Any, **params: Any) -> None:
        self._word = str(parameter.label)
        super().__init__(options=[self._word], margin=0, css_classes=["tick-box"], **params)
        self._owner, self._name = parameter.owner, str(parameter.name)
        self._follow()
        self._owner.param.watch(self._follow, self._name)
        self.param.watch(lambda event: setattr(self._owner, self._name, bool(event.new)), "value")

    def _follow(self, *_events: Any) -> None:
        self.value = [self._word] if getattr(self._owner, self._name) else []


def field(widget: Any, parameter: Any, **params: Any) -> Any:
    """Return a widget of the parameter that fills the width of its place."""
    return widget.from_param(parameter, sizing_mode="stretch_width", margin=0, min_width=0, **params)


class Confirmation:
    """Asks a question with two answers; the second does it.

    Args:
        keep: words of the answer that leaves everything as it is.
        go_on: words of the other.
        confirmed: called with the other answer.
    """

    def __init__(self, question: str, consequence: str, keep: str, go_on: str, confirmed: Callable[[], None]) -> None:
        self.modal = pn.Modal(show_close_button=False)
        leave = pn.widgets.Button(label=keep, margin=0, on_click=lambda _: self.modal.hide())
        do = pn.widgets.Button(label=go_on, color="danger", margin=0, on_click=lambda _: self._do(confirmed))
        self.modal.append(Text(html("<h2>{}</h2><p>{}</p>", question, consequence)))
        self.modal.append(pn.Row(leave, do, css_classes=["buttons"]))

    def show(self) -> None:
        """Ask."""
        self.modal.show()

    def _do(self, confirmed: Callable[[], None]) -> None:
        self.modal.hide()
        confirmed()
