"""The frame of every page, which a browser has at once: scripts, colours and navigation. The page itself follows from the application."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from bokeh.resources import Resources as BokehResources
from jinja2 import Environment, Template
from panel.io.resources import Resources, bundle_resources
from tornado.web import RequestHandler

from kernalyse.services.ui.catalog import CHARTS, PAGES
from kernalyse.services.ui.design import ASSET_DIRECTORY, ASSET_URL

THEME_COOKIE: Final = "kernalyse_theme"
PLACES: Final = (*PAGES, *(f"charts/{name}" for name in CHARTS))
"""Paths of all pages and charts. At each the frame is served, and the page of the application at the same with a slash at its end."""


class ShellHandler(RequestHandler):
    """Answers with the frame of a page, or of a chart that stands alone."""

    def get(self, place: str) -> None:
        entry = PAGES.get(place) or CHARTS[place.removeprefix("charts/")]
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        # Browsers take every port of a host for one site: without it a page of another one could frame this and catch clicks.
        self.set_header("Content-Security-Policy", "frame-ancestors 'self'")
        pages = {name: page.title for name, page in PAGES.items()} if place in PAGES else {}
        theme = "dark" if "dark" in (self.get_query_argument("theme", ""), self.get_cookie(THEME_COOKIE)) else "light"
        values = {"title": f"{entry.title} · kernalyse", "place": place, "pages": pages, "theme": theme, "assets": ASSET_URL}
        self.finish(_template().render(**values, **_resources()))


@cache
def _template() -> Template:
    return Environment(autoescape=True).from_string((ASSET_DIRECTORY / "shell.html").read_text())


@cache
def _resources() -> dict[str, Any]:
    """URLs of the scripts and style sheets that Panel's components stand on, all of this server."""
    bundle = bundle_resources(None, Resources.from_bokeh(BokehResources(mode="server", root_url="/"), absolute=True))
    return {"scripts": [file.url for file in bundle.js_files], "styles": [file.url for file in bundle.css_files]}
