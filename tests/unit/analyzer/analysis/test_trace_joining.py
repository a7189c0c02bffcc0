"""Traces joined, held against what each of them says of its own."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.ingest.ranks import RankTrace, join_traces, ranks_of_names
from kernalyse.services.analyzer.ingest.worker import known_columns
from kernalyse.services.analyzer.store.parquet import row_count, take_parts, write_frames
from kernalyse.services.analyzer.store.trace_parts import NAMES, PARTS, REFERENCES, TABLES_IN_PARTS, TIMES, TraceParts, stored_parts
from kernalyse.services.analyzer.tables.base import Table
from kernalyse.services.analyzer.tables.traces import (
    API_CALLS,
    KERNEL_LAUNCHES,
    RANGES,
    TRACE_DEVICES,
    TRACE_NAMES,
    TRACE_PROCESSES,
    TRACE_TABLES,
)
from tests.examples import examples

NOT_OF_ROWS = {"device_index", "rank_index", "stream_index"}
OWN_INDEXES = {"trace_names": "name_index", "kernel_launches": "launch_index", "api_calls": "call_index", "ranges": "range_index"}


def frame(table: Table, rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    columns = {name: dtype for name, dtype in table.schema.items() if name not in ("run_id", "event_index")}
    return pl.DataFrame([{name: row.get(name) for name in columns} for row in rows], schema=columns)


@st.composite
def rank_traces(draw: st.DrawFn) -> RankTrace:
    """A trace in which everything refers to everything at random, in order of start as readers give it."""
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True))
    processes = draw(st.lists(st.sampled_from([1, 2, 3, None]), min_size=1, max_size=3, unique=True))
    times = st.integers(0, 6)
    a_name, a_process = st.integers(0, len(names) - 1), st.sampled_from(processes)

    def count_or_none(count: int) -> st.SearchStrategy[int | None]:
        return st.none() if count == 0 else st.one_of(st.none(), st.integers(0, count - 1))

    spans = sorted(draw(st.lists(st.tuples(times, times), max_size=4)), key=lambda span: (span[0], -span[1]))
    ranges = [
        {"range_index": row, "name_index": draw(a_name), "process_id": draw(a_process), "start_ns": start, "duration_ns": length,
         "parent_range_index": draw(count_or_none(row)), "domain_name_index": draw(st.one_of(st.none(), a_name))}
        for row, (start, length) in enumerate(spans)
    ]  # fmt: skip
    calls = [
        {"call_index": row, "name_index": draw(a_name), "process_id": draw(a_process), "start_ns": start}
        for row, start in enumerate(sorted(draw(st.lists(times, max_size=4))))
    ]
    launches = [
        {"launch_index": row, "name_index": draw(a_name), "process_id": draw(a_process), "start_ns": start,
         "launch_start_ns": draw(st.one_of(st.none(), times)), "api_call_index": draw(count_or_none(len(calls))),
         "range_index": draw(count_or_none(len(ranges))), "operator_index": draw(count_or_none(len(ranges)))}
        for row, start in enumerate(sorted(draw(st.lists(times, max_size=4))))
    ]  # fmt: skip
    start = draw(st.one_of(st.none(), st.integers(100, 110)))
    tables: dict[Table, list[dict[str, Any]]] = {
        TRACE_NAMES: [{"name_index": row, "name": name} for row, name in enumerate(names)],
        TRACE_PROCESSES: [
            {"process_id": process, "system_process_id": process, "session_start_unix_ns": start, "process_name": f"p{process}"}
            for process in processes
        ],
        TRACE_DEVICES: [{"process_id": process, "device_index": 0} for process in processes],
        KERNEL_LAUNCHES: launches,
        API_CALLS: calls,
        RANGES: ranges,
    }
    return RankTrace("", {table.table_name: frame(table, rows).lazy() for table, rows in tables.items()})


def meanings(part: RankTrace, shift_ns: int, file_of: dict[int | None, str]) -> Counter[str]:
    """Every row by what it says, references followed, instead of by numbers."""
    names = part.frame(TRACE_NAMES)["name"].to_list()
    ranges, calls = part.frame(RANGES).rows(named=True), part.frame(API_CALLS).rows(named=True)
    processes = {
        row["process_id"]: (row["process_name"], file_of[row["process_id"]]) for row in part.frame(TRACE_PROCESSES).rows(named=True)
    }

    def common(row: dict[str, Any]) -> tuple[object, ...]:
        return names[row["name_index"]], processes[row["process_id"]], row["start_ns"] + shift_ns

    def of_range(row: dict[str, Any] | None) -> object:
        if row is None:
            return None
        parent = None if row["parent_range_index"] is None else of_range(ranges[row["parent_range_index"]])
        domain = None if row["domain_name_index"] is None else names[row["domain_name_index"]]
        return (*common(row), row["duration_ns"], domain, parent)

    found: list[object] = [("range", of_range(row)) for row in ranges]
    found += [("call", common(row)) for row in calls]
    for row in part.frame(KERNEL_LAUNCHES).rows(named=True):
        call = None if row["api_call_index"] is None else common(calls[row["api_call_index"]])
        around = [None if row.get(name) is None else of_range(ranges[row[name]]) for name in ("range_index", "operator_index")]
        launch_start_ns = None if row["launch_start_ns"] is None else row["launch_start_ns"] + shift_ns
        found.append(("launch", common(row), call, around, launch_start_ns))
    found += [("device", processes[row["process_id"]]) for row in part.frame(TRACE_DEVICES).rows(named=True)]
    return Counter(map(repr, found))


@pytest.mark.slow
@given(st.lists(rank_traces(), min_size=1, max_size=3))
@examples(150)
def test_every_row_says_what_it_said(traces: list[RankTrace]) -> None:
    parts = [RankTrace(f"rank{number}", trace.frames) for number, trace in enumerate(traces)]
    starts = [part.session_start_unix_ns for part in parts]
    known = [start for start in starts if start is not None]
    is_aligned = len(known) == len(parts)
    expected: Counter[str] = Counter()
    for part, start in zip(parts, starts, strict=True):
        shift_ns = start - min(known) if is_aligned and start is not None else 0
        expected += meanings(part, shift_ns, dict.fromkeys([1, 2, 3, None], part.file_name))
    joined = join_traces(parts)
    whole = RankTrace("", {name: frame.collect().lazy() for name, frame in joined.frames.items()})
    processes = whole.frame(TRACE_PROCESSES)
    assert processes["process_id"].n_unique() == processes.height == sum(part.frame(TRACE_PROCESSES).height for part in parts)
    assert meanings(whole, 0, dict(processes.select("process_id", "file_name").iter_rows())) == expected

    names = whole.frame(TRACE_NAMES)["name"].to_list()
    assert len(names) == len(set(names))
    for table_name, column in OWN_INDEXES.items():
        if table_name not in whole.frames:
            continue
        own = whole.frames[table_name].collect()
        assert own[column].to_list() == list(range(own.height))


@given(st.lists(rank_traces(), min_size=1, max_size=3), st.integers(0, 6), st.integers(0, 6))
@examples(60)
def test_tables_that_stay_in_parts_are_read_as_those_of_the_whole(traces: list[RankTrace], begin: int, length: int) -> None:
    joined = join_traces([RankTrace(f"rank{number}", trace.frames) for number, trace in enumerate(traces)])
    tables = [table for table in TABLES_IN_PARTS if table.table_name in joined.frames]
    stored = TraceParts(
        "run",
        {table.table_name: 7 for table in tables},
        {t.table_name: joined.row_counts[t.table_name] for t in TABLES_IN_PARTS},
        joined.maps,
    )
    with tempfile.TemporaryDirectory() as name:
        directories = [Path(name) / str(number) for number in range(len(traces))]
        whole = Path(name) / "whole"
        for directory, trace in zip(directories, traces, strict=True):
            directory.mkdir()
            write_frames(directory, known_columns({name: frame.collect() for name, frame in trace.frames.items()}))
        whole.mkdir()
        write_frames(whole, {PARTS: stored.frame()})
        take_parts(whole, directories)
        for table in tables:
            expected = joined.frames[table.table_name].collect()
            rows = stored_parts(whole).rows(table, whole).collect()
            assert rows.drop("run_id", "event_index").equals(expected)
            assert rows.select("run_id", "event_index").unique().rows() == [("run", 7)]
            assert row_count(whole, table) == expected.height
            page = stored_parts(whole).rows(table, whole, begin, begin + length).collect()
            assert page.equals(rows.slice(begin, length))


def test_every_column_of_a_trace_that_is_a_row_or_a_time_is_known_here() -> None:
    columns = {column for table in TRACE_TABLES for column in table.column_names[2:]}
    rows = {column for column in columns if column.endswith("_index")}
    assert rows - NOT_OF_ROWS == {*NAMES, *REFERENCES}
    assert {column for column in columns if column.endswith("start_ns")} == set(TIMES)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["rank0.json", "rank12.json"], [0, 12]),
        (["run7/rank1.json", "run7/rank0.json"], [1, 0]),
        (["job1_rank0", "job2_rank1"], None),
        (["a.json", "b.json"], None),
        (["rank0.json", "rank00.json"], None),
    ],
)
def test_ranks_that_names_tell(names: list[str], expected: list[int] | None) -> None:
    assert ranks_of_names(names) == expected


def test_ranks_are_what_files_say_and_else_what_their_names_tell() -> None:
    def trace(name: str, rank: int | None) -> RankTrace:
        return RankTrace(name, {TRACE_PROCESSES.table_name: frame(TRACE_PROCESSES, [{"process_id": 5, "rank_index": rank}]).lazy()})

    told = join_traces([trace("r3", 0), trace("r4", 1)])
    assert told.frames["trace_processes"].collect()["rank_index"].to_list() == [0, 1]
    named = join_traces([trace("r3", None), trace("r4", None)])
    assert named.frames["trace_processes"].collect()["rank_index"].to_list() == [3, 4]
    assert "Ranks are taken from the names of the files." in named.notes
    unknown = join_traces([trace("a", None), trace("b", None)])
    assert unknown.frames["trace_processes"].collect()["rank_index"].to_list() == [None, None]
    assert any("neither the files nor their names" in note for note in unknown.notes)
