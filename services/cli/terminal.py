"""Consoles, tables that stay readable at 80 columns and in files, and results in three formats."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli.options import ReadableFormat
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
    """Return a console of standard output or standard error; one that is no terminal has unlimited width."""
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
        """Return whether any cell says something."""
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
        """Lay out rows. numeric, whole: headings, or positions, of the columns that stand to the right, and of others that never wrap."""
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


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text.

    Attributes:
        numeric: headings of the columns that are aligned to the right.
        notes: lines that stand below it.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Container[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Rendering:
    """A result in words and tables, which `print_rendering` writes as a table, as Markdown or as JSON.

    Attributes:
        document: the JSON object, with plain values.
    """

    tables: Sequence[TextTable]
    summary: Sequence[str]
    document: Mapping[str, object]


def print_rendering(rendering: Rendering, output_format: ReadableFormat) -> None:
    """Print a result in a format; the summary follows, on standard error where standard output is for a program or a file."""
    match output_format:
        case ReadableFormat.JSON:
            typer.echo(as_json(rendering), nl=False)
        case ReadableFormat.MARKDOWN:
            typer.echo(as_markdown(rendering), nl=False)
        case ReadableFormat.TABLE:
            for table in rendering.tables:
                console().print(FittedTable(table.headings, table.rows, numeric=table.numeric))
                for note in table.notes:
                    typer.echo(note)
    for line in rendering.summary:
        typer.echo(line, err=output_format is not ReadableFormat.TABLE)


def as_markdown(rendering: Rendering) -> str:
    """Return the summary as a list, then the tables, each with its notes."""
    lines = [f"- {line}" for line in rendering.summary]
    for table in rendering.tables:
        rule = ("--:" if heading in table.numeric else "---" for heading in table.headings)
        lines += ["", *(_markdown_row(cells) for cells in (table.headings, rule, *table.rows))]
        lines += [line for note in table.notes for line in ("", note)]
    return "\n".join(lines) + "\n"


def as_json(rendering: Rendering) -> str:
    """Return the document as text that ends with a line feed."""
    return json.dumps(rendering.document, indent=1) + "\n"


def cut_name(name: str) -> str:
    """Return both ends of a name that is too long: names of templates begin alike."""
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH // 2]}…{name[-(MAX_NAME_LENGTH // 2 - 1) :]}"


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
