"""The tables that are worked out from a trace when somebody asks: what they say, not how they come about."""

from __future__ import annotations

from typing import Final

from services.analyzer.table import COUNT, NUMBER, TEXT, Column
from services.analyzer.table import keyed_table as _table
from services.analyzer.trace_tables import DEVICE_INDEX, PROCESS_ID

KERNEL_FIGURES: Final = (
    Column("launch_count", COUNT, "Of a trace: executions. Null: of other runs, as the next five."),
    Column("duration_sum_ns", COUNT, "Of a trace: device time of these."),
    Column("share_ratio", NUMBER, "Of a trace: of the device time of all its kernels."),
    Column("duration_min_ns", COUNT, "Of a trace: shortest launch."),
    Column("duration_median_ns", NUMBER, "Of a trace: median launch."),
    Column("duration_max_ns", COUNT, "Of a trace: longest launch."),
)
"""What the table of kernels says of traces, before what it says of sweeps."""

LAYERS: Final = _table(
    "layers",
    "One row per layer of a trace: kernels summed by the innermost range or module that launched them, or by those at one depth.",
    Column("layer", TEXT, "Name of the range or module; guessed: what the kernels' own names tell; null: they tell nothing either."),
    Column("call_count", COUNT, "Ranges of that name that launched a kernel."),
    Column("launch_count", COUNT, "Kernels."),
    Column("duration_sum_ns", COUNT, "Device time of these."),
    Column("share_ratio", NUMBER, "Of the device time of all kernels."),
    Column("source", TEXT, "What tells the layer: module, range, forward, graph or guessed; null: nothing does."),
)

BREAKDOWN: Final = _table(
    "breakdown",
    "One row per process and device: what the device did between the first start and the last end of its work.",
    PROCESS_ID,
    DEVICE_INDEX,
    Column("device_name", TEXT, "Of the product."),
    Column("span_ns", COUNT, "From the first start to the last end of its kernels and memory operations; busy_ns and idle_ns together."),
    Column("busy_ns", COUNT, "At least one kernel ran."),
    Column("idle_ns", COUNT, "No kernel ran."),
    Column("compute_ns", COUNT, "At least one kernel ran that is not of a communication library."),
    Column("communication_ns", COUNT, "At least one kernel of a communication library ran."),
    Column("overlap_ns", COUNT, "Both at once: communication that costs no time."),
    Column("memory_ns", COUNT, "At least one copy or fill went on."),
    Column("memory_only_ns", COUNT, "Of idle_ns, while a copy or fill went on."),
    Column("launch_count", COUNT, "Kernels."),
    Column("memory_op_count", COUNT, "Copies and fills."),
)

ANSWERED_TABLES: Final = (LAYERS, BREAKDOWN)
