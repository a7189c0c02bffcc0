"""Rows of table layer_tree as a tree on the terminal: each layer below the one that it is in."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from services.core.labels import name_inside

if TYPE_CHECKING:
    import polars as pl

INDENT: Final = "  "
KEYS: Final = ("variant", "layer_path", "parent_path", "layer")


def in_tree_order(tree: pl.DataFrame, max_row_count: int) -> pl.DataFrame:
    """Return the first rows of one run, those inside of a layer below it with indented names, then the others.

    As they are where the layer around one is not among them.
    """
    if not set(KEYS) <= set(tree.columns):
        return tree
    first = tree.head(max_row_count)
    parts: defaultdict[tuple[object, ...], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for place, row in enumerate(first.select(KEYS).to_dicts()):
        parts[row["variant"], row["parent_path"]].append((place, row))
    order: list[int] = []
    names: list[str] = []
    waiting = [(0, part) for key, some in parts.items() if key[-1] is None for part in some][::-1]
    while waiting:
        depth, (place, row) = waiting.pop()
        order.append(place)
        names.append(INDENT * depth + name_inside(row["layer"], row["parent_path"]))
        waiting += [(depth + 1, part) for part in parts[row["variant"], row["layer_path"]][::-1]]
    if len(order) < first.height:
        return tree
    import polars as pl

    return pl.concat([first[order].with_columns(pl.Series("layer", names, dtype=pl.String)), tree[max_row_count:]])
