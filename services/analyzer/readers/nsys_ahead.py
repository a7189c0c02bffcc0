"""Large tables of an export that are decoded while most of the program is still being loaded, which takes as long."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from services.analyzer.readers.nsys_columns import KERNELS, NODE_ID, call_columns, kernel_columns, range_columns
from services.analyzer.readers.sqlite_file import SqliteFile
from services.analyzer.readers.sqlite_header import HEADER

OF_KERNELS: Final = frozenset({"kernels", "breakdown"})
OF_LAYERS: Final = frozenset({"layers", "layer_roofline", "roofline", "opportunities"})
"""Tables of which it is known here what they need: the same is worked out from what computes them, once that is loaded."""


def opened_ahead(path: Path, table_names: Collection[str]) -> SqliteFile | None:
    """The export, being read; None: the file is of another kind, or other tables are asked for. Raises as SqliteFile.open does."""
    if not path.is_file() or not set(table_names) <= OF_KERNELS | OF_LAYERS:
        return None
    with path.open("rb") as start:
        if start.read(len(HEADER)) != HEADER:
            return None
    file = SqliteFile.open(path, path.name)
    has_calls = not OF_LAYERS.isdisjoint(table_names)
    there = file.column_names(KERNELS)
    file.begin([kernel_columns(there, ("name_index",), has_calls=has_calls, has_nodes=has_calls and NODE_ID in there)])
    if has_calls:
        file.begin([call_columns(()), range_columns(has_names=True, has_domains=False)])
    return file
