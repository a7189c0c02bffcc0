"""Consoles and tables that stay readable at 80 columns and in files."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final

from rich import box
from rich.console import Console, OverflowMethod
from rich.table import Table
from rich.text import Text

FILE_WIDTH: Final = 200
"""A file or a pipe has no width; rich would take 80 columns and break every cell."""

MAX_NAME_LENGTH: Final = 64
"""Names of C++ templates have hundreds of characters: whole, three of them would fill a screen."""


def console(*, stderr: bool = False) -> Console:
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=FILE_WIDTH)


def plain_table(*headings: str) -> Table:
    """Columns without frames."""
    return Table(*headings, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))


def figures_table(
    headings: Sequence[str], numeric: Container[str], rows: Iterable[Iterable[str]], overflow: OverflowMethod = "ellipsis"
) -> Table:
    """Columns whose headings are among the numeric ones stand to the right and never wrap."""
    table = plain_table()
    for heading in headings:
        is_number = heading in numeric
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number, overflow=overflow)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def markdown_table(headings: Sequence[str], numeric: Container[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The same as lines of Markdown."""
    rule = ("--:" if heading in numeric else "---" for heading in headings)
    return [_markdown_row(cells) for cells in (headings, rule, *rows)]


def cut_name(name: str) -> str:
    """Both ends of a long name: templates begin alike."""
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH // 2]}…{name[-(MAX_NAME_LENGTH // 2 - 1) :]}"


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
