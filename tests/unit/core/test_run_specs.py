"""kernalyse.services.core.reruns and continuing: what of a run is done again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kernalyse.services.core.errors import KernalyseError, RunNotFinishedError, UnmetConditionError
from kernalyse.services.core.model import CeilingMeasurement, KernelSelection, KernelSweep, Rival, Run, RunSpec, RunState, SearchStrategy
from kernalyse.services.core.reruns import StoppedSweep, continuation_spec, repetition_spec

SWEEP = KernelSweep((KernelSelection("saxpy"),), order_seed=3)
SPEC = RunSpec(SWEEP, title="first")
RUN = Run("r", "n", SPEC, RunState.CANCELLED, datetime(2025, 1, 1, tzinfo=UTC), total_configuration_count=6)
SEARCH = RunSpec(replace(SWEEP, strategy=SearchStrategy.HALVING, budget_ns=60 * 10**9))


def row(index: int, stop_reason: str = "CONFIDENCE_REACHED", elapsed_s: int = 5) -> dict[str, Any]:
    return {"configuration_index": index, "stop_reason": stop_reason, "elapsed_ns": elapsed_s * 10**9}


def best_row(index: int, runner_up_index: int | None) -> dict[str, Any]:
    row = {"configuration_index": index, "duration_median_ns": 10.0 + index, "runner_up_configuration_index": runner_up_index}
    return row | {"runner_up_duration_median_ns": None if runner_up_index is None else 10.0 + runner_up_index}


def stopped(run: Run, *measured: int) -> StoppedSweep:
    return StoppedSweep(run, measurements=[row(index) for index in measured])


def sweep_of(spec: RunSpec) -> KernelSweep:
    assert isinstance(spec.work, KernelSweep)
    return spec.work


def test_a_stopped_run_goes_on_without_what_it_has_measured() -> None:
    spec = continuation_spec(SPEC, stopped(RUN, 4, 1))
    assert spec == RunSpec(replace(SWEEP, done_configuration_indexes=(1, 4)), title="first", continues_run_id="r")


def test_a_run_that_continued_another_goes_on_without_what_both_have_measured() -> None:
    again = replace(RUN, run_id="s")
    spec = continuation_spec(continuation_spec(SPEC, stopped(RUN, 1, 4)), stopped(again, 0))
    assert (sweep_of(spec).done_configuration_indexes, spec.continues_run_id) == ((0, 1, 4), "s")


def test_what_failed_is_left_out_until_it_is_asked_for() -> None:
    failed = StoppedSweep(RUN, [{"configuration_index": 2}, {"configuration_index": 1}], [row(0), row(1)])  # 1: went well at last
    spec = continuation_spec(SPEC, failed)
    assert (sweep_of(spec).done_configuration_indexes, sweep_of(spec).failed_configuration_indexes) == ((0, 1), (2,))
    further = stopped(RUN, 3, 4, 5)
    with pytest.raises(UnmetConditionError, match=r"the one left failed; .* kernalyse resume --retry-failed"):
        continuation_spec(spec, further)
    retried = sweep_of(continuation_spec(spec, further, retries_failed=True))
    assert (retried.done_configuration_indexes, retried.failed_configuration_indexes) == ((0, 1, 3, 4, 5), ())
    assert repetition_spec(spec) == SPEC


def test_a_run_that_never_began_is_left_whole() -> None:
    run = replace(RUN, total_configuration_count=None)
    assert continuation_spec(SPEC, stopped(run)) == replace(SPEC, continues_run_id="r")


def test_a_repetition_of_a_continuation_is_the_whole_sweep() -> None:
    rivals = StoppedSweep(RUN, (), [row(1)], [best_row(1, None)])
    assert sweep_of(continuation_spec(SPEC, rivals)).rivals == (Rival(1, 11.0),)
    assert repetition_spec(continuation_spec(SPEC, rivals)) == SPEC
    assert repetition_spec(SPEC) == SPEC


def test_a_search_goes_on_with_what_its_budget_has_left_for_those_that_it_has_not_measured_whole() -> None:
    cut_short = [row(0), row(1, "ELIMINATED"), row(2), row(3, "BUDGET_SPENT", 7)]
    spec = continuation_spec(SEARCH, StoppedSweep(RUN, (), cut_short, [best_row(2, 0), best_row(3, 1)]))
    sweep = sweep_of(spec)
    assert sweep.done_configuration_indexes == (0, 1, 2)
    assert sweep.rivals == (Rival(2, 12.0), Rival(0, 10.0))  # not what was left behind, nor what is measured again
    assert sweep.budget_ns == 38 * 10**9
    further = continuation_spec(spec, StoppedSweep(RUN, measurements=[row(0), row(3, elapsed_s=8)]))
    assert sweep_of(further).budget_ns == 30 * 10**9  # of its own


def test_a_search_goes_on_for_as_long_as_it_is_told_to() -> None:
    spent = replace(RUN, state=RunState.SUCCEEDED)
    assert sweep_of(continuation_spec(SEARCH, stopped(spent, 1), 10**9)).budget_ns == 10**9
    unlimited = replace(SEARCH, work=replace(sweep_of(SEARCH), budget_ns=None))
    assert sweep_of(continuation_spec(unlimited, stopped(spent, 1))).budget_ns is None


@pytest.mark.parametrize(
    ("spec", "stopped", "budget_ns", "error", "message"),
    [
        (SPEC, stopped(replace(RUN, state=RunState.RUNNING), 0), None, RunNotFinishedError, "run r: found state RUNNING"),
        (SPEC, stopped(replace(RUN, state=RunState.SUCCEEDED), *range(6)), None, UnmetConditionError, "every configuration measured"),
        (SPEC, stopped(RUN, *range(6)), None, UnmetConditionError, "every configuration measured"),
        (SPEC, stopped(RUN, 1), 10**9, UnmetConditionError, "found a sweep over everything; expected a search, for a budget"),
        (RunSpec(CeilingMeasurement()), stopped(RUN), None, UnmetConditionError, "found ceilings; expected a sweep of kernels"),
        (SEARCH, stopped(replace(RUN, state=RunState.SUCCEEDED), 1), None, UnmetConditionError, "found its budget of 60 s spent"),
        (SEARCH, StoppedSweep(RUN, measurements=[row(1, elapsed_s=60)]), None, UnmetConditionError, "kernalyse resume r --budget SECONDS"),
        (SEARCH, stopped(RUN, *range(6)), 10**9, UnmetConditionError, "every configuration measured"),
    ],
    ids=["running", "succeeded", "all measured", "budget of none", "ceilings", "spent search", "spent", "whole search"],
)
def test_what_cannot_go_on_is_refused_with_a_remedy(
    spec: RunSpec, stopped: StoppedSweep, budget_ns: int | None, error: type[KernalyseError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        continuation_spec(spec, stopped, budget_ns)
    assert caught.value.remedy
