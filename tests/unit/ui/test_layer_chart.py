"""The chart of layers: blocks together, variants beside each other, names under them."""

from __future__ import annotations

import polars as pl
import pytest

from kernalyse.services.analyzer.tables.derived import LAYERS
from kernalyse.services.ui.charts.layers import MAX_KIND_COUNT, bar_columns, kinds_of, no_bars
from kernalyse.services.ui.theme import LIGHT


def layer(path: str | None, variant: str | None, time_ns: int, efficiency_ratio: float | None = None) -> dict[str, object]:
    return {"layer": path, "variant": variant, "duration_sum_ns": time_ns, "efficiency_ratio": efficiency_ratio, "launch_count": 1}


def test_blocks_of_a_model_are_one_bar_for_each_variant() -> None:
    rows = [
        layer("blocks.0.mlp", "baseline", 600, 0.1),
        layer("blocks.1.mlp", "baseline", 200, 0.5),
        layer("blocks.0.mlp", "fused", 300),
        layer("embed", "baseline", 100, 0.3),
        layer(None, None, 1000),
    ]
    kinds = kinds_of(LAYERS.own_rows(rows))
    first, second, third = kinds.to_dicts()
    assert (first["kind"], first["variant"], first["duration_sum_ns"]) == ("blocks.*.mlp", "baseline", 800)
    assert first["efficiency_ratio"] == pytest.approx(0.2)  # 60 + 100 of 800
    assert (second["variant"], second["efficiency_ratio"], third["kind"]) == ("fused", None, "embed")
    bars, names = bar_columns(kinds, LIGHT)
    assert names == {0: "blocks.*.mlp", 1: "embed"}
    assert bars["top"].tolist() == [800, 300, 100]
    assert bars["right"][0] < bars["left"][1]
    assert len(set(bars["color"].tolist())) == 2
    assert "launches, –" in bars["text"][1]
    fused, only = bar_columns(kinds, LIGHT, {"baseline"})
    assert (fused["top"].tolist(), fused["color"][0], only) == ([300], bars["color"][1], {0: "blocks.*.mlp"})
    assert bar_columns(kinds, LIGHT, {"baseline", "fused"})[1] == {}


def test_modules_that_differ_by_a_number_and_calls_that_differ_by_an_id_are_one_kind() -> None:
    kinds = kinds_of(
        LAYERS.own_rows([layer(name, None, 5) for name in ("Linear_0", "Linear_12", "aten::mm, seq = 1, op_id = 3", "aten::mm")])
    )
    assert dict(kinds.select("kind", "duration_sum_ns").iter_rows()) == {"Linear_*": 10, "aten::mm": 10}


def test_only_the_longest_kinds_have_bars_and_no_layers_none() -> None:
    many = LAYERS.own_rows([layer(f"layer{index}x", None, index + 1) for index in range(40)])
    bars, names = bar_columns(kinds_of(many), LIGHT)
    assert len(bars["left"]) == len(names) == MAX_KIND_COUNT
    assert bars["top"][0] == 40
    empty, no_names = bar_columns(kinds_of(pl.DataFrame(schema=LAYERS.schema)), LIGHT)
    assert (no_names, {name: len(values) for name, values in empty.items()}) == ({}, dict.fromkeys(no_bars(), 0))
