"""Kineto traces of programs without a device: operators of the CPU stand where kernels would."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED, trace_frames
from kernalyse.services.analyzer.readers.base import ReadResult
from tests.unit.analyzer.readers.test_kineto import Event, call, complete, kernel, launches, layers, module, operator, read

SHAPES = {"Input Dims": [[8], [4, 16], [16, 8]], "Input type": ["float", "float", "float"]}
COPY_SHAPES = {"Input Dims": [[4, 8], [4, 8]], "Input type": ["float", "float"]}

LINEAR: list[Event] = [
    module("Model", 0, 100),
    operator("aten::linear", 10, 50, **{"Input Dims": [[4, 16], [8, 16], [8]], "Input type": ["float", "float", "float"]}),
    operator("aten::t", 11, 4),
    operator("aten::transpose", 12, 2),
    operator("aten::addmm", 16, 40, **SHAPES),
    operator("aten::expand", 17, 1),
    operator("aten::copy_", 19, 3, **COPY_SHAPES),
]


def names(tables: ReadResult) -> list[tuple[str, int, int]]:
    return [(row["name"], row["start_ns"], row["duration_ns"]) for row in launches(tables)]


def test_operators_stand_for_kernels_with_all_of_lighter_work_that_they_call(tmp_path: Path) -> None:
    tables = read(tmp_path, LINEAR)
    assert names(tables) == [("aten::t", 11_000, 4_000), ("aten::addmm", 16_000, 40_000)]
    assert layers(tables)["aten::addmm"] == ("nn.Module: Model", "module")
    assert tables.frames["trace_devices"].select("device_index", "device_name").rows() == [(0, "CPU")]
    assert "operators of the CPU take the place of kernels" in tables.notes
    assert "no kernels" not in tables.notes
    assert "no runtime call" not in tables.notes
    frames = trace_frames(tables.frames)
    (row,) = TRACE_DERIVED["roofline"].compute(frames, DEFAULT_QUERY).collect().rows(named=True)
    assert (row["kernel_name"], row["launch_count"], row["duration_sum_ns"]) == ("aten::addmm", 1, 40_000)
    assert row["flop"] == pytest.approx(2 * 4 * 16 * 8, rel=0.1)  # and what is added


def test_kernels_of_the_backward_pass_are_of_the_module_of_their_forward_operator(tmp_path: Path) -> None:
    backward = {"Sequence number": 7, "Fwd thread id": 1}
    tables = read(
        tmp_path,
        [
            module("Model", 0, 100),
            operator("aten::relu", 10, 5, **{"Sequence number": 7, "Fwd thread id": 0}),
            operator("autograd::engine::evaluate_function: ReluBackward0", 200, 20, **backward),
            operator("ReluBackward0", 202, 15, **backward),
            operator("aten::threshold_backward", 204, 10),
        ],
    )
    assert layers(tables) == {"aten::relu": ("nn.Module: Model", "module"), "aten::threshold_backward": ("nn.Module: Model", "forward")}


@pytest.mark.parametrize(
    ("event", "devices"),
    [
        (call(12, 1), []),
        (complete("gpu_memset", "Memset", 12, 1, pid=0), []),
        (complete("xpu_runtime", "urEnqueueKernelLaunch", 12, 1), []),
        (module("Other", 12, 1), [{"id": 0, "name": "NVIDIA A100"}]),
    ],
)
def test_where_a_device_may_have_done_the_work_no_operator_stands_for_it(tmp_path: Path, event: Event, devices: list[Event]) -> None:
    tables = read(tmp_path, [*LINEAR, event], deviceProperties=devices)
    assert names(tables) == []
    assert "It has no kernels" in tables.notes


def test_with_kernels_operators_are_none(tmp_path: Path) -> None:
    assert names(read(tmp_path, [*LINEAR, call(20, 1), kernel("gemm", 30, 5, 1)])) == [("gemm", 30_000, 5_000)]
