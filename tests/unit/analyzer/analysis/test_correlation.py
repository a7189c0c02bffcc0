"""Kernels, calls and ranges, held against definitions in plain Python."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.numeric.correlation import (
    NO_ID,
    NULL_INDEX,
    Indexes,
    Integers,
    Nesting,
    factorize,
    find_nesting,
    match_calls,
    range_order,
    start_order,
)
from tests.examples import examples


@dataclass(frozen=True)
class Range:
    thread: int
    start: int
    end: int
    counts: bool = True

    @property
    def key(self) -> tuple[int, int]:
        return self.start, -self.end

    def holds(self, thread: int, moment: int) -> bool:
        return self.counts and self.thread == thread and self.start <= moment < self.end


@dataclass(frozen=True)
class Moment:
    thread: int
    ns: int


def nest(ranges: list[Range], moments: list[Moment]) -> Nesting:
    return find_nesting(
        np.array([item.thread for item in ranges], dtype=np.int32),
        np.array([item.start for item in ranges], dtype=np.int64),
        np.array([item.end for item in ranges], dtype=np.int64),
        np.array([item.counts for item in ranges], dtype=np.bool_),
        np.array([moment.thread for moment in moments], dtype=np.int32),
        np.array([moment.ns for moment in moments], dtype=np.int64),
    )


def innermost_by_definition(ranges: list[Range], moment: Moment) -> int:
    holding = [(item.key, index) for index, item in enumerate(ranges) if item.holds(moment.thread, moment.ns)]
    return max(holding)[1] if holding else NULL_INDEX


def parent_by_definition(ranges: list[Range], index: int) -> int:
    child = ranges[index]
    if not child.counts or child.end < child.start:
        return NULL_INDEX
    around = [
        (item.key, other) for other, item in enumerate(ranges[:index]) if item.holds(child.thread, child.start) and item.end >= child.end
    ]
    return max(around)[1] if around else NULL_INDEX


few = st.integers(0, 2)
times = st.integers(0, 24)  # few, so that starts and ends meet
ranges_strategy = st.lists(st.builds(Range, few, times, times, st.sampled_from([True, True, True, False])), max_size=40)
moments_strategy = st.lists(st.builds(Moment, few, times), max_size=30)


@given(ranges_strategy, moments_strategy)
@examples(300)
def test_the_sweep_says_what_the_definition_says(ranges: list[Range], moments: list[Moment]) -> None:
    ranges.sort(key=lambda item: item.key)
    moments.sort(key=lambda moment: moment.ns)
    found = nest(ranges, moments)
    assert found.innermost.tolist() == [innermost_by_definition(ranges, moment) for moment in moments]
    parents = [parent_by_definition(ranges, index) for index in range(len(ranges))]
    assert found.parent.tolist() == parents
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent == NULL_INDEX else depths[parent] + 1)
    assert found.depth.tolist() == depths


def test_a_range_that_ends_as_another_starts_holds_nothing_of_it() -> None:
    found = nest([Range(0, 0, 10), Range(0, 10, 20)], [Moment(0, 9), Moment(0, 10), Moment(0, 20)])
    assert found.innermost.tolist() == [0, 1, NULL_INDEX]


def test_ranges_of_another_thread_do_not_count() -> None:
    assert nest([Range(0, 0, 100)], [Moment(1, 50)]).innermost.tolist() == [NULL_INDEX]


def test_ten_thousand_levels_are_as_good_as_ten() -> None:
    ranges = [Range(0, level, 100_000 - level) for level in range(10_000)]
    found = nest(ranges, [Moment(0, 50_000)])
    assert found.innermost.tolist() == [9_999]
    assert found.depth[-1] == 9_999


def test_ranges_that_overlap_in_a_chain_take_no_longer_than_ranges_that_nest() -> None:
    count = 200_000
    start = np.arange(count, dtype=np.int64)
    thread = np.zeros(count, dtype=np.int32)
    found = find_nesting(thread, start, start + count, np.ones(count, dtype=np.bool_), thread, start)
    assert found.innermost.tolist() == list(range(count))
    assert found.parent.max() == NULL_INDEX


@given(st.lists(st.tuples(times, times), max_size=30))
@examples(100)
def test_orders_are_those_of_sorted(rows: list[tuple[int, int]]) -> None:
    start, end = (np.array([row[column] for row in rows], dtype=np.int64) for column in (0, 1))
    wanted = sorted(range(len(rows)), key=lambda row: (rows[row][0], -rows[row][1], row))
    order = range_order(start, end)
    assert (list(range(len(rows))) if order is None else order.tolist()) == wanted
    by_start = start_order(start)
    assert (list(range(len(rows))) if by_start is None else by_start.tolist()) == sorted(range(len(rows)), key=lambda row: rows[row][0])


ids = st.one_of(st.integers(-3, 12), st.just(NO_ID), st.sampled_from([2**62, -(2**40), 2**50]))
works = st.lists(st.tuples(few, ids), max_size=40)


@given(works, works)
@examples(300)
def test_a_cause_is_the_last_call_of_the_process_with_that_id(work: list[tuple[int, int]], calls: list[tuple[int, int]]) -> None:
    last = {call: index for index, call in enumerate(calls) if call[1] != NO_ID}

    def columns(rows: list[tuple[int, int]]) -> tuple[Indexes, Integers]:
        return np.array([row[0] for row in rows], dtype=np.int32), np.array([row[1] for row in rows], dtype=np.int64)

    assert match_calls(*columns(work), *columns(calls)).tolist() == [last.get(row, NULL_INDEX) for row in work]


@pytest.mark.parametrize("ids", [[7] * 100, [*range(200), 2**62 + 5], [-(2**63) + 1, *range(0, 9000, 30), 2**63 - 1]], ids=str)
def test_calls_whose_ids_lie_close_together_or_far_apart(ids: list[int]) -> None:
    """Of one process, each in the place of its last one; the other process has the same ids in the opposite order."""
    calls, wanted = ids + ids[::-1], [*ids, 6, 8]
    found = match_calls(
        np.repeat(np.array([0, 1], dtype=np.int32), len(wanted)),
        np.array(wanted * 2, dtype=np.int64),
        np.repeat(np.array([0, 1], dtype=np.int32), len(ids)),
        np.array(calls, dtype=np.int64),
    )
    last = [{number: place for place, number in enumerate(part)} for part in (ids, ids[::-1])]
    expected = [[places.get(number, NULL_INDEX) for number in wanted] for places in last]
    assert found.tolist() == expected[0] + [NULL_INDEX if place == NULL_INDEX else place + len(ids) for place in expected[1]]


@pytest.mark.parametrize("key_count", [1, 31, 5000])
def test_equal_keys_have_equal_codes_across_columns(key_count: int) -> None:
    random = np.random.default_rng(key_count)
    keys = random.integers(-(2**63), 2**63 - 1, key_count, dtype=np.int64)
    first, second = keys[random.integers(0, key_count, 9000)], keys[random.integers(0, key_count, 9000)]
    by_first, by_second = factorize(first, second)
    assert np.array_equal(by_first.keys[by_first.codes], first)
    assert np.array_equal(by_second.keys[by_second.codes], second)
    assert by_first.keys.size == np.unique(np.concatenate((first, second))).size
