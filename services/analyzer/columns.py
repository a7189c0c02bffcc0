"""Columns that tables of several kinds have."""

from __future__ import annotations

from typing import Final

from services.analyzer.table import COUNT, NUMBER, TEXT, Column

PARAMETERS: Final = Column("parameters", TEXT, "JSON object of integers.")
CATEGORY: Final = Column("category", TEXT, "Kind of kernel, e.g. matmul.")
DTYPE: Final = Column("dtype", TEXT, "Data type of the arithmetic.")
PATH: Final = Column("path", TEXT, "fma or tensor: picks the compute ceiling.")
MACROS: Final = Column("macros", TEXT, "JSON object of compile-time constants.")
PROCESS_INDEX: Final = Column("process_index", COUNT, "Process of the run that measured it, from 0.")
VARIANT: Final = Column("variant", TEXT, "What tells it from others of the same kernel and parameters, e.g. TILE=16.")
FLOP: Final = Column("flop", NUMBER, "Floating-point operations of one launch.")
BYTES: Final = Column("bytes", NUMBER, "Bytes one launch must move to and from device memory.")
VERIFICATION_STATE: Final = Column("verification_state", TEXT, "Result against the reference.")
DURATION_MEDIAN_NS: Final = Column("duration_median_ns", NUMBER, "Median device time of one launch.")
REASON: Final = Column("reason", TEXT, "Name of the error, e.g. COMPILE_FAILED.")
MESSAGE: Final = Column("message", TEXT, "Subject, found, expected, remedy.")
MODEL_NAME: Final = Column("model_name", TEXT, "Model that it belongs to; null: to none, or not known.")
BATCH_SIZE: Final = Column("batch_size", COUNT, "Of the model's input; null: not known.")
SYMBOL: Final = Column("symbol", TEXT, "Shape to draw it in, by Plotly's names, e.g. square; star: its work is not known; null: any.")
LAYER_PATH: Final = Column("layer_path", TEXT, "Layer of the model that it belongs to, e.g. blocks.3.attn.qkv; null: to none.")
DISTURBANCE: Final = Column(
    "disturbance",
    TEXT,
    "What disturbed the measuring, e.g. host 98 % busy, or the ceilings that it is held against; null: nothing known.",
)
THROTTLE_REASONS: Final = Column("throttle_reasons", TEXT, "Comma-separated; null: not known.")
