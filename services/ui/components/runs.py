"""The list of runs to choose from."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from kernalyse.services.core.model import Run
from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import Component, card
from kernalyse.services.ui.components.text import Text, html, joined
from kernalyse.services.ui.run_cards import RunCard, run_card

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

MAX_LISTED_RUNS: Final = 40


class RunList(Component):
    """The newest runs as links to the view that shows them.

    Args:
        href: of the view in which the run of an id has been chosen, or is no longer.
        shown: ids of the runs that are shown.
        note: above the list.
    """

    def __init__(self, context: Context, href: Callable[[str], str], shown: Callable[[], Collection[str]], note: str = "") -> None:
        super().__init__(context)
        self._href = href
        self._shown = shown
        self._list = Text(classes=("runs",))
        self.layout = card(Text(html("<h2>Runs</h2>") + (html('<p class="note">{}</p>', note) if note else "")), self._list)

    def update(self) -> None:
        overview = self.context.overview
        if not overview.is_known:
            self._list.show(html('<p class="empty">Waiting for the analyzer\'s list.</p>'))
        elif not overview.runs:
            self._list.show(html('<p class="empty">No runs yet.</p>'))
        else:
            now_unix_s, shown, with_node = time.time(), self._shown(), len(overview.nodes) > 1
            rows = joined(
                self._row(run, run_card(run, overview, now_unix_s), run.run_id in shown, with_node)
                for run in overview.runs[:MAX_LISTED_RUNS]
            )
            left_out = len(overview.runs) - MAX_LISTED_RUNS
            note = html('<p class="note">{} older runs are not listed.</p>', theme.count(left_out)) if left_out > 0 else ""
            self._list.show(html("<ul>{}</ul>", rows) + note)

    def _row(self, run: Run, told: RunCard, is_shown: bool, with_node: bool) -> Markup:
        tags = joined(html(' <span class="tag">{}</span>', tag) for tag in told.tags)
        bar = html('<span class="bar" aria-hidden="true"><span style="width:{:.1f}%"></span></span>', (told.progress_ratio or 0) * 100)
        return html(
            '<li><a href="{href}" class="run-row{mark}"{current} data-run="{run_id}">'
            '<span class="run-title" title="{title}">{title}{tags}</span>'
            '<span class="run-sub">{sub}</span><span class="state {state}">{state}</span>{bar}</a></li>',
            href=self._href(run.run_id),
            mark=" selected" if is_shown else "",
            current=Markup(' aria-current="true"') if is_shown else "",
            run_id=run.run_id,
            title=told.title,
            tags=tags,
            sub=" · ".join(_figures(told, with_node)),
            state=told.state.lower(),
            bar=bar if told.is_active else "",
        )


def _figures(told: RunCard, with_node: bool) -> list[str]:
    node = [told.node_name] if with_node or told.is_imported else []
    if told.is_imported:
        return [*node, told.create_text[5:10]]
    of_all = f"/{theme.count(told.total)}" if told.total else ""
    done = told.collector or "profile" if told.command else f"{theme.count(told.completed)}{of_all}"
    return [*node, done, told.create_text[5:16] if told.left_s is None else f"{theme.span(told.left_s)} left"]
