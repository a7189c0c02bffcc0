"""The frame of every page, which a browser has at once: scripts, colours and navigation. The page itself follows from the application."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import panel as pn
from bokeh.resources import Resources as BokehResources
from jinja2 import Environment, Template
from panel.io.resources import Resources, bundle_resources

from kernalyse.services.ui.catalog import CHARTS, PAGES
from kernalyse.services.ui.design import ASSET_DIRECTORY, ASSET_URL

NAVIGATION: Final = {name: page.title for name, page in PAGES.items()}
"""The titles of all pages in their order, by the path of the URL."""

PLACES: Final = (*PAGES, *(f"charts/{name}" for name in CHARTS))
"""Paths of all pages and charts. At each the frame is served, and the page of the application at the same with a slash at its end."""


def frame_of(place: str, theme: str) -> str:
    """Return the HTML of the frame around a page, or around a chart that stands alone."""
    entry = PAGES.get(place) or CHARTS[place.removeprefix("charts/")]
    pages = NAVIGATION if place in PAGES else {}
    values = {"title": f"{entry.title} · kernalyse", "place": place, "pages": pages, "theme": theme, "assets": ASSET_URL}
    return _template().render(**values, **_resources())


@cache
def _template() -> Template:
    return Environment(autoescape=True).from_string((ASSET_DIRECTORY / "shell.html").read_text())


@cache
def _resources() -> dict[str, Any]:
    """URLs of the scripts and style sheets that Panel's components stand on, all of this server."""
    pn.extension("tabulator", "modal")
    bundle = bundle_resources(None, Resources.from_bokeh(BokehResources(mode="server", root_url="/"), absolute=True))
    return {"scripts": [file.url for file in bundle.js_files], "styles": [file.url for file in bundle.css_files]}
