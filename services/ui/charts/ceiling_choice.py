"""Which source of ceilings a roofline is drawn with, and what its points are held against then."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

from kernalyse.services.ui import theme

CeilingChoice = Literal["best", "datasheet", "clock", "measured"]

BEST: Final[CeilingChoice] = "best"
CEILING_CHOICES: Final[dict[CeilingChoice, str]] = {
    "best": "best known",
    "datasheet": "datasheet",
    "clock": "at the clock",
    "measured": "measured",
}
_COMPUTE_SOURCES: Final[dict[CeilingChoice, tuple[str, ...]]] = {
    "best": ("user", "measured", "datasheet", "clock"),
    "datasheet": ("datasheet",),
    "clock": ("clock",),
    "measured": ("measured",),
}
_MEMORY_SOURCES: Final = {**_COMPUTE_SOURCES, "clock": ("clock", "datasheet", "measured")}
"""The SM clock says nothing of device memory: the analyzer takes the datasheet's there, else the measured one."""


def sources_of(choice: CeilingChoice, unit: str) -> tuple[str, ...]:
    """Those that count for ceilings of this unit, the first that knows one before the others."""
    return (_MEMORY_SOURCES if unit == "bytes_per_s" else _COMPUTE_SOURCES)[choice]


def held_against(rows: pl.DataFrame, choice: CeilingChoice) -> pl.DataFrame:
    """Rows of the table roofline with efficiency, its category, bound, attainable rate and source by the ceilings of the choice.

    Of the two ceilings only the one that binds is known then.
    """
    if choice == BEST:
        return rows
    efficiency, bound = pl.col(f"efficiency_{choice}_ratio"), pl.col(f"bound_{choice}")
    attainable = pl.col("achieved_flop_per_s") / efficiency
    return rows.with_columns(
        efficiency_ratio=efficiency,
        efficiency_category=pl.col(f"efficiency_category_{choice}"),
        attainable_flop_per_s=attainable,
        bound=bound,
        compute_ceiling_flop_per_s=pl.when(bound == "compute").then(attainable),
        memory_ceiling_bytes_per_s=pl.when(bound == "memory").then(attainable / pl.col("intensity_flop_per_byte")),
        ridge_flop_per_byte=pl.lit(None, dtype=pl.Float64),
        ceiling_source=pl.when(efficiency.is_not_null()).then(pl.lit(choice)),
    )


def at_clock_of(ceilings: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The table ceilings with those of source "clock" at the highest SM clock that the rows of the table roofline ran at.

    The highest one: no point that is below its own ceiling is drawn above that of another.
    """
    clock_hz = highest_clock_hz(rows)
    if clock_hz is None:
        return ceilings
    follows = (pl.col("source") == "clock") & pl.col("clock_hz").is_not_null()
    return ceilings.with_columns(
        value=pl.when(follows).then(pl.col("value") * (clock_hz / pl.col("clock_hz"))).otherwise("value"),
        clock_hz=pl.when(follows).then(pl.lit(clock_hz)).otherwise("clock_hz"),
    )


def highest_clock_hz(rows: pl.DataFrame) -> int | None:
    """None: no row knows its SM clock."""
    clocks = rows["sm_clock_hz"].drop_nulls()
    return None if clocks.is_empty() else int(clocks.cast(pl.Int64).sort()[-1])


def choice_note(choice: CeilingChoice, rows: pl.DataFrame, has_ceilings: bool) -> str:
    """What to know of ceilings of this choice; has_ceilings: whether any of it are drawn."""
    if not has_ceilings:
        return (
            "" if choice == BEST else f"No ceilings of this device are known from this source ({CEILING_CHOICES[choice]}): efficiencies are unknown."
        )
    clock_hz = highest_clock_hz(rows)
    if choice == "clock" and clock_hz is not None:
        return f"Compute ceilings are those at {theme.frequency(clock_hz)}, the highest clock of the points; each is held against its own."
    return "Compute ceilings are those at the maximum clock: no point knows its own." if choice == "clock" else ""
