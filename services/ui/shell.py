"""The frame of every page, which a browser has at once, the browser's end of a tab, and how Panel's components look.

The look is one style sheet, components.css, over the colours of tokens.css.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

import panel as pn
import param
from bokeh.resources import Resources as BokehResources
from jinja2 import Environment, Template
from panel.io.resources import Resources, bundle_resources
from panel.theme.base import Design, Inherit, Theme
from panel.viewable import Viewable

from kernalyse.services.ui.catalog import CHARTS, PAGES


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

    _esm = Path(__file__).with_name("browser.js")

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)


ASSET_DIRECTORY: Final = Path(__file__).parent / "assets"


def _asset_version() -> str:
    """Changes with the assets, so that browsers never mix those of two versions."""
    content = b"".join(path.read_bytes() for path in sorted(ASSET_DIRECTORY.iterdir()))
    return hashlib.sha256(content).hexdigest()[:12]


ASSET_URL: Final = f"/assets/{_asset_version()}"


class DashboardTheme(Theme):
    """No colours of its own: tokens.css has those of light and dark, and the browser changes from one to the other."""

    _name = "default"


class DashboardDesign(Design):
    """Panel's own style sheets, then ours."""

    modifiers: ClassVar[dict[type[Viewable], dict[str, Any]]] = {Viewable: {"stylesheets": [Inherit, f"{ASSET_URL}/components.css"]}}
    _themes: ClassVar[dict[str, type[Theme]]] = {"default": DashboardTheme, "dark": DashboardTheme}


NAVIGATION: Final = {name: page.title for name, page in PAGES.items()}
"""The titles of all pages in their order, by the path of the URL."""

PLACES: Final = (*PAGES, *(f"charts/{name}" for name in CHARTS))
"""Paths of all pages and charts. At each the frame is served, and the page of the application at the same with a slash at its end."""


def frame_of(place: str, theme: str, person: str = "") -> str:
    """Return the HTML of the frame around a page, or around a chart that stands alone.

    Args:
        place: of PLACES.
        theme: "light" or "dark".
        person: who has signed in; empty: nobody in particular.
    """
    entry = PAGES.get(place) or CHARTS[place.removeprefix("charts/")]
    pages = NAVIGATION if place in PAGES else {}
    values = {"title": f"{entry.title} · kernalyse", "place": place, "pages": pages, "theme": theme, "assets": ASSET_URL, "person": person}
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
