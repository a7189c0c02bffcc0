"""The tables that are worked out from a trace when somebody asks: what they say, not how they come about."""

from __future__ import annotations

from typing import Final

from services.analyzer.activity_tables import ACTIVITY_TABLES
from services.analyzer.columns import DISTURBANCE
from services.analyzer.table import COUNT, NUMBER, TEXT, Column
from services.analyzer.table import keyed_table as _table
from services.analyzer.trace_tables import BUSY_COLUMNS, DEVICE_INDEX, DEVICE_NAME, PROCESS_ID

KERNEL_FIGURES: Final = (
    Column("launch_count", COUNT, "Of a trace: executions. Null: of other runs, as the next five."),
    Column("duration_sum_ns", COUNT, "Of a trace: device time of these."),
    Column("share_ratio", NUMBER, "Of a trace: of the device time of all its kernels."),
    Column("duration_min_ns", COUNT, "Of a trace: shortest launch."),
    Column("duration_median_ns", NUMBER, "Of a trace: median launch."),
    Column("duration_max_ns", COUNT, "Of a trace: longest launch."),
)
"""What the table of kernels says of traces, before what it says of sweeps."""

LAYER: Final = Column("layer", TEXT, "Range or module; guessed: what the kernels' own names tell; null: these tell nothing either.")
LAYER_SOURCE: Final = Column(
    "source", TEXT, "What tells the layer: annotation, the workload's own; module, range, forward, graph or guessed; null: nothing does."
)
PASS_DURATION_NS: Final = Column(
    "pass_duration_median_ns",
    NUMBER,
    "Of a model's run: median of a whole pass. Layers are timed one by one, so their sum is another; null: of a trace, or not timed.",
)
LAYER_VARIANT: Final = Column("variant", TEXT, "Of a model's run: variant of the model; null: of a trace.")

RATE_COLUMNS: Final = (
    Column("flop", NUMBER, "Of its launches whose work is known; null: of one of these it is not."),
    Column("bytes", NUMBER, "The same: what has to be moved at the least; by counters, what was moved."),
    Column("intensity_flop_per_byte", NUMBER, "flop over bytes."),
    Column("achieved_flop_per_s", NUMBER, "flop over the time of the same launches."),
    Column("achieved_bytes_per_s", NUMBER, "bytes over that time."),
    Column("attainable_flop_per_s", NUMBER, "The roof at this intensity."),
    Column("efficiency_ratio", NUMBER, "Achieved over attainable; without flop over the memory's ceiling."),
    Column("bound", TEXT, "memory or compute."),
    Column("work_source", TEXT, "What tells the work: formula, counters, recorded or op model; null: nothing does."),
    Column("worked_share_ratio", NUMBER, "Of its device time, that of launches whose work is known."),
    DISTURBANCE,
)
"""What the launches of a layer work, and how near to the roof they come."""

LAYERS: Final = _table(
    "layers",
    "One row per layer of a trace: kernels summed by the innermost range or module that launched them, or by those at one depth. "
    "Of a model's run one per layer and variant: one pass through it, each launch taken at its median.",
    LAYER,
    Column("call_count", COUNT, "Ranges of that name that launched a kernel; of a model's run innermost layers in it."),
    Column("launch_count", COUNT, "Kernels."),
    Column("duration_sum_ns", COUNT, "Device time of these."),
    Column("share_ratio", NUMBER, "Of the device time of all kernels; of a model's run of the sum of the variant's layers, not of a pass."),
    LAYER_SOURCE,
    *RATE_COLUMNS,
    LAYER_VARIANT,
    Column("memory_bytes", COUNT, "Of a model's run: device memory of the buffers that one of its launches uses, at most; null: not told."),
    PASS_DURATION_NS,
)

BREAKDOWN: Final = _table(
    "breakdown",
    "One row per process and device: what the device did between the first start and the last end of its work.",
    PROCESS_ID,
    DEVICE_INDEX,
    DEVICE_NAME,
    Column("span_ns", COUNT, "From the first start to the last end of its kernels and memory operations; busy_ns and idle_ns together."),
    *BUSY_COLUMNS,
    Column("overlap_ns", COUNT, "Both at once: communication that costs no time."),
    Column("memory_ns", COUNT, "At least one copy or fill went on."),
    Column("memory_only_ns", COUNT, "Of idle_ns, while a copy or fill went on."),
    Column("launch_count", COUNT, "Kernels."),
    Column("memory_op_count", COUNT, "Copies and fills."),
)

COUNTER_COVERAGE: Final = _table(
    "counter_coverage",
    "One row per source of counted work: how many kernels of a trace have the counters of a report of ncu.",
    Column("work_source", TEXT, "counters, counters of the same launch configuration; null: kernels without counters."),
    Column("launch_count", COUNT, "Kernels."),
    Column("launch_ratio", NUMBER, "Of all kernels."),
    Column("duration_sum_ns", COUNT, "Device time of these."),
    Column("duration_ratio", NUMBER, "Of the device time of all kernels."),
)

OPPORTUNITIES: Final = _table(
    "opportunities",
    "One row per kernel, layer and idle device: what could be gained there, most first; where that is not known, longest first. "
    "Kernels and layers are the same time told twice: only rows of one subject_kind add up.",
    Column("subject_kind", TEXT, "kernel, layer or device."),
    Column("subject", TEXT, "Name of it; null: the kernels outside of every layer."),
    Column("launch_count", COUNT, "Kernels; null: of a device."),
    Column("duration_sum_ns", COUNT, "Device time of these; of a device that in which it was idle."),
    Column("share_ratio", NUMBER, "Of the device time of all kernels; of a device of its span."),
    Column("efficiency_ratio", NUMBER, "Achieved over attainable in that time; null: not known. Of a device busy time over span."),
    Column("lost_ns", NUMBER, "Time x (1 - efficiency), what the roof would save; null: not known."),
    Column("bound", TEXT, "memory or compute; null: not known."),
    Column("reason", TEXT, "What stands behind it, one sentence."),
    LAYER_VARIANT,
)

ANSWERED_TABLES: Final = (LAYERS, BREAKDOWN, OPPORTUNITIES, COUNTER_COVERAGE, *ACTIVITY_TABLES)
