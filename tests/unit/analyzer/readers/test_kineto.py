"""Kineto traces by the rows written out here: each trap of the format once."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.ingest.ranks import RankTrace, join_traces
from kernalyse.services.analyzer.queries.registry import trace_frames
from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.kineto import decompress
from kernalyse.services.analyzer.readers.kineto.reader import KinetoReader
from kernalyse.services.analyzer.readers.registry import select_reader
from kernalyse.services.analyzer.tables.traces import TIMELINE_TABLES
from kernalyse.services.core.errors import InvalidTraceError, LimitReachedError

Event = dict[str, Any]


def complete(category: str, name: str, start_us: object, duration_us: object, tid: object = 1, **members: Any) -> Event:
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": tid, "ts": start_us, "dur": duration_us, **members}


def kernel(name: str, start_us: object, duration_us: object, correlation: int, **arguments: object) -> Event:
    return complete(
        "kernel", name, start_us, duration_us, 7, pid=0, args={"device": 0, "stream": 7, "correlation": correlation, **arguments}
    )


def call(start_us: object, correlation: int, tid: object = 1) -> Event:
    return complete("cuda_runtime", "cudaLaunchKernel", start_us, 1, tid, args={"correlation": correlation})


def module(name: str, start_us: object, duration_us: object, tid: object = 1) -> Event:
    return complete("python_function", f"nn.Module: {name}", start_us, duration_us, tid)


def operator(name: str, start_us: object, duration_us: object, tid: object = 1, **arguments: object) -> Event:
    return complete("cpu_op", name, start_us, duration_us, tid, args=arguments)


def read(directory: Path, content: bytes | list[Event], name: str = "trace.json", **members: object) -> ReadResult:
    path = directory / name
    data = content if isinstance(content, bytes) else json.dumps({"schemaVersion": 1, **members, "traceEvents": content}).encode()
    path.write_bytes(data)
    files = TraceFiles(name, path, arrived_unix_ns=0)
    assert isinstance(select_reader(files), KinetoReader)
    return KinetoReader().read(files)


def launches(tables: ReadResult) -> list[dict[str, Any]]:
    """Kernels with their names and those of their layers."""
    names = tables.frames["trace_names"]
    ranges = tables.frames["ranges"].join(names, on="name_index").select("range_index", layer="name")
    rows = tables.frames["kernel_launches"].join(names, on="name_index").join(ranges, on="range_index", how="left").sort("launch_index")
    return rows.rows(named=True)


def layers(tables: ReadResult) -> dict[str, tuple[str | None, str | None]]:
    return {row["name"]: (row["layer"], row["layer_source"]) for row in launches(tables)}


# ---------------------------------------------------------------- what is read


def test_a_kernel_belongs_to_the_innermost_module_of_its_launching_thread(tmp_path: Path) -> None:
    tables = read(
        tmp_path,
        [
            module("Model_0", 0, 100),
            module("Linear_0", 10, 10),
            module("Other_0", 0, 100, tid=2),
            operator("aten::mm", 11, 5),
            call(12, 1),
            call(19.9995, 2),
            call(20, 3),
            call(150, 4),
            kernel("in linear", 30, 1, 1),
            kernel("at its very end", 31, 1, 2),
            kernel("behind it", 32, 1, 3),
            kernel("outside", 33, 1, 4),
            kernel("without call", 34, 1, 5),
        ],
    )
    assert layers(tables) == {
        "in linear": ("nn.Module: Linear_0", "module"),
        "at its very end": ("nn.Module: Model_0", "module"),  # 19.9995 us is 20000 ns, half to even
        "behind it": ("nn.Module: Model_0", "module"),
        "outside": (None, None),
        "without call": (None, None),
    }
    assert "1 of 5 kernels have no runtime call" in tables.notes
    ranges = tables.frames["ranges"].join(tables.frames["trace_names"], on="name_index").sort("range_index")
    assert dict(ranges.select("name", "depth").iter_rows()) == {
        "nn.Module: Model_0": 0,
        "nn.Module: Other_0": 0,
        "nn.Module: Linear_0": 1,
        "aten::mm": 2,
    }


def test_without_modules_the_innermost_range_counts(tmp_path: Path) -> None:
    events = [complete("user_annotation", "step 1", 0, 100), operator("aten::mm", 10, 10), call(12, 1), call(50, 2), kernel("a", 20, 1, 1)]
    tables = read(tmp_path, [*events, kernel("b", 60, 1, 2)])
    assert layers(tables) == {"a": ("aten::mm", "range"), "b": ("step 1", "range")}
    assert "in no module" in tables.notes


def test_operators_of_an_optimizer_count_for_its_call(tmp_path: Path) -> None:
    optimizer = complete("user_annotation", "Optimizer.step#AdamW.step", 10, 20)
    events = [module("Model_0", 0, 5), complete("user_annotation", "ProfilerStep#1", 0, 100), optimizer, operator("aten::add_", 12, 5)]
    called = [call(13, 1), call(50, 2), operator("Optimizer.like", 49, 5), kernel("inside", 20, 1, 1), kernel("after it", 60, 1, 2)]
    assert layers(read(tmp_path, [*events, *called])) == {
        "inside": ("Optimizer.step#AdamW.step", "range"),
        "after it": ("Optimizer.like", "range"),
    }


def backward(sequence_number: int, start_us: object, duration_us: object, tid: int = 2) -> Event:
    name = "autograd::engine::evaluate_function: MmBackward0"
    return operator(name, start_us, duration_us, tid, **{"Sequence number": sequence_number, "Fwd thread id": 1})


def forward(name: str, sequence_number: int, start_us: object, duration_us: object) -> Event:
    return operator(name, start_us, duration_us, **{"Sequence number": sequence_number, "Fwd thread id": 0})


PASS = [
    module("A_0", 0, 10),
    forward("aten::empty", 5, 1, 1),  # makes no node: its number is that of the next one, in another module
    module("B_0", 10, 10),
    forward("aten::mm", 5, 11, 5),
    backward(5, 30, 10),
    operator("aten::mm", 31, 5, 2),
    call(32, 1, tid=2),
    kernel("gradient", 40, 1, 1),
]


def test_gradients_belong_to_the_module_of_the_forward_operator(tmp_path: Path) -> None:
    tables = read(tmp_path, PASS)
    assert layers(tables) == {"gradient": ("nn.Module: B_0", "forward")}
    assert "1 kernels of the backward pass" in tables.notes
    is_backward = tables.frames["ranges"].join(tables.frames["trace_names"], on="name_index").sort("range_index")
    found = [(row["name"], row["is_backward"], row["sequence_number"]) for row in is_backward.iter_rows(named=True)]
    assert found == [
        ("nn.Module: A_0", None, None),
        ("aten::empty", False, 5),
        ("nn.Module: B_0", None, None),
        ("aten::mm", False, 5),
        ("autograd::engine::evaluate_function: MmBackward0", True, 5),
        ("aten::mm", True, None),
    ]


def test_a_link_from_forward_to_backward_is_surer_than_a_number(tmp_path: Path) -> None:
    flow = {"cat": "fwdbwd", "name": "fwdbwd", "pid": 9, "id": 3}
    links = [{"ph": "s", "tid": 1, "ts": 1, **flow}, {"ph": "f", "tid": 2, "ts": 30, "bp": "e", **flow}]
    assert layers(read(tmp_path, [*PASS, *links])) == {"gradient": ("nn.Module: A_0", "forward")}


def test_a_module_of_the_backward_thread_itself_comes_first(tmp_path: Path) -> None:
    """As of checkpoints, which compute the forward pass again there."""
    assert layers(read(tmp_path, [*PASS, module("C_0", 31, 4, tid=2)])) == {"gradient": ("nn.Module: C_0", "module")}


def test_what_is_told_of_a_launch_stands_in_its_row(tmp_path: Path) -> None:
    arguments = {"grid": [3, 2, 1], "block": [64, 4, 1], "registers per thread": 40, "shared memory": 0, "graph node id": 12}
    device = {"id": 0, "name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0, "numSms": 132, "totalGlobalMem": 85_000_000_000}
    tables = read(
        tmp_path,
        [call("1712195495519680.001", 1), kernel("k", 1712195495519689.695, 0.001, 1, **arguments)],
        deviceProperties=[device],
        distributedInfo={"rank": 3, "world_size": 8},
    )
    (row,) = launches(tables)
    assert {name: row[name] for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread")} == {
        "grid_x": 3,
        "grid_y": 2,
        "grid_z": 1,
        "block_x": 64,
        "block_y": 4,
        "block_z": 1,
        "registers_per_thread": 40,
    }
    assert (row["graph_node_id"], row["static_shared_bytes"], row["dynamic_shared_bytes"]) == (12, 0, 0)
    assert (row["process_id"], row["launch_thread_id"], row["stream_index"]) == (9, 1, 7)
    assert (row["launch_start_ns"], row["duration_ns"]) == (0, 1)
    assert 9694 - 1 <= row["start_ns"] <= 9694 + 250  # json.dumps wrote a float: its last digits are not those of the source
    (told,) = tables.frames["trace_devices"].rows(named=True)
    assert told["device_name"] == "NVIDIA H100"
    assert (told["compute_capability"], told["sm_count"], told["process_id"]) == ("9.0", 132, 9)
    (process,) = tables.frames["trace_processes"].rows(named=True)
    assert (process["rank_index"], process["world_size"], process["session_start_unix_ns"]) == (3, 8, 1712195495519680001)


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    text = b'{"baseTimeNanoseconds": 1751410836000000000, "traceEvents": [' + b", ".join(
        b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": %s, "dur": %s}' % times
        for times in ((b"1712195495519689.695", b"0.001"), (b"1712195495519689.694", b"0.0005"), (b"1712195495519690", b"3"))
    )
    frame = read(tmp_path, text + b"]}").frames["kernel_launches"]
    assert frame["start_ns"].to_list() == [0, 1, 306]
    assert frame["duration_ns"].to_list() == [0, 1, 3000]


def test_shapes_and_flop_of_operators(tmp_path: Path) -> None:
    tables = read(tmp_path, [operator("aten::mm", 0, 5, **{"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"], "flops": 48})])
    (row,) = tables.frames["ranges"].rows(named=True)
    assert (row["input_shapes"], row["input_dtypes"], row["flop"], row["kind"]) == ("[[2,3],[3,4]]", '["float","float"]', 48.0, "operator")


def test_a_collective_has_its_name_and_the_type_of_its_lists_among_its_inputs(tmp_path: Path) -> None:
    inputs = {
        "Input Dims": [[[4], [6]], [], [], [], []],
        "Input type": ["TensorList", "", "", "Scalar", ""],
        "Concrete Inputs": ["", "", "", "0", ""],
    }
    told = {"Collective name": "allreduce", "dtype": "BFloat16", "Group size": 8}
    tables = read(tmp_path, [operator("record_param_comms", 0, 5, **inputs, **told), operator("aten::cat", 6, 5, **inputs)])
    rows = tables.frames["ranges"].select("input_dtypes", "input_values").rows()
    assert rows == [
        ('["c10::BFloat16","","","Scalar",""]', '["","","","0","allreduce"]'),
        ('["TensorList","","","Scalar",""]', '["","","","0",""]'),
    ]


def test_a_kernel_of_a_collective_has_its_process_group(tmp_path: Path) -> None:
    reduction = kernel("ncclDevKernel_AllReduce", 0, 5, 1)
    reduction["args"] |= {"Process Group Name": "3", "Process Group Ranks": "[0, 1]"}
    tables = read(tmp_path, [reduction, kernel("gemm", 6, 5, 2)])
    assert tables.frames["kernel_launches"]["process_group"].to_list() == ["3", None]


def test_a_kernel_knows_the_innermost_operator_around_its_call(tmp_path: Path) -> None:
    values = {"Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"], "Concrete Inputs": ["", "-1"]}
    events = [
        operator("aten::softmax", 0, 100),
        module("Softmax_0", 5, 90),
        operator("aten::_softmax", 10, 10, **values),
        complete("user_annotation", "own words", 11, 5),
        call(12, 1),
        call(50, 2),
        call(200, 3),
        *(kernel(name, 300 + place, 1, place + 1) for place, name in enumerate(("inner", "outer", "outside"))),
    ]
    tables = read(tmp_path, events)
    ranges = tables.frames["ranges"].join(tables.frames["trace_names"], on="name_index", maintain_order="left").rows(named=True)
    operators = tables.frames["kernel_launches"]["operator_index"].to_list()
    assert [None if index is None else ranges[index]["name"] for index in operators] == ["aten::_softmax", "aten::softmax", None]
    assert ranges[operators[0]]["input_values"] == '["","-1"]'


def test_copies_and_fills(tmp_path: Path) -> None:
    arguments = {"device": 1, "stream": 3, "bytes": 4096, "correlation": 1}
    events = [
        call(0, 1),
        complete("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 1, 2, args=arguments),
        complete("gpu_memset", "Memset (Device)", 5, 1, args={}, pid=1, tid="stream 20"),
    ]
    rows = (
        read(tmp_path, events)
        .frames["memory_ops"]
        .select("kind", "direction", "device_index", "stream_index", "bytes", "launch_start_ns")
        .rows()
    )
    assert rows == [("copy", "device_to_host", 1, 3, 4096, 0), ("set", None, 1, None, None, None)]


def test_categories_of_2021(tmp_path: Path) -> None:
    events = [
        complete("Operator", "aten::mm", 0, 9, "25738", pid=25738, args={"external id": 4, "Input dims": [[2]]}),
        complete("Runtime", "cudaLaunchKernel", 1, 1, 25738, pid=25738, args={"correlation": 5, "external id": 4}),
        complete("Kernel", "k", 3, 2, "stream 7", pid=0, args={"device": 0, "stream": 7, "correlation": 5}),
        complete("Memcpy", "Memcpy HtoD (Pageable -> Device)", 6, 1, "stream 7", pid=0, args={"bytes": 8}),
    ]
    tables = read(tmp_path, events)
    assert layers(tables) == {"k": ("aten::mm", "range")}  # "25738" and 25738 are one thread
    assert tables.frames["memory_ops"]["bytes"].to_list() == [8]


def test_hip(tmp_path: Path) -> None:
    events = [
        module("Linear_0", 0, 10),
        complete("cuda_runtime", "hipLaunchKernel", 1, 1, args={"correlation": 4, "kernel": "k"}),
        kernel("Cijk_Alik_Bljk", 3, 2, 4, grid=[10, 1, 1]),
        complete("hip_runtime", "hipMemcpyAsync", 4, 1, args={"correlation": 5}),
        complete("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 6, 1, pid=2, args={"device": 2, "correlation": 5, "kind": "DtoD"}),
    ]
    tables = read(tmp_path, events)
    assert layers(tables) == {"Cijk_Alik_Bljk": ("nn.Module: Linear_0", "module")}
    assert tables.frames["memory_ops"]["launch_start_ns"].to_list() == [4000]


def test_files_of_ranks_can_be_joined(tmp_path: Path) -> None:
    """Containers number their processes alike, and each file counts its correlation ids from one."""
    parts = []
    for rank, base_us in ((0, 10**15), (1, 10**15 + 5)):
        events = [module(f"Of{rank}_0", base_us, 50), call(base_us + 1, 1), kernel("k", base_us + 2, 1 + rank, 1)]
        path = tmp_path / f"rank{rank}.json.gz"
        path.write_bytes(gzip.compress(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events}).encode()))
        parts.append(RankTrace(path.name, trace_frames(KinetoReader().read(TraceFiles(path.name, path, 0)).frames)))
    frames = {name: frame.collect() for name, frame in join_traces(parts).frames.items()}
    found = frames["kernel_launches"].join(frames["trace_processes"], on="process_id").sort("start_ns")
    assert found.select("rank_index", "start_ns", "duration_ns", "file_name", "system_process_id").rows() == [
        (0, 2000, 1000, "rank0.json.gz", 9),
        (1, 7000, 2000, "rank1.json.gz", 9),
    ]
    assert found["process_id"].n_unique() == 2
    names = frames["trace_names"]["name"]
    layers_of_launches = names.gather(frames["ranges"]["name_index"].gather(frames["kernel_launches"]["range_index"]))
    assert layers_of_launches.to_list() == ["nn.Module: Of0_0", "nn.Module: Of1_0"]


# ---------------------------------------------------------------- what is odd


def test_names_keep_every_character(tmp_path: Path) -> None:
    names = ['quote " backslash \\ tab \t', "漢字 é 😀", "nul \x00 inside", "half \ud83d of one"]
    tables = read(tmp_path, [kernel(name, index, 1, index) for index, name in enumerate(names)])
    assert [row["name"] for row in launches(tables)] == [*names[:3], "half \ufffd of one"]


def test_bytes_that_are_no_characters_are_replaced(tmp_path: Path) -> None:
    text = (
        b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "a\xff\x00b", "pid": 0, "tid": 7, "ts": 1, "dur": 1}]}'
    )
    assert [row["name"] for row in launches(read(tmp_path, text))] == ["a\ufffd\x00b"]


def test_equal_names_written_otherwise_are_one_name(tmp_path: Path) -> None:
    text = json.dumps({"schemaVersion": 1, "traceEvents": [kernel("é", 1, 1, 1), kernel("e_acute", 2, 1, 2)]}).replace("e_acute", "é")
    tables = read(tmp_path, text.encode())
    assert tables.frames["trace_names"]["name"].to_list() == ["é"]
    assert len(launches(tables)) == 2


def test_begins_and_ends_make_pairs(tmp_path: Path) -> None:
    half: Event = {"pid": 9, "tid": 1}
    events: list[Event] = [
        {"ph": "B", "cat": "cpu_op", "name": "outer", "ts": 0, **half},
        {"ph": "B", "cat": "cpu_op", "name": "inner", "ts": 1, **half},
        {"ph": "E", "ts": 3, **half},
        {"ph": "E", "ts": 9, **half},
        {"ph": "E", "ts": 10, **half},
        {"ph": "B", "cat": "cpu_op", "name": "never ends", "ts": 11, **half},
    ]
    tables = read(tmp_path, events)
    ranges = tables.frames["ranges"].join(tables.frames["trace_names"], on="name_index").sort("range_index")
    assert ranges.select("name", "start_ns", "duration_ns", "depth").rows() == [("outer", 0, 9000, 0), ("inner", 1000, 2000, 1)]
    assert "2 begins and ends of events without their counterpart are skipped." in tables.notes


def test_odd_durations_are_said(tmp_path: Path) -> None:
    unended = kernel("unended", 5, 1, 1)
    del unended["dur"]
    tables = read(tmp_path, [unended, kernel("backwards", 6, -2, 2)])
    assert tables.frames["kernel_launches"]["duration_ns"].to_list() == [0, -2000]
    assert "1 events have no duration: it counts as 0." in tables.notes
    assert "1 events end before they start" in tables.notes


def test_the_first_of_several_calls_counts(tmp_path: Path) -> None:
    tables = read(tmp_path, [call(5, 1, tid=2), call(3, 1, tid=1), kernel("k", 9, 1, 1), kernel("k", 10, 1, 1)])
    assert [row["launch_thread_id"] for row in launches(tables)] == [1, 1]


def test_a_trace_without_kernels_or_events(tmp_path: Path) -> None:
    for events in ([], [module("Linear_0", 0, 1)]):
        tables = read(tmp_path, events)
        assert tables.frames["kernel_launches"].is_empty()
        assert tables.frames["ranges"].height == len(events)
        assert "It has no kernels" in tables.notes


def test_what_is_not_kept_is_counted(tmp_path: Path) -> None:
    untimed = kernel("k", 1, 1, 1)
    del untimed["ts"]
    events = [complete("python_function", "f.py(3): g", 0, 1)] * 3 + [
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1},
        untimed,
    ]
    notes = read(tmp_path, events).notes
    assert "3 python_function (X)" in notes
    assert "1 cpu_instant_event (i)" in notes
    assert "1 kernel (X)" in notes


def test_ranges_that_overlap_and_ten_thousand_that_nest(tmp_path: Path) -> None:
    depth = 10_000
    nest = [operator("op", index, 2 * (depth - index), 3) for index in range(depth)]
    events = [operator("first", 0, 10), operator("second", 5, 10), call(7, 1), call(12, 2), kernel("a", 20, 1, 1), kernel("b", 21, 1, 2)]
    tables = read(tmp_path, [*events, *nest])
    assert layers(tables) == {"a": ("second", "range"), "b": ("second", "range")}
    assert tables.frames["ranges"]["depth"].max() == depth - 1


# ---------------------------------------------------------------- what is refused


def test_a_trace_that_was_cut_off_is_refused_with_its_place(tmp_path: Path) -> None:
    whole = json.dumps({"schemaVersion": 1, "traceEvents": [kernel("k", index, 1, index) for index in range(50)]}).encode()
    with pytest.raises(InvalidTraceError) as caught:
        read(tmp_path, whole[:-200])
    assert "after 48 complete events" in caught.value.subject
    assert caught.value.subject.startswith("file trace.json: byte ")
    assert "cut off" in caught.value.remedy


def test_values_nested_ten_thousand_deep_are_refused(tmp_path: Path) -> None:
    deep = b"[" * 10_000 + b"]" * 10_000
    with pytest.raises(InvalidTraceError, match=r"trace\.json"):
        read(tmp_path, b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "args": ' + deep + b"}]}")


def test_packed_traces_with_damage_are_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": [kernel("k", 1, 1, 1)] * 1000}).encode()))
    wrong = packed.copy()
    wrong[-6] ^= 1  # in the checksum
    with pytest.raises(InvalidTraceError, match="cannot be unpacked"):
        read(tmp_path, bytes(wrong), "checksum.json.gz")
    with pytest.raises(InvalidTraceError, match="without its checksum"):
        read(tmp_path, bytes(packed[:-20]), "short.json.gz")
    assert read(tmp_path, bytes(packed) + bytes(8), "padded.json.gz").frames["kernel_launches"].height == 1000


def test_several_members_of_gzip_are_one_trace(tmp_path: Path) -> None:
    text = json.dumps({"schemaVersion": 1, "traceEvents": [kernel("k", 1, 1, 1)]}).encode()
    assert read(tmp_path, gzip.compress(text[:60]) + gzip.compress(text[60:])).frames["kernel_launches"].height == 1


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompress, "ALWAYS_UNPACKED_BYTES", 1024 * 1024)
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 256 * 1024)
    bomb = gzip.compress(b'{"schemaVersion": 1, "traceEvents": [' + b" " * 40_000_000)
    with pytest.raises(LimitReachedError, match="unpack to more than"):
        read(tmp_path, bomb, "bomb.json.gz")


def test_other_files_are_not_taken_for_traces() -> None:
    matches = KinetoReader().matches
    assert not matches(b'{"devices": [], "benchmarks": []}')
    assert not matches(b'[{"cat" : "Session","pid" :1,"tid" :1,"dur" :1,"ts" :1,"ph" : "X","name" :"model_loading_uri","args" : {}}')
    assert not matches(b"SQLite format 3\x00")
    assert not matches(b"\x1f\x8b\x08 no gzip")
    assert matches(gzip.compress(b'{"schemaVersion": 1}'))
    assert matches(b'\xef\xbb\xbf[\n{"ph": "X"}]')


def test_frames_have_the_types_of_their_tables(tmp_path: Path) -> None:
    tables = read(tmp_path, [module("A_0", 0, 9), call(1, 1), kernel("k", 2, 1, 1)])
    for table in TIMELINE_TABLES:
        frame = tables.frames[table.table_name]
        assert dict(frame.schema) == {column.name: column.dtype() for column in table.columns[2:]}, table.table_name
    assert isinstance(tables.frames["ranges"], pl.DataFrame)
