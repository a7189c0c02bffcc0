"""Clocks of ranks on several machines, found by the ends of the collectives that they share."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

import pytest

from kernalyse.services.analyzer.ingest.ranks import RankTrace, join_traces
from kernalyse.services.analyzer.queries.registry import Frames
from kernalyse.services.analyzer.tables.traces import KERNEL_LAUNCHES, TRACE_PROCESSES, TRACE_TABLES
from tests.unit.analyzer.analysis.test_trace_activity import GEMM, REDUCE, SENDRECV, answer, columns, job, process, rank

STEP_COUNT: Final = 60
STEP_NS: Final = 50_000_000
MAX_LATE_NS: Final = 2_000_000
END_NOISE_NS: Final = 4_000

Clock = Callable[[int], int]


def true(time_ns: int) -> int:
    return time_ns


def ahead_by(offset_ns: int, drift_ratio: float = 0.0) -> Clock:
    return lambda time_ns: time_ns + offset_ns + round(drift_ratio * time_ns)


def steps(process_id: int, clock: Clock, *, group: str | None = None, noise_ns: int = 0) -> list[dict[str, Any]]:
    """One reduction a step: every process comes late by a time of its own, all end together but for noise."""
    random = Random(process_id)
    found = []
    for step in range(STEP_COUNT):
        begin = step * STEP_NS + random.randrange(MAX_LATE_NS)
        end = step * STEP_NS + MAX_LATE_NS + 500_000 + random.randint(-noise_ns, noise_ns)
        found += rank(process_id, (REDUCE, clock(begin), clock(end)))
    return [row | {"process_group": group} for row in found]


def three_ranks(*clocks: Clock, noise_ns: int = 0) -> Frames:
    ranks = [steps(number, clock, noise_ns=noise_ns) for number, clock in enumerate(clocks)]
    return job([process(number, f"rank{number}", host_name=f"node{number}") for number in range(len(clocks))], *ranks)


def cross_rank(trace: Frames) -> list[tuple[Any, ...]]:
    return columns(answer("collectives", trace), "collective_index", "rank_index", "rank_count", "is_straggler")


def test_shifted_and_drifting_clocks_give_the_same_answers() -> None:
    expected, shifted = three_ranks(true, true, true), three_ranks(true, ahead_by(3_000_000), ahead_by(-40_000_000, 80e-6))
    assert cross_rank(shifted) == cross_rank(expected)
    for column in ("start_ns", "late_ns", "wait_ns"):
        pairs = zip(answer("collectives", shifted), answer("collectives", expected), strict=True)
        assert max(abs(one[column] - other[column]) for one, other in pairs) <= 200  # 80 ppm of a reduction's length
    waits = [[row["wait_ns"] for row in answer("ranks", trace)] for trace in (shifted, expected)]
    assert waits[0] == pytest.approx(waits[1], rel=1e-4)


def test_offset_drift_and_residual_are_found_beneath_the_noise_of_ends() -> None:
    trace = three_ranks(true, ahead_by(3_000_000), ahead_by(-40_000_000, 80e-6), noise_ns=END_NOISE_NS)
    first, second, third = answer("rank_clocks", trace)
    assert (first["clock_source"], first["clock_offset_ns"], first["residual_median_ns"]) == ("shared", 0, None)
    assert (second["clock_source"], second["clock_drift_ratio"]) == ("collectives", 0.0)
    assert second["clock_offset_ns"] == pytest.approx(3_000_000, abs=END_NOISE_NS)
    assert third["clock_drift_ratio"] == pytest.approx(80e-6, rel=0.02)
    assert third["clock_offset_ns"] == pytest.approx(ahead_by(-40_000_000, 80e-6)(0) + 80e-6 * third["clock_middle_ns"], abs=END_NOISE_NS)
    assert all(clock["operation_count"] == STEP_COUNT and 0 < clock["residual_median_ns"] <= 2 * END_NOISE_NS for clock in (second, third))


def test_a_fifth_of_the_ends_may_be_off() -> None:
    late = [row | {"duration_ns": row["duration_ns"] + 700_000 * (place % 5 == 0)} for place, row in enumerate(steps(1, ahead_by(9_000)))]
    trace = job([process(0, "a"), process(1, "b")], steps(0, true), late)
    _, clock = answer("rank_clocks", trace)
    assert (clock["clock_offset_ns"], clock["clock_drift_ratio"], clock["residual_median_ns"]) == (9_000, 0.0, 0.0)
    assert clock["residual_max_ns"] == 700_000


def test_a_rank_is_aligned_through_one_that_shares_a_group_with_the_first() -> None:
    """Ranks 0 and 1 are one process group, 1 and 2 another."""
    between = steps(1, ahead_by(5_000_000))
    trace = job(
        [process(number, f"rank{number}") for number in range(3)],
        steps(0, true, group="0"),
        [row | {"process_group": group} for group in ("0", "1") for row in between],
        steps(2, ahead_by(-7_000_000), group="1"),
    )
    assert columns(answer("rank_clocks", trace), "clock_source", "clock_offset_ns") == [
        ("shared", 0),
        ("collectives", 5_000_000),
        ("collectives", -7_000_000),
    ]


def test_operations_of_other_process_groups_are_not_taken_for_the_same() -> None:
    trace = job([process(0, "a"), process(1, "b")], steps(0, true, group="0"), steps(1, ahead_by(5_000_000), group="1"))
    assert columns(answer("rank_clocks", trace), "clock_source", "operation_count") == [("shared", 0), ("unknown", 0)]
    assert answer("collectives", trace) == []


def test_without_common_operations_clocks_of_two_machines_are_not_compared() -> None:
    trace = job(
        [process(0, "a", host_name="one", session_start_unix_ns=5), process(1, "b", host_name="two", session_start_unix_ns=5)],
        rank(0, (GEMM, 0, 5), (SENDRECV, 7, 9)),
        rank(1, (GEMM, 0, 5), (SENDRECV, 7, 9)),
    )
    assert columns(answer("rank_clocks", trace), "clock_source", "clock_offset_ns", "residual_median_ns") == [
        ("shared", 0, None),
        ("unknown", None, None),
    ]
    assert columns(answer("ranks", trace), "clock_source", "clock_offset_ns", "wait_ns", "collective_count") == [
        ("shared", 0, None, 0),
        ("unknown", None, None, 0),
    ]
    assert answer("collectives", trace) == []


def test_processes_of_one_machine_share_its_clock_when_their_sessions_are_known() -> None:
    processes = [process(number, name, host_name="one", session_start_unix_ns=5) for number, name in enumerate("ab")]
    exchanges = [rank(number, (SENDRECV, 7 + number, 9 + number)) for number in range(2)]
    trace = job(processes, *exchanges)
    assert columns(answer("rank_clocks", trace), "clock_source", "clock_offset_ns") == [("shared", 0), ("host", 0)]
    assert columns(answer("collectives", trace), "rank_index", "late_ns") == [(0, 0), (1, 1)]


def test_operations_that_do_not_end_together_align_nothing() -> None:
    """As those of two jobs, whose steps have other lengths."""
    random = Random(0)
    other = [row | {"start_ns": row["start_ns"] + random.randrange(20_000_000)} for row in steps(1, true)]
    trace = job([process(0, "a"), process(1, "b")], steps(0, true), sorted(other, key=lambda row: row["start_ns"]))
    _, clock = answer("rank_clocks", trace)
    assert (clock["clock_source"], clock["clock_offset_ns"], clock["operation_count"]) == ("unmatched", None, STEP_COUNT)
    assert clock["residual_median_ns"] > 1_000_000
    assert answer("collectives", trace) == []


def joined(*clocks: Clock, file_name: str = "rank{}") -> Frames:
    """One trace of a file for each of these clocks, sessions a second apart."""
    files = [
        job([process(number, f"rank{number}", host_name=f"node{number}", session_start_unix_ns=number * 10**9)], steps(number, clock))
        for number, clock in enumerate(clocks)
    ]
    whole = join_traces([RankTrace(file_name.format(number), trace) for number, trace in enumerate(files)])
    assert "by one clock" in whole.notes[0]
    return {table.table_name: table.conform(whole.frames.get(table.table_name, table.empty().lazy())) for table in TRACE_TABLES}


def test_joined_files_are_in_the_time_of_the_first_rank() -> None:
    """What is drawn side by side happened side by side, whatever the clocks showed; how far they were apart is still told."""

    def since(second: int, offset_ns: int, drift_ratio: float = 0.0) -> Clock:
        return lambda time_ns: ahead_by(offset_ns, drift_ratio)(time_ns) - second * 10**9

    expected = joined(true, since(1, 0), since(2, 0))
    shifted = joined(true, since(1, 3_000_000), since(2, -40_000_000, 80e-6))
    ends = [
        (trace[KERNEL_LAUNCHES.table_name].sort("process_id", "start_ns").select("process_id", "start_ns", "duration_ns").collect())
        for trace in (expected, shifted)
    ]
    half_drift_ns = 80e-6 * STEP_COUNT * STEP_NS / 2
    apart_ns = (ends[1]["start_ns"] - ends[0]["start_ns"]).abs()
    assert apart_ns.filter(ends[0]["process_id"] == 1).max() == 0
    assert 0 < int(str(apart_ns.max())) <= half_drift_ns + 10_000
    assert columns(answer("rank_clocks", shifted), "clock_source") == [("shared",), ("collectives",), ("collectives",)]
    _, second, third = answer("rank_clocks", shifted)
    assert (second["clock_offset_ns"], second["clock_drift_ratio"]) == (3_000_000, 0.0)
    assert third["clock_offset_ns"] == pytest.approx(-40_000_000 + 80e-6 * third["clock_middle_ns"], abs=200)
    taken_off_ns = shifted[TRACE_PROCESSES.table_name].collect()["clock_offset_ns"].to_list()
    assert taken_off_ns == [None, 3_000_000, third["clock_offset_ns"]]
    assert columns(answer("ranks", shifted), "clock_offset_ns") == [(0,), (3_000_000,), (third["clock_offset_ns"],)]
    assert cross_rank(shifted) == cross_rank(expected)
    of_one_name = joined(true, since(1, 3_000_000), since(2, -40_000_000, 80e-6), file_name="trace.json")
    assert of_one_name[TRACE_PROCESSES.table_name].collect()["clock_offset_ns"].to_list() == taken_off_ns
