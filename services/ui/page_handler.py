"""A page's HTML for its request."""

from __future__ import annotations

from typing import Any, cast

from bokeh.embed.util import RenderItem
from bokeh.server import urls
from panel.io.server import DocHandler, html_page_for_render_items


class PageHandler(DocHandler):
    """As Panel's own, without the list of scripts and style sheets that Panel works out for each page: the templates name theirs."""

    async def get(self, *_arguments: Any, **_values: Any) -> None:
        # A page holds a token that goes out of date: no browser shall take it from its cache.
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Type", "text/html")
        session = await cast(Any, self.get_session())
        document = session.document
        item = RenderItem(token=session.token, roots=document.roots, use_for_title=False)
        page = html_page_for_render_items(
            ("", ""), {}, [item], document.title, template=document.template, template_variables=document.template_variables
        )
        self.write(page)


def serve_pages_by_it() -> None:
    """For servers made from now on; Panel puts its handler into this list in the same manner."""
    patterns: list[Any] = urls.per_app_patterns
    patterns[:] = [(path, PageHandler if handler is DocHandler else handler) for path, handler in patterns]
