"""The tree of a trace's layers, by hand: what is inside of what, what counts for it, and its kernels."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED, Frames
from tests.unit.analyzer.analysis.test_trace_roofline import LARGE_FLOP, VECTOR_FLOP, model_trace
from tests.unit.trace_rows import names, trace_of
from tests.unit.worked_traces import Kernel, Operator, worked_trace


def answer(trace: Frames, table_name: str) -> list[dict[str, Any]]:
    return TRACE_DERIVED[table_name].compute(trace, DEFAULT_QUERY).collect().to_dicts()


def test_a_layer_has_the_time_and_work_of_all_inside_of_it() -> None:
    step, mlp, head = answer(model_trace(), "layer_tree")
    assert [row["layer_path"] for row in (step, mlp, head)] == ["step", "step / mlp", "step / head"]
    assert (step["parent_path"], mlp["parent_path"], mlp["layer"], mlp["depth"]) == (None, "step", "mlp", 1)
    assert (step["duration_sum_ns"], step["own_duration_sum_ns"], step["launch_count"]) == (600_000, 0, 5)
    assert (step["flop"], mlp["flop"]) == (2 * LARGE_FLOP + 2 * VECTOR_FLOP, 2 * LARGE_FLOP + VECTOR_FLOP)
    assert (head["share_ratio"], head["worked_share_ratio"]) == (pytest.approx(96 / 600), pytest.approx(6 / 96))
    (whole,) = [row for row in answer(model_trace(), "layers") if row["layer"] == "mlp"]
    assert (mlp["efficiency_ratio"], mlp["bound"]) == (pytest.approx(whole["efficiency_ratio"]), "compute")


def test_kernels_of_a_layer_are_those_of_all_inside_of_it() -> None:
    rows = {(row["layer_path"], row["kernel_name"]): row for row in answer(model_trace(), "layer_kernels")}
    gemm, add = rows["step", "gemm"], rows["step / head", "add"]
    assert (gemm["launch_count"], gemm["own_launch_count"], gemm["duration_sum_ns"], gemm["flop"]) == (2, 0, 500_000, 2 * LARGE_FLOP)
    assert gemm["share_ratio"] == pytest.approx(500 / 600)
    assert (add["own_launch_count"], add["share_ratio"], add["bound"]) == (1, pytest.approx(6 / 96), "memory")
    assert rows["step / mlp", "gemm"]["own_launch_count"] == 2


def test_steps_and_calls_of_one_name_are_one_layer() -> None:
    trace = worked_trace(
        [
            Operator("ProfilerStep#3"),
            Operator("aten::mm, seq = 7, op_id = 12", parent=0),
            Operator("ProfilerStep#4"),
            Operator("aten::mm, seq = 9, op_id = 40", parent=2),
            Operator("Linear_0", parent=2),
            Operator("never launched anything", parent=2),
        ],
        [Kernel("a", 10, layer=1), Kernel("a", 20, layer=3), Kernel("b", 5, layer=4), Kernel("cudnn_gemm", 2), Kernel("mine", 1)],
    )
    tree = {row["layer_path"]: row for row in answer(trace, "layer_tree")}
    assert list(tree) == [
        "ProfilerStep#*",
        "ProfilerStep#* / aten::mm",
        "ProfilerStep#* / Linear_0",
        "matmul kernels",
        "kernels of no layer",
    ]
    mm, guessed, rest = (tree[path] for path in ("ProfilerStep#* / aten::mm", "matmul kernels", "kernels of no layer"))
    assert (mm["call_count"], mm["launch_count"], mm["duration_sum_ns"]) == (2, 2, 30)
    assert (guessed["source"], guessed["category"], guessed["call_count"]) == ("guessed", "matmul", None)
    assert (rest["source"], rest["share_ratio"]) == (None, pytest.approx(1 / 38))


def test_scopes_of_sums_are_layers_too_and_nothing_has_none() -> None:
    trace = trace_of(
        trace_names=names("forward", "attention", "flash_kernel", "other"),
        scopes=[
            {"scope_index": 0, "name_index": 0, "depth": 0},
            {"scope_index": 1, "name_index": 1, "parent_scope_index": 0, "depth": 1},
        ],
        kernel_totals=[
            {"name_index": 2, "scope_index": 1, "launch_count": 3, "duration_sum_ns": 30},
            {"name_index": 3, "launch_count": 1, "duration_sum_ns": 10},
        ],
    )
    tree = {row["layer_path"]: row for row in answer(trace, "layer_tree")}
    assert {path: row["duration_sum_ns"] for path, row in tree.items()} == {
        "forward": 30,
        "forward / attention": 30,
        "kernels of no layer": 10,
    }
    assert (tree["forward"]["launch_count"], tree["forward"]["source"]) == (3, "scope")
    assert answer(trace_of(), "layer_tree") == answer(trace_of(), "layer_kernels") == []


def test_the_tree_is_the_same_whatever_else_the_process_holds() -> None:
    """Codes of polars' categories are counted through the whole process: by them two layers of other parents could become one."""
    trace = worked_trace(
        [Operator("a"), Operator("x", parent=0), Operator("b"), Operator("y", parent=2)], [Kernel("k", 3, layer=1), Kernel("k", 5, layer=3)]
    )
    for count in range(12):
        others = pl.Series(["y", *(f"other {number}" for number in range(count))]).cast(pl.Categorical)
        assert {row["layer_path"] for row in answer(trace, "layer_tree")} == {"a", "b", "a / x", "b / y"}
        del others
