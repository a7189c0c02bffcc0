"""Tables of points under a roofline: configurations, kernels and layers, by formulas or as hardware counters have them."""

from __future__ import annotations

from typing import Final

from services.analyzer.answer_tables import LAYER, LAYER_SOURCE
from services.analyzer.columns import (
    BATCH_SIZE,
    BYTES,
    CATEGORY,
    DISTURBANCE,
    DTYPE,
    DURATION_MEDIAN_NS,
    FLOP,
    LAYER_PATH,
    MODEL_NAME,
    PARAMETERS,
    PATH,
    SYMBOL,
    VARIANT,
    VERIFICATION_STATE,
)
from services.analyzer.table import CONFIGURATION_INDEX, COUNT, DEVICE_ID, FLAG, KERNEL_NAME, LABEL, NUMBER, TEXT, Column
from services.analyzer.table import keyed_table as _table

_POINT: Final = (
    CONFIGURATION_INDEX,
    KERNEL_NAME,
    LABEL,
    PARAMETERS,
    CATEGORY,
    DTYPE,
    PATH,
    DEVICE_ID,
    Column(
        "memory_level",
        TEXT,
        "Memory whose ceiling counts: dram, or l2 or l1 for hot bytes that came faster than the one before can, and of counted ones.",
    ),
    DURATION_MEDIAN_NS,
    Column("duration_mean_ns", NUMBER, "Mean of the samples; rates are over it where there is no median."),
    FLOP,
    BYTES,
    Column("intensity_flop_per_byte", NUMBER, "Arithmetic intensity; null without flop or bytes."),
    Column("achieved_flop_per_s", NUMBER, "Measured."),
    Column("achieved_bytes_per_s", NUMBER, "Measured."),
    Column("attainable_flop_per_s", NUMBER, "The roof at this intensity."),
    Column("efficiency_ratio", NUMBER, "Achieved over attainable."),
    Column("bound", TEXT, "memory or compute."),
    Column("compute_ceiling_flop_per_s", NUMBER, "Of the kernel's data type."),
    Column("memory_ceiling_bytes_per_s", NUMBER, "Of the memory level."),
    Column("ridge_flop_per_byte", NUMBER, "Intensity at which both ceilings meet."),
    Column("ceiling_source", TEXT, "Source of the ceiling that binds: user, measured, datasheet or clock."),
    VERIFICATION_STATE,
    Column("sm_clock_hz", COUNT, "Mean while sampling."),
    Column("efficiency_datasheet_ratio", NUMBER, "Achieved over attainable by the datasheet's ceilings alone."),
    Column(
        "efficiency_clock_ratio", NUMBER, "By those at the measured clock, else at the maximum; memory by the datasheet, else as measured."
    ),
    Column("efficiency_measured_ratio", NUMBER, "By the measured ceilings alone."),
    Column("bound_datasheet", TEXT, "memory or compute, by the datasheet's ceilings."),
    Column("bound_clock", TEXT, "By those at the measured clock."),
    Column("bound_measured", TEXT, "By the measured ones."),
    Column("is_implausible", FLAG, "More than 5 % over what the device can do at all; null: no ceiling that could tell."),
    Column("implausible_reason", TEXT, "Why, one sentence."),
    Column(
        "work_source",
        TEXT,
        "What flop and bytes stand on: formula, of the kernel's definition, or counters; of traces recorded and op model; null: unknown.",
    ),
    Column("counted_flop", NUMBER, "Of one launch, by hardware counters, whatever the source; null: not counted."),
    Column("counted_dram_bytes", NUMBER, "To and from device memory, by hardware counters."),
    MODEL_NAME,
    BATCH_SIZE,
    SYMBOL,
    Column(
        "efficiency_category",
        TEXT,
        "compute bound or memory bound (over 0.7 of what is attainable), compute inefficient or memory inefficient (below the threshold "
        "of that side), normal (between them); null: efficiency or bound are not known.",
    ),
    Column("efficiency_category_datasheet", TEXT, "The same by the datasheet's ceilings alone."),
    Column("efficiency_category_clock", TEXT, "By those at the measured clock."),
    Column("efficiency_category_measured", TEXT, "By the measured ones."),
    VARIANT,
    LAYER_PATH,
    DISTURBANCE,
)

_OF_LAUNCHES: Final = (
    Column("launch_count", COUNT, "Of a trace: launches whose work is known; flop and bytes are those of the mean one."),
    Column("duration_sum_ns", COUNT, "Of a trace: device time of these."),
    Column("share_ratio", NUMBER, "Of a trace: of the device time of all its kernels."),
)

ROOFLINE: Final = _table(
    "roofline",
    "One row per measured configuration, of a trace per kernel, data type and device: achieved against possible. "
    "New ceilings and counters emit rows anew.",
    *_POINT,
    *_OF_LAUNCHES,
)

LAYER_ROOFLINE: Final = _table(
    "layer_roofline",
    "One row per layer of a trace or of a model's run whose work is known: the same of all its launches together.",
    *(LAYER, LAYER_SOURCE, *_POINT, *_OF_LAUNCHES),
)

COUNTED_ROOFLINE: Final = _table(
    "counted_roofline",
    "One row per measured configuration, of a trace per kernel, data type and device, and memory level: the same with work by hardware "
    "counters alone.",
    *_POINT,
    *_OF_LAUNCHES,
)

COUNTED_LAYER_ROOFLINE: Final = _table(
    "counted_layer_roofline",
    "One row per layer of a trace and memory level: the same of all its launches whose bytes at that level hardware counters know.",
    *(LAYER, LAYER_SOURCE, *_POINT, *_OF_LAUNCHES),
)
