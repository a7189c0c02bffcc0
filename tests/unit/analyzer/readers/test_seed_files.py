"""benchmark_results.json, profiling_data.json and comparison_data.json: figures by hand, what this project writes, and damage."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.analyzer.readers.registry import read_trace
from kernalyse.services.compat.kernel_benchmarker.results import BenchmarkResult, build_result, write_results
from kernalyse.services.core.errors import InvalidTraceError
from kernalyse.services.core.model import BackendName
from tests.integration.profiler_stand_in import H200, configuration, measurement
from tests.unit.read_file import files_of, read_as, rows_of

BENCHMARK = {
    "kernel": "matmul_naive",
    "parameters": {"N": 1024, "M": 1024, "K": 512},
    "execution_time_ms": 45.234,
    "memory_throughput_pct": 76.5,
    "compute_throughput_pct": None,
    "occupancy_pct": 62.3,
    "metrics": {"dram__bytes.sum": 4096.0, "tile": "16x16"},
}


def test_a_benchmark_of_the_seed_is_a_mean_with_its_percentages(tmp_path: Path) -> None:
    tables = read_as("kernel_benchmarker", files_of(tmp_path, {"benchmarks": [BENCHMARK]}))
    (row,) = rows_of(tables, "measurements")
    assert (row["kernel_name"], row["label"]) == ("matmul_naive", "matmul_naive N=1024 M=1024 K=512")
    assert (row["duration_mean_ns"], row["duration_median_ns"]) == (45.234e6, None)
    counters = {row["metric_name"]: (row["value"], row["unit"]) for row in rows_of(tables, "counters")}
    assert counters == {"memory_throughput_pct": (76.5, "%"), "occupancy_pct": (62.3, "%"), "dram__bytes.sum": (4096.0, None)}
    assert any("16x16" in row["line"] for row in rows_of(tables, "log_lines"))


def test_what_this_project_writes_comes_back_with_its_statistics(tmp_path: Path) -> None:
    written = build_result(configuration(3), measurement(3, duration_ns=5250), {}, H200, BackendName.PYCUDA)
    bare = BenchmarkResult("k", {"N": 1}, 0.5)
    write_results([written, bare], tmp_path / "benchmark_results.json")
    tables = read_as("kernel_benchmarker", files_of(tmp_path, (tmp_path / "benchmark_results.json").read_text()))
    first, second = rows_of(tables, "measurements")
    known = measurement(3, duration_ns=5250)
    for name in (
        "duration_median_ns",
        "duration_mean_ns",
        "duration_p95_ns",
        "sample_count",
        "elapsed_ns",
        "driver_version",
        "noise_ratio",
    ):
        assert first[name] == getattr(known, name), name
    assert (first["device_id"], first["dtype"], first["flop"], first["bytes"]) == (
        "cuda:0", configuration(3).dtype.value, configuration(3).flop, configuration(3).bytes,
    )  # fmt: skip
    assert first["block"] == str(configuration(3).block)
    assert (second["duration_mean_ns"], second["duration_median_ns"]) == (0.5e6, None)
    assert not math.isnan(second["duration_mean_ns"])


PROFILE: dict[str, Any] = {
    "metadata": {"timestamp": "2026-01-26T14:56:21.406610", "gpu_name": "NVIDIA GB10", "compute_capability": "12.1"},
    "benchmarks": {
        "gpt_nano": {
            "config": {"n_layer": 3, "n_head": 3, "n_embd": 48, "vocab_size": 50257},
            "timing": {"mean": 1.32, "std": 0.11, "min": 1.24, "max": 1.75, "median": 1.28, "p95": 1.63, "p99": 1.74},
            "throughput_tokens_per_sec": 193731,
            "batch_size": 4,
            "seq_len": 64,
        }
    },
}
COMPARISON = {
    "metadata": {"timestamp": "2026-01-26T14:41:46"},
    "comparisons": {
        "nano": {
            "config": {"n_layer": 3, "n_head": 3},
            "mingpt": {"mean_ms": 0.87, "std_ms": 0.42, "min_ms": 0.7, "max_ms": 3.37},
            "cutile": {"mean_ms": 1.33, "std_ms": 0.27, "min_ms": 1.23, "max_ms": 3.11},
            "speedup": 0.654,
            "batch_size": 4,
            "seq_len": 64,
            "fused_mlp": True,
        }
    },
}


def test_a_model_keeps_its_latency_throughput_and_shape(tmp_path: Path) -> None:
    tables = read_as("model_profiles", files_of(tmp_path, PROFILE))
    (row,) = rows_of(tables, "measurements")
    assert (row["model_name"], row["batch_size"], row["device_id"], row["tokens_per_s"]) == ("gpt_nano", 4, "NVIDIA GB10", 193731.0)
    assert json.loads(row["parameters"]) == {"n_layer": 3, "n_head": 3, "n_embd": 48, "vocab_size": 50257, "seq_len": 64}
    expected = {
        "duration_mean_ns": 1.32,
        "duration_standard_deviation_ns": 0.11,
        "duration_min_ns": 1.24,
        "duration_max_ns": 1.75,
        "duration_median_ns": 1.28,
        "duration_p95_ns": 1.63,
        "duration_p99_ns": 1.74,
    }
    assert {name: row[name] for name in expected} == {name: pytest.approx(value * 1e6) for name, value in expected.items()}
    assert "compute_capability 12.1" in tables.notes


def test_a_comparison_has_a_measurement_of_each_implementation(tmp_path: Path) -> None:
    tables = read_as("model_profiles", files_of(tmp_path, COMPARISON))
    rows = rows_of(tables, "measurements")
    assert [(row["kernel_name"], row["model_name"], row["duration_mean_ns"]) for row in rows] == [
        ("mingpt", "nano", pytest.approx(0.87e6)),
        ("cutile", "nano", pytest.approx(1.33e6)),
    ]
    assert rows[0]["label"] != rows[1]["label"]
    lines = [row["line"] for row in rows_of(tables, "log_lines")]
    assert any("0.654" in line and "fused_mlp" in line for line in lines)


def with_timing(**timing: object) -> dict[str, Any]:
    model = PROFILE["benchmarks"]["gpt_nano"] | {"timing": timing}
    return {"benchmarks": {"gpt_nano": model}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"benchmarks": [BENCHMARK | {"execution_time_ms": -1}]}, "benchmark 0: execution_time_ms.*over zero"),
        ({"benchmarks": [BENCHMARK | {"parameters": {"N": 1.5}}]}, "parameters: N.*found 1.5"),
        ({"benchmarks": [BENCHMARK | {"parameters": {"N": 10**30}}]}, "parameters: N.*64 bits"),
        ({"benchmarks": [BENCHMARK | {"kernel": None}]}, "benchmark 0: kernel.*found null"),
        ({"benchmarks": [BENCHMARK | {"metrics": [1]}]}, "metrics.*an object"),
        ({"benchmarks": {"execution_time_ms": 1}}, "benchmarks: found"),
        ('{"benchmarks": [{"execution_time_ms": 1', "JSON that cannot be read"),
        (with_timing(mean="slow"), "model gpt_nano: timing: mean: found \"slow\""),
        (with_timing(mean=0), "mean.*over zero"),
        ({"benchmarks": {"m": {"timing": 5}}}, "model m: timing: found 5"),
        ({"benchmarks": {"m": 5, "n": {"timing": {}}}}, "benchmarks: m: found 5"),
        ({"comparisons": {"m": {"a": {"mean_ms": 1}, "batch_size": 0}}}, "batch_size.*over zero"),
        ({"comparisons": {"m": {}}, "x": {"mean_ms": 1}}, "model m: mean_ms: found nothing"),
    ],
)  # fmt: skip
def test_damage_is_named_by_place(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(InvalidTraceError, match=message):
        read_trace(files_of(tmp_path, content))


def test_a_model_without_times_is_a_failure(tmp_path: Path) -> None:
    tables = read_as("model_profiles", files_of(tmp_path, with_timing(p95=3.0)))
    assert [row["reason"] for row in rows_of(tables, "failures")] == ["NOT_TIMED"]
