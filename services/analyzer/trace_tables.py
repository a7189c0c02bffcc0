"""The canonical tables of traces: what programs did on the host and its devices, as other tools recorded it.

Made for ten million rows: a name is stored once, in trace_names, and rows refer to it by index. Whoever reads a trace gives
rows in order of start within each table, so that launch_index, call_index, range_index and op_index are row numbers. Times
are int64 nanoseconds since the session's start, one clock for all of a run.
"""

from __future__ import annotations

from typing import Final

from services.analyzer.table import COUNT, FLAG, INDEX, NUMBER, TEXT, Column
from services.analyzer.table import keyed_table as _table

NAME_INDEX: Final = Column("name_index", INDEX, "Row of trace_names.")
PROCESS_ID: Final = Column("process_id", COUNT, "Process, unique within the run: a row of trace_processes.")
DEVICE_INDEX: Final = Column("device_index", INDEX, "Device as its process numbers it, from 0.")
DEVICE_NAME: Final = Column("device_name", TEXT, "Of the product.")
OP_KIND: Final = Column("kind", TEXT, "copy or set.")
DIRECTION: Final = Column("direction", TEXT, "E.g. host_to_device; null: of a fill, or not known.")
HOST_DEVICE: Final = "CPU"
"""device_name of what stands for the processor, in traces of programs that used no other device."""

HOST_NAME: Final = Column("host_name", TEXT, "Machine that it ran on.")
FILE_NAME: Final = Column("file_name", TEXT, "File of the run that it is from.")
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
CORRELATION_ID: Final = Column("correlation_id", COUNT, "Same in a call and in what it started; unique within its process only.")
LAUNCH_START_NS: Final = Column("launch_start_ns", COUNT, "When the call that started it began; null: no such call was recorded.")

LAUNCH_INDEX: Final = Column("launch_index", INDEX, "In order of start, from 0.")

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
    Column("session_start_unix_ns", COUNT, "What its times count from, nanoseconds since the Unix epoch by the clock of its machine."),
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
    Column("api_call_index", INDEX, "Call that launched it; null: none was recorded, as of most kernels inside a CUDA graph."),
    Column("launch_thread_id", COUNT, "Thread of that call."),
    LAUNCH_START_NS,
    Column("range_index", INDEX, "Innermost range at the launch; its parent_range_index leads to those around it."),
    Column(
        "operator_index", INDEX, "Row of ranges: innermost operator at the launch, whose shapes say what the kernel has to do; null: none."
    ),
    Column("layer_source", TEXT, "What range_index stands on: module, range, forward, graph, node or guessed; null: there is no range."),
    Column("graph_node_id", COUNT, "Node of the CUDA graph that ran it."),
    Column("grid_x", COUNT, "Blocks."),
    Column("grid_y", INDEX, "Blocks."),
    Column("grid_z", INDEX, "Blocks."),
    Column("block_x", INDEX, "Threads."),
    Column("block_y", INDEX, "Threads."),
    Column("block_z", INDEX, "Threads."),
    REGISTERS_PER_THREAD,
    Column("static_shared_bytes", COUNT, "Per block."),
    Column("dynamic_shared_bytes", COUNT, "Per block."),
    Column("shared_bytes", COUNT, "Per block, where the recorder states the sum of both alone; null: see these."),
)

API_CALLS: Final = _table(
    "api_calls",
    "One row per call of the runtime or the driver.",
    Column("call_index", INDEX, "In order of start, from 0."),
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
    "One row per stretch of a host thread that has a name: NVTX ranges, modules, operators, annotations.",
    Column("range_index", INDEX, "In order of start, of equal starts the longer first, from 0."),
    NAME_INDEX,
    Column("domain_name_index", INDEX, "Row of trace_names: the NVTX domain; null: the default one."),
    Column("kind", TEXT, "push_pop, start_end, module, operator or annotation."),
    PROCESS_ID,
    THREAD_ID,
    START_NS,
    Column("duration_ns", COUNT, "End less start; of one that was still open, up to the session's end."),
    Column("is_open", FLAG, "It had not ended when the recording did; no kernel is counted as inside of it."),
    Column("parent_range_index", INDEX, "Innermost range of the thread that holds all of it; null: none does."),
    Column("depth", INDEX, "Ranges around it, by parent_range_index."),
    Column("sequence_number", COUNT, "Autograd's: a forward operator and its backward one share it."),
    Column("is_backward", FLAG, "Of the backward pass; null: not known."),
    Column("flop", NUMBER, "As the recorder counts it, of one call."),
    Column("input_shapes", TEXT, "JSON, as recorded."),
    Column("input_dtypes", TEXT, "JSON, as recorded."),
    Column("input_values", TEXT, "JSON, as recorded: of inputs that are no tensors, as strides and dimensions."),
)

MEMORY_OPS: Final = _table(
    "memory_ops",
    "One row per copy or fill that a device carried out.",
    Column("op_index", INDEX, "In order of start, from 0."),
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
    "One row per launch whose work the trace itself tells: by hardware counters, those of a report of ncu that was read with it or"
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
        "counters: its own; counters of the same launch configuration: the mean of those of its kernel's; op model: shapes.",
    ),
)

SCOPES: Final = _table(
    "scopes",
    "One row per path of names that a recorder sums under instead of keeping when things happened.",
    Column("scope_index", INDEX, "From 0; those around it come before."),
    NAME_INDEX,
    Column("parent_scope_index", INDEX, "Scope around it; null: none."),
    Column("depth", INDEX, "Scopes around it."),
)

KERNEL_TOTALS: Final = _table(
    "kernel_totals",
    "One row per kernel and scope of a recorder that keeps sums over launches only, such as Triton's Proton.",
    NAME_INDEX,
    Column("scope_index", INDEX, "Innermost scope; null: none."),
    PROCESS_ID,
    DEVICE_INDEX,
    Column("launch_count", COUNT, "Executions."),
    Column("duration_sum_ns", COUNT, "Device time of these; null: not recorded."),
    Column("flop", NUMBER, "Of these together; null: not stated."),
    Column("bytes", NUMBER, "Of these together; null: not stated."),
    Column("dtype", TEXT, "Data type of all the flop, by the width stated; null: several, or not stated."),
)

_OF_DEVICE: Final = ("process_id", "device_index")
WORK_COLUMNS: Final = {
    "kernel_launches": ("name_index", "duration_ns", "operator_index", "range_index", "layer_source", *_OF_DEVICE),
    "ranges": ("name_index", "parent_range_index", "flop", "input_shapes", "input_dtypes", "input_values"),
    "trace_names": ("name_index", "name"),
    "trace_devices": (*_OF_DEVICE, "device_name", "compute_capability", "sm_count", "clock_hz", "memory_bandwidth_bytes_per_s"),
    "launch_work": ("launch_index", "flop", "bytes", "dtype", "path", "work_source"),
}
"""By table, what tells how much work the launches of a trace did on what. launch_work: what counters say, where it is there."""

TIMELINE_TABLES: Final = (TRACE_NAMES, TRACE_PROCESSES, TRACE_DEVICES, KERNEL_LAUNCHES, API_CALLS, RANGES, MEMORY_OPS)
"""Of recorders that keep every event with its time."""

TRACE_TABLES: Final = (*TIMELINE_TABLES, LAUNCH_WORK, SCOPES, KERNEL_TOTALS)
"""Stored with a run that is a trace, and only there: no events bring them."""
