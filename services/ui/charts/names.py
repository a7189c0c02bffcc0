"""Names of kernels and layers within charts: on one line, as long as their place, without what no font can draw."""

from __future__ import annotations

from typing import Final

MAX_NAME_LENGTH: Final = 40
OUTSIDE: Final = "(outside of every layer)"
"""What kernels count for that no layer has launched."""


def elided(name: str, length: int = MAX_NAME_LENGTH) -> str:
    """Both ends of a long name: templates begin alike."""
    line = plain(name)
    return line if len(line) <= length else f"{line[: length // 2]}…{line[1 - (length - length // 2) :]}"


def plain(text: str) -> str:
    """On one line, and without control characters."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in line)
