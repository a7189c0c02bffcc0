"""Text on pages. Whatever comes from outside (names, titles, log lines) is escaped on its way into HTML."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import panel as pn
from markupsafe import Markup


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
