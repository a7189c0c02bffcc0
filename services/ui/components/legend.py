"""Legends whose entries hide and show their series; what is hidden stands in the URL."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import panel as pn
import param

from kernalyse.services.ui import theme
from kernalyse.services.ui.view import PageView

MAX_KEY_LENGTH: Final = 40
"""Of a series in the URL: longer names are told apart by a digest, for eight of them have to fit."""

MAX_ENTRIES: Final = 24
"""More would push the chart off the screen; those beyond share colours anyway."""

FAILED_MEANING: Final = "Results that do not match the reference are drawn hollow or crossed"
IMPLAUSIBLE_MEANING: Final = "Faster than the device can be: fewer flop or bytes than claimed, or a cached result"


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A name with its colour and symbol.

    Args:
        series: key of the series that it hides; empty: it explains a shape and cannot be hidden.
        meaning: shown when the pointer rests on it.
    """

    name: str
    color: str
    symbol: str
    series: str = ""
    is_hidden: bool = False
    meaning: str = ""


def series_key(name: str) -> str:
    """Return what stands for a series of this name in the URL."""
    if len(name) <= MAX_KEY_LENGTH:
        return name or "-"
    return f"{name[:24]}~{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def hidden_names(names: Iterable[str], hidden: Collection[str]) -> set[str]:
    """Return those of these series whose keys are among the hidden."""
    return {name for name in names if series_key(name) in hidden} if hidden else set()


def hideable(entries: Iterable[LegendEntry], hidden: Collection[str], names: Iterable[str] | None = None) -> list[LegendEntry]:
    """Return the entries as buttons. names: of their series, where these differ from what is shown of them."""
    listed = list(entries)
    keys = [series_key(name) for name in (names or (entry.name for entry in listed))]
    return [replace(entry, series=key, is_hidden=key in hidden) for entry, key in zip(listed, keys, strict=True)]


class Legend(pn.custom.JSComponent):
    """A line of entries. Panel has no part for it: colours and symbols of buttons.

    Args:
        view: of the page; a click on an entry hides its series there, or shows it again.
        label: what is told of it to those who do not see it.
    """

    entries = param.List(default=[], item_type=dict)

    _esm = Path(__file__).with_suffix(".js")

    def __init__(self, view: PageView, **params: Any) -> None:
        super().__init__(**{"sizing_mode": "stretch_width", "margin": 0, **params})
        self._view = view
        self.on_msg(lambda event: self._view.toggle_series(str(event.data)))

    def show(self, entries: Iterable[LegendEntry], *, has_failed: bool = False, has_implausible: bool = False) -> None:  # type: ignore[override]  # Panel's own starts a server
        """Show these entries; what has failed or cannot be is explained at their end."""
        listed = list(entries)
        left_out = len(listed) - MAX_ENTRIES
        shown = listed[:MAX_ENTRIES]
        if left_out > 0:
            shown.append(LegendEntry(f"and {theme.count(left_out)} more", "inherit", ""))
        if has_failed:
            shown.append(LegendEntry("wrong result", "inherit", "○", meaning=FAILED_MEANING))
        if has_implausible:
            shown.append(LegendEntry("implausible", "var(--bad)", theme.IMPLAUSIBLE_SYMBOL, meaning=IMPLAUSIBLE_MEANING))
        self.entries = [
            {
                "name": entry.name,
                "color": entry.color,
                "symbol": entry.symbol,
                "series": entry.series,
                "hidden": entry.is_hidden,
                "meaning": entry.meaning or ("" if not entry.series else "Show this series" if entry.is_hidden else "Hide this series"),
            }
            for entry in shown
        ]
