"""Which names a filter lets through: those with a part of it, or in quotes the one that is meant. Links quote theirs."""

from __future__ import annotations

from typing import Final, TypeVar

import polars as pl

from kernalyse.services.core.model import Filter, FilterOperator

MAX_LENGTH: Final = 1000
"""Of a text in the URL. Names of templates take hundreds of characters; with many more, messengers cut the links they are sent in."""

_QUOTE: Final = '"'
Names = TypeVar("Names", pl.Expr, pl.Series)


def whole(name: str) -> str:
    """What a filter says that lets this name through and no longer one. Of a name too long for the URL it has the beginning."""
    return f"{_QUOTE}{name}{_QUOTE}" if len(name) + 2 <= MAX_LENGTH else name[:MAX_LENGTH]


def named(column: str, wanted: str) -> Filter:
    """For a table that the analyzer answers."""
    return Filter(column, wanted[1:-1]) if is_whole_name(wanted) else Filter(column, wanted, FilterOperator.CONTAINS)


def is_wanted(names: Names, wanted: str) -> Names:
    """The same for names that are here already: whether each is let through. Letters' case does not matter in a part."""
    if is_whole_name(wanted):
        return names == wanted[1:-1]
    return names.str.to_lowercase().str.contains(wanted.lower(), literal=True)


def is_whole_name(wanted: str) -> bool:
    """Whether it stands in quotes."""
    return len(wanted) > 2 and wanted.startswith(_QUOTE) and wanted.endswith(_QUOTE)
