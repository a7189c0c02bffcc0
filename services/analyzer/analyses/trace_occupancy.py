"""How much of a multiprocessor the kernels of a trace could fill."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.shares import share_of
from services.analyzer.hardware.sm_limits import THREADS_PER_WARP, sm_limits
from services.analyzer.table import COUNT

_DEVICE: Final = ("process_id", "device_index")
_GRID: Final = ("grid_x", "grid_y", "grid_z")
_BLOCK: Final = ("block_x", "block_y", "block_z")
_SHARED: Final = ("static_shared_bytes", "dynamic_shared_bytes", "shared_bytes")
INPUT: Final = {
    "kernel_launches": (*_DEVICE, "name_index", "duration_ns", *_GRID, *_BLOCK, "registers_per_thread", *_SHARED),
    "trace_names": ("name_index", "name"),
    "trace_devices": (*_DEVICE, "device_name", "compute_capability", "sm_count"),
}

_CONFIGURATION: Final = ("grid_block_count", "block_thread_count", "registers_per_thread", "shared_bytes")
_OF_DEVICE: Final = ("device_name", "compute_capability", "sm_count")

NOT_NVIDIA: Final = r"(?i)\b(amd|radeon|instinct)\b"
"""In names of devices: ROCm numbers its architectures alike, 9.0 and 9.4 among them, and fills them otherwise."""


def trace_occupancy(launches: pl.LazyFrame, names: pl.LazyFrame, devices: pl.LazyFrame) -> pl.LazyFrame:
    """One row per kernel, launch configuration and kind of device, longest in all first: table occupancy.

    As many blocks fit a multiprocessor as its threads, its places for blocks, its registers and its shared memory allow, each
    taken in whole units. That is what NVIDIA's cuda_occupancy.h works out, with the largest share of the memory as shared.

    Args:
        launches, names, devices: the tables kernel_launches, trace_names and trace_devices of one trace.
    """
    count = pl.col(*_GRID, *_BLOCK).cast(COUNT)
    return (
        launches.select(INPUT["kernel_launches"])
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
            share_ratio=share_of(pl.col("duration_sum_ns"), pl.col("duration_sum_ns").sum()),
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
    """Of a block. A warp that is not full takes as much as one that is."""
    return _units(pl.col("block_thread_count"), pl.lit(THREADS_PER_WARP))


def _units(amount: pl.Expr, unit: pl.Expr) -> pl.Expr:
    """Whole ones that hold the amount."""
    return (amount + unit - 1) // unit


def _blocks_per_sm() -> dict[str, pl.Expr]:
    """Blocks that a multiprocessor holds by each resource alone; null where there is no such limit or it is not known."""
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
    """Null where one is missing that would count, and for a kernel that ran although by this it could not."""
    is_known = pl.all_horizontal(pl.col("registers_per_thread", "shared_bytes", "block_thread_count").is_not_null())
    least = pl.min_horizontal(columns)
    return pl.when(is_known & (least > 0)).then(least)


def _limiting_resource() -> pl.Expr:
    """The first of those that allow the fewest blocks: threads where a block more would not fit even so."""
    least = pl.col("blocks_per_sm_count")
    return pl.coalesce(pl.when(pl.col(name) == least).then(pl.lit(name)) for name in _RESOURCES)
