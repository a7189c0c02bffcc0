"""The rows of API calls on the Timeline page, of which every thread may have one: all of them are shown and searched, or none."""

from __future__ import annotations

import polars as pl

from kernalyse.services.core.model import Filter, FilterOperator
from kernalyse.services.ui.names_wanted import named
from kernalyse.services.ui.pages.shell import fragment
from kernalyse.services.ui.state import ViewState

IS_OF_CALLS = pl.col("track") == "calls"


def shown_lanes(lanes: pl.DataFrame, state: ViewState) -> pl.DataFrame:
    """Lanes of table timeline without those that the view hides."""
    return lanes if state.calls == "shown" else lanes.filter(~IS_OF_CALLS)


def searched(state: ViewState) -> tuple[Filter, ...]:
    """Of table timeline_matches: a match that is not shown could not be looked at."""
    wanted = named("name", state.search)
    return (wanted,) if state.calls == "shown" else (wanted, Filter("track", "calls", FilterOperator.NOT_EQUAL))


def call_switch(lanes: pl.DataFrame | None, state: ViewState) -> str:
    """lanes: all of the trace; None: not known. Without calls there is nothing to hide."""
    has_calls = lanes is not None and not lanes.filter(IS_OF_CALLS).is_empty()
    return fragment("timeline_calls.html", has_calls=has_calls, is_shown=state.calls == "shown")
