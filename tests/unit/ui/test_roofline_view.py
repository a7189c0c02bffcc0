"""What the Roofline page makes of rows: memory levels, devices, many points, clicks, and what it says of one point."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl
import pytest

from kernalyse.services.ui.charts import roofline
from kernalyse.services.ui.charts.roofline import Span, near, thinned
from kernalyse.services.ui.charts.roofline_ceilings import at_level, drawn_levels, level_note
from kernalyse.services.ui.components.chart import LegendEntry, hidden_names, hideable, series_key
from kernalyse.services.ui.components.roofline import foremost, legend_entries
from kernalyse.services.ui.data.diagnosis import diagnosis, point_key, rows_of_point
from kernalyse.services.ui.data.memory import Overview
from kernalyse.services.ui.data.roofline_rows import OfRun, Shown, held_rows, named_ceilings, with_share_of_pass
from kernalyse.services.ui.theme import LIGHT
from tests.unit.ui.test_charts import POINT, ceiling, points

ROW: Final = POINT | {
    "duration_sum_ns": None, "compute_ceiling_flop_per_s": 40e9, "memory_ceiling_bytes_per_s": 24e9, "ridge_flop_per_byte": 40 / 24,
    "efficiency_category": "memory inefficient", "efficiency_ratio": 0.25,
}  # fmt: skip
VIEW: Final = Span(0.01, 100.0, 1e9, 1e13)


# ---------------------------------------------------------------- levels


def test_points_of_a_level_are_those_with_bytes_there_as_counters_know_them_first() -> None:
    rows = points({"configuration_index": 0}, {"configuration_index": 1, "memory_level": "l2"}, {"configuration_index": 2})
    counted = points(
        *({"configuration_index": 0, "memory_level": level, "bytes": 1.0, "work_source": "counters"} for level in ("dram", "l2"))
    )
    counted = counted.drop("launch_count", "share_ratio")
    assert at_level(rows, counted, "auto") is rows
    assert sorted(at_level(rows, counted, "l2")["configuration_index"]) == [0, 1]
    dram = at_level(rows, counted, "dram")
    assert dram.select("configuration_index", "work_source").rows() == [(0, "counters"), (2, "formula")]
    assert at_level(rows, None, "l1").height == 0
    everything = at_level(rows, counted, "all")
    assert everything.select("configuration_index", "memory_level").rows() == [(0, "dram"), (0, "l2"), (1, "l2"), (2, "dram")]
    assert everything.columns == rows.columns


def test_points_of_a_trace_have_levels_by_what_tells_them_apart() -> None:
    of_trace = {"configuration_index": None, "launch_count": 3, "duration_sum_ns": 90}
    gemm = of_trace | {"label": "gemm float16"}
    rows = points(gemm, of_trace | {"label": "add float32"}, {"configuration_index": 0})
    counted = points(*(gemm | {"memory_level": level, "work_source": "counters"} for level in ("dram", "l2", "l1")))
    rows, counted = (frame.cast({"configuration_index": pl.Int64}) for frame in (rows, counted))
    for level in ("l2", "l1"):
        assert at_level(rows, counted, level).select("label", "duration_sum_ns").rows() == [("gemm float16", 90)]
    everything = at_level(rows, counted, "all")
    assert everything["memory_level"].to_list() == ["dram", "l2", "l1", "dram", "dram"]
    keys = [point_key(row) for row in everything.to_dicts()]
    assert len(set(keys)) == 3
    assert rows_of_point(everything, keys[0]).height == 3  # a click explains all levels of it
    listed, _ = foremost(everything, with_level=True)
    assert [row.label for row in listed[:3]] == ["gemm float16 · DRAM", "gemm float16 · L2 cache", "gemm float16 · L1 cache"]
    assert {row.point for row in listed} == set(keys)


def test_layers_have_levels_by_their_name_and_what_tells_them() -> None:
    of_trace: dict[str, Any] = {"configuration_index": None, "path": None, "label": "mlp"}
    rows, counted = (
        points(*(of_trace | row for row in frame)).with_columns(pl.col("configuration_index").cast(pl.Int64), layer="label", source=source)
        for frame, source in (
            (({}, {"duration_sum_ns": 5}), pl.Series(["module", "guessed"])),
            (tuple({"path": "fma", "memory_level": level, "duration_sum_ns": 90} for level in ("dram", "l2")), pl.lit("module")),
        )
    )
    assert at_level(rows, counted, "l2").select("source", "path", "duration_sum_ns").rows() == [("module", "fma", 90)]
    assert at_level(rows, counted, "all")["source"].to_list() == ["module", "module", "guessed"]


def test_what_is_in_no_layer_has_a_name_on_the_page() -> None:
    rows = points({"configuration_index": 0}).with_columns(label=pl.lit(None, dtype=pl.String), layer=pl.lit(None, dtype=pl.String))
    held = held_rows([OfRun("aaaa-1", None, rows, None)], None, "auto", "best")
    assert held is not None
    assert held.rows["label"].to_list() == ["(outside of every layer)"]


def test_the_level_decides_which_slopes_are_drawn_and_what_is_missing_is_said() -> None:
    ceilings = pl.DataFrame([ceiling("dram", 24e9), ceiling("l2", 48e9), ceiling("float32", 240e9)])
    ceilings = pl.concat([ceilings, pl.DataFrame([ceiling("l2", 96e9) | {"ceiling_name": "l1"}])])
    for level, names in (("auto", {"dram", "l2"}), ("l2", {"l2"}), ("all", {"dram", "l2", "l1"})):
        shown = roofline.shown_ceilings(ceilings, ("float32",), levels=drawn_levels(level, None))  # type: ignore[arg-type]
        assert {row["ceiling_name"] for row in shown} == {*names, "float32"}
    only = roofline.shown_ceilings(ceilings, (), levels=("l2",))
    assert set(roofline.ceiling_columns(only, VIEW, LIGHT)["line_dash"]) == {"solid"}
    assert roofline.ridges(only) == (("float32", 5.0),)
    assert level_note("l2", 3, asking=False).startswith("3 not shown: their bytes at L2 cache are not known.")
    assert level_note("auto", 3, asking=True) == ""


# ---------------------------------------------------------------- devices


def of_run(run_id: str, value: float) -> OfRun:
    return OfRun(run_id, None, None, pl.DataFrame([ceiling("dram", value), ceiling("float32", 10 * value)]))


def test_ceilings_of_different_devices_are_told_apart_and_of_alike_ones_drawn_once() -> None:
    alike = named_ceilings([of_run("20260101-a", 1e9), of_run("20260101-b", 1e9)], Overview(), "best")
    assert len(roofline.shown_ceilings(alike, ())) == 2
    shown = roofline.shown_ceilings(named_ceilings([of_run("20260101-a", 1e9), of_run("20260101-b", 2e9)], Overview(), "best"), ())
    lines = roofline.ceiling_columns(shown, VIEW, LIGHT)
    assert lines["name"].tolist() == ["d · a DRAM", "d · a float32", "d · b DRAM", "d · b float32"]
    assert len(set(lines["color"])) == 2
    assert [name for name, _ in roofline.ridges(shown)] == ["d · a float32", "d · b float32"]


def test_launches_of_a_model_have_their_share_of_the_pass() -> None:
    launch = {"layer_path": "mlp", "variant": "baseline", "duration_median_ns": 100.0}
    nothing = {"layer_path": None, "variant": None}
    rows = points(launch, launch | {"duration_median_ns": 300.0}, launch | {"variant": "fused"}, nothing, nothing | {"share_ratio": 0.7})
    assert with_share_of_pass(rows)["share_ratio"].to_list() == [0.25, 0.75, 1.0, None, 0.7]


# ---------------------------------------------------------------- many points, clicks


def many(count: int) -> pl.DataFrame:
    random = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "intensity_flop_per_byte": 10 ** random.uniform(-1, 1, count),
            "achieved_flop_per_s": 10 ** random.uniform(10, 12, count),
            "category": [("matmul", "stream")[place % 50 == 0] for place in range(count)],
            "place": range(count),
        }
    )


def test_many_points_are_thinned_to_those_that_can_be_told_apart() -> None:
    rows = many(50_000)
    drawn = thinned(rows, VIEW, "category", limit=2_000)
    assert 500 < drawn.height <= 2_000
    assert set(drawn["category"]) == {"matmul", "stream"}
    assert thinned(rows.head(100), VIEW, "category", limit=2_000).height == 100
    closer = Span(0.9, 1.1, 1e11, 2e11)
    inside = rows.filter(pl.col("intensity_flop_per_byte").is_between(0.9, 1.1) & pl.col("achieved_flop_per_s").is_between(1e11, 2e11))
    assert thinned(rows, closer, "category", limit=2_000)["place"].to_list() == inside["place"].to_list()


def test_a_click_finds_the_nearest_of_all_points() -> None:
    rows = many(10_000)
    x, y = rows.row(4_321)[:2]
    assert near(rows, VIEW, x, y, 800, 400, reach_px=20)[0] == 4_321
    assert near(rows, VIEW, 50.0, 1e13, 800, 400, reach_px=20) == []
    assert near(rows, VIEW, -1.0, 1e11, 800, 400, reach_px=20) == []


def test_a_points_key_leads_back_to_it() -> None:
    trace = {"configuration_index": None, "run_id": "20260102-r2"}
    rows = points({}, {"configuration_index": 12}, trace | {"label": "a<b,c>"}, trace | {"label": "a<b,c>", "path": "tensor"})
    keys = [point_key(row) for row in rows.iter_rows(named=True)]
    assert len(set(keys)) == 4
    assert all("," not in key and len(key) < 60 for key in keys)
    assert [rows_of_point(rows, key).rows() for key in keys] == [[row] for row in rows.rows()]
    for unknown in ("", "x", "20260102-r2.k123", "20260102-101500-6ca949ef.99"):
        assert rows_of_point(rows, unknown).is_empty()


# ---------------------------------------------------------------- the panel


def told(row: dict[str, Any], **known: Any) -> tuple[dict[str, str], Any]:
    found = diagnosis(ROW | row, **known)
    assert all(term.meaning.endswith(".") for term in found.terms)
    return {term.name: term.value for term in found.terms}, found


def test_seed_002_the_panel_tells_macs_bytes_utilization_and_bandwidth_with_definitions() -> None:
    figures, found = told({}, in_macs=True)
    assert figures["MACs"] == "1.02 kMAC"
    assert figures["Bytes"] == "12.0 KiB"
    assert figures["Utilisation"] == "5.00 %"
    assert figures["Bandwidth"] == "12.0 GB/s"
    assert figures["Bandwidth utilisation"] == "50.0 %"
    assert found.category == "memory inefficient"
    assert found.limit.startswith("DRAM would be its limit")
    assert found.headroom == "At its roof it would take 375 ns instead of 1.50 µs, 75.0 % less."


@pytest.mark.parametrize("category", ["compute bound", "memory bound", "compute inefficient", "memory inefficient", "normal", None])
def test_each_category_says_what_limits_the_point(category: str | None) -> None:
    found = diagnosis(ROW | {"efficiency_category": category})
    assert "{" not in found.limit
    assert found.category == (category or "")


def test_what_else_costs_time_is_told_with_its_evidence() -> None:
    measured = {"theoretical_occupancy_ratio": 0.125, "register_count": 200, "spill_store_bytes": 8, "throttle_reasons": "power_cap"}
    figures, found = told({}, measured=measured)
    assert (figures["Occupancy"], figures["Registers"]) == ("12.5 %", "200")
    assert [hint.split()[0] for hint in found.hints] == ["Occupancy", "Registers", "The"]
    occupancy = {"theoretical_occupancy_ratio": 0.2, "limiting_resource": "shared_memory", "wave_count": 0.5}
    of_trace = {"duration_sum_ns": 60_000, "launch_count": 40, "share_ratio": 0.2, "duration_median_ns": None}
    figures, found = told(of_trace, occupancy=occupancy)
    assert "(shared memory limit it)" in found.hints[0]
    assert "50.0 % of the device" in found.hints[1]
    assert found.headroom.endswith("over 40 launches that is 45.0 µs less, 15.0 % of the time of all kernels.")
    assert figures["Launches"] == "40"


def test_unknown_figures_are_left_out_of_the_panel() -> None:
    nothing = dict.fromkeys(name for name in ROW if name not in ("run_id", "configuration_index", "label", "is_implausible"))
    found = diagnosis(ROW | nothing)
    assert {term.name for term in found.terms} == {"Result"}
    assert (found.headroom, found.category) == ("", "")
    assert found.limit.startswith("Too little is known of its device")
    assert diagnosis(ROW | {"efficiency_ratio": 1.2}).headroom.startswith("It is at its roof")


# ---------------------------------------------------------------- legends


def test_a_series_is_hidden_by_a_key_that_fits_a_url() -> None:
    long = "kernel<" + "x" * 10_000
    assert len(series_key(long)) < 40
    assert series_key(long) != series_key(long + "y")
    assert hidden_names(["a", long, ""], (series_key(long), "-")) == {long, ""}
    entries = hideable([LegendEntry("a", "#000", "●"), LegendEntry("b", "#000", "●")], ("b",))
    assert [(entry.series, entry.is_hidden) for entry in entries] == [("a", False), ("b", True)]


def test_a_legend_whose_series_are_all_hidden_still_names_them() -> None:
    rows = points(POINT)
    none = rows.clear()
    drawn = roofline.point_columns(none, LIGHT)
    shown = Shown(rows, [], "", rows, none, none, drawn, (), "category", ("matmul",), 0, {})
    name = str(rows["category"][0])
    assert [(entry.name, entry.is_hidden) for entry in legend_entries(shown, LIGHT, [series_key(name)])] == [(name, True)]
