"""What serves a page: its HTML, and the socket that it is kept up to date through."""

from __future__ import annotations

from typing import Any, cast

from bokeh.embed.util import RenderItem
from bokeh.server import urls
from panel.io.server import DocHandler, WSHandler, html_page_for_render_items

from kernalyse.services.ui.catalog import PAGES


class PageHandler(DocHandler):
    """As Panel's own, without the list of scripts and style sheets that Panel works out for each page: the templates name theirs."""

    async def get(self, *_arguments: Any, **_values: Any) -> None:
        # A page holds a token that goes out of date: no browser shall take it from its cache.
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Type", "text/html")
        # Browsers take every port of a host for one site: without it a page of another one could frame this and catch clicks.
        self.set_header("Content-Security-Policy", "frame-ancestors 'self'")
        if self.request.path.strip("/") in PAGES or self.request.path.startswith("/charts/"):
            await super().get()
            return
        session = await cast(Any, self.get_session())
        document = session.document
        item = RenderItem(token=session.token, roots=document.roots, use_for_title=False)
        page = html_page_for_render_items(
            ("", ""), {}, [item], document.title, template=document.template, template_variables=document.template_variables
        )
        self.write(page)


class PageSocket(WSHandler):
    """As Panel's own. A message is three writes and more, and Nagle's algorithm would keep the second one back for 40 ms."""

    def open(self, *arguments: Any, **values: Any) -> Any:
        self.set_nodelay(True)
        return super().open(*arguments, **values)


def use_page_handlers() -> None:
    """For servers made from now on; Panel puts its handlers into this list in the same manner."""
    own: dict[Any, Any] = {DocHandler: PageHandler, WSHandler: PageSocket}
    patterns: list[Any] = urls.per_app_patterns
    patterns[:] = [(path, own.get(handler, handler)) for path, handler in patterns]
