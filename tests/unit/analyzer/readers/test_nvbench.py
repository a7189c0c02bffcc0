"""NVBench JSON in and out: every kind of state, samples beside the file, damage by place, and the way there and back."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kernalyse.services.analyzer.export.nvbench import NvbenchDocument, nvbench_document
from kernalyse.services.analyzer.export.results import TABLE_NAMES, RunResults
from kernalyse.services.analyzer.ingest.reading import with_event_indexes
from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.nvbench import NvbenchReader
from kernalyse.services.analyzer.readers.registry import read_trace
from kernalyse.services.analyzer.tables.runs import RUNS
from kernalyse.services.core.errors import InvalidTraceError
from kernalyse.services.core.model import (
    CacheMode,
    ConfigurationFailed,
    ParameterValue,
    RunError,
    RunState,
    SampleBatch,
    StateChanged,
    TimingMethod,
)
from tests.integration.profiler_stand_in import configuration, measurement, samples
from tests.unit.run_results import results_of

REAL_DIRECTORY = Path(__file__).parents[5] / "shared" / "data" / "nvbench"
REAL_FILES = pytest.mark.skipif(
    not REAL_DIRECTORY.is_dir(), reason=f"needs NVBench's own files in {REAL_DIRECTORY.name} beside the checkout"
)
ARRIVED_UNIX_NS = 1_777_000_000_000_000_000

Document = dict[str, Any]


def summary(tag: str, value: object, kind: str = "float64") -> Document:
    return {"tag": tag, "name": tag, "hint": "x", "data": [{"name": "value", "type": kind, "value": value}]}


COLD = [
    summary("nv/cold/sample_size", "499", "int64"),
    summary("nv/cold/time/gpu/mean", "0.002"),
    summary("nv/cold/time/gpu/stdev/relative", "0.01"),
    summary("nv/cold/bw/global/bytes_per_second", "4000000000.2"),
    summary("nv/cold/walltime", "0.5"),
]
BATCH = [summary("nv/batch/sample_size", "524", "int64"), summary("nv/batch/time/gpu/mean", "0.0019")]


def axis(name: str, kind: str, value: object) -> Document:
    return {"name": name, "type": kind, "value": value}


def state(*summaries: Document, device: int | None = 0, axes: list[Document] | None = None, **members: Any) -> Document:
    return {
        "name": f"Device={device}",
        "device": device,
        "axis_values": axes,
        "summaries": list(summaries) or None,
        "is_skipped": False,
        **members,
    }


def document(*states: Document, **members: Any) -> Document:
    return {
        "meta": {"argv": ["bench", "--json", "a.json"], "version": {"json": {"major": 1, "minor": 0, "patch": 0, "string": "1.0.0"}}},
        "devices": [
            {"id": 0, "name": "GV100", "sm_version": 700, "global_memory_bus_bandwidth": 4_000_000_000},
            {"id": 1, "name": "GP100", "sm_version": 600},
        ],
        "benchmarks": [{"name": "copy", "index": 0, "min_time": 0.5, "devices": [0, 1], "axes": None, "states": list(states)}],
        **members,
    }


def read(directory: Path, content: Document | str, companions: Mapping[str, bytes] | None = None) -> ReadResult:
    path = directory / "arrived"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    paths = {}
    for number, (name, data) in enumerate((companions or {}).items()):
        paths[name] = directory / str(number)
        paths[name].write_bytes(data)
    return read_trace(TraceFiles("a.json", path, ARRIVED_UNIX_NS, paths))


def measurements(tables: ReadResult) -> list[dict[str, Any]]:
    return tables.frames["measurements"].rows(named=True)


def lines(tables: ReadResult) -> list[str]:
    found: list[str] = tables.frames["log_lines"]["line"].to_list()
    return found


# ---------------------------------------------------------------- read


def test_a_state_becomes_a_cold_and_a_hot_configuration(tmp_path: Path) -> None:
    tables = read(tmp_path, document(state(*COLD, *BATCH, axes=[axis("N", "int64", "64"), axis("T", "string", "U8")])))
    cold, hot = measurements(tables)
    assert (cold["label"], cold["kernel_name"], cold["parameters"], cold["variant"]) == (
        "copy N=64 T=U8 cold",
        "copy",
        '{"N": 64}',
        "T=U8 cold",
    )
    assert (cold["cache_mode"], cold["timing_method"], cold["sample_count"], cold["device_id"]) == ("COLD", "SINGLE", 499, "GV100")
    assert cold["duration_mean_ns"] == pytest.approx(2e6)
    assert cold["noise_ratio"] == 0.01
    assert cold["duration_standard_deviation_ns"] == pytest.approx(2e4)
    assert cold["bytes"] == hot["bytes"] == 8_000_000.0
    assert [cold[name] for name in ("duration_median_ns", "flop", "dtype", "verification_state", "measured_unix_ns")] == [None] * 5
    assert (hot["label"], hot["cache_mode"], hot["timing_method"], hot["sample_count"]) == ("copy N=64 T=U8 hot", "HOT", "BATCHED", 524)
    assert hot["duration_mean_ns"] == pytest.approx(1.9e6)
    assert tables.frames["configurations"]["label"].to_list() == [cold["label"], hot["label"]]
    assert tables.device_id == "GV100"
    assert tables.frames["ceilings"].select("device_id", "value", "source").rows() == [("GV100", 4e9, "clock")]


def test_axes_of_every_type_are_parameters_or_part_of_the_variant(tmp_path: Path) -> None:
    values = [
        axis("N", "int64", 64),
        axis("Duration", "float64", "0.00030000000000000003"),
        axis("T", "type", "U8"),
        axis("S", "string", "a b"),
    ]
    content = document(state(*COLD, axes=values))
    content["benchmarks"][0]["axes"] = [
        {"name": "Duration", "type": "float64", "flags": "", "values": [{"input_string": "0.0003", "value": 0.00030000000000000003}]}
    ]
    (row,) = measurements(read(tmp_path, content))
    assert (row["parameters"], row["variant"]) == ('{"N": 64}', "Duration=0.0003 T=U8 S=a b")


def test_figures_of_newer_files_have_columns(tmp_path: Path) -> None:
    times = {"min": 1, "max": 9, "mean": 4, "median": 3, "q1": 2, "q3": 5}
    more = [summary(f"nv/cold/time/gpu/{name}", str(value * 1e-6)) for name, value in times.items()]
    more += [summary("nv/cold/time/gpu/stdev/absolute", "1e-6"), summary("nv/cold/sm_clock_rate/mean", "1.98e9")]
    (row,) = measurements(read(tmp_path, document(state(*more))))
    names = ("min", "max", "mean", "median", "lower_quartile", "upper_quartile", "standard_deviation")
    assert [row[f"duration_{name}_ns"] for name in names] == pytest.approx([1e3, 9e3, 4e3, 3e3, 2e3, 5e3, 1e3])
    assert (row["sm_clock_hz"], row["noise_ratio"]) == (1_980_000_000, None)


def test_a_skipped_state_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    skipped = state(is_skipped=True, skip_reason="Narrowing conversion.", axes=[axis("In", "string", "I8")])
    tables = read(tmp_path, document(state(*COLD), skipped, state(is_skipped=True, summaries=[])))
    assert tables.frames["failures"].select("configuration_index", "label", "reason", "message").rows() == [
        (1, "copy In=I8", "SKIPPED", "Narrowing conversion."),
        (2, "copy", "SKIPPED", "skipped without a reason"),
    ]
    assert tables.frames["configurations"].height == 3


def test_a_state_without_gpu_times_says_so_and_keeps_its_figures(tmp_path: Path) -> None:
    tables = read(tmp_path, document(state(summary("nv/cpu_only/time/cpu/mean", "0.1"), device=None), state(device=None)))
    assert tables.frames["failures"]["reason"].to_list() == ["NO_GPU_TIME", "NO_GPU_TIME"]
    assert 'copy Device=None: {"nv/cpu_only/time/cpu/mean":"0.1"}' in lines(tables)
    assert tables.device_id is None


def test_devices_are_told_apart_by_number_where_their_names_are_equal(tmp_path: Path) -> None:
    two = [{"id": 3, "name": "H200"}, {"id": 4, "name": "H200"}, {"id": 5, "name": "GV100"}]
    tables = read(tmp_path, document(*(state(*COLD, device=number) for number in (3, 4, 5)), devices=two))
    assert tables.frames["measurements"]["device_id"].to_list() == ["H200 [3]", "H200 [4]", "GV100"]
    assert tables.device_id is None


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", None, float("nan"), float("inf")])
def test_a_figure_that_is_none_is_unknown_and_kept_as_it_stands(tmp_path: Path, value: object) -> None:
    noise = summary("nv/cold/time/gpu/stdev/relative", value)
    tables = read(tmp_path, document(state(*COLD[:2], noise)))
    (row,) = measurements(tables)
    assert row["noise_ratio"] is None
    assert any("nv/cold/time/gpu/stdev/relative" in line for line in lines(tables))


def test_without_a_mean_the_other_cold_figures_are_kept_as_lines(tmp_path: Path) -> None:
    tables = read(tmp_path, document(state(summary("nv/cold/time/gpu/mean", "nan"), summary("nv/cold/time/gpu/min", "0.1"), *BATCH)))
    (row,) = measurements(tables)
    assert (row["timing_method"], row["label"]) == ("BATCHED", "copy")
    assert 'copy Device=0: {"nv/cold/time/gpu/mean":"nan","nv/cold/time/gpu/min":"0.1"}' in lines(tables)


def test_what_no_column_holds_is_kept_as_lines_of_the_log_and_named_in_the_notes(tmp_path: Path) -> None:
    own = {"tag": "own", "name": "Loss", "description": "of mine", "data": [{"name": "a", "type": "string", "value": "b"}]}
    content = document(state(*COLD, own, summary("nv/cold/sample_size", "7", "int64"), min_time=0.7, type_config_index=4), more=[1])
    tables = read(tmp_path, content)
    kept = lines(tables)
    assert 'benchmark copy: {"index":0,"min_time":0.5,"devices":[0,1],"axes":null}' in kept
    assert 'document: {"more":[1]}' in kept
    assert any(line.startswith('device GP100: {"id":1,') for line in kept)
    (line,) = [line for line in kept if line.startswith("copy Device=0")]
    assert json.loads(line.partition(": ")[2]) == {
        "nv/cold/walltime": "0.5",
        "own": {"name": "Loss", "description": "of mine", "a": "b"},
        "nv/cold/sample_size (again)": "7",
        "min_time": 0.7,
        "type_config_index": 4,
    }
    assert "nv/cold/walltime (1)" in tables.notes
    assert "Command: bench --json a.json" in tables.notes
    assert set(tables.frames["log_lines"]["event_unix_ns"]) == {ARRIVED_UNIX_NS}


def test_a_file_from_before_versions_is_read_and_says_so(tmp_path: Path) -> None:
    content = document(state(*COLD))
    del content["meta"]
    assert "version none" in read(tmp_path, content).notes


# ---------------------------------------------------------------- samples beside the file


def sample_file(tag: str, name: str, size: int) -> Document:
    values = [("filename", "string", name), ("size", "int64", str(size))]
    return {"tag": tag, "name": "x", "data": [{"name": name, "type": kind, "value": value} for name, kind, value in values]}


TIMES = sample_file("nv/json/bin:nv/cold/sample_times", "a.json-bin/0.bin", 3)
CLOCKS = sample_file("nv/json/freqs-bin:nv/cold/sample_freqs", "a.json-freqs-bin/0.bin", 3)
TIMES_DATA = np.array([1e-6, 3e-6, 2e-6], dtype="<f4").tobytes()
CLOCKS_DATA = np.array([1.5e9, 1.25e9, 1e9], dtype="<f4").tobytes()


def test_samples_beside_the_file_are_read_and_give_what_it_lacks(tmp_path: Path) -> None:
    beside = {"a.json-bin/0.bin": TIMES_DATA, "a.json-freqs-bin/0.bin": CLOCKS_DATA}
    tables = read(tmp_path, document(state(*COLD[:2], TIMES, CLOCKS)), beside)
    found = tables.frames["samples"]
    assert found["duration_ns"].to_list() == pytest.approx([1000.0, 3000.0, 2000.0])
    assert found["sm_clock_hz"].to_list() == [1_500_000_000, 1_250_000_000, 1_000_000_000]
    (row,) = measurements(tables)
    assert row["duration_median_ns"] == pytest.approx(2000.0)
    assert (row["duration_median_low_ns"], row["duration_median_high_ns"]) == pytest.approx((1000.0, 3000.0))
    assert row["duration_mean_ns"] == pytest.approx(2e6)  # the file's own figure, of which this test made another
    assert row["sample_count"] == 499


@pytest.mark.parametrize("name", ["/elsewhere/b.json-bin/0.bin", "runs\\b.json-bin\\0.bin", "b.json-bin/0.bin"])
def test_samples_are_found_though_the_document_was_moved_or_renamed(tmp_path: Path, name: str) -> None:
    times = sample_file("nv/json/bin:nv/cold/sample_times", name, 3)
    tables = read(tmp_path, document(state(*COLD, times)), {"a.json-freqs-bin/0.bin": b"", "a.json-bin/0.bin": TIMES_DATA})
    assert tables.frames["samples"].height == 3


def test_samples_that_are_not_there_are_named(tmp_path: Path) -> None:
    tables = read(tmp_path, document(state(*COLD, TIMES)))
    assert tables.frames["samples"].height == 0
    assert "1 files of samples were not beside it, e.g. a.json-bin/0.bin." in tables.notes
    assert any("a.json-bin/0.bin" in line for line in lines(tables))


@pytest.mark.parametrize(
    ("times", "clocks", "message"),
    [
        (TIMES_DATA[:-1], CLOCKS_DATA, "found 11 bytes"),
        (TIMES_DATA[:8], CLOCKS_DATA, "found 8 bytes with 2 usable figures; expected 3"),
        (np.array([1, np.nan, 2], dtype="<f4").tobytes(), CLOCKS_DATA, "with 2 usable figures"),
        (np.array([1, -1, 2], dtype="<f4").tobytes(), CLOCKS_DATA, "with 2 usable figures"),
        (TIMES_DATA, np.array([1, 3e38, 2], dtype="<f4").tobytes(), "a.json-freqs-bin/0.bin: found 12 bytes with 2"),
    ],
)
def test_damaged_samples_are_refused_by_file(tmp_path: Path, times: bytes, clocks: bytes, message: str) -> None:
    with pytest.raises(InvalidTraceError, match=message):
        read(tmp_path, document(state(*COLD, TIMES, CLOCKS)), {"a.json-bin/0.bin": times, "a.json-freqs-bin/0.bin": clocks})


def test_times_and_clocks_of_other_lengths_are_refused(tmp_path: Path) -> None:
    clocks = sample_file("nv/json/freqs-bin:nv/cold/sample_freqs", "a.json-freqs-bin/0.bin", 2)
    beside = {"a.json-bin/0.bin": TIMES_DATA, "a.json-freqs-bin/0.bin": CLOCKS_DATA[:8]}
    with pytest.raises(InvalidTraceError, match="found 3 times and 2 clocks"):
        read(tmp_path, document(state(*COLD, TIMES, clocks)), beside)


# ---------------------------------------------------------------- refused


def _first_state(content: Document) -> Document:
    found: Document = content["benchmarks"][0]["states"][0]
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(benchmarks=[]), "file a.json: found no state of any benchmark"),
        (lambda d: d["benchmarks"][0].update(states=None), "found no state of any benchmark"),
        (lambda d: d["meta"]["version"]["json"].update(major=2, string="2.1.0"), "found NVBench JSON of version 2.1.0; expected version 1"),
        (lambda d: d["meta"]["version"]["json"].pop("major"), "version of the format: major: found nothing"),
        (lambda d: d.update(benchmarks={}), r"benchmarks: found \{\}; expected a list"),
        (lambda d: d["benchmarks"][0].pop("name"), "benchmark 0: name: found nothing; expected text"),
        (lambda d: _first_state(d).update(device=7), "benchmark copy, state 0: device: found 7; expected one of 0, 1"),
        (lambda d: _first_state(d).update(device="0"), 'device: found "0"; expected a whole number'),
        (lambda d: d["devices"][0].pop("name"), r"devices\[0\]: name: found nothing"),
        (lambda d: _first_state(d)["summaries"][1].pop("tag"), r"summaries\[1\]: tag: found nothing"),
        (lambda d: _first_state(d)["summaries"][1].update(data={}), r"data: found \{\}; expected a list"),
        (lambda d: _first_state(d)["summaries"][1]["data"][0].update(value="fast"), 'value: found "fast"; expected a number'),
        (lambda d: _first_state(d)["summaries"][1]["data"][0].update(value=[1]), r"value: found \[1\]; expected a number"),
        (lambda d: _first_state(d)["summaries"][0]["data"][0].update(value="1e30"), "expected a whole number of 64 bits"),
        (lambda d: _first_state(d).update(axis_values=[axis("N", "int64", "many")]), 'value: found "many"; expected a whole number'),
        (lambda d: _first_state(d).update(summaries={"nv": {}}), "expected a list"),
        (lambda d: _first_state(d).update(is_skipped="no"), 'is_skipped: found "no"; expected true or false'),
    ],
)
def test_a_damaged_file_is_refused_by_benchmark_and_state(tmp_path: Path, change: Callable[[Document], object], message: str) -> None:
    content = document(state(*COLD))
    content["benchmarks"][0]["states"][0]["summaries"] = json.loads(json.dumps(COLD))
    change(content)
    with pytest.raises(InvalidTraceError, match=message):
        read(tmp_path, content)


def test_a_file_that_breaks_off_is_refused(tmp_path: Path) -> None:
    text = json.dumps(document(state(*COLD)))
    with pytest.raises(InvalidTraceError, match=r"a\.json: found JSON that cannot be read"):
        read(tmp_path, text[:-200])


def test_other_json_with_benchmarks_is_not_taken_for_it() -> None:
    assert NvbenchReader().matches(b'{"meta": {}, "devices": [], "benchmarks": []}')
    assert not NvbenchReader().matches(b'{"context": {}, "benchmarks": []}')
    assert not NvbenchReader().matches(b'["devices", "benchmarks"]')


# ---------------------------------------------------------------- real files


@REAL_FILES
@pytest.mark.parametrize("name", ["test_ref.json", "test_cmp.json"])
def test_real_files_are_read_whole(name: str) -> None:
    tables = read_trace(TraceFiles(name, REAL_DIRECTORY / name, ARRIVED_UNIX_NS))
    source = json.loads((REAL_DIRECTORY / name).read_text())
    states = [state for benchmark in source["benchmarks"] for state in benchmark["states"]]
    means = {
        tag: [_value(state, f"nv/{tag}/time/gpu/mean") * 1e9 for state in states if not state["is_skipped"]] for tag in ("cold", "batch")
    }
    frame = tables.frames["measurements"]
    assert frame.filter(pl.col("cache_mode") == "COLD")["duration_mean_ns"].to_list() == pytest.approx(means["cold"], rel=1e-12)
    assert frame.filter(pl.col("cache_mode") == "HOT")["duration_mean_ns"].to_list() == pytest.approx(means["batch"], rel=1e-12)
    assert set(frame["device_id"]) == {"Quadro GV100", "Quadro GP100"}
    failures = tables.frames["failures"]
    assert failures["message"].to_list() == [state["skip_reason"] for state in states if state["is_skipped"]]
    assert failures.height == 38
    assert tables.frames["configurations"].height == 2 * 88 + 38


def _value(state: Document, tag: str) -> float:
    return float(next(item for item in state["summaries"] if item["tag"] == tag)["data"][0]["value"])


@REAL_FILES
def test_bytes_that_the_file_names_one_by_one_add_up_to_the_rate_times_the_mean() -> None:
    tables = read_trace(TraceFiles("test_ref.json", REAL_DIRECTORY / "test_ref.json", ARRIVED_UNIX_NS))
    checked = 0
    for line in lines(tables):
        label, _, content = line.partition(": ")
        figures = json.loads(content)
        if "nv/gmem/reads/InSize" in figures:
            device, axes = label.split(" Device=")[1][0], label.split(" ", 2)[2]
            row = tables.frames["measurements"].filter(
                pl.col("label") == f"{label.split()[0]} {axes} cold", pl.col("device_id") == ("Quadro GV100", "Quadro GP100")[int(device)]
            )
            assert row["bytes"].to_list() == [float(figures["nv/gmem/reads/InSize"]) + float(figures["nv/gmem/writes/OutSize"])]
            checked += 1
    assert checked == 34


# ---------------------------------------------------------------- written, and there and back


@pytest.fixture
def results(tmp_path: Path) -> RunResults:
    tiled = replace(configuration(1), macros=(ParameterValue("TILE", 16),), variant="TILE=16 block=32x8")
    clocked = SampleBatch(1, 0, (5000.0, 6000.0, 9000.0), 13, sm_clock_hz=(1_500_000_000, 1_250_000_000, 0), discarded_positions=(2,))
    return results_of(
        tmp_path / "store",
        configuration(0),
        samples(0, 0, 4),
        measurement(0, duration_ns=5000),
        tiled,
        clocked,
        replace(measurement(1, duration_ns=6000), sm_clock_hz=1_980_000_000),
        configuration(2, kernel_name="copy"),
        ConfigurationFailed(2, RunError("FAILED_PRECONDITION", "COMPILE_FAILED", "line 3: expected ;")),
        configuration(3),
        StateChanged(RunState.SUCCEEDED),
    )


def written(results: RunResults) -> tuple[Document, NvbenchDocument]:
    made = nvbench_document(results, "a.json")
    return json.loads(made.text), made


def test_a_run_is_written_with_nvbenchs_axes_tags_and_devices(results: RunResults) -> None:
    content, made = written(results)
    assert content["meta"]["version"]["json"]["string"] == "1.0.0"
    assert [(device["id"], device["name"]) for device in content["devices"]] == [(0, "NVIDIA H200")]
    saxpy, copy = content["benchmarks"]
    assert [axis["name"] for axis in saxpy["axes"]] == ["N", "TILE", "block"]
    assert saxpy["axes"][0]["values"][0] == {"input_string": "1000", "description": "", "value": 1000}
    first, second = saxpy["states"]
    assert (first["name"], second["name"]) == ("Device=0 N=1000", "Device=0 N=1001 TILE=16 block=32x8")
    found = {item["tag"]: item["data"][0]["value"] for item in first["summaries"]}
    assert float(found["nv/cold/time/gpu/mean"]) == pytest.approx(5e-6)
    assert float(found["nv/cold/time/gpu/stdev/relative"]) == pytest.approx(1 / 5000)
    assert int(found["nv/cold/sample_size"]) == 20
    assert float(found["nv/cold/bw/global/bytes_per_second"]) == pytest.approx(12e6 / 5e-6)
    assert (copy["states"][0]["is_skipped"], copy["states"][0]["skip_reason"]) == (True, "COMPILE_FAILED: line 3: expected ;")
    assert copy["states"][0]["summaries"] == []
    assert "flop" in content["meta"]["kernalyse"]["left_out_columns"]
    assert "duration_p99_ns" in made.notices[0]
    assert "duration_median_ns" not in made.notices[0]
    assert made.notices[1] == "1 configurations that were neither measured nor failed are left out."


def test_the_way_there_and_back_keeps_what_the_format_can_carry(results: RunResults, tmp_path: Path) -> None:
    _, made = written(results)
    tables = read(tmp_path, made.text, made.files)
    before, after = results.frames["measurements"].rows(named=True), measurements(tables)
    kept = ("mean", "median", "min", "max", "lower_quartile", "upper_quartile", "standard_deviation")
    for old, new in zip(before, after, strict=True):
        assert (old["label"], old["cache_mode"], old["timing_method"]) == (new["label"], new["cache_mode"], new["timing_method"])
        assert [new[f"duration_{name}_ns"] for name in kept] == pytest.approx([old[f"duration_{name}_ns"] for name in kept], rel=1e-12)
        assert (new["noise_ratio"], new["sample_count"]) == (old["noise_ratio"], old["sample_count"])
        assert (new["bytes"], new["sm_clock_hz"]) == (old["bytes"], old["sm_clock_hz"])
    assert tables.frames["failures"]["message"].to_list() == ["COMPILE_FAILED: line 3: expected ;"]
    durations = tables.frames["samples"]["duration_ns"].to_list()
    assert durations == pytest.approx([1000.0, 1001.0, 1002.0, 1003.0, 5000.0, 6000.0], rel=1e-6)  # 32-bit floats; no discarded one
    assert tables.frames["samples"]["sm_clock_hz"].to_list() == [None] * 4 + [1_500_000_000, 1_250_000_000]


def test_hot_measurements_say_so_by_an_axis_and_come_back_hot(results: RunResults, tmp_path: Path) -> None:
    hot = results.frames["measurements"].with_columns(
        cache_mode=pl.lit(CacheMode.HOT.value), timing_method=pl.lit(TimingMethod.BATCHED.value)
    )
    content, made = written(replace(results, frames={**results.frames, "measurements": hot}))
    first = content["benchmarks"][0]["states"][0]
    assert first["name"] == "Device=0 N=1000 cache=HOT timing=BATCHED"
    assert any("cache=HOT" in notice for notice in made.notices)
    rows = measurements(read(tmp_path, made.text))
    assert [(row["label"], row["cache_mode"], row["timing_method"]) for row in rows] == [
        ("saxpy N=1000", "HOT", "BATCHED"),
        ("saxpy N=1001 TILE=16 block=32x8", "HOT", "BATCHED"),
    ]


def test_a_batch_beside_cold_launches_goes_where_nvbench_has_it(tmp_path: Path) -> None:
    both = (
        replace(configuration(0), variant="cold process=1"),
        measurement(0, duration_ns=5000),
        replace(configuration(0), configuration_index=1, variant="hot process=1"),
        replace(measurement(1, duration_ns=4000), cache_mode=CacheMode.HOT, timing_method=TimingMethod.BATCHED),
    )
    content, made = written(results_of(tmp_path / "store", *both, StateChanged(RunState.SUCCEEDED)))
    (only,) = content["benchmarks"][0]["states"]
    assert only["name"] == "Device=0 N=1000 process=1"
    found = {item["tag"]: float(item["data"][0]["value"]) for item in only["summaries"]}
    assert (found["nv/cold/time/gpu/mean"], found["nv/batch/time/gpu/mean"]) == pytest.approx((5e-6, 4e-6))
    assert any("Of a batch measured with cold launches" in notice for notice in made.notices)
    assert [row["label"] for row in measurements(read(tmp_path, made.text))] == [
        "saxpy N=1000 process=1 cold",
        "saxpy N=1000 process=1 hot",
    ]


def test_a_file_is_as_nvbenchs_own_comparison_reads_it(results: RunResults) -> None:
    """By places and tags that nvbench_compare.py, its later versions and nvbench_json_summary.py look at."""
    hot = results.frames["measurements"].with_columns(
        cache_mode=pl.Series(["COLD", "HOT"]), noise_ratio=pl.Series([0.25, None], dtype=pl.Float64)
    )
    content, made = written(replace(results, frames={**results.frames, "measurements": hot}))
    device_ids = [device["id"] for device in content["devices"]]
    noises = []
    for benchmark in content["benchmarks"]:
        axes = benchmark["axes"] or []
        assert all({"name", "type", "flags", "values"} <= set(axis) for axis in axes)
        assert set(benchmark["devices"]) <= set(device_ids)
        names = [state["name"] for state in benchmark["states"]]
        assert len(names) == len(set(names))  # one file's states find those of the other by name
        for state in benchmark["states"]:
            # Values stand under the heading of their place.
            assert [value["name"] for value in state["axis_values"]] == [axis["name"] for axis in axes]
            assert state["device"] in device_ids
            if state["is_skipped"]:
                continue
            data = {item["tag"]: {datum["name"]: datum for datum in item["data"]} for item in state["summaries"]}
            for tag in ("mean", "median", "min", "max", "q1", "q3", "stdev/absolute", "iqr/absolute", "iqr/relative", "ir/relative"):
                assert data[f"nv/cold/time/gpu/{tag}"]["value"]["type"] == "float64"
                assert float(data[f"nv/cold/time/gpu/{tag}"]["value"]["value"]) > 0
            noises.append(data["nv/cold/time/gpu/stdev/relative"]["value"]["value"])
            samples_of = data["nv/json/bin:nv/cold/sample_times"]
            assert len(made.files[samples_of["filename"]["value"]]) == 4 * int(samples_of["size"]["value"])
    assert noises == ["0.25", None]  # null is their infinity
    first, second = content["benchmarks"][0]["states"]
    assert [value["value"] for value in first["axis_values"]] == ["1000", "COLD", "-", "-"]
    assert (first["name"], second["name"]) == ("Device=0 N=1000 cache=COLD", "Device=0 N=1001 cache=HOT TILE=16 block=32x8")


@pytest.mark.skipif(shutil.which("nvbench-compare-legacy") is None, reason="needs NVBench's own tools: pip install 'cuda-bench[compare]'")
@pytest.mark.parametrize(("tool", "rows"), [("nvbench-compare-legacy", 2), ("nvbench-compare-robust", 3)])
def test_nvbenchs_own_tools_compare_two_exports(results: RunResults, tmp_path: Path, tool: str, rows: int) -> None:
    content, made = written(results)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(made.text)
    for name, data in made.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    done = subprocess.run([tool, "a.json", "b.json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"Total Matches: {rows}" in done.stdout
    assert len(content["benchmarks"]) == 2


@REAL_FILES
def test_a_real_file_comes_back_from_an_export_as_it_was(tmp_path: Path) -> None:
    tables = read_trace(TraceFiles("test_ref.json", REAL_DIRECTORY / "test_ref.json", ARRIVED_UNIX_NS))
    stored, _ = with_event_indexes("imported-1", tables.frames)
    run = pl.DataFrame({"run_id": ["imported-1"], "title": ["test_ref.json"], "device_id": [None]})
    empty = {name: pl.DataFrame() for name in TABLE_NAMES} | {"samples": tables.frames["samples"]}
    content, _ = written(RunResults({**empty, **stored, RUNS.table_name: run}, ()))
    assert [device["name"] for device in content["devices"]] == ["Quadro GV100", "Quadro GP100"]
    again = read(tmp_path, content)
    columns = ["label", "device_id", "duration_mean_ns", "noise_ratio", "sample_count", "bytes", "cache_mode", "timing_method"]
    before, after = (each.frames["measurements"].select(columns) for each in (tables, again))
    assert after.drop("duration_mean_ns").equals(before.drop("duration_mean_ns"))
    assert after["duration_mean_ns"].to_list() == pytest.approx(before["duration_mean_ns"].to_list(), rel=1e-12)
    assert again.frames["failures"]["label"].to_list() == tables.frames["failures"]["label"].to_list()
