"""services.core.repeating: what of a run is done again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from services.core.errors import KernalyseError, RunNotFinishedError, UnmetConditionError
from services.core.model import CeilingMeasurement, KernelSelection, KernelSweep, Run, RunSpec, RunState, SearchStrategy
from services.core.repeating import continued, repeated

SWEEP = KernelSweep((KernelSelection("saxpy"),), order_seed=3)
SPEC = RunSpec(SWEEP, title="first")
RUN = Run("r", "n", SPEC, RunState.CANCELLED, datetime(2025, 1, 1, tzinfo=UTC), total_configuration_count=6)


def test_a_stopped_run_goes_on_without_what_it_has_measured() -> None:
    spec = continued(SPEC, RUN, frozenset({4, 1}))
    assert spec == RunSpec(replace(SWEEP, done_configuration_indexes=(1, 4)), title="first", continues_run_id="r")


def test_a_run_that_continued_another_goes_on_without_what_both_have_measured() -> None:
    again = replace(RUN, run_id="s")
    spec = continued(continued(SPEC, RUN, frozenset({1, 4})), again, frozenset({0}))
    assert isinstance(spec.work, KernelSweep)
    assert (spec.work.done_configuration_indexes, spec.continues_run_id) == ((0, 1, 4), "s")


def test_a_run_with_failed_configurations_has_these_left() -> None:
    run = replace(RUN, state=RunState.SUCCEEDED, failed_configuration_count=1)
    assert continued(SPEC, run, frozenset(range(5))).continues_run_id == "r"


def test_a_run_that_never_began_is_left_whole() -> None:
    run = replace(RUN, total_configuration_count=None)
    assert continued(SPEC, run, frozenset()) == replace(SPEC, continues_run_id="r")


def test_a_repetition_of_a_continuation_is_the_whole_sweep() -> None:
    assert repeated(continued(SPEC, RUN, frozenset({1}))) == SPEC
    assert repeated(SPEC) == SPEC


@pytest.mark.parametrize(
    ("spec", "run", "measured_count", "error", "message"),
    [
        (SPEC, replace(RUN, state=RunState.RUNNING), 1, RunNotFinishedError, "run r: found state RUNNING"),
        (SPEC, replace(RUN, state=RunState.SUCCEEDED), 6, UnmetConditionError, "every configuration measured"),
        (SPEC, RUN, 6, UnmetConditionError, "every configuration measured"),
        (RunSpec(CeilingMeasurement()), RUN, 0, UnmetConditionError, "found ceilings; expected a sweep of kernels"),
        (RunSpec(replace(SWEEP, strategy=SearchStrategy.HALVING)), RUN, 2, UnmetConditionError, "a search by halving"),
    ],
    ids=["running", "succeeded", "all measured", "ceilings", "search"],
)
def test_what_cannot_go_on_is_refused_with_a_remedy(
    spec: RunSpec, run: Run, measured_count: int, error: type[KernalyseError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        continued(spec, run, frozenset(range(measured_count)))
    assert caught.value.remedy
