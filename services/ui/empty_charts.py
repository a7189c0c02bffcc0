"""Charts without rows, each rendered once: every page gets copies of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import holoviews as hv
from bokeh.models.tools import SelectTool
from bokeh.util.serialization import make_id

from kernalyse.services.ui.charts.elements import bokeh_theme
from kernalyse.services.ui.model_copies import Original, copy_of, originals_of
from kernalyse.services.ui.theme import Palette

_rendering: Final = threading.Lock()
"""HoloViews keeps its options in one place."""


class EmptyChart:
    """A function of a palette that draws a chart, as a decorator; or of what is given besides, then called by hand.

    Args:
        adjust: called once with the rendered figure.
    """

    known: ClassVar[list[EmptyChart]] = []

    def __init__(self, draw: Callable[..., hv.Overlay], *arguments: Any, adjust: Callable[[Any], None] | None = None) -> None:
        self._draw = draw
        self._arguments = arguments
        self._adjust = adjust
        self._rendered: dict[Palette, Sequence[Original]] = {}
        self.known.append(self)

    @property
    def name(self) -> str:
        """The same in every process."""
        return ".".join((self._draw.__module__, self._draw.__qualname__, *map(str, self._arguments)))

    def figure(self, name: str, palette: Palette) -> Any:
        """One that belongs to no document yet. name: ids begin with it; a browser meets none twice, whichever pages follow one another."""
        return copy_of(self.rendered(palette), f"{name}-{make_id()}", bokeh_theme(palette))

    def is_rendered(self, palette: Palette) -> bool:
        return palette in self._rendered

    def rendered(self, palette: Palette) -> Sequence[Original]:
        """Takes a tenth to half a second the first time. On any thread."""
        if palette not in self._rendered:
            with _rendering:
                if palette not in self._rendered:
                    self._rendered[palette] = self._render(palette)
        return self._rendered[palette]

    def take(self, palette: Palette, rendered: Sequence[Original]) -> None:
        """What a chart of the same name was rendered to by the same code."""
        self._rendered.setdefault(palette, rendered)

    def _render(self, palette: Palette) -> Sequence[Original]:
        # Without a theme of HoloViews' own, which would be set on the page that is just being opened.
        figure: Any = hv.renderer("bokeh").instance(theme=None).get_plot(self._draw(palette, *self._arguments)).state
        figure.toolbar_inner = True  # beside the plot it would take a column of a phone's screen
        if self._adjust is not None:
            self._adjust(figure)
        _leave_out_what_is_never_drawn(figure)
        return originals_of(figure)


def _leave_out_what_is_never_drawn(figure: Any) -> None:
    """HoloViews makes glyphs for every state of a mark, one of a legend's included that no chart has."""
    is_selected_from = any(isinstance(tool, SelectTool) and tool.renderers for tool in figure.tools)
    for renderer in figure.renderers:
        renderer.muted_glyph = None
        if not is_selected_from:
            renderer.selection_glyph = renderer.nonselection_glyph = None
