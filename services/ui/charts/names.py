"""Names of kernels and layers within charts: on one line, as long as their place, without what no font can draw."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

MAX_NAME_LENGTH: Final = 40
FLAT_LENGTH: Final = 40
"""Letters side by side below a chart on a phone. Slanted names take a third of the chart, flat ones without room lie on each other."""

OUTSIDE: Final = "(outside of every layer)"
"""What kernels count for that no layer has launched."""


def lie_flat(names: Collection[str], room: int = FLAT_LENGTH) -> bool:
    """Whether names fit beside each other below an axis, in one line and not slanted. room: in letters."""
    return len(names) * max(map(len, names), default=0) <= room


def elided(name: str, length: int = MAX_NAME_LENGTH) -> str:
    """Both ends of a long name: templates begin alike."""
    line = plain(name)
    return line if len(line) <= length else f"{line[: length // 2]}…{line[1 - (length - length // 2) :]}"


def elided_apart(names: Sequence[str], length: int = MAX_NAME_LENGTH) -> list[str]:
    """Long names of one axis: their ends alone, parameters and variants, where both ends would make different ones alike."""
    both_ends = [elided(name, length) for name in names]
    if len(set(both_ends)) == len(set(names)):
        return both_ends
    return [line if len(line) <= length else f"…{line[1 - length :]}" for line in map(plain, names)]


def plain(text: str) -> str:
    """On one line, and without control characters."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line)
