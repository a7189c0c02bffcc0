"""What all parts of a page have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import panel as pn
from panel.viewable import Viewable, Viewer

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context


class Component(Viewer):
    """A part of a page. `update` brings what it shows up to date; it is called often, and does nothing where nothing has changed.

    Args:
        context: of the tab that shows it.
    """

    layout: Viewable

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


def card(*parts: Any, classes: tuple[str, ...] = ()) -> pn.Column:
    """Return a surface with the parts below each other."""
    return pn.Column(*parts, css_classes=["card", *classes], sizing_mode="stretch_width")


def field(widget: Any, parameter: Any, **params: Any) -> Any:
    """Return a widget of the parameter that fills the width of its place."""
    return widget.from_param(parameter, sizing_mode="stretch_width", margin=0, min_width=0, **params)
