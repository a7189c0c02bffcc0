"""Tables on the terminal: columns with values, as many as there is room for, whole words, units."""

from __future__ import annotations

from io import StringIO

import polars as pl
import pytest
from rich.console import Console

from kernalyse.services.analyzer.queries.filters import QueryResult
from kernalyse.services.analyzer.tables.runs import TABLES, find_table
from kernalyse.services.cli.output import OVERVIEW_COLUMNS, TerminalTable, heading, number, print_result, shown_columns

HEADINGS = ("kernel", "duration median", "efficiency", "verification state")
ROWS = (
    ("matmul_tiled M=512 N=512 K=512", "10.88 ms ±16 %", "–", "passed"),
    ("saxpy N=1024", "718.9 ns ±0.4 %", "–", "not verified: no reference"),
)


def printed(table: TerminalTable, width: int, *, is_terminal: bool = True) -> list[str]:
    stream = StringIO()
    Console(file=stream, width=width, force_terminal=is_terminal, color_system=None).print(table)
    return stream.getvalue().splitlines()


def test_a_column_without_values_is_left_out_and_the_first_one_never() -> None:
    text = "\n".join(printed(TerminalTable(HEADINGS, ROWS), 200))
    assert "efficiency" not in text
    assert "No room" not in text
    assert "kernel" in printed(TerminalTable(("kernel", "time"), [("–", "–")]), 80)[0]


@pytest.mark.parametrize("width", range(44, 120))
def test_words_and_numbers_are_whole_at_any_width(width: int) -> None:
    lines = printed(TerminalTable(HEADINGS, ROWS, numeric=("duration median",)), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for word in ("kernel", "duration", "median", "matmul_tiled", "10.88 ms ±16 %", "718.9 ns ±0.4 %"):
        assert word in text
    assert ("No room for: verification state." in " ".join(text.split())) is ("verification" not in text.partition("No room")[0])


def test_a_pipe_gets_every_column_and_a_line_for_each_row() -> None:
    lines = printed(TerminalTable(HEADINGS, ROWS), 1000, is_terminal=False)
    assert len(lines) == 4
    assert "not verified: no reference" in lines[-1]


def test_a_table_without_rows_shows_its_headings() -> None:
    assert "duration median" in printed(TerminalTable(HEADINGS, []), 80)[0]


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("duration_sum_ns", 2.1761e12, "2176 s"),
        ("duration_median_min_ns", 718.9, "718.9 ns"),
        ("achieved_flop_per_s_max", 2.1761e12, "2.176 Tflop/s"),
        ("memory_ceiling_bytes_per_s", 3.35e12, "3.35 TB/s"),
        ("flop", 2.1761e12, "2.176 Tflop"),
        ("bytes_sum", 2**30, "1 GiB"),
        ("share_ratio", 0.0147, "1.47 %"),
        ("efficiency_ratio_max", 0.5, "50 %"),
        ("duration_ratio_low", 1.0512, "1.051"),
        ("intensity_flop_per_byte", 1 / 6, "0.1667 flop/B"),
        ("sm_clock_hz", 1.98e9, "1.98 GHz"),
        ("power_watts", 300, "300 W"),
        ("start_ns", 1_234_567_890, "1.234568 s"),
        ("measured_unix_ns", 0, "1970-01-01 00:00:00"),
        ("launch_count", 12_345_678, "12345678"),
    ],
)
def test_numbers_have_the_unit_of_their_column(column: str, value: float, text: str) -> None:
    assert number(column, value) == text


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("duration_median_ns", "duration median"),
        ("achieved_flop_per_s_max", "achieved flop rate max"),
        ("efficiency_ratio_max", "efficiency max"),
        ("duration_ratio_low", "duration ratio low"),
        ("bytes", "bytes"),
        ("dram_bytes", "dram"),
        ("tokens_per_s", "tokens/s"),
        ("is_implausible", "implausible"),
    ],
)
def test_headings_are_words_without_units(column: str, words: str) -> None:
    assert heading(column) == words


def test_every_column_of_an_overview_is_one_of_its_table() -> None:
    for name, columns in OVERVIEW_COLUMNS.items():
        known = set(find_table(name).column_names)
        assert [column for column in columns if column not in known] == [], name


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.table_name)
def test_every_table_has_headings_of_its_own_for_each_column(table: object) -> None:
    columns = shown_columns(table.table_name, table.empty())  # type: ignore[attr-defined]
    assert len({heading(column) for column in columns}) == len(columns)


def test_a_trace_without_known_work_shows_no_column_of_dashes() -> None:
    table = find_table("layers")
    rows = pl.concat(
        [
            table.empty(),
            pl.DataFrame({"layer": ["attention"], "duration_sum_ns": [2_000], "share_ratio": [1.0], "worked_share_ratio": [0.0]}),
        ],
        how="diagonal_relaxed",
    )
    stream = StringIO()
    print_result(Console(file=stream, width=80, force_terminal=True, color_system=None), "layers", QueryResult(rows, 1), 10)
    assert stream.getvalue().splitlines()[1].split() == ["layer", "duration", "sum", "share"]
