"""A dialog that asks before something is done that cannot be undone."""

from __future__ import annotations

from collections.abc import Callable

import panel as pn

from kernalyse.services.ui.components.text import Text, html


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
