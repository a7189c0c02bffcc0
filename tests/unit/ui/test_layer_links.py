"""Where the links of a layer lead: to its point under the roofline, or to those of the layers in it."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.ui.components.layer_tree import LayerPlace
from kernalyse.services.ui.data.filters import is_wanted, whole


def wanted_points(layer: str, variant: str | None, *layers: tuple[str, str | None]) -> str:
    """What the link of a layer filters points by. layers: path and that of the layer around, of all there are."""
    rows: list[dict[str, Any]] = [
        {"run_id": "run-1", "layer_path": path, "parent_path": around, "layer": path.rpartition(" / ")[2], "variant": variant}
        for path, around in layers
    ]
    return LayerPlace(frame_from_rows(find_table("layer_tree"), rows), layer, "").point_name()


@pytest.mark.parametrize(
    ("layer", "found"),
    [("blocks.1", ["blocks.1.qkv fused", "blocks.1.qkv_norm fused"]), ("blocks.1.qkv", ["blocks.1.qkv fused"])],
)
def test_a_layer_of_a_model_leads_to_its_point_or_to_those_inside(layer: str, found: list[str]) -> None:
    labels = pl.Series(["blocks.1.qkv fused", "blocks.1.qkv_norm fused", "blocks.11.qkv fused"])
    shown = ("blocks.1", None), ("blocks.1.qkv", "blocks.1"), ("blocks.1.qkv_norm", "blocks.1")
    assert labels.filter(is_wanted(labels, wanted_points(layer, "fused", *shown))).to_list() == found


def test_a_layer_of_a_trace_leads_to_its_own_point() -> None:
    assert wanted_points("Net_0 / Head_1", None, ("Net_0", None), ("Net_0 / Head_1", "Net_0")) == whole("Head_1")
    assert wanted_points("", None, ("Net_0", None)) == ""
