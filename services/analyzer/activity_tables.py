"""The tables that say of a trace what its devices, its host and its ranks did over time, worked out when somebody asks."""

from __future__ import annotations

from typing import Final

from services.analyzer.table import COUNT, NUMBER, TEXT, Column
from services.analyzer.table import keyed_table as _table
from services.analyzer.trace_tables import DEVICE_INDEX, PROCESS_ID, START_NS

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

ACTIVITY_TABLES: Final = (GAPS, GAP_REASONS)
