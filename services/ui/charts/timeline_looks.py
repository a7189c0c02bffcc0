"""How a timeline looks: colours and patterns of categories and of reasons for gaps, names that fit into a bar."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kernalyse.services.ui.theme import Palette

CATEGORIES: Final = ("matmul", "attention", "convolution", "normalization", "elementwise", "copy", "communication", "other")
PATTERNS: Final = (None, "/", "\\", "-", ".", "|", "x", None)
PATTERN_SYMBOLS: Final = ("■", "▨", "▧", "▤", "▒", "▥", "▩", "□")
"""For each of CATEGORIES: of wide bars, and in the legend."""

CATEGORY_OF_WORD: Final[dict[str, str]] = {
    "softmax": "normalization",
    "pooling": "normalization",
    "reduction": "normalization",
    "loss": "normalization",
    "mixture of experts": "matmul",
    "fft": "convolution",
    "position embedding": "elementwise",
    "quantization": "elementwise",
    "optimizer": "elementwise",
    "random number": "elementwise",
    "indexing": "copy",
    "sort": "copy",
}
"""Words of table timeline that are no category of the chart's own: it has no more colours than can be told apart."""

CATEGORY_TITLES: Final[dict[str, str]] = {
    "normalization": "normalization, reduction",
    "copy": "copy, indexing",
    "elementwise": "elementwise",
}

REASONS: Final = ("memory", "sync", "api_call", "host_busy", "launch_latency", "unknown")
REASON_PATTERNS: Final = ("|", "x", "/", "-", ".", None)
HATCHES: Final = ("/", "\\", "-", ".", "|", "x")
"""A layer for each: the browser makes a pattern anew for every bar where the bars of one layer have several (7 ms each)."""

REASON_SYMBOLS: Final = ("▥", "▩", "▨", "▤", "▒", "□")
REASON_TITLES: Final[dict[str, str]] = {
    "memory": "copying",
    "sync": "host waited",
    "api_call": "host in calls",
    "host_busy": "host busy",
    "launch_latency": "launch latency",
    "unknown": "not known why",
}


def codes_of(palette: Palette) -> list[str]:
    """Colours by code: categories, then ranges of even and odd depth, then what a search or a filter leaves out."""
    return [*palette.series[: len(CATEGORIES) - 1], palette.muted, palette.muted, palette.muted, palette.grid]


RANGE_CODE: Final = len(CATEGORIES)
MUTED_CODE: Final = RANGE_CODE + 2


def category_code(word: str | None) -> int:
    category = CATEGORY_OF_WORD.get(word or "", word or "other")
    return CATEGORIES.index(category) if category in CATEGORIES else CATEGORIES.index("other")


def name_code(name: str) -> int:
    """The same in every trace, so that a kernel keeps its colour from one run to the next."""
    return zlib.crc32(name.encode()) % (len(CATEGORIES) - 1)


_HIDDEN: Final = re.compile(r"\(anonymous namespace\)::|<?unnamed>::|^void\s+")


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces, arguments: what there is room for in a bar. Other names stay."""
    plain = _HIDDEN.sub("", name)
    head = re.split(r"[<(]", plain, maxsplit=1)[0]
    if head == plain or " " in head.strip():
        return plain.strip()
    return head.rpartition("::")[2] or plain


@dataclass(frozen=True, slots=True)
class Looks:
    """by_name: kernels are coloured by name, else by category. part: of names, or one in quotes; others are drawn muted. Empty: none is.

    hidden: codes of categories without bars.
    """

    by_name: bool = False
    part: str = ""
    hidden: frozenset[int] = frozenset()


def reason_colors(palette: Palette) -> tuple[str, ...]:
    return *(palette.series[place] for place in (5, 1, 3, 2, 4)), palette.muted


def category_title(category: str) -> str:
    return CATEGORY_TITLES.get(category, category)


def gap_title(reason: str) -> str:
    return f"gap: {REASON_TITLES[reason]}"


def legend_entries(palette: Palette, reasons: Collection[str], *, by_name: bool = False) -> list[tuple[str, str, str]]:
    """Name, colour and character of categories of kernels, unless these are coloured by name, and of those reasons that occur."""
    colors, gap_colors = codes_of(palette), reason_colors(palette)
    categories = [(category_title(category), colors[code], PATTERN_SYMBOLS[code]) for code, category in enumerate(CATEGORIES)]
    gaps = [(gap_title(reason), gap_colors[code], REASON_SYMBOLS[code]) for code, reason in enumerate(REASONS) if reason in reasons]
    return gaps if by_name else categories + gaps
