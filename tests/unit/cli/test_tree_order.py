"""Layers as a tree on the terminal: each below the one that it is in, and none left out."""

from __future__ import annotations

import polars as pl

from kernalyse.services.cli.show import order_as_tree


def tree(*paths: str) -> pl.DataFrame:
    parts = [path.split(" / ") for path in paths]
    return pl.DataFrame(
        {
            "variant": [None] * len(parts),
            "layer": [names[-1] for names in parts],
            "layer_path": paths,
            "parent_path": [" / ".join(names[:-1]) or None for names in parts],
        },
        schema_overrides={"variant": pl.String},
    )


def test_a_layer_stands_below_the_one_around_it_in_the_order_of_the_rows() -> None:
    rows = tree("step", "eval", "step / b", "eval / b", "step / a", "step / b / b.mlp", "step / b / b.mlp / b.mlp.0")
    shown = order_as_tree(rows, 100)
    assert shown["layer"].to_list() == ["step", "  b", "    mlp", "      0", "  a", "eval", "  b"]
    assert sorted(shown["layer_path"]) == sorted(rows["layer_path"])


def test_rows_beyond_those_shown_stay_behind_them() -> None:
    rows = tree("step", "eval", "step / b", "eval / b")
    assert order_as_tree(rows, 3)["layer_path"].to_list() == ["step", "step / b", "eval", "eval / b"]


def test_without_the_layer_around_rows_stay_as_they_are() -> None:
    rows = tree("step", "eval / b")
    assert order_as_tree(rows, 100).equals(rows)
