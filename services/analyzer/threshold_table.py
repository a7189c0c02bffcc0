"""The table of what counts as inefficient."""

from __future__ import annotations

from typing import Final

from services.analyzer.table import DEVICE_ID, NUMBER, Column, keyed_table

THRESHOLDS: Final = keyed_table(
    "thresholds",
    "One row per run and device: efficiencies below which its kernels count as inefficient.",
    DEVICE_ID,
    Column("memory_inefficient_ratio", NUMBER, "Of what is bound by memory."),
    Column("compute_inefficient_ratio", NUMBER, "Of what is bound by computing."),
)
