"""Kineto traces that are damaged, made to harm, or odd in ways that no profiler is: each is read or refused with its place."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.kineto import decompress, document, reader
from kernalyse.services.analyzer.readers.kineto.reader import KinetoReader
from kernalyse.services.core.errors import InvalidTraceError, LimitReachedError
from tests.fuzzing import kineto as fuzzing
from tests.unit.kineto_alike import assert_alike

Event = dict[str, Any]


def kernel(**members: object) -> Event:
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, **members}


def trace(*events: Event, **members: object) -> bytes:
    return json.dumps({"schemaVersion": 1, **members, "traceEvents": events}).encode()


def read(directory: Path, data: bytes) -> ReadResult:
    path = directory / "trace.json"
    path.write_bytes(data)
    return KinetoReader().read(TraceFiles(path.name, path, arrived_unix_ns=0))


# ---------------------------------------------------------------- sizes


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTraceError, match="nothing in it"):
        read(tmp_path, b"")


def test_a_long_text_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_TEXT_BYTES", 1000)
    longest = "a" * 998  # and two quotes
    assert read(tmp_path, trace(kernel(name=longest))).frames["trace_names"]["name"].to_list() == [longest]
    for odd in (trace(kernel(name=longest + "a")), trace(kernel(name=longest + "a", ts="1.5"))):  # by float times, and by exact ones
        with pytest.raises(LimitReachedError, match="1001 bytes: ") as caught:
            read(tmp_path, odd)
        assert caught.value.subject == "file trace.json"


def test_a_text_that_no_table_holds_may_be_of_any_length(tmp_path: Path) -> None:
    text = b'{"traceEvents": [{"ph": "X", "cat": "python_function", "ts": 1, "args": {"long": "%s"}}, {}]}' % (b"a" * 100_000_000)
    assert "1 python_function (X)" in read(tmp_path, text).notes


def test_what_the_plain_parser_would_have_to_read_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_PLAIN_BYTES", 100)
    twice = trace(kernel(), kernel()).replace(b'{"schemaVersion": 1,', b'{"traceEvents": 1, "traceEvents": [],')
    with pytest.raises(LimitReachedError, match="only the fallback parser") as caught:
        read(tmp_path, twice)
    assert caught.value.subject.startswith("file trace.json: byte ")


# ---------------------------------------------------------------- times


@pytest.mark.parametrize("base", [10**40, 2**62, -(2**62), float("nan"), float("inf")])
def test_a_clock_that_cannot_be_is_refused(tmp_path: Path, base: float) -> None:
    with pytest.raises(InvalidTraceError, match="baseTimeNanoseconds"):
        read(tmp_path, trace(kernel(), baseTimeNanoseconds=base))


def test_times_that_are_too_far_apart_are_refused(tmp_path: Path) -> None:
    far_us = 3 * 10**15
    assert read(tmp_path, trace(kernel(ts=-1), kernel(ts=far_us))).frames["kernel_launches"]["start_ns"].to_list() == [
        0,
        far_us * 1000 + 1000,
    ]
    with pytest.raises(InvalidTraceError, match="6000000000000000000 ns apart"):
        read(tmp_path, trace(kernel(ts=-far_us), kernel(ts=far_us)))


def test_a_time_that_fits_no_clock_leaves_its_event_out(tmp_path: Path) -> None:
    assert assert_alike(trace(kernel(ts=4 * 10**15)))
    tables = read(tmp_path, trace(kernel(ts=5 * 10**15), kernel()))
    assert tables.frames["kernel_launches"].height == 1
    assert "1 kernel (X)" in tables.notes


# ---------------------------------------------------------------- odd values beside the events


def test_numbers_that_fit_no_column_are_not_known(tmp_path: Path) -> None:
    tables = read(
        tmp_path,
        trace(
            kernel(args={"device": 2**31}),
            kernel(args={"device": 1}),
            kernel(cat="cpu_op", pid=9, args={"Collective name": "half \ud83d"}),
            deviceProperties=[{"id": 1, "name": "half \ud83d", "numSms": 2**31, "totalGlobalMem": 10**40, "computeMajor": "9"}],
            distributedInfo={"rank": 2**31, "world_size": "--8"},
            host_name="\ud83d",
        ),
    )
    devices = tables.frames["trace_devices"].select("device_index", "device_name", "sm_count", "memory_bytes", "compute_capability")
    assert devices.rows() == [(1, "half \ufffd", None, None, None)]
    processes = tables.frames["trace_processes"].select("rank_index", "world_size", "host_name")
    assert processes.rows() == [(None, None, "\ufffd")]
    assert tables.frames["kernel_launches"]["device_index"].to_list() == [None, 1]
    assert tables.frames["ranges"].height == 1


def test_annotations_of_the_device_are_counted_and_no_kernels(tmp_path: Path) -> None:
    tables = read(tmp_path, trace(kernel(), kernel(cat="gpu_user_annotation", name="step 1")))
    assert tables.frames["kernel_launches"].height == 1
    assert tables.frames["ranges"].is_empty()
    assert "1 gpu_user_annotation (X)" in tables.notes


def named(pid: object, name: object, **members: object) -> Event:
    return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}, **members}


def test_processes_have_the_names_that_the_trace_gives_them(tmp_path: Path) -> None:
    operator = kernel(cat="cpu_op", pid=9, ts=1000)
    events = [named(9, "before", ts=1), named(9, 'pyth"on é', ts=10**9), named(0, "GPU 0"), operator, kernel(cat="cpu_op", pid=10, ts=1001)]
    for text in (trace(*events), trace(*events, kernel(ts="1000.5"))):  # by float times, and by exact ones
        tables = read(tmp_path, text)
        assert tables.frames["trace_processes"].select("process_id", "process_name").rows() == [(9, 'pyth"on é'), (10, None)]
        assert tables.frames["ranges"]["start_ns"].to_list() == [0, 1000]  # a name has no part in when the trace begins


@pytest.mark.parametrize("label", [None, 7, ["a"], {"b": 1}])
def test_a_name_of_a_process_that_is_no_text_is_not_known(tmp_path: Path, label: object) -> None:
    tables = read(tmp_path, trace(named(9, label), kernel(cat="cpu_op", pid=9)))
    assert tables.frames["trace_processes"]["process_name"].to_list() == [None]


def test_a_trace_of_names_alone_has_no_rows(tmp_path: Path) -> None:
    tables = read(tmp_path, trace(named(9, "python")))
    assert tables.frames["ranges"].is_empty()
    assert "It has no kernels" in tables.notes


# ---------------------------------------------------------------- findings of the fuzzer


@pytest.mark.parametrize(
    "text",
    [
        b'{"traceEvents": [{"ph": "\x93", "cat": "ac2g", "ts": 1}]}',  # a phase that is no character
        b'{"traceEvents": [{"ph": 5',  # the last byte of the file where a phase is due
        b'{"traceEvents": [{"name": "nn.Mod',
        b'{"traceEvents": [{"registers per threa',
    ],
)
def test_findings_are_read_or_refused_alike(text: bytes) -> None:
    assert_alike(text)


def test_the_fuzzer_finds_nothing_in_a_few_files() -> None:
    ends = [fuzzing.check(fuzzing.attempt(random.Random(seed), fuzzing.WRITTEN)[0]) for seed in range(10)]
    assert {"read", "InvalidTraceError"} <= set(ends)


# ---------------------------------------------------------------- compressed


def test_a_packed_trace_in_many_blocks_is_read_as_the_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 3_000)
    text = trace(*(kernel(ts=index, name=f"k{index % 7}") for index in range(2000)))
    plain = read(tmp_path, text)
    packed = gzip.compress(text)
    for data in (packed, gzip.compress(text[:9000]) + gzip.compress(text[9000:])):
        found = read(tmp_path, data)
        assert all(found.frames[name].equals(frame) for name, frame in plain.frames.items())
        assert found.notes == plain.notes
    with pytest.raises(InvalidTraceError, match="cannot be unpacked"):
        read(tmp_path, packed[:-4] + bytes(4))  # the size at its end
