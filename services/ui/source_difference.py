"""How the sources of two runs differ, file by file, line by line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

CONTEXT_LINES: Final = 3
MAX_SHOWN_LINES: Final = 2_000
"""Of one file: a page with more is slow to lay out, and nobody reads them in a browser."""

MAX_EXACT_LINES: Final = 4_000
"""Of one file: beyond, lines that come again and again are no anchors any more, else it would take seconds."""

LineKind = Literal["same", "removed", "added", "gap"]


@dataclass(frozen=True, slots=True)
class SourceLine:
    """Line numbers begin with 1; None: the side does not have the line."""

    kind: LineKind
    text: str
    number_before: int | None = None
    number_after: int | None = None


@dataclass(frozen=True, slots=True)
class FileDifference:
    """What became of one file. lines: changed ones with CONTEXT_LINES around them; none when both are the same."""

    name: str
    lines: tuple[SourceLine, ...]
    added_count: int
    removed_count: int
    hidden_count: int = 0  # lines beyond MAX_SHOWN_LINES

    @property
    def is_same(self) -> bool:
        return not self.added_count and not self.removed_count


def source_difference(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[FileDifference, ...]:
    """Of texts by file name. A single file on each side is one file, whatever it is called."""
    if len(before) == len(after) == 1 and set(before) != set(after):
        (old_name, old), (new_name, new) = *before.items(), *after.items()
        return (_file(f"{old_name} → {new_name}", old, new),)
    names = sorted({*before, *after})
    return tuple(_file(name, before.get(name, ""), after.get(name, "")) for name in names)


def _file(name: str, before: str, after: str) -> FileDifference:
    lines = tuple(_lines(before.splitlines(), after.splitlines()))
    return FileDifference(
        name,
        lines[:MAX_SHOWN_LINES],
        sum(line.kind == "added" for line in lines),
        sum(line.kind == "removed" for line in lines),
        max(0, len(lines) - MAX_SHOWN_LINES),
    )


def _lines(before: list[str], after: list[str]) -> Iterator[SourceLine]:
    is_long = max(len(before), len(after)) > MAX_EXACT_LINES
    groups = difflib.SequenceMatcher(None, before, after, autojunk=is_long).get_grouped_opcodes(CONTEXT_LINES)
    for place, group in enumerate(groups):
        if place:
            yield SourceLine("gap", "")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (SourceLine("same", before[i], i + 1, j + 1) for i, j in zip(range(i1, i2), range(j1, j2), strict=True))
            else:
                yield from (SourceLine("removed", before[i], i + 1, None) for i in range(i1, i2))
                yield from (SourceLine("added", after[j], None, j + 1) for j in range(j1, j2))
