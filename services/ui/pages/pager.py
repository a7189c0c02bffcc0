"""Which rows of a table a page shows, and the buttons that go on to others."""

from __future__ import annotations

from dataclasses import replace

from kernalyse.services.ui import theme
from kernalyse.services.ui.pages.shell import fragment
from kernalyse.services.ui.state import ROW_COUNTS, ViewState


def pager_fragment(state: ViewState, total: int) -> str:
    """total: rows in all."""
    step, first = state.row_count, state.row
    last = min(first + step, total)
    return fragment(
        "pager.html",
        text=f"{theme.count(first + 1)} to {theme.count(last)} of {theme.count(total)}" if total and last > first else "",
        previous=max(0, first - step) if first > 0 else None,
        following=first + step if last < total else None,
        page=first // step + 1,
        page_count=max(1, -(-total // step)),
        row_counts=ROW_COUNTS,
        row_count=step,
    )


def gone_to_page(state: ViewState, text: str, total: int) -> ViewState:
    """As typed: what is no page of the table leaves the rows where they are."""
    last_page = max(1, -(-total // state.row_count))
    if not text.strip().isdecimal():
        return state
    return replace(state, row=(min(max(1, int(text)), last_page) - 1) * state.row_count)


def sorted_by(state: ViewState, column: str) -> ViewState:
    """The same column once more turns its order round."""
    return replace(state, sort=column, descending=state.sort == column and not state.descending, row=0)
