"""Tables of traces: host and device events as other tools recorded them, their activity and their timeline.

They are made for ten million rows: a name is stored once, in trace_names, and rows refer to it by index. Readers give the rows of
each table in order of start; in a run of several files those of one file follow those of the other. launch_index, call_index, range_index
and op_index are row numbers. Times are int64 nanoseconds since the start of the session, on one clock for all of a run.
"""

from __future__ import annotations

from typing import Final

from kernalyse.services.analyzer.tables.base import COUNT, FLAG, INDEX, KERNEL_NAME, NUMBER, TEXT, Column
from kernalyse.services.analyzer.tables.base import keyed_table as _table

# ---------------------------------------------------------------- recorded events

BY_START: Final = "From 0, in order of start; of a run of several files, one file after the other."
NAME_INDEX: Final = Column("name_index", INDEX, "Row of trace_names.")
PROCESS_ID: Final = Column("process_id", COUNT, "Process, unique within the run: a row of trace_processes.")
DEVICE_INDEX: Final = Column("device_index", INDEX, "Device as its process numbers it, from 0.")
DEVICE_NAME: Final = Column("device_name", TEXT, "Name of the product.")
OP_KIND: Final = Column("kind", TEXT, "copy or set.")
DIRECTION: Final = Column("direction", TEXT, "E.g. host_to_device; null: of a fill, or not known.")
HOST_DEVICE: Final = "CPU"
"""device_name of the processor, in traces of programs that used no other device."""

HOST_NAME: Final = Column("host_name", TEXT, "Machine that it ran on.")
FILE_NAME: Final = Column("file_name", TEXT, "File of the run that it comes from.")
SM_COUNT: Final = Column("sm_count", INDEX, "Multiprocessors.")
REGISTERS_PER_THREAD: Final = Column("registers_per_thread", INDEX, "Allocated.")
BUSY_COLUMNS: Final = (
    Column("busy_ns", COUNT, "At least one kernel ran."),
    Column("idle_ns", COUNT, "No kernel ran."),
    Column("compute_ns", COUNT, "At least one kernel ran that is not of a communication library."),
    Column("communication_ns", COUNT, "At least one kernel of a communication library ran."),
)
STREAM_INDEX: Final = Column("stream_index", COUNT, "Stream as the recorder numbers it; unique within its process and device.")
THREAD_ID: Final = Column("thread_id", COUNT, "Thread as the system numbers it.")
START_NS: Final = Column("start_ns", COUNT, "Since the start of the session.")
DURATION_NS: Final = Column("duration_ns", COUNT, "End less start.")
CORRELATION_ID: Final = Column(
    "correlation_id", COUNT, "Equal for a call and the device work that it started; unique within its process only."
)
LAUNCH_START_NS: Final = Column("launch_start_ns", COUNT, "Start of the call that launched it; null: no such call was recorded.")

LAUNCH_INDEX: Final = Column("launch_index", INDEX, BY_START)

TRACE_NAMES: Final = _table(
    "trace_names",
    "Every name of a trace once: kernels, calls, ranges, scopes, domains.",
    NAME_INDEX,
    Column("name", TEXT, "As recorded; kernels demangled."),
)

TRACE_PROCESSES: Final = _table(
    "trace_processes",
    "One row per process of a trace.",
    PROCESS_ID,
    Column("system_process_id", COUNT, "As its system numbers it: processes of several machines may share one."),
    Column("process_name", TEXT, "Of its program."),
    Column("rank_index", INDEX, "Among the processes of a distributed job, from 0."),
    Column("world_size", INDEX, "Processes of that job."),
    HOST_NAME,
    FILE_NAME,
    Column("session_start_unix_ns", COUNT, "Origin of its times, nanoseconds since the Unix epoch by the clock of its machine."),
    Column(
        "clock_offset_ns",
        COUNT,
        "Taken off its times when the ranks of a job were joined: how far its clock was ahead of the first rank's in the middle of the "
        "collective operations; null: nothing was.",
    ),
)

TRACE_DEVICES: Final = _table(
    "trace_devices",
    "One row per process and device that it used; a device that several processes used has several.",
    DEVICE_INDEX,
    PROCESS_ID,
    DEVICE_NAME,
    Column("compute_capability", TEXT, "E.g. 9.0."),
    SM_COUNT,
    Column("clock_hz", COUNT, "Highest SM clock."),
    Column("memory_bandwidth_bytes_per_s", COUNT, "Of the device memory, as the driver states it."),
    Column("memory_bytes", COUNT, "Of the device."),
    Column("uuid", TEXT, "Of the device."),
)

KERNEL_LAUNCHES: Final = _table(
    "kernel_launches",
    "One row per execution of a kernel.",
    LAUNCH_INDEX,
    NAME_INDEX,
    PROCESS_ID,
    DEVICE_INDEX,
    STREAM_INDEX,
    Column("start_ns", COUNT, "Since the start of the session; null: not recorded, as in reports of ncu."),
    Column("duration_ns", COUNT, "End less start; null: not counted."),
    CORRELATION_ID,
    Column("api_call_index", INDEX, "Call that launched it; null: none was recorded, as for most kernels inside a CUDA graph."),
    Column("launch_thread_id", COUNT, "Thread of that call."),
    LAUNCH_START_NS,
    Column("range_index", INDEX, "Innermost range at the launch; parent_range_index leads to the ranges that enclose it."),
    Column("operator_index", INDEX, "Row of ranges: innermost operator at the launch, whose shapes give the kernel's costs; null: none."),
    Column("layer_source", TEXT, "How range_index was found: module, range, forward, graph, node or guessed; null: there is no range."),
    Column("graph_node_id", COUNT, "Node of the CUDA graph that ran it."),
    Column("process_group", TEXT, "Of a collective: name of the group of ranks that takes part; null: none, or not recorded."),
    Column("grid_x", COUNT, "Blocks."),
    Column("grid_y", INDEX, "Blocks."),
    Column("grid_z", INDEX, "Blocks."),
    Column("block_x", INDEX, "Threads."),
    Column("block_y", INDEX, "Threads."),
    Column("block_z", INDEX, "Threads."),
    REGISTERS_PER_THREAD,
    Column("static_shared_bytes", COUNT, "Per block."),
    Column("dynamic_shared_bytes", COUNT, "Per block."),
    Column("shared_bytes", COUNT, "Per block, where the recorder states only the sum of both; null: it states them separately."),
)

API_CALLS: Final = _table(
    "api_calls",
    "One row per call of the runtime or the driver.",
    Column("call_index", INDEX, BY_START),
    NAME_INDEX,
    PROCESS_ID,
    THREAD_ID,
    START_NS,
    DURATION_NS,
    CORRELATION_ID,
    Column("return_value", INDEX, "0: success."),
)

RANGES: Final = _table(
    "ranges",
    "One row per named interval of a host thread: NVTX ranges, modules, operators, annotations.",
    Column("range_index", INDEX, f"{BY_START} Of ranges with equal starts the longer one is first."),
    NAME_INDEX,
    Column("domain_name_index", INDEX, "Row of trace_names: the NVTX domain; null: the default one."),
    Column("kind", TEXT, "push_pop, start_end, module, operator or annotation."),
    PROCESS_ID,
    THREAD_ID,
    START_NS,
    Column("duration_ns", COUNT, "End less start; of a range that was still open, until the end of the session."),
    Column("is_open", FLAG, "Not ended when the recording did; no kernel counts as inside it."),
    Column("parent_range_index", INDEX, "Innermost range of the thread that encloses it; null: none."),
    Column("depth", INDEX, "Number of ranges that enclose it, by parent_range_index."),
    Column("sequence_number", COUNT, "Autograd's sequence number, which a forward operator and its backward operator share."),
    Column("is_backward", FLAG, "Of the backward pass; null: not known."),
    Column("flop", NUMBER, "Floating-point operations of one call, as the recorder counts them."),
    Column("input_shapes", TEXT, "JSON, as recorded."),
    Column("input_dtypes", TEXT, "JSON, as recorded."),
    Column("input_values", TEXT, "JSON, as recorded: of inputs that are no tensors, as strides and dimensions."),
)

MEMORY_OPS: Final = _table(
    "memory_ops",
    "One row per copy or fill that a device executed.",
    Column("op_index", INDEX, BY_START),
    OP_KIND,
    DIRECTION,
    PROCESS_ID,
    DEVICE_INDEX,
    STREAM_INDEX,
    START_NS,
    DURATION_NS,
    Column("bytes", COUNT, "Moved or written."),
    CORRELATION_ID,
    LAUNCH_START_NS,
)

LAUNCH_WORK: Final = _table(
    "launch_work",
    "One row per launch whose costs the trace itself gives: by hardware counters of a report of ncu that was read with it or"
    " is it, or by the shapes of a node of ONNX Runtime.",
    LAUNCH_INDEX,
    Column("flop", NUMBER, "Of all data types and paths together; null: some of it is not known."),
    Column("bytes", NUMBER, "To and from device memory; null: not counted."),
    Column("l2_bytes", NUMBER, "Out of the L2 cache; null: not counted."),
    Column("l1_bytes", NUMBER, "Out of the L1 cache; null: not counted."),
    Column("dtype", TEXT, "Data type of most of the flop; null: there is none."),
    Column("path", TEXT, "fma or tensor: path of most of it."),
    Column(
        "work_source",
        TEXT,
        "counters: its own; counters of the same launch configuration: of the launch that it repeats, else the mean of its kernel's; "
        "op model: shapes.",
    ),
)

SCOPES: Final = _table(
    "scopes",
    "One row per path of names under which a recorder keeps sums instead of single events.",
    Column("scope_index", INDEX, "From 0; enclosing scopes come first."),
    NAME_INDEX,
    Column("parent_scope_index", INDEX, "Enclosing scope; null: none."),
    Column("depth", INDEX, "Number of enclosing scopes."),
)

KERNEL_TOTALS: Final = _table(
    "kernel_totals",
    "One row per kernel and scope of a recorder that keeps only sums over launches, such as Triton's Proton.",
    NAME_INDEX,
    Column("scope_index", INDEX, "Innermost scope; null: none."),
    PROCESS_ID,
    DEVICE_INDEX,
    Column("launch_count", COUNT, "Executions."),
    Column("duration_sum_ns", COUNT, "Device time of these; null: not recorded."),
    Column("flop", NUMBER, "Of these together; null: not stated."),
    Column("bytes", NUMBER, "Of these together; null: not stated."),
    Column("dtype", TEXT, "Data type of all the flop, by the stated width; null: several, or not stated."),
)

_OF_DEVICE: Final = ("process_id", "device_index")
COST_INPUT_COLUMNS: Final = {
    "kernel_launches": ("name_index", "duration_ns", "api_call_index", "operator_index", "range_index", "layer_source", *_OF_DEVICE),
    "ranges": ("name_index", "parent_range_index", "flop", "input_shapes", "input_dtypes", "input_values"),
    "trace_names": ("name_index", "name"),
    "trace_devices": (*_OF_DEVICE, "device_name", "compute_capability", "sm_count", "clock_hz", "memory_bandwidth_bytes_per_s"),
    "launch_work": ("launch_index", "flop", "bytes", "dtype", "path", "work_source"),
}
"""Columns by table that the costs of a trace's launches are computed from. launch_work: costs by counters, where there are some."""

TIMELINE_TABLES: Final = (TRACE_NAMES, TRACE_PROCESSES, TRACE_DEVICES, KERNEL_LAUNCHES, API_CALLS, RANGES, MEMORY_OPS)
"""Tables of recorders that keep every event with its time."""

TRACE_TABLES: Final = (*TIMELINE_TABLES, LAUNCH_WORK, SCOPES, KERNEL_TOTALS)
"""Stored with a run that is a trace, and only there: no events bring them."""


# ---------------------------------------------------------------- timeline
# Computed from a timeline in memory: the contents of a time window, its summary, and a search for names.

TRACK: Final = Column("track", TEXT, "kernels and memory, of each stream; ranges, of each thread and depth; calls, of each thread.")
TRACK_COLUMNS: Final = (
    TRACK,
    PROCESS_ID,
    DEVICE_INDEX,
    STREAM_INDEX,
    THREAD_ID,
    Column("depth", INDEX, "Of ranges: number of enclosing ranges."),
)

TIMELINE: Final = _table(
    "timeline",
    "Contents of a drawing of a time window, row by row. Kernels, copies, ranges and calls one by one where a row has no more "
    "of them than pixels, else summed by pixel; empty pixels are left out.",
    *TRACK_COLUMNS,
    START_NS,
    Column("duration_ns", COUNT, "Duration of the pixel, or of the event that is shown by itself."),
    Column("busy_ratio", NUMBER, "Fraction of the pixel in which something ran."),
    Column("begun_count", COUNT, "Kernels, copies, ranges or calls that began in the pixel."),
    Column(
        "name",
        TEXT,
        "Name of what took most of the pixel. Where more than 32 begin in one, they are summed by 32, and the longest of each sum counts.",
    ),
    Column("row_index", INDEX, "launch_index, op_index, range_index or call_index of an event that is shown by itself; null: a pixel."),
    Column("category", TEXT, "Of kernels and copies: kind inferred from the name, e.g. matmul; null: not known."),
)

TIMELINE_MATCHES: Final = _table(
    "timeline_matches",
    "One row per kernel, copy, range or call of a timeline, in order of start; a filter on name is fast. A window keeps those that "
    "start in it.",
    Column("match_index", INDEX, "Position among all matches, in order of start, from 0, regardless of the window."),
    *TRACK_COLUMNS,
    START_NS,
    Column("duration_ns", COUNT, "End less start."),
    Column("name", TEXT, "Of it."),
    Column("row_index", INDEX, "launch_index, op_index, range_index or call_index."),
)

WINDOW_SUMMARY: Final = _table(
    "window_summary",
    "Activity of devices in a time window: one row per process and device, then one per kernel and per kind of copy, longest "
    "first. What extends beyond the window counts for its part inside.",
    PROCESS_ID,
    DEVICE_INDEX,
    Column("subject_kind", TEXT, "device, kernel or memory."),
    Column("subject", TEXT, "Name of the kernel, or kind and direction of the copy; null: of a device."),
    Column("op_count", COUNT, "Kernels, or copies and fills, in the window; of a device its kernels."),
    Column("duration_sum_ns", COUNT, "Of these within the window, overlap counted twice; of a device the window's length."),
    Column("share_ratio", NUMBER, "Of the device time of all kernels in the window, or of all copies; null: of a device."),
    *BUSY_COLUMNS,
    Column("overlap_ns", COUNT, "Computing and communicating at once; null: of a kernel or copy, as the four before and the two after."),
    Column("memory_ns", COUNT, "At least one copy or fill ran."),
    Column("memory_only_ns", COUNT, "Part of idle_ns while a copy or fill ran."),
)

WINDOWED_TABLES: Final = (TIMELINE, TIMELINE_MATCHES, WINDOW_SUMMARY)


# ---------------------------------------------------------------- activity
# Activity of devices, host and ranks over time, computed from a trace on request.

GAPS: Final = _table(
    "gaps",
    "One row per interval in which a device ran no kernel, between the first start and the last end of its work, longest first.",
    PROCESS_ID,
    DEVICE_INDEX,
    START_NS,
    Column("duration_ns", COUNT, "Until the next kernel started, or the work ended."),
    Column(
        "reason",
        TEXT,
        "memory: copies or fills ran for at least half of it. unknown: no kernel follows, or its launching call was not recorded. "
        "launch_latency: at most half of it passed before that call. Else where that call's thread spent most of the time before: sync, "
        "in calls that wait; api_call, in others; host_busy, in none.",
    ),
    Column("kernel_before", TEXT, "Kernel whose end began the gap; null: none ran before."),
    Column("kernel_after", TEXT, "Kernel whose start ended the gap; null: none ran after."),
    Column("call", TEXT, "For sync and api_call the call that took most of the gap, else the one that launched kernel_after."),
    Column("layer", TEXT, "Innermost range or module that launched kernel_after."),
    Column("thread_id", COUNT, "Thread that launched kernel_after."),
    Column("host_ns", COUNT, "Part of the gap before that launch; null: not known, as the next two."),
    Column("sync_ns", COUNT, "Part of host_ns in which that thread was in calls that wait for a device."),
    Column("api_ns", COUNT, "Part of host_ns in which it was in other calls."),
    Column("memory_ns", COUNT, "Part of the gap in which a copy or fill of the device ran."),
)

GAP_REASONS: Final = _table(
    "gap_reasons",
    "One row per process, device and reason: gaps summed, of each device the most time first.",
    PROCESS_ID,
    DEVICE_INDEX,
    Column("reason", TEXT, "As in table gaps."),
    Column("gap_count", COUNT, "Gaps."),
    Column("duration_sum_ns", COUNT, "Of these."),
    Column("share_ratio", NUMBER, "Of the device's time without a kernel."),
    Column("duration_median_ns", NUMBER, "Of one."),
    Column("duration_max_ns", COUNT, "Of the longest."),
)

LAUNCHES: Final = _table(
    "launches",
    "One row per kernel name: how its launches reached the device, most launches first.",
    KERNEL_NAME,
    Column("launch_count", COUNT, "Executions."),
    Column("call_duration_median_ns", NUMBER, "Of the calls that launched them: the host time of a launch."),
    Column("queue_delay_median_ns", NUMBER, "From the start of the call to the start of the kernel; null: no calls are known."),
    Column("queue_delay_p95_ns", NUMBER, "The same, 95th percentile."),
    Column("queue_delay_max_ns", COUNT, "The same, maximum."),
    Column("short_count", COUNT, "Launches shorter than 10 microseconds, which a launch may cost the host."),
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
    Column("small_op_count", COUNT, "Copies and fills of less than 64 KiB, dominated by latency, not by bandwidth."),
)

OCCUPANCY: Final = _table(
    "occupancy",
    "One row per kernel, launch configuration and device: its occupancy of a multiprocessor, longest total time first.",
    KERNEL_NAME,
    DEVICE_NAME,
    Column("compute_capability", TEXT, "E.g. 9.0; null: not known, as then are the values below."),
    SM_COUNT,
    Column("grid_block_count", COUNT, "Blocks of the grid."),
    Column("block_thread_count", COUNT, "Threads of a block."),
    REGISTERS_PER_THREAD,
    Column("shared_bytes", COUNT, "Of a block, static and dynamic."),
    Column("launch_count", COUNT, "Executions."),
    Column("duration_sum_ns", COUNT, "Of these."),
    Column("share_ratio", NUMBER, "Of the device time of all kernels."),
    Column("blocks_per_sm_count", INDEX, "Blocks resident on a multiprocessor at once."),
    Column("theoretical_occupancy_ratio", NUMBER, "Their warps over the most that a multiprocessor holds."),
    Column(
        "wave_count",
        NUMBER,
        "Grid over the blocks that all multiprocessors hold at once; a nearly empty last wave costs as much as a full one.",
    ),
    Column("limiting_resource", TEXT, "What limits occupancy: threads, blocks, registers or shared_memory."),
)

RANK_INDEX: Final = Column("rank_index", INDEX, "Among the processes of a distributed job, from 0; null: the trace does not say.")

CLOCK_SOURCE: Final = Column(
    "clock_source",
    TEXT,
    "shared: it has the clock of the first rank. collectives: aligned by the ends of operations that both took part in. host: the same "
    "machine's, by the start of its session. unmatched: its operations do not end when the others' do. unknown: neither operations nor a "
    "machine in common. Times of the last two are not compared with others.",
)
CLOCK_OFFSET: Final = Column(
    "clock_offset_ns", COUNT, "How far its clock was ahead, at clock_middle_ns of table rank_clocks; null: not known."
)

COLLECTIVES: Final = _table(
    "collectives",
    "One row per collective operation and rank that took part, in order of time. Kernels of a communication library are matched by "
    "name, process group and order within their rank; clocks are aligned as table rank_clocks says, and a rank whose clock is not known "
    "is left out.",
    Column("collective_index", INDEX, "In order of its first start, from 0."),
    KERNEL_NAME,
    Column("rank_count", INDEX, "Ranks that took part."),
    RANK_INDEX,
    PROCESS_ID,
    DEVICE_INDEX,
    Column("start_ns", COUNT, "By the clock of the first rank."),
    Column("duration_ns", COUNT, "Duration of its kernel, waiting included."),
    Column("late_ns", COUNT, "Delay of its start after that of the first rank."),
    Column("wait_ns", COUNT, "Time from its start to that of the last rank, in which its kernel waited."),
    Column("wait_ratio", NUMBER, "Of its duration."),
    Column("end_spread_ns", COUNT, "Between the first and the last end: residual of the clock alignment, or of the matching."),
    Column("is_straggler", FLAG, "It started last."),
)

RANKS: Final = _table(
    "ranks",
    "One row per rank, a process with one of its devices: its activity, and how long it waited for others.",
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
    CLOCK_SOURCE,
    CLOCK_OFFSET,
    Column("clock_residual_ns", NUMBER, "Quality of the clock alignment: median of end_spread_ns of its collectives."),
)

RANK_CLOCKS: Final = _table(
    "rank_clocks",
    "One row per process: its clock against that of the first rank, a line through the differences of the ends of operations.",
    RANK_INDEX,
    PROCESS_ID,
    HOST_NAME,
    FILE_NAME,
    CLOCK_SOURCE,
    Column("operation_count", COUNT, "Operations that its file shares with files that are aligned."),
    CLOCK_OFFSET,
    Column("clock_drift_ratio", NUMBER, "Time that it gains per time of the first rank's clock; 0: none that stands out."),
    Column("clock_middle_ns", COUNT, "Middle of the operations by the first rank's clock; null: it was not aligned by operations."),
    Column("residual_median_ns", NUMBER, "Median distance of the ends from the line."),
    Column("residual_max_ns", NUMBER, "Largest one."),
)

ACTIVITY_TABLES: Final = (GAPS, GAP_REASONS, LAUNCHES, MEMORY, OCCUPANCY, COLLECTIVES, RANKS, RANK_CLOCKS, *WINDOWED_TABLES)
