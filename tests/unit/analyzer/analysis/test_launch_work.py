"""Which launch does whose work: on rows written out, and against the rule spelled out."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.analysis.traces.work import attribute_operators, duration_fractions, launch_work
from kernalyse.services.analyzer.numeric.correlation import NULL_INDEX
from kernalyse.services.analyzer.queries.registry import Frames
from tests.examples import examples
from tests.unit.worked_traces import Kernel, Operator, worked_trace

PRODUCT = [[3, 5], [5, 7]]
PRODUCT_FLOP, PRODUCT_BYTES = 210.0, 4.0 * (15 + 35 + 21)


def rows(trace: Frames, counted: pl.DataFrame | None = None) -> dict[int, dict[str, Any]]:
    """By launch."""
    by_counters = None if counted is None else counted.lazy()
    found = launch_work(trace["kernel_launches"], trace["ranges"], trace["trace_names"], by_counters)
    return {row["launch_index"]: row for row in found.iter_rows(named=True)}


def flop(trace: Frames) -> dict[int, float]:
    return {index: row["flop"] for index, row in rows(trace).items()}


def test_the_innermost_operator_whose_work_is_known_counts_once() -> None:
    trace = worked_trace(
        [
            Operator("aten::linear", [[3, 5], [7, 5], []]),
            Operator("aten::addmm", [[7], *PRODUCT], parent=0),
            Operator("aten::unknown", [[3]], parent=1),
        ],
        [Kernel("gemm", 10, 2), Kernel("split", 30, 1), Kernel("copy of linear", 5, 0), Kernel("outside", 5)],
    )
    assert flop(trace) == {0: PRODUCT_FLOP / 4, 1: PRODUCT_FLOP * 3 / 4}


def test_a_lighter_operator_inside_takes_nothing_from_a_heavier_one() -> None:
    trace = worked_trace(
        [
            Operator("aten::mm", PRODUCT),
            Operator("aten::fill_", [[3, 7], []], parent=0),
            Operator("aten::add_", [[3, 7], [3, 7], []], parent=0),
        ],
        [Kernel("fill", 10, 1), Kernel("gemm", 10, 0), Kernel("add", 10, 2)],
    )
    found = rows(trace)
    assert {index: row["flop"] for index, row in found.items()} == {0: 0.0, 1: PRODUCT_FLOP, 2: 21.0}
    assert found[0]["bytes"] == 4 * 21


def test_an_operator_inside_that_launched_nothing_takes_nothing() -> None:
    trace = worked_trace(
        [Operator("aten::linear", [[3, 5], [7, 5], []]), Operator("aten::mm", PRODUCT, parent=0)], [Kernel("fused", 10, 0)]
    )
    assert flop(trace) == {0: PRODUCT_FLOP}


def test_what_the_recorder_counted_goes_before_the_model() -> None:
    trace = worked_trace(
        [Operator("aten::mm", PRODUCT, flop=999.0), Operator("my::op", flop=7.0)], [Kernel("gemm", 10, 0), Kernel("own", 10, 1)]
    )
    found = rows(trace)
    assert (found[0]["flop"], found[0]["bytes"], found[0]["work_source"]) == (999.0, PRODUCT_BYTES, "recorded")
    assert (found[1]["flop"], found[1]["bytes"], found[1]["dtype"]) == (7.0, None, None)


def test_counters_go_before_operators() -> None:
    trace = worked_trace([Operator("aten::mm", PRODUCT)], [Kernel("gemm", 10, 0), Kernel("reduce", 10, 0), Kernel("own", 10)])
    counted = pl.DataFrame(
        {
            "launch_index": [1, 2],
            "flop": [50.0, None],
            "bytes": [60.0, 70.0],
            "dtype": ["float16", None],
            "path": ["tensor", None],
            "work_source": ["counters", "counters of the same launch configuration"],
        },
        schema_overrides={"launch_index": pl.Int32},
    )
    found = rows(trace, counted)
    assert [(row["flop"], row["bytes"], row["work_source"]) for row in found.values()] == [
        (PRODUCT_FLOP / 2, PRODUCT_BYTES / 2, "op model"),
        (50.0, 60.0, "counters"),
        (None, 70.0, "counters of the same launch configuration"),
    ]


@pytest.mark.parametrize(
    ("operator", "recorded", "kernel", "dtype", "path"),
    [
        ("aten::mm", "c10::BFloat16", "nvjet_tst", "bfloat16", "tensor"),
        ("aten::mm", "c10::Half", "gemvNSP_kernel<__half>", "float16", "fma"),
        ("aten::mm", "float", "ampere_sgemm_128x64_tn", "float32", "fma"),
        ("aten::mm", "float", "cutlass_80_tensorop_s1688gemm_128x128", "tfloat32", "tensor"),
        ("aten::mm", "double", "cutlass_80_tensorop_d884gemm_64x64", "float64", "tensor"),
        ("aten::add", "c10::Half", "vectorized_elementwise_kernel", "float16", "fma"),
    ],
)
def test_type_and_name_tell_which_instructions_a_kernel_uses(operator: str, recorded: str, kernel: str, dtype: str, path: str) -> None:
    shapes = PRODUCT if operator == "aten::mm" else [[3], [3]]
    (row,) = rows(worked_trace([Operator(operator, shapes, dtype=recorded)], [Kernel(kernel, 10, 0)])).values()
    assert (row["dtype"], row["path"]) == (dtype, path)


def test_kernels_that_took_no_time_share_alike() -> None:
    once = np.full(3, NULL_INDEX, dtype=np.int32)
    found = duration_fractions(np.array([3, 3, 5], dtype=np.int32), once, np.array([0, 0, -4], dtype=np.int64))
    assert found.to_list() == [0.5, 0.5, 1.0]


def test_each_replay_of_a_graph_does_the_work_of_a_captured_operator_again() -> None:
    replay = np.array([NULL_INDEX, 8, 8, 9, 9], dtype=np.int32)
    found = duration_fractions(np.full(5, 3, dtype=np.int32), replay, np.array([10, 30, 10, 20, 20], dtype=np.int64))
    assert found.to_list() == [1.0, 0.75, 0.25, 0.5, 0.5]


def test_without_operators_nothing_is_known() -> None:
    assert rows(worked_trace([], [Kernel("gemm", 10)])) == {}
    assert rows(worked_trace([Operator("step"), Operator("aten::unknown", [[3]])], [Kernel("gemm", 10, 1)])) == {}


# ---------------------------------------------------------------- the rule, by brute force


@st.composite
def nested_operators(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Parent and weight of each range, and the operator of each launch."""
    count = draw(st.integers(1, 12))
    parents = [draw(st.integers(NULL_INDEX, row - 1)) for row in range(count)]
    weights = [draw(st.integers(0, 3)) for _ in range(count)]
    launches = draw(st.lists(st.integers(NULL_INDEX, count - 1), max_size=12))
    return parents, weights, launches


def around(parents: list[int], row: int) -> list[int]:
    """The range and those around it, innermost first."""
    found = []
    while row != NULL_INDEX:
        found.append(row)
        row = parents[row]
    return found


@given(nested_operators())
def test_work_counts_at_the_innermost_operator_and_nowhere_else(case: tuple[list[int], list[int], list[int]]) -> None:
    parents, weights, launches = case
    nearest = [next((row for row in around(parents, launch) if weights[row] > 0), NULL_INDEX) for launch in launches]
    told_inside = {
        outer for inner in set(nearest) - {NULL_INDEX} for outer in around(parents, inner)[1:] if 0 < weights[outer] <= weights[inner]
    }
    expected = [NULL_INDEX if operator in told_inside else operator for operator in nearest]
    found = attribute_operators(np.array(parents, dtype=np.int32), np.array(weights, dtype=np.int8), np.array(launches, dtype=np.int32))
    assert found.tolist() == expected


@examples(40)
@given(nested_operators(), st.data())
def test_the_launches_together_do_what_the_counted_operators_have_to(
    case: tuple[list[int], list[int], list[int]], data: st.DataObject
) -> None:
    parents, weights, launches = case
    names = {0: ("aten::unknown", [[3]]), 1: ("aten::fill_", [[3]]), 2: ("aten::exp", [[3]]), 3: ("aten::mm", PRODUCT)}
    bytes_of = {1: 12.0, 2: 24.0, 3: PRODUCT_BYTES}
    operators = [
        Operator(*names[weight], parent=None if parent == NULL_INDEX else parent) for parent, weight in zip(parents, weights, strict=True)
    ]
    kernels = [Kernel("k", data.draw(st.integers(0, 1000)), None if launch == NULL_INDEX else launch) for launch in launches]
    if not kernels:
        return
    found = rows(worked_trace(operators, kernels))
    counted = attribute_operators(np.array(parents, dtype=np.int32), np.array(weights, dtype=np.int8), np.array(launches, dtype=np.int32))
    assert sorted(found) == np.flatnonzero(counted != NULL_INDEX).tolist()
    whole = sum(bytes_of[weights[operator]] for operator in set(counted.tolist()) - {NULL_INDEX})
    assert sum(row["bytes"] for row in found.values()) == pytest.approx(whole)
    # No operator counts beside one around it that is not heavier.
    for operator in set(counted.tolist()) - {NULL_INDEX}:
        assert not any(outer in counted and weights[outer] <= weights[operator] for outer in around(parents, operator)[1:])
