"""kernalyse.services.analyzer.readers.onnxruntime: profiles of ONNX Runtime as nodes, layers and kernels."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.queries.registry import TRACE_DERIVED, QueryParameters, trace_frames
from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.onnxruntime import OnnxRuntimeReader
from kernalyse.services.analyzer.readers.registry import select_reader
from kernalyse.services.core.errors import InvalidTraceError

SHARED = Path(__file__).parents[5] / "shared/data/onnxruntime/ort_1_31_cpu.json"
real_profile = pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data/onnxruntime beside the checkout")


def event(category: str, name: str, start_us: float, duration_us: float, *, tid: int = 5, pid: int = 9, **arguments: Any) -> dict[str, Any]:
    return {"cat": category, "pid": pid, "tid": tid, "dur": duration_us, "ts": start_us, "ph": "X", "name": name, "args": arguments}


LOADED = event("Session", "model_loading_array", 0, 5)


def session(start_us: float, duration_us: float) -> dict[str, Any]:
    return event("Session", "model_run", start_us, duration_us)


def node(name: str, start_us: float, duration_us: float, operator: str = "MatMul", **others: Any) -> dict[str, Any]:
    provider = others.pop("provider", "CPUExecutionProvider")
    placed = {name: others.pop(name) for name in ("tid", "pid") if name in others}
    return event("Node", f"{name}_kernel_time", start_us, duration_us, **placed, op_name=operator, provider=provider, **others)


def read(directory: Path, *events: Any) -> ReadResult:
    path = directory / "profile.json"
    path.write_text(json.dumps([LOADED, *events]))
    files = TraceFiles(path.name, path, 0)
    assert select_reader(files).format == "onnxruntime"
    return OnnxRuntimeReader().read(files)


def answer(tables: ReadResult, name: str, depth: int | None = None) -> pl.DataFrame:
    return TRACE_DERIVED[name].compute(trace_frames(tables.frames), QueryParameters(depth)).collect()


def layers(tables: ReadResult, depth: int | None = None) -> list[tuple[Any, ...]]:
    return answer(tables, "layers", depth).select("layer", "call_count", "duration_sum_ns", "source").rows()


def test_nodes_are_layers_and_operators_are_kernels(tmp_path: Path) -> None:
    tables = read(
        tmp_path,
        session(10, 50),
        node("/fc/MatMul", 12, 20, input_type_shape=[{"float": [8, 64]}, {"int64": [2]}]),
        node("/fc/Relu", 33, 7, "Relu"),
        session(70, 40),
        node("/fc/MatMul", 72, 10),
        node("/fc/Relu", 83, 5, "Relu"),
    )
    assert layers(tables) == [("/fc/MatMul", 2, 30_000, "node"), ("/fc/Relu", 2, 12_000, "node")]
    assert layers(tables, 0) == [("model_run", 2, 42_000, "node")]
    assert answer(tables, "kernels").select("kernel_name", "launch_count", "duration_median_ns").rows() == [
        ("MatMul", 2, 15_000.0),
        ("Relu", 2, 6_000.0),
    ]
    (device,) = answer(tables, "breakdown").to_dicts()
    assert (device["device_name"], device["span_ns"], device["busy_ns"]) == ("CPUExecutionProvider", 76_000, 42_000)
    operators = tables.frames["ranges"].filter(pl.col("kind") == "operator")
    assert operators.select("input_shapes", "input_dtypes").row(0) == ("[[8, 64], [2]]", '["float", "int64"]')
    assert "2 runs of the model, 4 executions of nodes" in tables.notes


def test_a_node_around_others_is_a_layer_alone(tmp_path: Path) -> None:
    tables = read(tmp_path, node("/Loop", 10, 100, "Loop"), node("/Loop/Add", 20, 30, "Add"), node("/Loop/Add", 60, 30, "Add"))
    assert layers(tables) == [("/Loop/Add", 2, 60_000, "node")]
    assert layers(tables, 0) == [("/Loop", 1, 60_000, "node")]
    assert "1 executions of nodes hold others" in tables.notes


def test_nodes_of_other_threads_hold_nothing_of_each_other(tmp_path: Path) -> None:
    tables = read(tmp_path, node("/a", 10, 100, "A"), node("/b", 20, 30, "B", tid=6), node("/c", 20, 30, "C", pid=10))
    assert [row[0] for row in layers(tables)] == ["/a", "/b", "/c"]


def test_a_provider_that_only_launches_has_kernels_where_the_device_was_traced(tmp_path: Path) -> None:
    cuda = {"provider": "CUDAExecutionProvider"}
    untraced = read(tmp_path, node("/conv", 10, 4, "Conv", **cuda), node("/shape", 20, 1, "Shape"))
    assert layers(untraced) == [("/shape", 1, 1000, "node")]
    assert "1 nodes ran on CUDAExecutionProvider: their times are those of launching" in untraced.notes
    only_launched = read(tmp_path, node("/conv", 10, 4, "Conv", **cuda))
    assert "this build of ONNX Runtime does not trace the device" in only_launched.notes
    device = event("Kernel", "implicit_gemm", 30, 900, pid=-1, tid=-1, op_name="Conv", parent_name="/conv_kernel_time")
    other = event("Kernel", "memset", 5, 2, pid=-1, tid=-1)
    traced = read(tmp_path, node("/conv", 10, 4, "Conv", **cuda), device, other)
    assert answer(traced, "kernels").select("kernel_name", "duration_sum_ns").rows() == [("implicit_gemm", 900_000), ("memset", 2000)]
    assert layers(traced) == [("/conv", 1, 900_000, "node"), ("copy kernels", 0, 2000, "guessed")]
    assert traced.frames["kernel_launches"]["process_id"].to_list() == [9, 9]


def shapes(inputs: list[list[int]], output: list[int]) -> dict[str, Any]:
    return {"input_type_shape": [{"float": shape} for shape in inputs], "output_type_shape": [{"float": output}]}


def test_work_follows_from_operators_and_shapes(tmp_path: Path) -> None:
    """A weight that was packed is not among the inputs: 2 * 8 * 64 * 16 flop, and its 64 * 16 elements are read."""
    product = shapes([[8, 64]], [8, 16])
    tables = read(
        tmp_path, session(0, 50), node("/a", 1, 20, **product), node("/a", 25, 10, **product), node("/odd", 40, 5, "Odd", **product)
    )
    (known, unknown) = answer(tables, "layers").select("layer", "flop", "bytes", "work_source").rows()
    assert known == ("/a", 2 * 2 * 8 * 64 * 16, 2 * 4 * (8 * 64 + 64 * 16 + 8 * 16), "op model")
    assert unknown == ("/odd", None, None, None)
    assert "The work of 1 executions is not known" in tables.notes
    assert answer(tables, "counter_coverage")["work_source"].to_list() == [None]  # shapes are no counters


def test_kernels_of_a_device_share_the_work_of_all_executions_of_their_node(tmp_path: Path) -> None:
    product = shapes([[8, 64], [64, 16]], [8, 16]) | {"provider": "CUDAExecutionProvider"}
    kernels = [
        event("Kernel", name, start, duration, pid=-1, tid=-1, parent_name="/a_kernel_time")
        for name, start, duration in (("split", 30, 300), ("reduce", 330, 100), ("split", 630, 300), ("reduce", 930, 100))
    ]
    tables = read(tmp_path, node("/a", 10, 4, **product), node("/a", 20, 4, **product), *kernels)
    work = tables.frames["launch_work"]
    assert work["flop"].to_list() == pytest.approx([2 * 16384 * share for share in (0.375, 0.125, 0.375, 0.125)])
    assert answer(tables, "layers").select("layer", "flop").rows() == [("/a", pytest.approx(2 * 16384))]


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    tables = read(
        tmp_path, event("Node", "/a_fence_before", 1, 1, op_name="A"), {"ph": "M", "name": "process_name"}, event("Api", "x", 1, 1)
    )
    assert "Left out, for no table holds them: 1 of Node, 1 of None, 1 of Api." in tables.notes
    assert "It has no nodes" in tables.notes
    for name in ("kernels", "layers", "breakdown"):
        assert answer(tables, name).is_empty()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (7, r"profile\.json, event 1: found something else than an object"),
        ({**LOADED, "ts": None}, r"event 1: ts: found null; expected microseconds"),
        ({**LOADED, "dur": -1}, r"event 1: dur: found -1; expected microseconds from 0 on"),
        ({**LOADED, "dur": 1e30}, r"dur: found 1e\+30"),
        ({**LOADED, "dur": "12"}, r'dur: found "12"'),
        ({**LOADED, "pid": 2**80}, r"pid: found 1208925819614629174706176"),
        ({**LOADED, "tid": "main"}, r'tid: found "main"; expected a whole number'),
        ({**LOADED, "name": 5}, r"name: found 5; expected text"),
    ],
)
def test_an_event_that_is_none_is_refused_by_its_place(tmp_path: Path, bad: Any, message: str) -> None:
    with pytest.raises(InvalidTraceError, match=message):
        read(tmp_path, bad)


def test_a_profile_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps([LOADED, node("/a", 1, 2)])[:-30])
    with pytest.raises(InvalidTraceError, match=r"p\.json: found JSON that cannot be read"):
        OnnxRuntimeReader().read(TraceFiles("p.json", path, 0))


def test_strange_text_is_kept(tmp_path: Path) -> None:
    tables = read(tmp_path, node("/a\x00b", 1, 2, "\ud800"), node("", 5, 6, ""))
    assert [row[0] for row in layers(tables)] == ["", "/a\x00b"]
    assert answer(tables, "kernels")["kernel_name"].to_list() == ["", "\N{REPLACEMENT CHARACTER}"]


def test_odd_shapes_are_unknown(tmp_path: Path) -> None:
    tables = read(tmp_path, node("/a", 1, 2, input_type_shape="float"), node("/b", 5, 2, input_type_shape=[{}]))
    assert tables.frames["ranges"]["input_shapes"].to_list() == [None] * 3


@real_profile
def test_the_real_profile_sums_to_what_stands_in_it() -> None:
    events = [event for event in json.loads(SHARED.read_text()) if event["cat"] == "Node"]
    nodes: dict[str, list[int]] = defaultdict(list)
    for part in events:
        nodes[part["name"].removesuffix("_kernel_time")].append(part["dur"] * 1000)
    tables = OnnxRuntimeReader().read(TraceFiles("p.json", SHARED, 0))
    assert {row[0]: row[1:3] for row in layers(tables)} == {name: (len(times), sum(times)) for name, times in nodes.items()}
    kernels = {row[0]: row[1:] for row in answer(tables, "kernels").select("kernel_name", "launch_count", "duration_sum_ns").rows()}
    for operator in ("MatMul", "Relu"):
        times = [part["dur"] * 1000 for part in events if part["args"]["op_name"] == operator]
        assert kernels[operator] == (len(times), sum(times))
    assert [row[0] for row in layers(tables, 0)] == ["model_run"]
    assert layers(tables, 1)[0][0] == "SequentialExecutor::Execute"
