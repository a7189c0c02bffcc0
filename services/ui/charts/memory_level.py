"""Which memory level a roofline is drawn at, and which points have bytes there."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

from kernalyse.services.ui.charts.roofline_points import LEVEL_TITLES

LevelChoice = Literal["auto", "dram", "l2", "l1", "all"]

LEVEL_CHOICES: Final[dict[LevelChoice, str]] = {
    "auto": "automatic",
    "dram": "DRAM",
    "l2": "L2 cache",
    "l1": "L1 cache",
    "all": "all, side by side",
}
_KEY: Final = ["run_id", "configuration_index", "of_trace"]
_KERNEL_OF_TRACE: Final = ("label", "path", "device_id")
_LAYER_OF_TRACE: Final = ("label", "source")

KNOWN_BY: Final = (
    "Bytes of caches are known to hardware counters alone: kernalyse bench --counters, or, of a trace, "
    "kernalyse import TRACE --counters REPORT."
)


def at_level(rows: pl.DataFrame, counted: pl.DataFrame | None, level: LevelChoice) -> pl.DataFrame:
    """Points of the level: as hardware counters counted its bytes, else those of the table roofline whose bytes came from there.

    Args:
        rows: table roofline or layer_roofline, each configuration once.
        counted: table counted_roofline or counted_layer_roofline of the same runs, with a row for each level; None: not known.
        level: "auto": rows as they are; "all": every level that was counted, and the others as they are.
    """
    if level == "auto":
        return rows
    if counted is None or counted.is_empty():
        return rows if level == "all" else rows.filter(pl.col("memory_level") == level)
    of_level = counted if level == "all" else counted.filter(pl.col("memory_level") == level)
    of_level, keyed = _with_keys(of_level), _with_keys(rows)
    of_level = of_level.join(keyed.select(_KEY), on=_KEY, how="semi", nulls_equal=True, maintain_order="left")
    others = keyed.join(of_level.select(_KEY), on=_KEY, how="anti", nulls_equal=True, maintain_order="left")
    kept = others if level == "all" else others.filter(pl.col("memory_level") == level)
    # Counted rows have not all columns that the page adds to the others.
    return pl.concat([of_level, kept], how="diagonal_relaxed").select(rows.columns)


def _with_keys(rows: pl.DataFrame) -> pl.DataFrame:
    """A point of a trace is of no configuration. One of a sweep may have another path by counters than by formula, and so may a layer."""
    names = _LAYER_OF_TRACE if "layer" in rows.columns else _KERNEL_OF_TRACE
    return rows.with_columns(of_trace=pl.when(pl.col("configuration_index").is_null()).then(pl.struct(names)))


def drawn_levels(level: LevelChoice, rows: pl.DataFrame | None) -> tuple[str, ...]:
    """Memories whose slopes are drawn."""
    if level == "all":
        return tuple(LEVEL_TITLES)
    if level != "auto":
        return (level,)
    has_l1 = rows is not None and bool((rows["memory_level"] == "l1").any())
    return ("dram", "l2", "l1") if has_l1 else ("dram", "l2")


def level_note(level: LevelChoice, missing_count: int, asking: bool) -> str:
    """What to know of the points at this level; empty without any."""
    if level == "auto":
        return ""
    if asking:
        return "Asking for what hardware counters say of each level…"
    if level == "all":
        return (
            "Each kernel or layer with counters has a point for each memory level, at one height: the nearer its own ceiling, the more "
            "that level limits it."
        )
    if not missing_count:
        return ""
    title = LEVEL_TITLES[level]
    known = "" if level == "dram" else f" {KNOWN_BY}"
    return f"{missing_count} not shown: their bytes at {title} are not known.{known}"
