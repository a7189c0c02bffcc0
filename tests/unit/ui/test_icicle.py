"""The icicle of layers: how wide each box is and where, which names fit, what is drawn as one, and what a click meets."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from kernalyse.services.analyzer.tables.derived import LAYER_TREE
from kernalyse.services.core.formatting import relative_layer_name
from kernalyse.services.ui.charts.icicle import DIMMED_ALPHA, icicle, icicle_chart, legend_of, no_boxes, no_names, step_colors
from kernalyse.services.ui.components.figure import Figure, RenderedChart
from kernalyse.services.ui.theme import DARK, LIGHT


def layer(path: str, time_ns: int | None, efficiency_ratio: float | None = None, **further: object) -> dict[str, object]:
    parent, _, name = path.rpartition(".")
    return {
        "layer_path": path,
        "parent_path": parent or None,
        "layer": name,
        "duration_sum_ns": time_ns,
        "efficiency_ratio": efficiency_ratio,
        "launch_count": 1,
        **further,
    }


def tree_of(*rows: dict[str, object]) -> pl.DataFrame:
    return LAYER_TREE.own_rows([{"order_index": index, **row} for index, row in enumerate(rows)])


MODEL = tree_of(
    layer("embed", 100, 0.05, bound="memory", category="reduction"),
    layer("blocks", 900, 0.6, bound="compute", category="matmul"),
    layer("blocks.1", 500, 0.8, bound="compute", category="matmul", order_index=9),
    layer("blocks.0", 300, None, category="softmax"),
)


def test_boxes_are_as_wide_as_their_time_in_the_order_of_their_start() -> None:
    drawn = icicle(MODEL, "", "efficiency", LIGHT, 1_000)
    assert drawn.placed["layer_path"].to_list() == ["embed", "blocks", "blocks.0", "blocks.1"]
    assert drawn.boxes["left"].tolist() == [0, 100, 100, 400]
    assert drawn.boxes["right"].tolist() == [100, 1_000, 400, 900]
    assert drawn.boxes["top"].tolist() == [0, 0, -1, -1]
    assert drawn.span_ns == 1_000
    steps = step_colors(LIGHT)
    assert drawn.boxes["color"].tolist() == [steps[0], steps[3], LIGHT.grid, steps[4]]
    assert drawn.boxes["share"].tolist()[0] == "–"
    assert (drawn.path_at(150.0, -0.5), drawn.path_at(950.0, -1.5), drawn.path_at(450.0, -1.2)) == ("blocks", None, "blocks.1")


def test_a_layer_looked_into_is_as_wide_as_the_figure() -> None:
    drawn = icicle(MODEL, "blocks", "category", DARK, 1_000)
    assert drawn.placed["layer_path"].to_list() == ["blocks", "blocks.0", "blocks.1"]
    assert (drawn.span_ns, drawn.boxes["left"].tolist()) == (900, [0, 0, 300])
    assert [name for name, _ in legend_of(MODEL, "category", DARK)] == ["matmul", "softmax", "reduction"]
    assert [name for name, _ in legend_of(MODEL, "bound", DARK)] == ["memory", "compute", "not known"]
    assert icicle(MODEL, "gone", "bound", LIGHT, 1_000).boxes["left"].size == 0


@pytest.mark.parametrize(
    ("width_px", "expected"), [(1_200, ["embed · 5.00 %", "blocks · 900 ns · 60.0 %"]), (300, ["blocks · 900 ns · 60.0 %"])]
)
def test_names_stand_only_where_they_fit(width_px: int, expected: list[str]) -> None:
    drawn = icicle(MODEL, "", "efficiency", LIGHT, width_px)
    shown = [text for text, y in zip(drawn.names["shown"].tolist(), drawn.names["y"].tolist(), strict=True) if y == -0.5]
    assert shown == expected
    assert all(len(text) * 6 < width_px for text in drawn.names["shown"].tolist())


def test_names_leave_out_that_of_the_layer_around_them() -> None:
    assert relative_layer_name("nn.Module: blocks.0.attn", "ProfilerStep#* / nn.Module: Model / nn.Module: blocks.0") == "attn"
    assert relative_layer_name("nn.Module: blocks.01", "nn.Module: blocks.0") == "blocks.01"
    assert relative_layer_name("nn.Module: Model", None) == "Model"


def test_ten_thousand_layers_are_few_boxes_and_their_time_is_whole() -> None:
    many = tree_of(layer("model", 10_000_000), *(layer(f"model.{index}", 1_000 - index % 7) for index in range(10_000)))
    drawn = icicle(many, "model", "efficiency", LIGHT, 1_000)
    assert len(drawn.boxes["left"]) <= 2  # all are narrower than a pixel: one box for them
    assert drawn.boxes["name"].tolist() == ["model", "10000 smaller layers"]
    assert drawn.path_at(5_000_000, -1.5) is None
    inside = many.filter(pl.col("parent_path").is_not_null())["duration_sum_ns"].sum()
    assert drawn.boxes["right"][1] - drawn.boxes["left"][1] == inside


def test_layers_that_run_the_kernel_looked_for_stay_bright_with_those_around() -> None:
    drawn = icicle(MODEL, "", "efficiency", LIGHT, 1_000, frozenset(["blocks.1"]))
    assert drawn.boxes["fill_alpha"].tolist() == [DIMMED_ALPHA, 1, DIMMED_ALPHA, 1]


def test_boxes_of_hidden_colours_are_neither_drawn_nor_met_and_those_inside_stay_where_they_are() -> None:
    drawn = icicle(MODEL, "", "bound", LIGHT, 1_000, hidden={"compute"})
    assert drawn.placed["layer_path"].to_list() == ["embed", "blocks.0"]
    assert (drawn.boxes["left"].tolist(), drawn.boxes["top"].tolist()) == ([0, 100], [0, -1])
    assert drawn.path_at(550.0, -0.5) is None
    assert icicle(MODEL, "", "bound", LIGHT, 1_000, hidden={"compute", "memory", "not known"}).boxes["left"].size == 0
    assert icicle(MODEL, "", "efficiency", LIGHT, 1_000, hidden={"not known"}).placed["layer_path"].to_list()[2:] == ["blocks.1"]


def test_missing_negative_and_hostile_figures_are_drawn_as_nothing_or_as_text() -> None:
    hostile = "<script>alert(1)</script>" * 400
    odd = tree_of(layer("a", None), layer("b", -5), layer("c", 10, float("nan")), {**layer("d", 10), "layer": hostile})
    drawn = icicle(odd, "", "efficiency", LIGHT, 1_000)
    assert drawn.placed["layer_path"].to_list() == ["c", "d"]
    assert len(drawn.boxes["name"][1]) <= 160
    assert np.all(np.isfinite(drawn.boxes["right"]))
    assert icicle(odd.clear(), "", "bound", LIGHT, 1_000).boxes["left"].size == 0
    assert icicle(tree_of(layer("a", 0)), "", "bound", LIGHT, 1_000).level_count == 1


def test_the_live_figure_takes_every_column() -> None:
    figure = Figure("icicle", RenderedChart(lambda _: icicle_chart(no_boxes(), no_names(), LIGHT)), LIGHT, ("boxes", "names"))
    drawn = icicle(MODEL, "", "efficiency", LIGHT, 1_000)
    figure.replace("boxes", drawn.boxes)
    figure.replace("names", drawn.names)
    assert figure.row_count("boxes") == 4
