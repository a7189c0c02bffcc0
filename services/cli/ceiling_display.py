"""Ceilings on the terminal: what was measured, and the share that it is of what was promised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from services.cli.terminal import FittedTable
from services.core.disturbance import DISTURBED_SYMBOL, is_busy
from services.core.quantities import UNKNOWN, ceiling_rate, percentage

if TYPE_CHECKING:
    import polars as pl

PROBLEM_PREFIX: Final = "Not measured: "
"""How the profiler's log begins what it says of a ceiling, or a form of it, that it could not measure."""


def ceilings_table(shares: pl.DataFrame) -> FittedTable:
    """Return one row per ceiling. Input: ceiling_shares of one run."""
    numeric = ("measured", "datasheet", "of datasheet", "at clock", "of clock")
    rows = ((*_cells(row), row["note"] or "") for row in shares.iter_rows(named=True))
    return FittedTable(("ceiling", "path", *numeric, "note"), rows, numeric=numeric)


def problem_lines(log_lines: pl.DataFrame) -> list[str]:
    """Return why ceilings are missing, or variants of them. Input: table log_lines of one run."""
    return [line.removeprefix(PROBLEM_PREFIX) for line in log_lines["line"].to_list() if line.startswith(PROBLEM_PREFIX)]


def busy_lines(shares: pl.DataFrame) -> Iterator[str]:
    """Say that the host was busy while ceilings were measured, and how to have better ones."""
    ratios = [ratio for ratio in shares["host_busy_ratio"] if is_busy(ratio)]
    if ratios:
        busy = f"other programs kept the host {max(ratios) * 100:.0f} % busy while this was measured: it may be too low"
        yield f"{DISTURBED_SYMBOL} {busy}. Measure again when it is quiet: kernalyse ceilings"


def missing_lines(shares: pl.DataFrame) -> Iterator[str]:
    """Yield what of a device like this has no measurement."""
    names = [f"{row['ceiling_name']} {row['path']}" for row in shares.iter_rows(named=True) if row["measured"] is None]
    if names:
        yield f"not measured on this device: {', '.join(names)}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    unit, name = row["unit"], row["ceiling_name"]
    return (
        name,
        row["path"] or UNKNOWN,
        ceiling_rate(row["measured"], unit, name) + (f" {DISTURBED_SYMBOL}" if is_busy(row["host_busy_ratio"]) else ""),
        ceiling_rate(row["datasheet"], unit, name),
        percentage(row["datasheet_ratio"]),
        ceiling_rate(row["at_clock"], unit, name),
        percentage(row["clock_ratio"]),
    )
