"""What a browser tab is told besides its components, and what it tells: address, history, theme, and which updates it has drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import panel as pn
import param


class Browser(pn.custom.JSComponent):
    """The browser's end of a tab, without anything to see. Panel's Location listens to no step back."""

    address = param.String(doc="Path and query of the view shown.")
    left = param.String(doc="Path and query of the view that was left: a step back leads to it.")
    title = param.String(doc="Of the window.")
    subject = param.String(doc="Of the run that is shown; names files that are saved.")
    links = param.Dict(default={}, doc="Where the navigation leads, by the page's name.")
    out = param.String(doc="Path and query that the key Escape leads to; empty: none.")
    visited = param.List(default=["", 0], doc="Path and query that the user asked for, by a link or the history, and how many before.")
    theme: param.Selector[Any] = param.Selector(default="light", objects=["light", "dark"])
    drafts = param.Dict(default={}, doc="What is typed into forms, by the form's name; the browser keeps it until it is closed.")
    found_drafts = param.Dict(default={}, doc="What it kept when the page was loaded.")
    sent = param.Integer(default=0, doc="Updates that were sent.")
    acknowledged = param.Integer(default=-1, doc="The last of them that has been drawn; -1: the tab is not ready.")

    _esm = Path(__file__).with_suffix(".js")

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
