"""Consoles and tables that stay readable at 80 columns and in files."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.core.quantities import UNKNOWN

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult

UNLIMITED_WIDTH: Final = 100_000
"""Of a file or a pipe, which have none of their own: a row of a table is a line there, for programs that look for words."""

MAX_NAME_LENGTH: Final = 64
"""Names of C++ templates have hundreds of characters: whole, three of them would fill a screen."""

NAME_WIDTH: Final = 40
WORD_WIDTH: Final = 24
"""Characters that the first column, and a word of the others, get before they are broken: with less, a name takes a line a syllable;
with more, one long name leaves no room for figures."""

MAX_LINE_COUNT: Final = 6
"""Lines that a sentence in a cell may take: with more, rows cannot be told apart; with fewer, a sentence needs a wide terminal."""

GAP_WIDTH: Final = 2


def console(*, stderr: bool = False) -> Console:
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=UNLIMITED_WIDTH)


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cells: tuple[str, ...]
    is_number: bool
    is_whole: bool  # never wrapped
    breaks_after: int  # characters

    @property
    def has_values(self) -> bool:
        return any(cell not in ("", UNKNOWN) for cell in self.cells)

    @property
    def min_width(self) -> int:
        """Return the characters that it needs without breaking a word, a number or what must stay whole."""
        heading = max(map(cell_len, self.heading.split()), default=0)
        longest = max((cell_len(word) for cell in self.cells for word in cell.split()), default=0)
        if self.is_whole:
            return max((heading, *map(cell_len, self.cells)))
        return max(heading, min(longest, self.breaks_after), -(-self.full_width // MAX_LINE_COUNT))

    @property
    def full_width(self) -> int:
        """Return the characters of its longest line when nothing is wrapped."""
        return max(map(cell_len, (self.heading, *self.cells)))


class FittedTable:
    """A table without frames of the columns that have values, as many as the terminal has room for.

    Headings wrap between words, numbers never. Columns are left out from the last on, never the first one, and are named below the
    table. In a file or a pipe all are there.
    """

    def __init__(
        self,
        headings: Sequence[str],
        rows: Iterable[Iterable[str]],
        *,
        numeric: Container[str | int] = (),
        whole: Container[str | int] = (),
    ) -> None:
        """numeric, whole: headings, or positions, of the columns that stand to the right, and of others that never wrap."""
        found = [tuple(row) for row in rows]
        columns = [
            _Column(
                heading,
                cells,
                is_number=heading in numeric or place in numeric,
                is_whole=any(name in group for group in (numeric, whole) for name in (heading, place)),
                breaks_after=WORD_WIDTH if place else NAME_WIDTH,
            )
            for place, (heading, cells) in enumerate(
                zip(headings, zip(*found, strict=True) if found else ((),) * len(headings), strict=True)
            )
        ]
        self._columns = [column for place, column in enumerate(columns) if place == 0 or not found or column.has_values]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(self._fitting(options.max_width)) if console.is_terminal else self._columns
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP_WIDTH - 1, 0, 0))
        for column, width in zip(shown, _widths(shown, options.max_width), strict=True):
            table.add_column(column.heading, justify="right" if column.is_number else "left", width=width, overflow="fold")
        for cells in zip(*(column.cells for column in shown), strict=True):
            table.add_row(*map(Text, cells))
        yield table
        if left_out := [column.heading for column in self._columns[len(shown) :]]:
            yield Text(f"No room for: {', '.join(left_out)}. A wider terminal, or | less -S, shows all columns.", style="dim")

    def _fitting(self, width: int) -> Iterator[_Column]:
        left = width
        for place, column in enumerate(self._columns):
            left -= column.min_width + GAP_WIDTH
            if left < 0 and place > 0:
                return
            yield column


def _widths(columns: Sequence[_Column], width: int) -> Iterator[int]:
    """Yield the characters of each column: what it needs, and from left to right what it could use of what is left."""
    left = max(0, width - sum(column.min_width + GAP_WIDTH for column in columns))
    for column in columns:
        more = min(column.full_width - column.min_width, left)
        left -= more
        yield min(column.min_width + more, width)


def markdown_table(headings: Sequence[str], numeric: Container[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The same as lines of Markdown."""
    rule = ("--:" if heading in numeric else "---" for heading in headings)
    return [_markdown_row(cells) for cells in (headings, rule, *rows)]


def cut_name(name: str) -> str:
    """Both ends of a long name: templates begin alike."""
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH // 2]}…{name[-(MAX_NAME_LENGTH // 2 - 1) :]}"


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
