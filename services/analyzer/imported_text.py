"""Text out of files of others: bounded, and without what would steer a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import polars as pl

from services.analyzer.readers.trace import ImportedTables
from services.core.errors import InvalidTraceError

MAX_TITLE_LENGTH: Final = 255
MAX_NOTES_LENGTH: Final = 20_000
MAX_TAG_COUNT: Final = 64
"""Lists carry title, notes and tags of a hundred runs in one message of at most 64 MiB: longer ones would keep every run from
being listed."""

MAX_CELL_LENGTH: Final = 1_000_000
"""Of a cell. A row travels in one message; NVBench's longest lines, the command and its axes, have thousands."""

CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All but tab and line feed; an escape sequence in a title would clear the terminal that lists it, or worse."""


def bounded(tables: ImportedTables, file_name: str) -> ImportedTables:
    """The same with title, notes and tags as lists can carry them. Raises InvalidTraceError when a cell is longer than any is."""
    _refuse_long_cells(tables.frames, file_name)
    return replace(
        tables,
        title=shortened(tables.title, MAX_TITLE_LENGTH),
        notes=shortened(tables.notes, MAX_NOTES_LENGTH),
        tags=tuple(shortened(tag, MAX_TITLE_LENGTH) for tag in tables.tags[:MAX_TAG_COUNT]),
    )


def shortened(text: str, max_length: int) -> str:
    """Printable, and cut with an ellipsis where it is longer."""
    printable = CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
    return printable if len(printable) <= max_length else f"{printable[: max_length - 1]}…"


def _refuse_long_cells(frames: Mapping[str, pl.DataFrame], file_name: str) -> None:
    for table_name, frame in frames.items():
        longest = frame.select(pl.col(pl.String).str.len_chars().max())
        for column, length in longest.row(0, named=True).items() if longest.width and frame.height else ():
            if length is not None and length > MAX_CELL_LENGTH:
                raise InvalidTraceError(
                    f"file {file_name}: {column} of a row of {table_name}",
                    found=f"{length} characters",
                    expected=f"at most {MAX_CELL_LENGTH}",
                    remedy="The file is damaged, or holds what does not belong there.",
                )
