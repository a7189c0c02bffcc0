"""Rows of derived tables are cached by version: whoever changes the rows has to change the version too.

derived_tables.json beside this file has, by table, a digest of its rows for the trace below and the version that they are of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kernalyse.services.analyzer.analysis.traces.timeline import EVENTS_VERSION, timeline_events
from kernalyse.services.analyzer.queries.registry import (
    DERIVED,
    TRACE_DERIVED,
    FileSource,
    Frames,
    QueryParameters,
    RunKind,
    derived_rows,
    resolve_table,
    trace_inputs,
)
from kernalyse.services.analyzer.readers.base import Selection
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import CONFIGURATIONS, COUNTERS, KERNELS, MEASUREMENTS
from tests.unit.analyzer.analysis.test_counted_work import NO_WORK, SASS, counter_rows
from tests.unit.trace_rows import names, trace_of

RECORDED_FILE: Final = Path(__file__).parent / "derived_tables.json"
SWEEP_KERNELS: Final = "kernels of sweeps"
TIMELINE_EVENTS: Final = "timeline_events"

NAMES: Final = (
    "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
    "void cudnn::softmax_fw_kernel<2, float, float>(float)",
    "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "cudaLaunchKernel",
    "cudaStreamSynchronize",
    "Model",
    "Linear_0",
    "aten::mm",
    "aten::add",
    "aten::softmax",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)",
)
OPERATORS: Final = {
    8: ([[512, 1024], [1024, 256]], ["c10::Half", "c10::Half"]),
    9: ([[512, 256], [512, 256], []], ["float", "float", "Scalar"]),
    10: ([[8, 512, 512], [], []], ["float", "Scalar", ""]),
}
"""By place in NAMES: shapes and data types of the inputs."""

STEP_COUNT: Final = 12
STEP_NS: Final = 20_000
PROCESSES: Final = (100, 200)


def trace() -> Frames:
    """Return a trace of two ranks with a GPU each: in each step three operators of a layer, a reduction over both, copies and waits."""
    launches: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    ranges: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    for step in range(STEP_COUNT):
        for rank, process in enumerate(PROCESSES):
            begin = step * STEP_NS + 10_037 * rank  # apart, for rows of a table are in order of start
            thread = {"process_id": process, "thread_id": process + 1}
            device = {"process_id": process, "device_index": rank, "stream_index": 7 + step % 2}
            model = len(ranges)
            for depth, (name, kind) in enumerate(((6, "module"), (7, "module"))):
                parent = model + depth - 1 if depth else None
                ranges.append(
                    thread
                    | {"name_index": name, "kind": kind, "start_ns": begin + depth, "duration_ns": 9_000 - 2 * depth}
                    | {"parent_range_index": parent, "depth": depth, "is_open": False}
                )
            for place, name in enumerate((8, 9, 10)):
                shapes, dtypes = OPERATORS[name]
                ranges.append(
                    thread
                    | {"name_index": name, "kind": "operator", "start_ns": begin + 100 + 1_500 * place, "duration_ns": 1_400}
                    | {"parent_range_index": model + 1, "depth": 2, "is_open": False, "is_backward": step % 3 == 2}
                    | {"input_shapes": json.dumps(shapes), "input_dtypes": json.dumps(dtypes)}
                )
            for place, name in enumerate((0, 1, 2, 3, 11)):
                start_ns = begin + 600 + 1_500 * place + (31 * step) % 7
                calls.append(
                    thread
                    | {"name_index": 4, "start_ns": start_ns - 400, "duration_ns": 120, "correlation_id": len(calls), "return_value": 0}
                )
                launches.append(
                    device
                    | {"name_index": name, "start_ns": start_ns, "duration_ns": 700 + 113 * place + (17 * step + 29 * rank) % 53}
                    | {"correlation_id": len(calls) - 1, "api_call_index": len(calls) - 1, "launch_thread_id": process + 1}
                    | {"launch_start_ns": start_ns - 400, "range_index": model + 1, "layer_source": "module"}
                    | {"operator_index": model + 2 + place if place < 3 else None}
                    | {"grid_x": 64 + step, "grid_y": 2, "grid_z": 1, "block_x": 128, "block_y": 1 + place % 2, "block_z": 1}
                    | {"registers_per_thread": 40 + 16 * place, "static_shared_bytes": 1024, "dynamic_shared_bytes": 4096 * place}
                )
            calls.append(
                thread
                | {"name_index": 5, "start_ns": begin + 7_700, "duration_ns": 900, "correlation_id": len(calls), "return_value": step % 2}
            )
            copies.append(
                device
                | {"kind": "copy" if step % 4 else "set", "direction": "host_to_device" if step % 4 else None}
                | {"start_ns": begin + 8_800, "duration_ns": 400 + step, "bytes": 4096 * (step + 1), "launch_start_ns": begin + 8_700}
            )
    return {
        **trace_of(
            trace_names=names(*NAMES),
            trace_processes=[
                {"process_id": process, "system_process_id": process, "process_name": "python", "rank_index": rank, "world_size": 2}
                | {"host_name": "node", "file_name": f"rank{rank}.json", "session_start_unix_ns": 1_760_000_000 * 10**9 + rank}
                for rank, process in enumerate(PROCESSES)
            ],
            trace_devices=[
                {"process_id": process, "device_index": rank, "device_name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"}
                | {"sm_count": 132, "clock_hz": 1_980_000_000, "memory_bandwidth_bytes_per_s": 3_352_320_000_000}
                for rank, process in enumerate(PROCESSES)
            ],
            kernel_launches=launches,
            api_calls=calls,
            ranges=ranges,
            memory_ops=copies,
            launch_work=[
                {"launch_index": index, "flop": 2.0e6 + index, "bytes": 3.0e5, "l2_bytes": 5.0e5, "l1_bytes": 9.0e5}
                | {"dtype": "fp32", "path": "fma", "work_source": "counters"}
                for index in range(0, len(launches), 5)
            ],
            scopes=[
                {"scope_index": 0, "name_index": 6, "depth": 0},
                {"scope_index": 1, "name_index": 7, "parent_scope_index": 0, "depth": 1},
            ],
            kernel_totals=[
                {"name_index": 0, "scope_index": 1, "process_id": 100, "device_index": 0, "launch_count": 3, "duration_sum_ns": 4_200}
                | {"flop": 6.0e9, "bytes": 1.0e6, "dtype": "fp16"}
            ],
        ),
        "counters": counters(),
    }


def whole_trace() -> FileSource:
    return FileSource({name: frame.collect() for name, frame in trace().items()})


def counters() -> pl.LazyFrame:
    """Return what ncu counted of two launches."""
    values = NO_WORK | {SASS.format("ffma"): 1e6, SASS.format("fadd"): 2e6, "dram__bytes.sum": 64e3, "gpu__time_duration.sum": 5e3}
    rows = [row | {"run_id": "", "event_index": 0} for index in range(2) for row in counter_rows(values, index=index)]
    return frame_from_rows(COUNTERS, rows).lazy()


def kernels_of_sweeps() -> pl.DataFrame:
    """Return what table kernels says of a sweep of two kernels in four configurations."""
    rows = [
        {"configuration_index": index, "kernel_name": ("saxpy", "matmul")[index % 2], "label": "", "parameters": f'{{"n": {index // 2}}}'}
        | {"category": "elementwise", "dtype": "fp32", "flop": 2e6, "bytes": 12e6, "device_id": "cuda:0", "verification_state": "PASSED"}
        | {"duration_median_ns": 5000.0 + 100 * index, "sample_count": 20, "block": "256x1x1", "cache_mode": "COLD"}
        for index in range(4)
    ]
    frames = {table.table_name: frame_from_rows(table, rows) for table in (CONFIGURATIONS, MEASUREMENTS)}
    return resolve_table(KERNELS, FileSource(frames)).collect()


def digest(frames: Iterable[pl.DataFrame]) -> str:
    """Return a digest of names, types and rows. Sums of real numbers may differ in their last digits from machine to machine."""
    found = hashlib.sha256()
    for frame in frames:
        # Categories are numbered as they come.
        plain = frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
        found.update(repr([(name, str(dtype)) for name, dtype in plain.schema.items()]).encode())
        for row in plain.iter_rows():
            found.update(repr([f"{value:.9g}" if isinstance(value, float) else value for value in row]).encode())
    return found.hexdigest()[:16]


def questions(table_name: str) -> list[QueryParameters]:
    of_depth = [] if TRACE_DERIVED[table_name].depth_inputs is None else [QueryParameters(depth=0)]
    return [QueryParameters(pixel_count=20), *of_depth]


def rows(table_name: str) -> list[pl.DataFrame]:
    if table_name == SWEEP_KERNELS:
        return [kernels_of_sweeps()]
    if table_name == TIMELINE_EVENTS:
        return [timeline_events(trace()).collect()]
    return [derived_rows(TRACE_DERIVED[table_name], whole_trace(), parameters).collect() for parameters in questions(table_name)]


VERSIONS: Final = {
    **{name: derived.version for name, derived in TRACE_DERIVED.items()},
    TIMELINE_EVENTS: EVENTS_VERSION,
    SWEEP_KERNELS: next(derived.version for derived in DERIVED["kernels"] if derived.kind is RunKind.MEASUREMENTS),
}
RECORDED: Final[Mapping[str, Mapping[str, Any]]] = json.loads(RECORDED_FILE.read_text()) if RECORDED_FILE.exists() else {}


@pytest.mark.parametrize("table_name", VERSIONS)
def test_other_rows_are_of_another_version(table_name: str) -> None:
    found = {"version": VERSIONS[table_name], "digest": digest(rows(table_name))}
    recorded = RECORDED.get(table_name)
    if recorded == found:
        return
    line = f"{json.dumps(table_name)}: {json.dumps(found)}"
    is_new_version = recorded is None or recorded["version"] != found["version"]
    pytest.fail(
        f"{RECORDED_FILE.name} does not know version {found['version']} of table {table_name} yet. Write into it: {line}"
        if is_new_version
        else f"The rows of table {table_name} have changed, its version has not: rows that stores have cached would stay. Raise the version"
        " beside the table's definition (in services/analyzer/queries/registry.py; EVENTS_VERSION), then run this test again."
    )


@pytest.mark.parametrize("table_name", TRACE_DERIVED)
def test_rows_follow_from_the_columns_that_a_table_names_alone(table_name: str) -> None:
    """Of recorders that keep every launch: readers of the others give all columns."""
    whole = {name: frame.collect() for name, frame in trace().items() if name not in ("kernel_totals", "scopes")}
    for parameters in questions(table_name):
        needed = Selection.of(trace_inputs([table_name], parameters))
        needed = needed.with_work() if needed.wants_costs else needed
        frames = {name: whole[name].select(columns) for name, columns in (needed.columns or {}).items() if name in whole}
        found, wanted = (derived_rows(TRACE_DERIVED[table_name], FileSource(given), parameters).collect() for given in (frames, whole))
        assert_frame_equal(found, wanted, categorical_as_str=True)


def test_every_table_has_rows_to_compare() -> None:
    assert [name for name in VERSIONS if any(frame.is_empty() for frame in rows(name))] == []
    assert set(RECORDED) == set(VERSIONS)
