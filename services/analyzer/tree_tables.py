"""The tables of the tree of layers, of traces and of models' runs: what they say, not how they come about."""

from __future__ import annotations

from typing import Final

from services.analyzer.answer_tables import LAYER_SOURCE, LAYER_VARIANT, PASS_DURATION_NS, RATE_COLUMNS
from services.analyzer.table import COUNT, INDEX, KERNEL_NAME, NUMBER, TEXT, Column
from services.analyzer.table import keyed_table as _table
from services.core.labels import PATH_SEPARATOR

LAYER_PATH: Final = Column(
    "layer_path",
    TEXT,
    f"Names from the outermost layer down: of a model joined by dots, of a trace by {PATH_SEPARATOR.strip()!r} between spaces.",
)
DURATION_SUM_NS: Final = Column("duration_sum_ns", COUNT, "Device time of these.")

LAYER_TREE: Final = _table(
    "layer_tree",
    "One row per layer with all layers inside of it: ranges of one name in the same layer are one, whatever call or step they are of. "
    "Of a model's run one per layer and variant: one pass, each launch taken at its median.",
    LAYER_PATH,
    Column("parent_path", TEXT, "Layer around it; null: it is an outermost one."),
    Column("layer", TEXT, "Its own name, the last of the path."),
    Column("depth", INDEX, "Layers around it."),
    Column("order_index", COUNT, "Layers inside of one are in its order: that of their first start."),
    Column("call_count", COUNT, "Ranges that launched a kernel; of a model innermost layers in it."),
    Column("launch_count", COUNT, "Kernels that it or a layer inside of it launched."),
    DURATION_SUM_NS,
    Column("own_duration_sum_ns", COUNT, "Of these, launched by the layer itself and by none inside of it."),
    Column("share_ratio", NUMBER, "Of the device time of all kernels; of a model's run of the sum of the variant's layers, not of a pass."),
    LAYER_SOURCE,
    Column(
        "category", TEXT, "Kind of the kernels that take most of its time; of a trace as their names tell it; null: these tell nothing."
    ),
    *RATE_COLUMNS,
    LAYER_VARIANT,
    Column("memory_bytes", COUNT, "Of a model's run: device memory of the buffers that one of its launches uses, at most; null: not told."),
    PASS_DURATION_NS,
)

LAYER_KERNELS: Final = _table(
    "layer_kernels",
    "One row per layer of table layer_tree and name of a kernel that it or a layer inside of it launched.",
    LAYER_PATH,
    Column("layer", TEXT, "Its own name, the last of the path."),
    Column("depth", INDEX, "Layers around it."),
    KERNEL_NAME,
    Column("category", TEXT, "Kind of kernel; of a trace as its name tells it."),
    Column("dtype", TEXT, "Data type of most of its work; null: not known."),
    Column("launch_count", COUNT, "Launches of the kernel."),
    Column("own_launch_count", COUNT, "Of these, by the layer itself and by none inside of it."),
    DURATION_SUM_NS,
    Column("share_ratio", NUMBER, "Of the layer's device time."),
    *RATE_COLUMNS,
    LAYER_VARIANT,
)

TREE_TABLES: Final = (LAYER_TREE, LAYER_KERNELS)
