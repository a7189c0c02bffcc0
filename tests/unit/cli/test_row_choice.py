"""Conditions, orders and depths of `kernalyse show`, as they are written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernalyse.services.cli.file_tables import RowSelection, Window, parse_filter, parse_rows, parse_sort_key, parse_window
from kernalyse.services.core.errors import TableNotFoundError, UsageError
from kernalyse.services.core.model import Filter, FilterOperator, SortKey, TableQuery

MORE, LESS_EQUAL, EQUAL = FilterOperator.GREATER, FilterOperator.LESS_EQUAL, FilterOperator.EQUAL


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kernel_name~gemm", Filter("kernel_name", "gemm", FilterOperator.CONTAINS)),
        ("kernel_name ~ f<a>=1", Filter("kernel_name", "f<a>=1", FilterOperator.CONTAINS)),
        ("layer=", Filter("layer", "", EQUAL)),
        ("layer=two words", Filter("layer", "two words", EQUAL)),
        ("launch_count!=3", Filter("launch_count", "3", FilterOperator.NOT_EQUAL)),
        ("launch_count>=3", Filter("launch_count", "3", FilterOperator.GREATER_EQUAL)),
        ("launch_count<3", Filter("launch_count", "3", FilterOperator.LESS)),
        ("duration_ns>10us", Filter("duration_ns", "10000", MORE)),
        ("duration_ns>0.1µs", Filter("duration_ns", "100", MORE)),
        ("duration_ns > 1.000000001 s", Filter("duration_ns", "1000000001", MORE)),
        ("duration_median_ns<=2.5ns", Filter("duration_median_ns", "2.5", LESS_EQUAL)),
        ("duration_ns>10", Filter("duration_ns", "10", MORE)),
        ("start_ns>1e3ms", Filter("start_ns", "1000000000", MORE)),
        ("bytes=4KiB", Filter("bytes", "4096", EQUAL)),
        ("memory_bytes=4KiB", Filter("memory_bytes", "4096", EQUAL)),
        ("clock_hz>1.98GHz", Filter("clock_hz", "1980000000", MORE)),
        ("share_ratio>2.5%", Filter("share_ratio", "0.025", MORE)),
        ("layer=10us", Filter("layer", "10us", EQUAL)),
    ],
)
def test_a_condition(text: str, expected: Filter) -> None:
    assert parse_filter(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kernel_name", "no condition"),
        (">3", "no condition"),
        ("", "no condition"),
        ("duration_ns>3kg", "the unit kg; expected one of ns us"),
    ],
)
def test_what_is_no_condition(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_filter(text)


def test_an_order() -> None:
    assert [parse_sort_key(text) for text in ("a", "a:asc", "a:desc")] == [SortKey("a"), SortKey("a"), SortKey("a", descending=True)]
    for text in ("a:down", ":desc", ""):
        with pytest.raises(UsageError, match="COLUMN"):
            parse_sort_key(text)


def test_every_table_is_asked_for_what_it_has() -> None:
    choice = parse_rows(["layer~a", "launch_count>1"], ["share_ratio:desc"], 3, 1)
    assert choice.queries(["layers", "breakdown", "layers"]) == [
        TableQuery(
            "layers",
            filters=(Filter("layer", "a", FilterOperator.CONTAINS), Filter("launch_count", "1", MORE)),
            order_by=(SortKey("share_ratio", descending=True),),
            limit=3,
            depth=1,
        ),
        TableQuery("breakdown", filters=(Filter("launch_count", "1", MORE),), limit=3),
    ]


def test_the_first_configurations_are_those_of_the_lowest_index() -> None:
    """They were stored as they were measured, in another order."""
    (query,) = RowSelection(max_row_count=2).queries(["measurements"])
    assert query.order_by == (SortKey("configuration_index"),)
    assert RowSelection().queries(["measurements"]) == [TableQuery("measurements")]


def test_what_no_table_has() -> None:
    for choice in (RowSelection((Filter("nix", "1"),)), RowSelection(order_by=(SortKey("nix"),)), RowSelection(depth=0)):
        with pytest.raises(UsageError):
            choice.queries(["kernels", "breakdown"])
    for max_row_count, depth in ((0, None), (None, -1)):
        with pytest.raises(UsageError, match="or more"):
            parse_rows([], [], max_row_count, depth)
    with pytest.raises(TableNotFoundError):
        RowSelection().queries(["nonsense"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.2s..1.3s", Window(1_200_000_000, 1_300_000_000)),
        ("..5us", Window(None, 5_000)),
        ("7 ms..", Window(7_000_000, None)),
        ("10..20", Window(10, 20)),
        (None, Window()),
    ],
)
def test_a_window(text: str | None, expected: Window) -> None:
    assert parse_window(text, None) == expected
    assert parse_window(text, 9) == replace(expected, pixel_count=9)


@pytest.mark.parametrize("text", ["", "..", "5", "2s..1s", "1s..1s", "a..b", "1kg..2kg", "-1..2"])
def test_what_is_no_window(text: str) -> None:
    with pytest.raises(UsageError, match=r"START\.\.END"):
        parse_window(text, None)


def test_a_window_is_of_the_timeline_alone() -> None:
    window = Window(1, 2, 3)
    timeline, kernels = RowSelection(window=window).queries(["timeline", "kernels"])
    assert (timeline.window_start_ns, timeline.window_end_ns, timeline.pixel_count) == (1, 2, 3)
    assert kernels == TableQuery("kernels")
    with pytest.raises(UsageError, match="timeline"):
        RowSelection(window=window).queries(["kernels"])
    with pytest.raises(UsageError, match="1 or more"):
        parse_window(None, 0)
