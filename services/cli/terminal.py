"""Consoles and tables that stay readable at 80 columns and in files."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

FILE_WIDTH: Final = 200
"""A file or a pipe has no width; rich would take 80 columns and break every cell."""


def console(*, stderr: bool = False) -> Console:
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=FILE_WIDTH)


def plain_table(*headings: str) -> Table:
    """Columns without frames."""
    return Table(*headings, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
