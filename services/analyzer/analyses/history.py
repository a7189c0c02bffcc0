"""A figure over time: which runs belong together, at which level they are, and where the level changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from services.analyzer.analyses.change_points import MAX_RUNS, MIN_RUNS_TOGETHER, Level, levels
from services.analyzer.history_tables import HISTORY, HISTORY_SERIES, LARGER_IS_BETTER
from services.core.comparison import CPU_MARGIN_RATIO, GPU_MARGIN_RATIO

NAMED_CHANGES: Final[Mapping[str, str]] = {
    "git_commit": "commit",
    "driver_version": "driver",
    "toolkit_version": "toolkit",
    "compiler_options": "compiler options",
    "timing_method": "timing",
}
"""What may be the reason of a change, by its column."""

COMMIT_LENGTH: Final = 10


def history(rows: pl.LazyFrame, metric: str) -> pl.LazyFrame:
    """Table history. Input: table history_rows; runs without the figure, or with one that is no size, have no row."""
    low, high = (f"duration_median_{end}_ns" if metric == "duration_median_ns" else None for end in ("low", "high"))
    valued = (
        rows.filter(pl.col(metric) > 0, pl.col(metric).is_finite())
        .sort("series", "measured_unix_ns", "run_id")
        .with_columns(
            metric=pl.lit(metric),
            value=pl.col(metric),
            value_low=pl.col(low) if low else pl.lit(None, dtype=pl.Float64),
            value_high=pl.col(high) if high else pl.lit(None, dtype=pl.Float64),
        )
        .collect()
    )
    run_count = pl.len().over("series")
    few = valued.filter(run_count < MIN_RUNS_TOGETHER).with_columns(
        level_index=pl.lit(0, dtype=pl.Int64), level_value=pl.col("value").log().mean().over("series").exp()
    )
    parts = valued.filter(run_count >= MIN_RUNS_TOGETHER).partition_by("series", maintain_order=True)
    levelled = [HISTORY.conform(part.lazy()) for part in (few, *(_with_levels(part, metric) for part in parts))]
    return pl.concat(levelled)


def history_series(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Table history_series. Input: table history_rows."""
    newest = rows.group_by("series").agg(pl.len().alias("run_count"), pl.col("measured_unix_ns").max())
    described = rows.join(newest, on=["series", "measured_unix_ns"]).unique("series", keep="last")
    return HISTORY_SERIES.conform(described.sort("measured_unix_ns", "series", descending=[True, False]))


def margin_of(device_id: str | None) -> float:
    """The smallest change that counts on a device."""
    return GPU_MARGIN_RATIO if (device_id or "").startswith("cuda") else CPU_MARGIN_RATIO


def _with_levels(part: pl.DataFrame, metric: str) -> pl.DataFrame:
    """One series; the newest runs of a very long one are judged."""
    judged = part.tail(MAX_RUNS)
    offset = part.height - judged.height
    half_widths = judged.select((pl.col("value_high") / pl.col("value_low")).log() / 2).to_series().fill_null(float("nan")).to_numpy()
    found = levels(judged["value"].to_numpy(), np.asarray(half_widths, dtype=np.float64), margin_of(part["device_id"][0]))
    changes = [_change(part, level, metric, offset) for level in found]
    columns = ("level_index", "level_value", "level_low", "level_high")
    whole: dict[str, list[Any]] = {name: [None] * offset for name in columns}
    firsts: dict[str, list[Any]] = {name: [None] * part.height for name in changes[0]}
    for index, (level, change) in enumerate(zip(found, changes, strict=True)):
        for name, value in zip(columns, (index, level.value, level.band_low, level.band_high), strict=True):
            whole[name] += [value] * (level.end - level.begin)
        for name, value in change.items():
            firsts[name][offset + level.begin] = value
    schema = HISTORY.schema
    return part.with_columns(pl.Series(name, values, dtype=schema[name]) for name, values in (whole | firsts).items())


def _change(part: pl.DataFrame, level: Level, metric: str, offset: int) -> dict[str, Any]:
    """What the first row of a level says of it."""
    names = ("change_ratio", "change_ratio_low", "change_ratio_high", "verdict", "is_confirmed", "baseline_run_id", "reason")
    if level.ratio is None:
        return dict.fromkeys(names)
    before, first = (part.row(offset + level.begin + step, named=True) for step in (-1, 0))
    is_better = (level.ratio > 1) == (metric in LARGER_IS_BETTER)
    verdict = "IMPROVEMENT" if is_better else "REGRESSION"
    values = (level.ratio, level.ratio_low, level.ratio_high, verdict, level.is_confirmed, before["run_id"])
    return dict(zip(names, (*values, _reason(before, first, level)), strict=True))


def _reason(before: Mapping[str, Any], first: Mapping[str, Any], level: Level) -> str:
    assert level.ratio is not None
    count = level.end - level.begin
    held = f"{(level.ratio - 1) * 100:+.1f} % in {count} run{'s' if count > 1 else ''} since"
    sentences = [held + (": to be confirmed by more." if not level.is_confirmed else ".")]
    changed = [
        f"{word} {_shown(before[name])} to {_shown(first[name])}"
        for name, word in NAMED_CHANGES.items()
        if before[name] != first[name] and (before[name] or first[name])
    ]
    if changed:
        sentences.append(f"Different from the run before: {', '.join(changed)}.")
    return " ".join(sentences)


def _shown(value: str | None) -> str:
    return value[:COMMIT_LENGTH] if value else "unknown"
