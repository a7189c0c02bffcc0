"""What a document of a run consists of, whatever it is written as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import holoviews as hv

Width = Literal["wide", "half", "third"]


@dataclass(frozen=True, slots=True)
class Key:
    """What a colour of a chart stands for. symbol: a character of the shape that the colour has."""

    name: str
    color: str
    symbol: str = "■"


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart under its title. width: on a page. key: names and colours, where colours need one."""

    title: str
    element: hv.Overlay
    width: Width = "half"
    note: str = ""
    key: Sequence[Key] = ()


@dataclass(frozen=True, slots=True)
class FigureTable:
    """rows: a cell for each heading. A heading "verdict" colours its cells, "why" wraps them. lead: above, note: below."""

    title: str
    headings: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""
    lead: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """facts: name and value. tables: before the charts; details: after them."""

    title: str
    facts: Sequence[tuple[str, str]]
    charts: Sequence[Chart]
    tables: Sequence[FigureTable] = ()
    details: Sequence[FigureTable] = field(default=())
