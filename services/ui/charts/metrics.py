"""Configurations with how they did, and what charts of kernels show of each: one figure, its unit, which end of it is good."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl

from kernalyse.services.core.disturbance import DISTURBED_SYMBOL
from kernalyse.services.ui import theme
from kernalyse.services.ui.theme import Ticks

MetricName = Literal["flop_rate", "byte_rate", "efficiency", "duration"]


@dataclass(frozen=True, slots=True)
class Metric:
    """column: of `performance_rows`. ticks: how an axis is written. missing: why a measured configuration has none."""

    title: str
    column: str
    axis_label: str
    show: Callable[[float | None], str]
    ticks: Ticks
    missing: str
    is_lower_better: bool = False


METRICS: Final[dict[MetricName, Metric]] = {
    "flop_rate": Metric(
        "Flop rate",
        "achieved_flop_per_s",
        "Flop rate (flop/s)",
        theme.flop_rate,
        theme.SI_TICKS,
        "measured, but how many flop it does is not known",
    ),
    "byte_rate": Metric(
        "Byte rate",
        "achieved_bytes_per_s",
        "Byte rate (B/s)",
        theme.byte_rate,
        theme.SI_TICKS,
        "measured, but how many bytes it moves is not known",
    ),
    "efficiency": Metric(
        "Efficiency",
        "efficiency_ratio",
        "Achieved ÷ attainable",
        theme.percent,
        theme.SHARE_TICKS,
        "measured, but its work or the ceilings of its device are not known",
    ),
    "duration": Metric(
        "Median time",
        "duration_median_ns",
        "Median time of a launch",
        theme.duration,
        theme.DURATION_TICKS,
        "measured without a median",
        True,
    ),
}


def metric_of(chosen: str, rows: pl.DataFrame) -> MetricName:
    """The chosen one; of none the first that any row has, for what cannot be drawn explains nothing."""
    for name, metric in METRICS.items():
        if name == chosen or (not chosen and rows[metric.column].count() > 0):
            return name
    return next(iter(METRICS))


def best_place(values: list[float], metric: Metric) -> int:
    """Index of the best of at least one."""
    chosen = min(values) if metric.is_lower_better else max(values)
    return values.index(chosen)


def counts(row: Mapping[str, Any]) -> bool:
    """Whether a configuration's figure can be believed: its result is right, and its device can do it."""
    return row["verification_state"] != "FAILED" and not row["is_implausible"]


def remark_of(row: Mapping[str, Any]) -> str:
    """Why it cannot, or what disturbed it; empty: it can, and nothing did."""
    if row["verification_state"] == "FAILED":
        return "WRONG RESULT"
    if row["is_implausible"]:
        return "IMPLAUSIBLE: faster than its device can be"
    return f"{DISTURBED_SYMBOL} {row['disturbance']}" if row["disturbance"] else ""


def figures_text(row: Mapping[str, Any], metric: Metric) -> str:
    """The metric's figure, then efficiency and time, without saying one twice."""
    others = {
        "efficiency_ratio": f"{theme.percent(row['efficiency_ratio'])} of attainable",
        "duration_median_ns": theme.duration(row["duration_median_ns"]),
    }
    value = row[metric.column]
    shown = theme.flop_rate(value, row["dtype"]) if metric.column == "achieved_flop_per_s" else metric.show(value)
    return ", ".join([shown, *(text for column, text in others.items() if column != metric.column)])


KEYS: Final = ("run_id", "configuration_index")
ANNOUNCED: Final = (
    *KEYS,
    *("kernel_name", "label", "parameters", "block", "macros", "category", "dtype", "variant", "model_name", "batch_size", "cache_mode"),
)
"""Columns of table configurations."""

PLACED: Final = (
    *KEYS,
    *("kernel_name", "label", "parameters", "category", "dtype", "variant", "model_name", "batch_size", "device_id"),
    *("duration_median_ns", "intensity_flop_per_byte", "achieved_flop_per_s", "achieved_bytes_per_s", "attainable_flop_per_s"),
    *("efficiency_ratio", "bound", "verification_state", "is_implausible", "duration_sum_ns", "memory_ceiling_bytes_per_s"),
    "disturbance",
)
"""Columns of table roofline."""

FAILED: Final = (*KEYS, "reason", "message")
"""Columns of table failures."""

LAUNCHED: Final = ("run_id", "kernel_name", "category", "duration_sum_ns", "duration_median_ns", "launch_count")
"""Columns of table kernels, of traces."""

NAMED_AXES: Final[dict[str, str]] = {
    "kernel": "kernel_name",
    "model": "model_name",
    "batch_size": "batch_size",
    "dtype": "dtype",
    "variant": "variant",
    "block": "block",
    "cache": "cache_mode",
    "device": "device_id",
    "run": "run_id",
}
"""Axes that are columns; all others are parameters, macros, or an extent of the block."""

KERNEL_SIGN: Final = "k"
BLOCK_AXES: Final = ("block_x", "block_y", "block_z")


def performance_rows(
    configurations: pl.DataFrame, roofline: pl.DataFrame, failures: pl.DataFrame, launched: pl.DataFrame | None = None
) -> pl.DataFrame:
    """One row a configuration, and one for each kernel of a trace, which announces none.

    Args:
        configurations, roofline, failures: rows of these tables with the columns above.
        launched: rows of table kernels of traces; None: there are no traces. Those whose work is not known have no row in roofline,
            but a duration.

    Returns:
        The columns of all three. Figures are null of what has not been measured; is_measured tells it.
    """
    if launched is not None:
        worked = roofline.filter(pl.col("configuration_index").is_null())
        others = launched.join(worked, on=["run_id", "kernel_name"], how="anti").with_columns(label=pl.col("kernel_name"))
        roofline = pl.concat([roofline, others.select(name for name in others.columns if name in PLACED)], how="diagonal_relaxed")
    placed = roofline.unique(subset=[*KEYS, "kernel_name", "dtype", "device_id"], keep="last", maintain_order=True)
    shared = [name for name in ANNOUNCED if name in PLACED and name not in KEYS]
    is_announced = pl.col("is_announced").is_not_null()
    known = configurations.with_columns(is_announced=pl.lit(True))
    joined = placed.with_columns(is_measured=pl.lit(True)).join(known, on=KEYS, how="full", coalesce=True, suffix="_announced")
    return (
        joined.with_columns(pl.when(is_announced).then(f"{name}_announced").otherwise(name).alias(name) for name in shared)
        .drop(f"{name}_announced" for name in shared)
        .with_columns(pl.col("is_measured").fill_null(False))
        .join(failures.unique(subset=KEYS, keep="last"), on=KEYS, how="left")
        .sort("run_id", "configuration_index", "kernel_name", maintain_order=True)
    )


def axis_values(rows: pl.DataFrame) -> dict[str, list[Any]]:
    """What each possible axis of a heatmap says of each row, by the axis's name; None: nothing. Axes that say nothing are left out."""
    found: dict[str, list[Any]] = {name: rows[column].to_list() for name, column in NAMED_AXES.items() if column in rows.columns}
    blocks = [_extents(text) for text in rows["block"]]
    for place, name in enumerate(BLOCK_AXES):
        found[name] = [extents[place] if len(extents) > place else None for extents in blocks]
    for column in ("macros", "parameters"):
        for name, values in _spread(rows[column]).items():
            if name not in NAMED_AXES:
                found[name] = values
    return {name: values for name, values in found.items() if any(value not in (None, "") for value in values)}


def configuration_key(row: Mapping[str, Any]) -> str:
    """Names a row in URLs: "run_id.configuration_index", of a trace "run_id.k" and a digest of the kernel's name."""
    index = row["configuration_index"]
    return f"{row['run_id']}.{index}" if index is not None else f"{row['run_id']}.{KERNEL_SIGN}{name_digest(row['kernel_name'])}"


def name_digest(kernel_name: str) -> str:
    """Stands for a name in URLs: names of templates can be thousands of characters long."""
    return hashlib.blake2b(kernel_name.encode(), digest_size=6).hexdigest()


def shortened(text: str, length: int = 240) -> str:
    """For hovers: names of kernels can be thousands of characters long."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


TICK_LENGTH: Final = 22
"""Letters beside an axis: longer names would take the room of the chart, on a phone all of it."""


def tick_name(name: str, length: int = TICK_LENGTH) -> str:
    """What tells a kernel from others in few letters: its name without namespaces, template arguments and types."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    found = re.match(r"[^<(]*", plain)
    short = (found[0].rpartition("::")[2] if found else "") or plain
    return shortened(short, length)


def _spread(texts: Iterable[str | None]) -> dict[str, list[Any]]:
    """Values of JSON objects, by name."""
    known: dict[str | None, dict[str, Any]] = {}
    objects = [known[text] if text in known else known.setdefault(text, _object(text)) for text in texts]
    names = dict.fromkeys(name for some in known.values() for name in some)
    return {name: [some.get(name) for some in objects] for name in names}


def _object(text: str | None) -> dict[str, Any]:
    read = json.loads(text) if text else {}
    return read if isinstance(read, dict) else {}


def _extents(block: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in block.split("x") if part.isdecimal()) if block else ()
