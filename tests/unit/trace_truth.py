"""Traces in the shared directory against answers that were computed without this project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.traces.kernels import trace_kernels
from kernalyse.services.analyzer.analysis.traces.layers import trace_layers

SHARED: Final = Path(__file__).parents[3] / "shared" / "data"


def shared_traces(directory: str, ending: str) -> list[Path]:
    """Return the traces of one format, or a path that is not there: then the tests are skipped with the reason."""
    return sorted((SHARED / directory).glob(f"*{ending}")) or [SHARED / directory / f"none{ending}"]


def expected_of(path: Path, answers: str) -> dict[str, Any]:
    """Read the answers to a trace. Skips the test where the trace is not there."""
    if not path.exists():
        pytest.skip(f"{SHARED} is not there: the traces and their answers are not part of the project")
    expected: dict[str, Any] = json.loads((SHARED / "expected" / answers).read_text())
    return expected


def assert_kernels_and_layers(
    frames: Mapping[str, pl.LazyFrame], notes: str, expected: Mapping[str, Any], source: str, layers_key: str
) -> None:
    """Compare launches, kernels and the layers of one source with the answers, in nanoseconds and to the last one."""
    launches, names, ranges = frames["kernel_launches"], frames["trace_names"], frames["ranges"]
    called = launches.filter(pl.col("api_call_index").is_not_null()).collect()
    assert launches.collect().height == expected["kernel_count"]
    assert called.height == expected["kernel_with_runtime_call_count"]
    missing_count = expected["kernel_count"] - called.height
    assert (f"{missing_count} of {expected['kernel_count']} kernels have no runtime call" in notes) == (missing_count > 0)

    kernels = trace_kernels(launches, names).collect()
    assert {
        row["kernel_name"]: {
            "count": row["launch_count"],
            "sum_ns": row["duration_sum_ns"],
            "min_ns": row["duration_min_ns"],
            "max_ns": row["duration_max_ns"],
        }
        for row in kernels.iter_rows(named=True)
    } == expected["kernels"]

    layers = trace_layers(launches, ranges, names).filter(pl.col("source") == source).collect()
    found = {row["layer"]: {"count": row["launch_count"], "kernel_ns": row["duration_sum_ns"]} for row in layers.iter_rows(named=True)}
    assert found == expected[layers_key]
