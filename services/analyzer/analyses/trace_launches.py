"""How the kernels of a trace came to their devices."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.table import COUNT

INPUT: Final = {
    "kernel_launches": ("name_index", "start_ns", "duration_ns", "api_call_index", "launch_start_ns", "graph_node_id"),
    "api_calls": ("name_index", "duration_ns"),
    "trace_names": ("name_index", "name"),
}

SHORT_NS: Final = 10_000
"""To launch a kernel costs the host two to ten microseconds. Kernels that take less than that leave the device waiting for
the host, however fast they are: they gain from being fused or put into a graph, and longer ones do not."""

GRAPH_CALL: Final = "GraphLaunch"


def trace_launches(launches: pl.LazyFrame, calls: pl.LazyFrame, names: pl.LazyFrame) -> pl.LazyFrame:
    """One row per name, most launches first: table launches.

    Args:
        launches, calls, names: the tables kernel_launches, api_calls and trace_names of one trace, api_calls in order of
            call_index.
    """
    delay_ns = pl.col("queue_delay_ns")
    return (
        launches.select(INPUT["kernel_launches"])
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
    """Kernels with what is known of their calls. A call's index is its row: to look it up takes no join."""
    call_names, call_durations = calls.select("name_index", "duration_ns").collect()
    is_graph_call = names.select(pl.col("name").str.contains(GRAPH_CALL)).collect().to_series()
    of_call = is_graph_call.gather(call_names.gather(kernels["api_call_index"]))
    return kernels.select(
        *("name_index", "duration_ns", "api_call_index"),
        queue_delay_ns=pl.col("start_ns") - pl.col("launch_start_ns"),
        call_duration_ns=call_durations.gather(kernels["api_call_index"]),
        is_of_graph=of_call.fill_null(False) | kernels["graph_node_id"].is_not_null(),
    )
