"""The tables of models that runs time launch by launch: what they say, not how they come about."""

from __future__ import annotations

from typing import Final

from services.analyzer.columns import DISTURBANCE
from services.analyzer.table import COUNT, DEVICE_ID, NUMBER, TEXT, Column
from services.analyzer.table import keyed_table as _table

MODEL: Final = Column("model_name", TEXT, "Name of the model.")
VARIANT: Final = Column("variant", TEXT, "How it computes, e.g. baseline or fused; null: the model has but one.")

MODELS: Final = _table(
    "models",
    "One row per model, variant and device of a run: whole passes through it.",
    MODEL,
    VARIANT,
    Column("batch_size", COUNT, "Sequences of one pass."),
    Column("sequence_length", COUNT, "Tokens of each."),
    Column("layer_count", COUNT, "Transformer blocks."),
    Column("head_count", COUNT, "Attention heads of a block."),
    Column("width", COUNT, "Of the embedding."),
    Column("vocabulary_size", COUNT, "Tokens that it knows."),
    DEVICE_ID,
    Column("sample_count", COUNT, "Passes timed."),
    Column("duration_median_ns", NUMBER, "Median device time of a pass; of a run that goes on that of the passes so far."),
    Column("duration_median_low_ns", NUMBER, "Lower end of its 95 % confidence interval."),
    Column("duration_median_high_ns", NUMBER, "Upper end of it."),
    Column("duration_mean_ns", NUMBER, "Mean of the passes."),
    Column("duration_standard_deviation_ns", NUMBER, "Of the passes."),
    Column("duration_min_ns", NUMBER, "Shortest pass."),
    Column("duration_max_ns", NUMBER, "Longest pass."),
    Column("duration_p95_ns", NUMBER, "95th percentile."),
    Column("duration_p99_ns", NUMBER, "99th percentile."),
    Column(
        "tokens_per_s",
        NUMBER,
        "Batch size times sequence length over the median, without one over the mean; else as stated by another tool.",
    ),
    Column("launch_count", COUNT, "Launches of a pass."),
    Column("launches_duration_sum_ns", NUMBER, "Sum of the medians of these, timed one by one: not the time of a pass."),
    Column("memory_bytes", COUNT, "Device memory that its buffers take at most; null: not told."),
    Column("flop", NUMBER, "Of a pass."),
    Column("bytes", NUMBER, "Of a pass."),
    Column("achieved_flop_per_s", NUMBER, "flop over the median."),
    Column("efficiency_ratio", NUMBER, "Achieved over attainable, the pass taken as one kernel."),
    Column("bound", TEXT, "memory or compute."),
    Column("verification_state", TEXT, "Result against the reference."),
    Column("verification_max_relative_error", NUMBER, "max|output - reference| / max|reference|."),
    DISTURBANCE,
)

LAYER_VARIANTS: Final = _table(
    "layer_variants",
    "One row per layer of a model's run in two variants: the later variant held against the first, largest change first.",
    Column("layer", TEXT, "Layer, or those below it where a depth is asked for."),
    Column("occurrence", TEXT, "MATCHED, NEW (only the later variant has it) or GONE (only the first has)."),
    VARIANT,
    Column("baseline_variant", TEXT, "The first one."),
    Column("launch_count", COUNT, "Launches of the layer in a pass."),
    Column("baseline_launch_count", COUNT, "Of the first variant."),
    Column("duration_sum_ns", COUNT, "Sum of their medians."),
    Column("baseline_duration_sum_ns", COUNT, "Of the first variant."),
    Column("duration_delta_ns", COUNT, "The later less the first; what only one has counts whole."),
    Column("duration_ratio", NUMBER, "The later over the first; null: it is not in both."),
    Column("paired_ratio", NUMBER, "The same by batches of passes that took turns: median over their pairs; null: samples are not known."),
    Column("paired_ratio_low", NUMBER, "Lower end of its interval, by bootstrap."),
    Column("paired_ratio_high", NUMBER, "Upper end of it."),
    Column("verdict", TEXT, "FASTER, SLOWER, SAME or UNDECIDED, by that interval."),
    Column("reason", TEXT, "Why, one sentence."),
    Column("efficiency_ratio", NUMBER, "Achieved over attainable."),
    Column("baseline_efficiency_ratio", NUMBER, "Of the first variant."),
)

MODEL_TABLES: Final = (MODELS, LAYER_VARIANTS)
"""Worked out from the configurations of a model's run, while it goes on too."""
