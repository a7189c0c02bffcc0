"""The best configuration of each problem, by hand."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.sweeps import best
from kernalyse.services.analyzer.tables.derived import PAIRED_COMPARISONS, ROOFLINE
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import BEST, MEASUREMENTS
from kernalyse.services.cli.output import MAX_PROBLEM_COUNT, best_lines


def measured(index: int, median_ns: float, *, tile: int | None = None, **values: Any) -> dict[str, Any]:
    label = "k N=8" + (f" TILE={tile}" if tile is not None else "")
    row = {"run_id": "r", "event_index": 10 + index, "configuration_index": index, "kernel_name": "k", "label": label}
    row |= {"parameters": '{"N": 8}', "macros": json.dumps({} if tile is None else {"TILE": tile}), "block": "32x1x1", "device_id": "d"}
    row |= {"category": "other", "cache_mode": "HOT", "process_index": 0, "verification_state": "PASSED", "duration_median_ns": median_ns}
    row |= {"stop_reason": "CONFIDENCE_REACHED"}
    return row | {"duration_median_low_ns": median_ns * 0.99, "duration_median_high_ns": median_ns * 1.01} | values


def compared(index: int, baseline_index: int, ratio: float, verdict: str) -> dict[str, Any]:
    row = {"run_id": "r", "event_index": 90, "configuration_index": index, "baseline_configuration_index": baseline_index}
    return row | {"duration_ratio": ratio, "duration_ratio_low": ratio - 0.01, "duration_ratio_high": ratio + 0.01, "verdict": verdict}


def frame(
    measurements: list[dict[str, Any]], comparisons: list[dict[str, Any]] | None = None, implausible_indexes: tuple[int, ...] = ()
) -> pl.DataFrame:
    placed = [row | {"is_implausible": row["configuration_index"] in implausible_indexes} for row in measurements]
    found = best(
        frame_from_rows(MEASUREMENTS, measurements).lazy(),
        frame_from_rows(PAIRED_COMPARISONS, comparisons or []).lazy(),
        frame_from_rows(ROOFLINE, placed).lazy(),
    ).collect()
    assert found.schema == pl.Schema(BEST.schema)
    return found


def rows(measurements: list[dict[str, Any]], comparisons: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    return frame(measurements, comparisons).rows(named=True)


def test_the_shortest_median_is_best_and_the_margin_is_that_to_the_next() -> None:
    (row,) = rows([measured(0, 130.0, tile=8), measured(1, 100.0, tile=16), measured(2, 110.0, tile=32)])
    assert (row["configuration_index"], row["label"], row["macros"]) == (1, "k N=8 TILE=16", '{"TILE": 16}')
    assert (row["runner_up_configuration_index"], row["runner_up_label"], row["runner_up_duration_median_ns"]) == (2, "k N=8 TILE=32", 110)
    assert row["margin_ratio"] == pytest.approx(0.1)
    assert row["margin_ratio_low"] == pytest.approx(1.1 * 0.99 / 1.01 - 1)
    assert row["margin_ratio_high"] == pytest.approx(1.1 * 1.01 / 0.99 - 1)
    assert (row["candidate_count"], row["process_count"], row["event_index"]) == (3, 1, 12)
    assert (row["is_real"], "--paired, --processes 5 or --strategy halving" in row["reason"]) == (False, True)


def test_what_is_faster_than_the_device_can_be_is_not_the_best() -> None:
    (row,) = frame([measured(0, 130.0, tile=8), measured(1, 1.0, tile=16)], implausible_indexes=(1,)).rows(named=True)
    assert (row["configuration_index"], row["candidate_count"]) == (0, 1)


def test_every_problem_has_its_own_best_in_the_order_of_the_sweep() -> None:
    measurements = [
        measured(0, 9.0, tile=1, parameters='{"N": 8, "M": 2}'),
        measured(1, 5.0, tile=2, parameters='{"N": 8, "M": 2}'),
        measured(2, 1.0, kernel_name="other", parameters='{"M": 2, "N": 8}'),
        measured(3, 9.0, cache_mode="COLD", parameters='{"N": 8, "M": 2}'),
        measured(4, 3.0, parameters='{"N": 80, "M": 2}'),
        measured(5, 2.0, run_id="s", parameters='{"N": 8, "M": 2}'),
    ]
    assert [(row["run_id"], row["configuration_index"], row["candidate_count"]) for row in rows(measurements)] == [
        ("r", 2, 3),
        ("r", 3, 1),
        ("r", 4, 1),
        ("s", 5, 1),
    ]


def test_kernels_of_other_work_do_not_compete_and_variants_of_one_kernel_always_do() -> None:
    add = measured(0, 9.0, kernel_name="add", flop=8.0, bytes=96.0)
    scale = measured(1, 5.0, kernel_name="scale", flop=16.0, bytes=96.0)
    tiled = measured(2, 7.0, kernel_name="add", tile=4, flop=12.0, bytes=96.0)
    assert [(row["kernel_name"], row["candidate_count"]) for row in rows([add, scale, tiled])] == [("add", 2), ("scale", 1)]


def test_what_a_search_has_left_behind_is_not_best_however_fast_its_few_samples_were() -> None:
    lucky = measured(0, 90.0, tile=1, stop_reason="ELIMINATED")
    (row,) = rows([lucky, measured(1, 100.0, tile=2), measured(2, 110.0, tile=3, stop_reason="BUDGET_SPENT")])
    assert (row["configuration_index"], row["runner_up_configuration_index"], row["candidate_count"]) == (1, 2, 3)


def test_a_wrong_result_is_no_candidate() -> None:
    (row,) = rows([measured(0, 1.0, tile=1, verification_state="FAILED"), measured(1, 5.0, tile=2)])
    assert (row["configuration_index"], row["candidate_count"], row["runner_up_label"], row["margin_ratio"]) == (1, 1, None, None)
    assert (row["is_real"], row["reason"]) == (False, "It is the only configuration of this problem.")


def test_medians_whose_intervals_overlap_say_so() -> None:
    (row,) = rows([measured(0, 100.0, tile=1), measured(1, 101.0, tile=2)])
    assert (row["is_real"], row["reason"]) == (False, "The intervals of both medians overlap.")
    assert row["margin_ratio_low"] < 0 < row["margin_ratio_high"]


@pytest.mark.parametrize(
    ("comparison", "is_real", "ratio"),
    [
        (compared(0, 1, 1.25, "SLOWER"), True, 1.25),
        (compared(1, 0, 0.8, "FASTER"), True, 1.25),
        (compared(0, 1, 1.0, "SAME"), False, 1.0),
        (compared(1, 0, 1.25, "SLOWER"), False, 0.8),
    ],
    ids=["runner-up slower", "best faster", "same", "best slower"],
)
def test_alternating_blocks_decide(comparison: dict[str, Any], is_real: bool, ratio: float) -> None:
    (row,) = rows([measured(0, 120.0, tile=1), measured(1, 100.0, tile=2)], [comparison])
    assert (row["is_real"], row["event_index"]) == (is_real, 90)
    assert row["margin_ratio"] == pytest.approx(ratio - 1)
    assert row["margin_ratio_low"] < row["margin_ratio"] < row["margin_ratio_high"]
    assert "Alternating blocks" in row["reason"]


def in_processes(tile: int, *medians_ns: float) -> list[dict[str, Any]]:
    label = f"k N=8 TILE={tile} process="
    return [
        measured(tile * 10 + process, median_ns, tile=tile, process_index=process, label=f"{label}{process + 1}")
        for process, median_ns in enumerate(medians_ns)
    ]


def test_five_processes_a_side_decide_when_they_are_apart() -> None:
    (row,) = rows([*in_processes(1, 10, 11, 12, 13, 14), *in_processes(2, 15, 16, 17, 18, 19)])
    assert (row["label"], row["process_count"], row["candidate_count"]) == ("k N=8 TILE=1", 5, 2)
    assert (row["duration_median_ns"], row["runner_up_duration_median_ns"], row["is_real"]) == (12, 17, True)
    assert row["reason"] == "In every process it is faster than the runner-up in any."
    (overlapping,) = rows([*in_processes(1, 10, 11, 12, 13, 16), *in_processes(2, 15, 16, 17, 18, 19)])
    assert (overlapping["is_real"], "overlap" in overlapping["reason"]) == (False, True)
    (few,) = rows([*in_processes(1, 10, 11, 12, 13), *in_processes(2, 15, 16, 17, 18)])
    assert not few["is_real"]


def test_a_comparison_of_one_process_counts_for_the_configuration() -> None:
    (row,) = rows([*in_processes(1, 10, 11), *in_processes(2, 15, 16)], [compared(21, 11, 1.5, "SLOWER")])
    assert (row["is_real"], row["margin_ratio"]) == (True, 0.5)


def test_a_run_without_measurements_has_no_best() -> None:
    assert frame([]).height == 0


def test_the_best_are_told_in_words_where_there_was_a_choice() -> None:
    contested = [measured(0, 120.0, tile=1), measured(1, 100.0, tile=2)]
    alone = measured(2, 5.0, parameters='{"N": 9}')
    (line,) = best_lines(frame([*contested, alone], [compared(0, 1, 1.25, "SLOWER")]))
    assert line == ("best of 2: k N=8 TILE=2, 100 ns, 25 % (24 % to 26 %) ahead of k TILE=1; real: Alternating blocks say so.")
    (unsure,) = best_lines(frame(contested))
    assert "; not shown to be real: " in unsure


def test_more_problems_than_a_screen_holds_are_counted() -> None:
    many = [measured(index, 10.0 + index, tile=index % 2, parameters=f'{{"N": {index // 2}}}') for index in range(30)]
    lines = list(best_lines(frame(many)))
    assert len(lines) == MAX_PROBLEM_COUNT + 1
    assert lines[-1] == "… and the best of 5 more: kernalyse show r best"


def test_what_other_tools_measured_does_not_compete() -> None:
    assert rows([measured(0, 1e3, stop_reason=None), measured(1, 2e3, stop_reason=None, kernel_name="other work")]) == []
    (own,) = rows([measured(0, 1e3), measured(1, 2e3, duration_median_ns=None)])
    assert (own["configuration_index"], own["candidate_count"]) == (0, 1)
