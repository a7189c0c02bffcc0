"""Summaries of a trace by kernel name: times, launches and occupancy; of its memory operations; and of its counters' coverage."""

from __future__ import annotations

from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.expressions import null_safe_ratio
from kernalyse.services.analyzer.hardware.datasheets import THREADS_PER_WARP, sm_limits
from kernalyse.services.analyzer.tables.base import COUNT, NUMBER
from kernalyse.services.core.costs.operator import MODELLED

# ---------------------------------------------------------------- kernels

KERNELS_INPUT: Final = {"kernel_launches": ("name_index", "duration_ns"), "trace_names": ("name_index", "name")}
"""Required columns of `trace_kernels`, by table."""


def trace_kernels(launches: pl.LazyFrame, names: pl.LazyFrame) -> pl.LazyFrame:
    """Return the metrics of table kernels: one row per name, the longest total first.

    Args:
        launches, names: the tables kernel_launches and trace_names of one trace.
    """
    duration_ns = pl.col("duration_ns")
    return (
        launches.group_by("name_index")
        .agg(
            launch_count=pl.len().cast(COUNT),
            duration_sum_ns=duration_ns.sum(),
            duration_min_ns=duration_ns.min(),
            duration_median_ns=duration_ns.median(),
            duration_max_ns=duration_ns.max(),
        )
        .join(names.select("name_index", kernel_name="name"), on="name_index", how="left")
        .with_columns(duration_sum_ns=pl.when(pl.col("duration_min_ns").is_not_null()).then("duration_sum_ns"))  # the sum of nulls is 0
        .with_columns(share_ratio=null_safe_ratio(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum()))
        .sort("duration_sum_ns", "kernel_name", descending=[True, False])
        .select("kernel_name", "launch_count", "duration_sum_ns", "share_ratio", "duration_min_ns", "duration_median_ns", "duration_max_ns")
    )


# ---------------------------------------------------------------- launches

LAUNCHES_INPUT: Final = {
    "kernel_launches": ("name_index", "start_ns", "duration_ns", "api_call_index", "launch_start_ns", "graph_node_id"),
    "api_calls": ("name_index", "duration_ns"),
    "trace_names": ("name_index", "name"),
}

SHORT_NS: Final = 10_000
"""Launching a kernel costs the host two to ten microseconds. Shorter kernels leave the device waiting for the host, so they gain
from fusion or CUDA graphs; longer ones do not."""

GRAPH_CALL: Final = "GraphLaunch"


def trace_launches(launches: pl.LazyFrame, calls: pl.LazyFrame, names: pl.LazyFrame) -> pl.LazyFrame:
    """Return table launches: one row per name, most launches first.

    Args:
        launches, calls, names: the tables kernel_launches, api_calls and trace_names of one trace, api_calls in order of
            call_index.
    """
    delay_ns = pl.col("queue_delay_ns")
    return (
        launches.select(LAUNCHES_INPUT["kernel_launches"])
        .map_batches(lambda kernels: _with_calls(kernels, calls, names), schema=WITH_CALLS)
        .group_by("name_index")
        .agg(
            launch_count=pl.len().cast(COUNT),
            call_duration_median_ns=pl.col("call_duration_ns").median(),
            queue_delay_median_ns=delay_ns.median(),
            queue_delay_p95_ns=delay_ns.quantile(0.95, "linear"),
            queue_delay_max_ns=delay_ns.max(),
            short_count=(pl.col("duration_ns") < SHORT_NS).sum().cast(COUNT),
            graph_kernel_count=pl.col("is_of_graph").sum().cast(COUNT),
            graph_launch_count=pl.col("api_call_index").filter("is_of_graph").drop_nulls().n_unique().cast(COUNT),
            kernels_with_call=pl.col("is_of_graph").filter(pl.col("api_call_index").is_not_null()).sum().cast(COUNT),
        )
        .join(names.select("name_index", kernel_name="name"), on="name_index", how="left")
        .sort("launch_count", "kernel_name", descending=[True, False])
        .select(
            *("kernel_name", "launch_count", "call_duration_median_ns", "queue_delay_median_ns", "queue_delay_p95_ns"),
            *("queue_delay_max_ns", "short_count"),
            short_share_ratio=pl.col("short_count") / pl.col("launch_count"),
            graph_kernel_count="graph_kernel_count",
            graph_launch_count="graph_launch_count",
            launches_per_graph_count=pl.when(pl.col("graph_launch_count") > 0).then(
                pl.col("kernels_with_call") / pl.col("graph_launch_count")
            ),
        )
    )


WITH_CALLS: Final = {
    "name_index": pl.Int32,
    "duration_ns": COUNT,
    "api_call_index": pl.Int32,
    "queue_delay_ns": COUNT,
    "call_duration_ns": COUNT,
    "is_of_graph": pl.Boolean,
}


def _with_calls(kernels: pl.DataFrame, calls: pl.LazyFrame, names: pl.LazyFrame) -> pl.DataFrame:
    """Return kernels with the duration of their calls, their delay in the queue, and whether they are of a CUDA graph.

    A call's index is its row, so no join is needed.
    """
    call_names, call_durations = calls.select("name_index", "duration_ns").collect()
    is_graph_call = names.select(pl.col("name").str.contains(GRAPH_CALL)).collect().to_series()
    of_call = is_graph_call.gather(call_names.gather(kernels["api_call_index"]))
    return kernels.select(
        *("name_index", "duration_ns", "api_call_index"),
        queue_delay_ns=pl.col("start_ns") - pl.col("launch_start_ns"),
        call_duration_ns=call_durations.gather(kernels["api_call_index"]),
        is_of_graph=of_call.fill_null(False) | kernels["graph_node_id"].is_not_null(),
    )


# ---------------------------------------------------------------- memory operations

_DEVICE: Final = ("process_id", "device_index")
MEMORY_INPUT: Final = {
    "memory_ops": (*_DEVICE, "kind", "direction", "duration_ns", "bytes"),
    "trace_devices": (*_DEVICE, "device_name", "memory_bandwidth_bytes_per_s"),
}

SMALL_BYTES: Final = 64 * 1024
"""Below it the fixed cost of one or two microseconds per operation outweighs the transfer, on PCIe and more so within a device:
such operations gain from being batched. Far larger ones run at the bandwidth already."""

NS_PER_S: Final = 1_000_000_000
DEVICE_TRAFFIC: Final = {"set": 1, "device_to_device": 2}
"""Accesses to device memory per byte: a copy within the device reads and writes. Between host and device the link is the limit,
which no trace describes."""


def trace_memory(memory_ops: pl.LazyFrame, devices: pl.LazyFrame) -> pl.LazyFrame:
    """Return table memory: one row per process, device, kind and direction, per device the longest total first.

    Args:
        memory_ops, devices: the tables memory_ops and trace_devices of one trace.
    """
    timed = pl.col("duration_ns") > 0
    accesses = pl.coalesce("direction", "kind").replace_strict(DEVICE_TRAFFIC, default=None, return_dtype=NUMBER)
    rate = pl.col("timed_bytes") / pl.col("timed_ns") * NS_PER_S
    return (
        memory_ops.group_by(*_DEVICE, "kind", "direction")
        .agg(
            op_count=pl.len().cast(COUNT),
            bytes_sum=_sum("bytes"),
            duration_sum_ns=pl.col("duration_ns").sum(),
            duration_median_ns=pl.col("duration_ns").median(),
            small_op_count=(pl.col("bytes") < SMALL_BYTES).sum().cast(COUNT),
            # Both sums are over the same operations: unknown bytes would count as 0.
            timed_bytes=pl.col("bytes").filter(timed).sum(),
            timed_ns=pl.col("duration_ns").filter(timed & pl.col("bytes").is_not_null()).sum(),
        )
        .with_columns(achieved_bytes_per_s=pl.when(pl.col("timed_ns") > 0).then(rate))
        .join(devices.select(*_DEVICE, "device_name", "memory_bandwidth_bytes_per_s"), on=_DEVICE, how="left", nulls_equal=True)
        .with_columns(bandwidth_ratio=accesses * pl.col("achieved_bytes_per_s") / pl.col("memory_bandwidth_bytes_per_s"))
        .sort(*_DEVICE, "duration_sum_ns", "kind", "direction", descending=[False, False, True, False, False], nulls_last=True)
        .select(
            *(*_DEVICE, "device_name", "kind", "direction", "op_count", "bytes_sum", "duration_sum_ns", "duration_median_ns"),
            *("achieved_bytes_per_s", "bandwidth_ratio", "small_op_count"),
        )
    )


def _sum(column: str) -> pl.Expr:
    """Return the sum of the known values; null if none is known."""
    return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum())


# ---------------------------------------------------------------- theoretical occupancy

_GRID: Final = ("grid_x", "grid_y", "grid_z")
_BLOCK: Final = ("block_x", "block_y", "block_z")
_SHARED: Final = ("static_shared_bytes", "dynamic_shared_bytes", "shared_bytes")
OCCUPANCY_INPUT: Final = {
    "kernel_launches": (*_DEVICE, "name_index", "duration_ns", *_GRID, *_BLOCK, "registers_per_thread", *_SHARED),
    "trace_names": ("name_index", "name"),
    "trace_devices": (*_DEVICE, "device_name", "compute_capability", "sm_count"),
}

_CONFIGURATION: Final = ("grid_block_count", "block_thread_count", "registers_per_thread", "shared_bytes")
_OF_DEVICE: Final = ("device_name", "compute_capability", "sm_count")

NOT_NVIDIA: Final = r"(?i)\b(amd|radeon|instinct)\b"
"""Names of devices of other vendors: ROCm's architecture numbers, 9.0 and 9.4 among them, look like compute capabilities."""


def trace_occupancy(launches: pl.LazyFrame, names: pl.LazyFrame, devices: pl.LazyFrame) -> pl.LazyFrame:
    """Return table occupancy: one row per kernel, launch configuration and kind of device, the longest total first.

    The blocks per multiprocessor are limited by threads, block slots, registers and shared memory, each allocated in multiples of
    its unit. Source: NVIDIA's cuda_occupancy.h, with the largest carve-out of shared memory.

    Args:
        launches, names, devices: the tables kernel_launches, trace_names and trace_devices of one trace.
    """
    count = pl.col(*_GRID, *_BLOCK).cast(COUNT)
    return (
        launches.select(OCCUPANCY_INPUT["kernel_launches"])
        .with_columns(count)
        .group_by(*_DEVICE, "name_index", *_GRID, *_BLOCK, "registers_per_thread", *_SHARED)
        .agg(launch_count=pl.len().cast(COUNT), duration_sum_ns=pl.col("duration_ns").sum())
        .with_columns(
            grid_block_count=_product(_GRID),
            block_thread_count=_product(_BLOCK),
            shared_bytes=pl.coalesce("shared_bytes", pl.col("static_shared_bytes") + pl.col("dynamic_shared_bytes")),
        )
        .join(devices.select(*_DEVICE, *_OF_DEVICE), on=_DEVICE, how="left", nulls_equal=True)
        .group_by("name_index", *_OF_DEVICE, *_CONFIGURATION)
        .agg(pl.col("launch_count", "duration_sum_ns").sum())
        .join(_known_limits(), on="compute_capability", how="left")
        .with_columns(pl.when(~pl.col("device_name").str.contains(NOT_NVIDIA).fill_null(False)).then(pl.col(_LIMIT_COLUMNS)))
        .with_columns(**_blocks_per_sm())
        .with_columns(blocks_per_sm_count=_least(*_RESOURCES))
        .join(names.select("name_index", kernel_name="name"), on="name_index", how="left")
        .select(
            *("kernel_name", *_OF_DEVICE, *_CONFIGURATION, "launch_count", "duration_sum_ns", "blocks_per_sm_count"),
            share_ratio=null_safe_ratio(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum()),
            limiting_resource=_limiting_resource(),
            theoretical_occupancy_ratio=pl.col("blocks_per_sm_count") * _warps() * THREADS_PER_WARP / pl.col("max_threads_per_sm"),
            wave_count=pl.col("grid_block_count") / (pl.col("blocks_per_sm_count") * pl.col("sm_count")),
        )
        .sort("duration_sum_ns", "kernel_name", *_CONFIGURATION, descending=[True, *[False] * 5])
    )


_RESOURCES: Final = ("threads", "blocks", "registers", "shared_memory")
_LIMIT_COLUMNS: Final = (
    *("max_threads_per_sm", "max_blocks_per_sm", "registers_per_sm", "shared_bytes_per_sm", "reserved_shared_bytes_per_block"),
    *("shared_unit_bytes", "register_unit_count", "partition_count"),
)


def _known_limits() -> pl.LazyFrame:
    return sm_limits().lazy().drop("source")


def _product(columns: tuple[str, str, str]) -> pl.Expr:
    first, second, third = (pl.col(column) for column in columns)
    return first * second * third


def _warps() -> pl.Expr:
    """Return the warps of a block. A partial warp takes as much as a full one."""
    return _units(pl.col("block_thread_count"), pl.lit(THREADS_PER_WARP))


def _units(amount: pl.Expr, unit: pl.Expr) -> pl.Expr:
    """Return the number of units that hold the amount, rounded up."""
    return (amount + unit - 1) // unit


def _blocks_per_sm() -> dict[str, pl.Expr]:
    """Return the blocks per multiprocessor that each resource alone allows; null where there is no limit or it is not known."""
    warp_registers = _units(pl.col("registers_per_thread") * THREADS_PER_WARP, pl.col("register_unit_count")) * pl.col(
        "register_unit_count"
    )
    partition_warps = pl.col("registers_per_sm") // pl.col("partition_count") // warp_registers
    shared = pl.col("shared_bytes") + pl.col("reserved_shared_bytes_per_block")
    taken = _units(shared, pl.col("shared_unit_bytes")) * pl.col("shared_unit_bytes")
    return {
        "threads": pl.col("max_threads_per_sm") // THREADS_PER_WARP // _warps(),
        "blocks": pl.col("max_blocks_per_sm"),
        "registers": pl.when(pl.col("registers_per_thread") > 0).then(partition_warps * pl.col("partition_count") // _warps()),
        "shared_memory": pl.when(taken > 0).then(pl.col("shared_bytes_per_sm") // taken),
    }


def _least(*columns: str) -> pl.Expr:
    """Return the least limit; null if an input is missing, and if it is 0 for a kernel that ran nevertheless."""
    is_known = pl.all_horizontal(pl.col("registers_per_thread", "shared_bytes", "block_thread_count").is_not_null())
    least = pl.min_horizontal(columns)
    return pl.when(is_known & (least > 0)).then(least)


def _limiting_resource() -> pl.Expr:
    """Return the first of the resources that allow the fewest blocks."""
    least = pl.col("blocks_per_sm_count")
    return pl.coalesce(pl.when(pl.col(name) == least).then(pl.lit(name)) for name in _RESOURCES)


# ---------------------------------------------------------------- counter coverage

COVERAGE_INPUT: Final = {
    "kernel_launches": ("launch_index", "duration_ns"),
    "launch_work": ("launch_index", "work_source"),
}


def counter_coverage(launches: pl.LazyFrame, launch_work: pl.LazyFrame) -> pl.LazyFrame:
    """Return table counter_coverage: one row per source of counted costs, and one for launches without.

    Args:
        launches, launch_work: the tables kernel_launches and launch_work of one trace.
    """
    duration_ns = pl.col("duration_ns")
    return (
        launches.select("launch_index", "duration_ns")
        .join(launch_work.filter(pl.col("work_source") != MODELLED).select("launch_index", "work_source"), on="launch_index", how="left")
        .group_by("work_source")
        .agg(launch_count=pl.len().cast(COUNT), duration_sum_ns=pl.when(duration_ns.count() > 0).then(duration_ns.sum()))
        .with_columns(
            launch_ratio=pl.col("launch_count") / pl.col("launch_count").sum(),
            duration_ratio=null_safe_ratio(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum()),
        )
        .sort("work_source", nulls_last=True)
        .select("work_source", "launch_count", "launch_ratio", "duration_sum_ns", "duration_ratio")
    )
