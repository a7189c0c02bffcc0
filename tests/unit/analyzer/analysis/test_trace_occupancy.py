"""Theoretical occupancy, held against results of NVIDIA's calculator and of Kineto, which calls it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.hardware.datasheets import sm_limits
from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED, Frames, trace_frames
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.readers.registry import read_trace
from tests.unit.trace_rows import names, trace_of

SHARED = Path(__file__).parents[5] / "shared" / "data" / "kineto"
FILES = sorted(SHARED.glob("*.json.gz"))
DEFAULT_SHARED_BYTES = 48 * 1024


def occupancy(trace: Frames) -> pl.DataFrame:
    return TRACE_DERIVED["occupancy"].compute(trace, DEFAULT_QUERY).collect()


def of_one(capability: str | None, threads: int, registers: int | None, shared: int, **others: Any) -> dict[str, Any]:
    launch = {
        **{"process_id": 1, "device_index": 0, "name_index": 0, "start_ns": 0, "duration_ns": 10},
        **{"grid_x": 1000, "grid_y": 1, "grid_z": 1, "block_x": threads, "block_y": 1, "block_z": 1},
        **{"registers_per_thread": registers, "static_shared_bytes": 0, "dynamic_shared_bytes": shared},
    }
    device = {"process_id": 1, "device_index": 0, "compute_capability": capability, "sm_count": 100} | others
    (row,) = occupancy(trace_of(kernel_launches=[launch], trace_names=names("gemm"), trace_devices=[device])).to_dicts()
    return row


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks", "ratio", "resource"),
    [
        ("8.0", 256, 32, 0, 8, 1.0, "threads"),
        ("8.6", 1024, 32, 0, 1, 32 / 48, "threads"),
        ("8.9", 64, 48, 1792, 20, 40 / 48, "registers"),  # Nsight Compute: launch__occupancy_limit_registers 20
        ("9.0", 128, 255, 65536, 2, 8 / 64, "registers"),  # a warp takes 8192 registers, a partition has 16384
        ("9.0", 256, 64, 100 * 1024, 2, 16 / 64, "shared_memory"),  # 101 KiB each with the one reserved, of 228
        ("8.0", 256, 32, 82 * 1024, 1, 8 / 64, "shared_memory"),  # two would need 166 of 164
        ("7.0", 512, 40, 0, 3, 48 / 64, "registers"),
        ("7.5", 64, 16, 0, 16, 1.0, "threads"),
        ("7.5", 32, 16, 0, 16, 16 / 32, "blocks"),
        ("7.0", 256, 32, 48 * 1024, 2, 16 / 64, "shared_memory"),  # nothing is reserved: two fill 96
        ("10.0", 33, 32, 0, 32, 1.0, "threads"),  # a warp that is not full counts whole
    ],
)
def test_blocks_are_those_of_the_calculator(
    capability: str, threads: int, registers: int, shared: int, blocks: int, ratio: float, resource: str
) -> None:
    row = of_one(capability, threads, registers, shared)
    assert (row["blocks_per_sm_count"], row["limiting_resource"]) == (blocks, resource)
    assert row["theoretical_occupancy_ratio"] == pytest.approx(ratio)
    assert row["wave_count"] == pytest.approx(1000 / (100 * blocks))


@pytest.mark.parametrize(
    ("capability", "registers", "others"),
    [("9.0", None, {}), (None, 32, {}), ("99.0", 32, {}), ("9.0", 32, {"device_name": "AMD Instinct MI250X"})],
)
def test_what_is_not_known_is_null(capability: str | None, registers: int | None, others: dict[str, Any]) -> None:
    row = of_one(capability, 256, registers, 0, **others)
    assert [row[name] for name in ("blocks_per_sm_count", "theoretical_occupancy_ratio", "wave_count", "limiting_resource")] == [None] * 4


def test_a_kernel_that_ran_although_it_could_not_has_no_figure() -> None:
    assert of_one("7.5", 256, 32, 200 * 1024)["blocks_per_sm_count"] is None


def test_launches_of_one_configuration_are_one_row() -> None:
    launch = {"process_id": 1, "device_index": 0, "name_index": 0, "start_ns": 0, "grid_x": 8, "grid_y": 1, "grid_z": 1}
    launch |= {"block_x": 64, "block_y": 4, "block_z": 1, "registers_per_thread": 32, "static_shared_bytes": 0, "dynamic_shared_bytes": 0}
    launches = [launch | {"duration_ns": 30}, launch | {"duration_ns": 10}, launch | {"duration_ns": 60, "grid_x": 16}]
    found = occupancy(trace_of(kernel_launches=launches, trace_names=names("gemm"), trace_devices=[]))
    assert found.select("grid_block_count", "block_thread_count", "launch_count", "duration_sum_ns").rows() == [
        (16, 256, 1, 60),
        (8, 256, 2, 40),
    ]
    assert found["share_ratio"].to_list() == [0.6, 0.4]


def test_every_capability_is_there_once_with_its_source() -> None:
    limits = sm_limits()
    assert limits["compute_capability"].is_unique().all()
    assert limits.null_count().row(0) == (0,) * limits.width


@pytest.mark.parametrize("path", FILES or [SHARED / "none"], ids=lambda path: path.name)
def test_real_kernels_are_as_occupied_as_kineto_estimates(path: Path) -> None:
    """Its estimate is of the blocks that the grid has for each multiprocessor, at most as many as fit."""
    if not path.exists():
        pytest.skip(f"{SHARED} is not there: traces of others are not part of the project")
    events = [
        event["args"] | {"name": event["name"]}
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        if is_estimated(event)
    ]
    if not events:
        pytest.skip(f"{path.name} has no estimates: not of an NVIDIA device")
    found = occupancy(trace_frames(read_trace(TraceFiles(path.name, path, 0)).frames))
    ((sm_count, capability),) = found.select("sm_count", "compute_capability").unique().rows()
    (max_threads,) = sm_limits().filter(pl.col("compute_capability") == capability)["max_threads_per_sm"]
    ours = {
        (row["kernel_name"], row["grid_block_count"], row["block_thread_count"], row["registers_per_thread"], row["shared_bytes"]): row
        for row in found.iter_rows(named=True)
    }
    for event in events:
        blocks, threads = volume(event["grid"]), volume(event["block"])
        row = ours[event["name"], blocks, threads, event["registers per thread"], event["shared memory"]]
        estimated = min(blocks / sm_count, row["blocks_per_sm_count"]) * threads / max_threads
        if event["shared memory"] > DEFAULT_SHARED_BYTES and event["est. achieved occupancy %"] == 0:
            continue  # it asks as if the kernel had not been allowed more
        assert event["est. achieved occupancy %"] == pytest.approx(100 * min(estimated, 1), abs=1), (event, row)


def is_estimated(event: dict[str, Any]) -> bool:
    return str(event.get("cat")).lower() == "kernel" and "est. achieved occupancy %" in event.get("args", {})


def volume(sizes: list[int]) -> int:
    return sizes[0] * sizes[1] * sizes[2]
