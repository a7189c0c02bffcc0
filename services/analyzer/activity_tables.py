"""The tables that say of a trace what its devices, its host and its ranks did over time, worked out when somebody asks."""

from __future__ import annotations

from typing import Final

from services.analyzer.table import COUNT, FLAG, INDEX, KERNEL_NAME, NUMBER, TEXT, Column
from services.analyzer.table import keyed_table as _table
from services.analyzer.timeline_tables import WINDOWED_TABLES
from services.analyzer.trace_tables import (
    BUSY_COLUMNS,
    DEVICE_INDEX,
    DEVICE_NAME,
    DIRECTION,
    FILE_NAME,
    HOST_NAME,
    OP_KIND,
    PROCESS_ID,
    REGISTERS_PER_THREAD,
    SM_COUNT,
    START_NS,
)

GAPS: Final = _table(
    "gaps",
    "One row per stretch in which a device ran no kernel, between the first start and the last end of its work, longest first.",
    PROCESS_ID,
    DEVICE_INDEX,
    START_NS,
    Column("duration_ns", COUNT, "Until the next kernel started, or the work ended."),
    Column(
        "reason",
        TEXT,
        "memory: copies or fills went on for at least half of it. unknown: no kernel comes next, or not the call that launched it. "
        "launch_latency: at most half of it went by before that call. Else what that call's thread did most before it: sync, in "
        "calls that wait; api_call, in others; host_busy, in none.",
    ),
    Column("kernel_before", TEXT, "Whose end began it; null: none ran before."),
    Column("kernel_after", TEXT, "Whose start ended it; null: none ran after."),
    Column("call", TEXT, "Of sync and api_call the call that took most of it, else the one that launched the kernel after."),
    Column("layer", TEXT, "Innermost range or module that launched the kernel after."),
    Column("thread_id", COUNT, "Thread that launched the kernel after."),
    Column("host_ns", COUNT, "Of it, before that launch; null: not known, as the next two."),
    Column("sync_ns", COUNT, "Of host_ns, that thread was in calls that wait for a device."),
    Column("api_ns", COUNT, "Of host_ns, it was in other calls."),
    Column("memory_ns", COUNT, "Of it, a copy or fill of the device went on."),
)

GAP_REASONS: Final = _table(
    "gap_reasons",
    "One row per process, device and reason: gaps summed, of each device the most time first.",
    PROCESS_ID,
    DEVICE_INDEX,
    Column("reason", TEXT, "As in table gaps."),
    Column("gap_count", COUNT, "Stretches without a kernel."),
    Column("duration_sum_ns", COUNT, "Of these."),
    Column("share_ratio", NUMBER, "Of the device's time without a kernel."),
    Column("duration_median_ns", NUMBER, "Of one."),
    Column("duration_max_ns", COUNT, "Of the longest."),
)

LAUNCHES: Final = _table(
    "launches",
    "One row per kernel name: how its launches came to the device, most launches first.",
    KERNEL_NAME,
    Column("launch_count", COUNT, "Executions."),
    Column("call_duration_median_ns", NUMBER, "Of the calls that launched them: what a launch costs its thread."),
    Column("queue_delay_median_ns", NUMBER, "From the start of the call to the start of the kernel; null: no calls are known."),
    Column("queue_delay_p95_ns", NUMBER, "The same: 19 of 20 are no longer."),
    Column("queue_delay_max_ns", COUNT, "The same: the longest."),
    Column("short_count", COUNT, "Of launch_count, shorter than 10 microseconds: what a launch may cost the host."),
    Column("short_share_ratio", NUMBER, "Of launch_count."),
    Column("graph_kernel_count", COUNT, "Of launch_count, run by a graph."),
    Column("graph_launch_count", COUNT, "Calls that launched a graph with it; without the call it is not counted."),
    Column("launches_per_graph_count", NUMBER, "Its executions for each of these, on average."),
)

MEMORY: Final = _table(
    "memory",
    "One row per process, device, kind and direction of copies and fills, of each device the most time first.",
    PROCESS_ID,
    DEVICE_INDEX,
    DEVICE_NAME,
    OP_KIND,
    DIRECTION,
    Column("op_count", COUNT, "Copies or fills."),
    Column("bytes_sum", COUNT, "Moved or written."),
    Column("duration_sum_ns", COUNT, "Time of these, overlap counted twice."),
    Column("duration_median_ns", NUMBER, "Of one."),
    Column("achieved_bytes_per_s", NUMBER, "Bytes over time, of those whose bytes are known."),
    Column(
        "bandwidth_ratio",
        NUMBER,
        "Of the device's memory bandwidth, a copy within the device counted twice; null: not known, or to the host.",
    ),
    Column("small_op_count", COUNT, "Of less than 64 KiB: their time is that of starting, not of moving."),
)

OCCUPANCY: Final = _table(
    "occupancy",
    "One row per kernel, launch configuration and device: how much of a multiprocessor it can fill, longest in all first.",
    KERNEL_NAME,
    DEVICE_NAME,
    Column("compute_capability", TEXT, "E.g. 9.0; of an unknown one nothing is known below."),
    SM_COUNT,
    Column("grid_block_count", COUNT, "Blocks of the grid."),
    Column("block_thread_count", COUNT, "Threads of a block."),
    REGISTERS_PER_THREAD,
    Column("shared_bytes", COUNT, "Of a block, static and dynamic."),
    Column("launch_count", COUNT, "Executions."),
    Column("duration_sum_ns", COUNT, "Of these."),
    Column("share_ratio", NUMBER, "Of the device time of all kernels."),
    Column("blocks_per_sm_count", INDEX, "Blocks that a multiprocessor holds at once."),
    Column("theoretical_occupancy_ratio", NUMBER, "Their warps over the most that a multiprocessor holds."),
    Column(
        "wave_count",
        NUMBER,
        "Grid over what all multiprocessors hold at once; a last wave that is hardly begun costs as much as a full one.",
    ),
    Column("limiting_resource", TEXT, "Why not more: threads, blocks, registers or shared_memory."),
)

RANK_INDEX: Final = Column("rank_index", INDEX, "Among the processes of a distributed job, from 0; null: the trace does not say.")

COLLECTIVES: Final = _table(
    "collectives",
    "One row per collective operation and rank that took part, in order of time. Kernels of a communication library are matched by "
    "name and order within their rank; clocks are aligned as table ranks says.",
    Column("collective_index", INDEX, "In order of its first start, from 0."),
    KERNEL_NAME,
    Column("rank_count", INDEX, "Ranks that took part."),
    RANK_INDEX,
    PROCESS_ID,
    DEVICE_INDEX,
    Column("start_ns", COUNT, "By the clock of the first rank."),
    Column("duration_ns", COUNT, "Of its kernel, waiting included."),
    Column("late_ns", COUNT, "It started so long after the first rank did."),
    Column("wait_ns", COUNT, "It started so long before the last rank did: time that its kernel waited."),
    Column("wait_ratio", NUMBER, "Of its duration."),
    Column("end_spread_ns", COUNT, "Between the first and the last end: what is left of the clocks' difference, or of the matching."),
    Column("is_straggler", FLAG, "It started last."),
)

RANKS: Final = _table(
    "ranks",
    "One row per rank, a process with one of its devices: what it did, and how long it waited for others.",
    RANK_INDEX,
    PROCESS_ID,
    DEVICE_INDEX,
    DEVICE_NAME,
    HOST_NAME,
    FILE_NAME,
    Column("span_ns", COUNT, "As in table breakdown, and so the next five."),
    *BUSY_COLUMNS,
    Column("overlap_ns", COUNT, "Both at once."),
    Column("collective_count", COUNT, "Operations that other ranks are known to have taken part in."),
    Column("wait_ns", COUNT, "Of communication_ns, kernels of these waited for the last rank; null: there are none."),
    Column("straggler_count", COUNT, "Of collective_count, it was the last to start."),
    Column(
        "clock_source",
        TEXT,
        "shared: its clock is that of the first rank. collectives: aligned by the ends of operations that both took part in. session: "
        "only by when its session began.",
    ),
    Column("clock_offset_ns", COUNT, "Its clock was ahead by that much, which its times in table collectives are without."),
    Column("clock_residual_ns", NUMBER, "How well clocks agree: median of end_spread_ns of its collectives."),
)

ACTIVITY_TABLES: Final = (GAPS, GAP_REASONS, LAUNCHES, MEMORY, OCCUPANCY, COLLECTIVES, RANKS, *WINDOWED_TABLES)
