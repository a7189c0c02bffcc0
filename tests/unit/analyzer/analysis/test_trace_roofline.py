"""Kernels and layers of traces under ceilings, and what to look at first: figures worked out by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.analysis.traces.roofline import trace_ceilings
from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED, Frames, QueryParameters
from kernalyse.services.analyzer.tables.traces import LAUNCH_WORK
from tests.examples import examples
from tests.unit.worked_traces import Kernel, Operator, worked_trace

H100 = {"device_name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0", "sm_count": 132}
DRAM, BFLOAT16 = 3.35e12, 989.4e12  # of its datasheet
HALF = "c10::BFloat16"

# A product of 2 * 4096^3 flop and 3 * 4096^2 * 2 bytes is bound by arithmetic (1365 flop/B against a ridge of 295).
LARGE = [[4096, 4096], [4096, 4096]]
LARGE_FLOP, LARGE_BYTES = 2.0 * 4096**3, 3.0 * 4096**2 * 2
# A sum of two vectors moves six bytes for each flop.
VECTOR = [[10**6], [10**6]]
VECTOR_FLOP, VECTOR_BYTES = 1e6, 6e6


def answer(trace: Frames, table_name: str, question: QueryParameters = DEFAULT_QUERY) -> list[dict[str, Any]]:
    return TRACE_DERIVED[table_name].compute(trace, question).collect().to_dicts()


def model_trace(device: dict[str, Any] = H100) -> Frames:
    """A step with two layers: "mlp" runs the product twice and the sum once, "head" the sum and a kernel of unknown work."""
    return worked_trace(
        [
            Operator("step"),
            Operator("mlp", parent=0),
            Operator("aten::mm", LARGE, parent=1, dtype=HALF),
            Operator("aten::mm", LARGE, parent=1, dtype=HALF),
            Operator("aten::add", VECTOR, parent=1, dtype=HALF),
            Operator("head", parent=0),
            Operator("aten::add", VECTOR, parent=5, dtype=HALF),
            Operator("my::op", [[3]], parent=5),
        ],
        [
            Kernel("gemm", 200_000, 2, 1),
            Kernel("gemm", 300_000, 3, 1),
            Kernel("add", 4_000, 4, 1),
            Kernel("add", 6_000, 6, 5),
            Kernel("own", 90_000, 7, 5),
        ],
        [device],
    )


def test_launches_of_a_kernel_are_summed_before_anything_is_divided() -> None:
    gemm, add = answer(model_trace(), "roofline")
    assert (gemm["label"], gemm["dtype"], gemm["path"], gemm["device_id"]) == ("gemm bfloat16", "bfloat16", "tensor", H100["device_name"])
    assert (gemm["launch_count"], gemm["duration_sum_ns"], gemm["duration_mean_ns"]) == (2, 500_000, 250_000.0)
    assert (gemm["flop"], gemm["bytes"]) == (LARGE_FLOP, LARGE_BYTES)
    assert gemm["achieved_flop_per_s"] == pytest.approx(2 * LARGE_FLOP / 500e-6)
    assert gemm["efficiency_ratio"] == pytest.approx(2 * LARGE_FLOP / 500e-6 / BFLOAT16)
    assert (gemm["bound"], gemm["ceiling_source"], gemm["work_source"]) == ("compute", "datasheet", "op model")
    assert gemm["share_ratio"] == pytest.approx(500 / 600)
    assert add["efficiency_ratio"] == pytest.approx(2 * VECTOR_BYTES / 10e-6 / DRAM)
    assert (add["bound"], add["duration_sum_ns"]) == ("memory", 10_000)


def test_a_layer_is_held_against_the_type_of_most_of_its_flop() -> None:
    mlp, head = answer(model_trace(), "layers")
    flop, moved = 2 * LARGE_FLOP + VECTOR_FLOP, 2 * LARGE_BYTES + VECTOR_BYTES
    assert (mlp["layer"], mlp["flop"], mlp["bytes"]) == ("mlp", flop, moved)
    assert mlp["intensity_flop_per_byte"] == pytest.approx(flop / moved)
    assert mlp["achieved_flop_per_s"] == pytest.approx(flop / 504e-6)
    assert mlp["attainable_flop_per_s"] == pytest.approx(BFLOAT16)
    assert mlp["efficiency_ratio"] == pytest.approx(flop / 504e-6 / BFLOAT16)
    assert (mlp["bound"], mlp["worked_share_ratio"], mlp["work_source"]) == ("compute", 1.0, "op model")
    assert (head["layer"], head["flop"], head["launch_count"]) == ("head", VECTOR_FLOP, 2)
    assert head["worked_share_ratio"] == pytest.approx(6 / 96)
    assert head["achieved_bytes_per_s"] == pytest.approx(VECTOR_BYTES / 6e-6)
    points = {row["layer"]: row for row in answer(model_trace(), "layer_roofline")}
    assert points["mlp"]["efficiency_ratio"] == pytest.approx(mlp["efficiency_ratio"])
    assert (points["head"]["launch_count"], points["head"]["duration_sum_ns"]) == (1, 6_000)


def test_layers_of_a_depth_hold_the_work_of_those_inside() -> None:
    (step,) = answer(model_trace(), "layers", QueryParameters(depth=0))
    assert (step["layer"], step["flop"]) == ("step", 2 * LARGE_FLOP + 2 * VECTOR_FLOP)
    assert step["worked_share_ratio"] == pytest.approx(510 / 600)
    (point,) = answer(model_trace(), "layer_roofline", QueryParameters(depth=0))
    assert point["duration_sum_ns"] == 510_000


def test_without_known_work_layers_have_their_times_alone() -> None:
    trace = worked_trace([Operator("step")], [Kernel("own", 10, layer=0), Kernel("other", 5)])
    inside, outside = answer(trace, "layers")
    assert (inside["layer"], inside["duration_sum_ns"], inside["flop"], inside["worked_share_ratio"]) == ("step", 10, None, 0.0)
    assert (outside["layer"], outside["duration_sum_ns"], outside["efficiency_ratio"]) == (None, 5, None)
    assert answer(trace, "roofline") == answer(trace, "layer_roofline") == []


def test_flop_of_which_a_part_has_no_bytes_have_no_intensity() -> None:
    trace = worked_trace(
        [Operator("layer"), Operator("aten::mm", [[2, 3], [3, 4]], parent=0, dtype="unheard of"), Operator("my::op", flop=7.0, parent=0)],
        [Kernel("a", 10, 1, 0), Kernel("b", 10, 2, 0)],
        [H100],
    )
    (layer,) = answer(trace, "layers")
    assert (layer["flop"], layer["bytes"], layer["intensity_flop_per_byte"]) == (7.0, None, None)


@pytest.mark.parametrize(("unknown_ns", "known_bytes"), [(100, VECTOR_BYTES), (101, None)])
def test_bytes_that_half_of_the_time_does_not_know_leave_the_rest_under_both_roofs(unknown_ns: int, known_bytes: float | None) -> None:
    trace = worked_trace(
        [Operator("layer"), Operator("aten::add", VECTOR, parent=0, dtype=HALF), Operator("my::op", flop=7.0, parent=0)],
        [Kernel("add", 100, 1, 0), Kernel("own", unknown_ns, 2, 0)],
        [H100],
    )
    (layer,) = answer(trace, "layers")
    assert (layer["flop"], layer["bytes"]) == (VECTOR_FLOP + 7, known_bytes)
    assert layer["bound"] == ("compute" if known_bytes is None else "memory")


def test_points_of_a_layer_by_different_sources_have_labels_of_their_own() -> None:
    trace = worked_trace(
        [Operator("nn.Module: fc"), Operator("aten::add", VECTOR, parent=0, dtype=HALF), Operator("aten::add", VECTOR, dtype=HALF)],
        [Kernel("add", 100, 1, 0), Kernel("add", 100, 2, 0)],
        [H100],
    )
    sources = pl.when(pl.col("launch_index") == 1).then(pl.lit("forward")).otherwise("layer_source")
    rows = answer({**trace, "kernel_launches": trace["kernel_launches"].with_columns(layer_source=sources)}, "layer_roofline")
    assert {(row["layer"], row["label"]) for row in rows} == {("nn.Module: fc", "fc"), ("nn.Module: fc", "fc (backward pass)")}


# ---------------------------------------------------------------- counted levels


def counted_trace() -> Frames:
    """`model_trace` with counters of both products."""
    counted = [
        {"launch_index": 0, "flop": 8e9, "bytes": 2e6, "l2_bytes": 4e6, "l1_bytes": 8e6, "work_source": "counters"},
        {"launch_index": 1, "flop": 8e9, "bytes": 2e6, "l2_bytes": 6e6, "work_source": "counters of the same launch configuration"},
        {"launch_index": 2, "flop": 1e6, "bytes": 6e6, "work_source": "op model"},
    ]
    work = LAUNCH_WORK.own_rows({"dtype": "float32", "path": "fma"} | row for row in counted)
    return {**model_trace(), "launch_work": work.lazy()}


def test_counters_place_a_kernel_at_each_level_over_the_launches_whose_bytes_they_know_there() -> None:
    rows = answer(counted_trace(), "counted_roofline")
    assert [(row["label"], row["memory_level"], row["launch_count"], row["duration_sum_ns"]) for row in rows] == [
        ("gemm float32", "dram", 2, 500_000),
        ("gemm float32", "l2", 2, 500_000),
        ("gemm float32", "l1", 1, 200_000),
    ]
    dram, l2, l1 = rows
    assert [row["intensity_flop_per_byte"] for row in rows] == [16e9 / 4e6, 16e9 / 10e6, 8e9 / 8e6]
    assert l2["achieved_flop_per_s"] == dram["achieved_flop_per_s"] == pytest.approx(16e9 / 500e-6)
    assert l1["achieved_bytes_per_s"] == pytest.approx(8e6 / 200e-6)
    assert (dram["memory_ceiling_bytes_per_s"], l2["memory_ceiling_bytes_per_s"]) == (DRAM, None)  # of the L2 cache none is known
    assert (l2["work_source"], l1["work_source"]) == ("counters, counters of the same launch configuration", "counters")
    assert l2["share_ratio"] == pytest.approx(500 / 600)


def test_counters_place_a_layer_at_each_level_at_any_depth() -> None:
    for depth, name in ((None, "mlp"), (0, "step")):
        rows = answer(counted_trace(), "counted_layer_roofline", QueryParameters(depth=depth))
        assert [(row["layer"], row["memory_level"], row["launch_count"], row["bytes"]) for row in rows] == [
            (name, "dram", 2, 2e6),
            (name, "l2", 2, 5e6),
            (name, "l1", 1, 8e6),
        ]
        assert [row["intensity_flop_per_byte"] for row in rows] == [16e9 / 4e6, 16e9 / 10e6, 8e9 / 8e6]
        assert {row["source"] for row in rows} == {"module"}


def test_without_counters_no_level_has_points() -> None:
    assert answer(model_trace(), "counted_roofline") == answer(model_trace(), "counted_layer_roofline") == []


# ---------------------------------------------------------------- ceilings


def ceilings(device: dict[str, Any]) -> dict[tuple[str, str, str], float]:
    rows = trace_ceilings(worked_trace([], [Kernel("k", 1)], [device])["trace_devices"]).collect()
    return {(row["ceiling_name"], row["path"], row["source"]): row["value"] for row in rows.iter_rows(named=True)}


def test_a_device_of_the_datasheets_has_their_ceilings() -> None:
    found = ceilings(H100)
    assert found["dram", "copy", "datasheet"] == DRAM
    assert found["bfloat16", "tensor", "datasheet"] == BFLOAT16
    assert {source for _, _, source in found} == {"datasheet"}  # without a clock nothing else can be worked out


def test_an_unknown_device_has_what_its_trace_tells() -> None:
    told = {"device_name": "NVIDIA H999", "compute_capability": "9.0", "sm_count": 100, "clock_hz": 2_000_000_000}
    found = ceilings(told | {"memory_bandwidth_bytes_per_s": 5 * 10**12})
    assert found["dram", "copy", "clock"] == 5e12
    assert found["float32", "fma", "clock"] == 256 * 100 * 2e9  # 128 lanes, a fused multiply-add each
    assert ceilings({"device_name": "NVIDIA H999"}) == {}


def test_numbers_of_other_vendors_are_not_taken_for_compute_capabilities() -> None:
    assert ceilings({"device_name": "AMD Instinct MI300X", "compute_capability": "9.0", "sm_count": 304, "clock_hz": 2_100_000_000}) == {}


# ---------------------------------------------------------------- opportunities


def test_opportunities_are_time_times_what_is_missing_to_the_roof() -> None:
    rows = answer(model_trace(), "opportunities")
    kernels = {row["subject"]: row for row in rows if row["subject_kind"] == "kernel"}
    gemm_efficiency = 2 * LARGE_FLOP / 500e-6 / BFLOAT16
    assert kernels["gemm"]["lost_ns"] == pytest.approx(500_000 * (1 - gemm_efficiency))
    assert kernels["gemm"]["efficiency_ratio"] == pytest.approx(gemm_efficiency)
    assert kernels["add"]["lost_ns"] == pytest.approx(10_000 * (1 - 2 * VECTOR_BYTES / 10e-6 / DRAM))
    assert (kernels["own"]["lost_ns"], kernels["own"]["duration_sum_ns"]) == (None, 90_000)
    layers = [(row["subject"], row["launch_count"], row["lost_ns"] is None) for row in rows if row["subject_kind"] == "layer"]
    assert layers == [("mlp", 3, False), ("head", 1, False), ("head", 1, True)]
    losses = [row["lost_ns"] for row in rows]
    assert losses == [*sorted((loss for loss in losses if loss is not None), reverse=True), None, None]
    assert all(row["reason"].endswith(".") for row in rows)


def test_idle_devices_are_opportunities_too() -> None:
    trace = dict(worked_trace([], [Kernel("a", 100), Kernel("b", 50)], [{"device_name": "NVIDIA X"}]))
    trace["kernel_launches"] = trace["kernel_launches"].with_columns(start_ns=pl.Series([0, 350], dtype=pl.Int64))
    device = answer(trace, "opportunities")[0]
    assert (device["subject_kind"], device["subject"]) == ("device", "NVIDIA X 0 of process 1")
    assert (device["duration_sum_ns"], device["lost_ns"], device["share_ratio"]) == (250, 250.0, 250 / 400)


def test_faster_than_the_roof_loses_nothing() -> None:
    trace = worked_trace([Operator("aten::add", VECTOR, dtype=HALF)], [Kernel("add", 1_000, 0)], [H100])
    (kernel,) = (row for row in answer(trace, "opportunities") if row["subject_kind"] == "kernel")
    assert kernel["efficiency_ratio"] > 1  # out of the cache
    assert kernel["lost_ns"] == 0.0


@examples(20)
@given(st.lists(st.tuples(st.sampled_from(["gemm", "add", "own"]), st.integers(0, 10**6), st.integers(0, 3)), min_size=1, max_size=15))
def test_all_time_is_told_once_of_kernels_and_once_of_layers(launches: list[tuple[str, int, int]]) -> None:
    operators = [Operator("a"), Operator("b"), Operator("aten::mm", LARGE, dtype=HALF), Operator("my::op", [[3]])]
    kernels = [Kernel(name, duration_ns, operator, operator % 2) for name, duration_ns, operator in launches]
    rows = answer(worked_trace(operators, kernels, [H100]), "opportunities")
    whole = sum(duration_ns for _, duration_ns, _ in launches)
    for kind in ("kernel", "layer"):
        assert sum(row["duration_sum_ns"] for row in rows if row["subject_kind"] == kind) == whole
        assert sum(row["launch_count"] for row in rows if row["subject_kind"] == kind) == len(launches)
