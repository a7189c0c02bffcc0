"""Measured ceilings beside promised ones, by hand, and how a terminal shows them."""

from __future__ import annotations

from io import StringIO
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from kernalyse.services.analyzer.analysis.roofline import ceiling_shares
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import CEILINGS
from kernalyse.services.cli.ceilings import ceilings_table, missing_lines
from kernalyse.services.core.formatting import ceiling_rate, rate


def ceiling(name: str, value: float, source: str, path: str = "tensor", clock_hz: int | None = None, note: str = "") -> dict[str, Any]:
    unit = "bytes_per_s" if path == "copy" else "flop_per_s"
    keys = {"run_id": "r", "event_index": 1, "device_id": "cuda:0"}
    return keys | {"ceiling_name": name, "unit": unit, "value": value, "path": path, "source": source, "clock_hz": clock_hz, "note": note}


H200 = (
    ceiling("dram", 4.8e12, "datasheet", "copy"),
    ceiling("bfloat16", 990e12, "datasheet", clock_hz=1_830_000_000),
    ceiling("bfloat16", 1070e12, "clock", clock_hz=1_980_000_000),
    ceiling("float4", 2e15, "datasheet"),
    ceiling("dram", 4.32e12, "measured", "copy", 1_900_000_000),
    ceiling("bfloat16", 792e12, "measured", clock_hz=1_485_000_000, note="Best launch of each form: wgmma 792 Tflop/s."),
)


def shares(*rows: dict[str, Any]) -> pl.DataFrame:
    return ceiling_shares(frame_from_rows(CEILINGS, [*rows]).lazy()).collect()


def test_a_measured_ceiling_is_held_against_the_datasheet_and_against_its_own_clock() -> None:
    dram, bfloat16, _ = shares(*H200).rows(named=True)
    assert (dram["ceiling_name"], dram["datasheet_ratio"], dram["at_clock"]) == ("dram", pytest.approx(0.9), None)
    assert bfloat16["datasheet_ratio"] == pytest.approx(0.8)
    assert bfloat16["at_clock"] == pytest.approx(1070e12 * 0.75)
    assert bfloat16["clock_ratio"] == pytest.approx(792 / (1070 * 0.75))
    assert bfloat16["clock_hz"] == 1_485_000_000


def test_without_a_measured_clock_the_maximum_counts() -> None:
    (row,) = shares(ceiling("float32", 50e12, "measured", "fma"), ceiling("float32", 60e12, "clock", "fma", 2_000_000_000)).rows(named=True)
    assert (row["at_clock"], row["clock_hz"]) == (60e12, 2_000_000_000)
    assert row["clock_ratio"] == pytest.approx(50 / 60)


def test_what_was_not_measured_comes_last_and_is_named() -> None:
    found = shares(*H200)
    assert found["ceiling_name"].to_list() == ["dram", "bfloat16", "float4"]
    assert list(missing_lines(found)) == ["not measured on this device: float4 tensor"]
    assert list(missing_lines(found.head(2))) == []


def test_the_same_type_on_two_paths_is_two_ceilings() -> None:
    found = shares(ceiling("float64", 30e12, "measured", "fma"), ceiling("float64", 60e12, "measured"))
    assert found.select("path", "measured").rows() == [("fma", 30e12), ("tensor", 60e12)]


def test_a_ceiling_set_by_hand_alone_is_no_row() -> None:
    assert shares(ceiling("dram", 1e12, "user", "copy")).is_empty()


@pytest.mark.parametrize("width", [80, 130])
def test_every_ceiling_is_one_line_at_any_width_and_notes_take_what_is_left(width: int) -> None:
    stream = StringIO()
    Console(file=stream, width=width, force_terminal=True, color_system=None).print(ceilings_table(shares(*H200)))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    (line,) = [line for line in lines if "bfloat16" in line]
    assert [part in line for part in ("792 Tflop/s", "990 Tflop/s", "80 %", "98.7 %")] == [True] * 4
    assert ("wgmma" in stream.getvalue()) is (width == 130)
    assert ("No room for: note" in stream.getvalue()) is (width == 80)


@pytest.mark.parametrize(("value", "text"), [(4.32e12, "4.32 TB/s"), (999.0, "999 B/s"), (1e15, "1 PB/s"), (None, "–")])
def test_rates_take_prefixes(value: float | None, text: str) -> None:
    assert rate(value, "B/s") == text


def test_rates_of_ceilings_have_the_unit_that_they_are_measured_in() -> None:
    assert [ceiling_rate(4.32e12, unit) for unit in ("bytes_per_s", "flop_per_s")] == ["4.32 TB/s", "4.32 Tflop/s"]
