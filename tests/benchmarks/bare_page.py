"""The yardstick of pages: a bare Panel page with three Bokeh figures and six widgets, served by Panel's own server.

python -m tests.benchmarks.bare_page PORT
"""

from __future__ import annotations

import sys
from typing import Any

import panel
from bokeh.plotting import figure

pn: Any = panel  # as its users write it, without types


def bare_page() -> Any:
    """Return the page, made anew for each visitor."""
    figures = []
    for number in range(3):
        made: Any = figure(title=f"figure {number}", height=280, sizing_mode="stretch_width")
        made.line(list(range(200)), [(place * (number + 3)) % 17 for place in range(200)])
        made.scatter(list(range(200)), [(place * (number + 5)) % 13 for place in range(200)])
        figures.append(pn.pane.Bokeh(made, sizing_mode="stretch_width"))
    widgets = [
        pn.widgets.TextInput(name="text"),
        *(pn.widgets.Select(name=f"choice {number}", options=["a", "b", "c"]) for number in range(3)),
        pn.widgets.Checkbox(name="box"),
        pn.widgets.Button(name="button"),
    ]
    return pn.Column(pn.FlexBox(*widgets), *figures, sizing_mode="stretch_width")


if __name__ == "__main__":
    pn.serve({"/bare": bare_page}, port=int(sys.argv[1]), address="127.0.0.1", show=False, websocket_origin="*")
