"""Legends whose entries hide and show their series; what is hidden stands in the URL."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from kernalyse.services.ui.pages.shell import fragment

MAX_KEY_LENGTH: Final = 40
"""Of a series in the URL: longer names are told apart by a digest, for eight of them have to fit."""

MAX_ENTRIES: Final = 24
"""More would push the chart off the screen; those beyond share colours anyway."""


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """series: its key; empty: it cannot be hidden, as what explains a shape. meaning: shown when the pointer rests on it."""

    name: str
    color: str
    symbol: str
    series: str = ""
    is_hidden: bool = False
    meaning: str = ""


def series_key(name: str) -> str:
    """What stands for a series of this name in the URL."""
    if len(name) <= MAX_KEY_LENGTH:
        return name or "-"
    return f"{name[:24]}~{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def hidden_names(names: Iterable[str], hidden: Collection[str]) -> set[str]:
    """Of these series, those whose keys are among the hidden."""
    return {name for name in names if series_key(name) in hidden} if hidden else set()


def hideable(entries: Iterable[LegendEntry], hidden: Collection[str], names: Iterable[str] | None = None) -> list[LegendEntry]:
    """The entries as buttons. names: of their series, where these differ from what is shown of them."""
    listed = list(entries)
    keys = [series_key(name) for name in (names or (entry.name for entry in listed))]
    return [replace(entry, series=key, is_hidden=key in hidden) for entry, key in zip(listed, keys, strict=True)]


def legend_fragment(entries: Iterable[LegendEntry], *, has_failed: bool = False, has_implausible: bool = False) -> str:
    listed = list(entries)
    hidden_count = max(0, len(listed) - MAX_ENTRIES)
    return fragment(
        "legend.html", entries=listed[:MAX_ENTRIES], hidden_count=hidden_count, has_failed=has_failed, has_implausible=has_implausible
    )
