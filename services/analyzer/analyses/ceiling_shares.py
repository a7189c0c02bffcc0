"""What was measured of a device beside what its datasheet and its clock promise."""

from __future__ import annotations

from typing import Final

import polars as pl

SOURCES: Final = ("measured", "datasheet", "clock")
KEYS: Final = ["device_id", "ceiling_name", "unit", "path"]


def ceiling_shares(ceilings: pl.LazyFrame) -> pl.LazyFrame:
    """One row per ceiling that was measured or that a device like this should have, the measured ones first.

    Args:
        ceilings: table ceilings, of one run.

    Returns:
        device_id, ceiling_name, unit, path; measured, datasheet and at_clock in that unit, null where nothing is known;
        datasheet_ratio and clock_ratio, the measured one over each of these; clock_hz, the SM clock at which the measured
        one was seen, else the maximum; note and host_busy_ratio, of the measured one. at_clock holds at clock_hz: it follows the clock in
        proportion, as the rates that it is made of do.
    """
    return (
        ceilings.sort("event_index", maintain_order=True)
        .group_by(KEYS, maintain_order=True)
        .agg(
            *(_last("value", source).alias(source) for source in SOURCES),
            measured_clock_hz=_last("clock_hz", "measured"),
            maximum_clock_hz=_last("clock_hz", "clock"),
            note=_last("note", "measured"),
            host_busy_ratio=_last("host_busy_ratio", "measured"),
        )
        .filter(pl.any_horizontal(pl.col(source).is_not_null() for source in SOURCES))
        .with_columns(clock_hz=pl.coalesce("measured_clock_hz", "maximum_clock_hz"))
        .with_columns(at_clock=pl.col("clock") * (pl.col("clock_hz") / pl.col("maximum_clock_hz")))
        .with_columns(datasheet_ratio=pl.col("measured") / pl.col("datasheet"), clock_ratio=pl.col("measured") / pl.col("at_clock"))
        .sort(pl.col("measured").is_null(), maintain_order=True)
        .select(*KEYS, "measured", "datasheet", "at_clock", "datasheet_ratio", "clock_ratio", "clock_hz", "note", "host_busy_ratio")
    )


def _last(column: str, source: str) -> pl.Expr:
    return pl.col(column).filter(pl.col("source") == source).last()
