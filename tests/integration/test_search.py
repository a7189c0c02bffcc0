"""Searches with a budget, in a real worker on a real OpenCL device: what they find, spend, and leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from kernalyse.services.core.model import (
    Axis,
    Configuration,
    KernelSweep,
    LogLines,
    Measurement,
    MeasuringOptions,
    PairedComparison,
    Progress,
    Rival,
    RunState,
    SearchStrategy,
    StateChanged,
    StopReason,
    Verdict,
)
from tests.integration.test_worker import Ended, own_kernel, run_worker, sweep_of

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

SECONDS = 1_000_000_000
REPEATED = """__global__ void scale(const float *a, float *b, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int turn = 0; turn < REPEAT; ++turn) sum += sqrtf(a[i % N] + turn);
    if (i < N) b[i] = sum;
}
"""
PLANTED = (40, 24, 28, 4, 32, 20, 36, 22)  # the loop's turns: 4 is the fastest by far more than any noise
MEASURING = MeasuringOptions(min_duration_ns=50_000_000, max_duration_ns=500_000_000)


def planted(strategy: SearchStrategy, budget_s: float | None, repeats: Sequence[int] = PLANTED) -> KernelSweep:
    return sweep_of(
        own_kernel(REPEATED),
        axes=(Axis("N", (100_000,)),),
        macro_axes=(Axis("REPEAT", tuple(repeats)),),
        measuring=MEASURING,
        strategy=strategy,
        budget_ns=None if budget_s is None else int(budget_s * SECONDS),
    )


def repeat_of(ended: Ended) -> dict[int, int]:
    return {one.configuration_index: one.macros[0].value for one in ended.of(Configuration)}


def lines(ended: Ended) -> str:
    return "\n".join(line for one in ended.of(LogLines) for line in one.lines)


def search_s(ended: Ended) -> float:
    """Wall clock from the first measurement's beginning to the last word on one."""
    measurements = ended.of(Measurement)
    ends_ns = [one.measured_unix_ns for one in measurements] + [one.measured_unix_ns for one in ended.of(PairedComparison)]
    return (max(ends_ns) - min(one.measured_unix_ns - one.elapsed_ns for one in measurements)) / SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [SearchStrategy.RANDOM, SearchStrategy.HALVING])
def test_the_planted_best_is_found_and_confirmed_in_alternating_blocks(strategy: SearchStrategy, tmp_path: Path) -> None:
    ended = run_worker(planted(strategy, 60), tmp_path)
    assert ended.exit_code == 0, ended.payloads[-1]
    repeats = repeat_of(ended)
    measurements = {repeats[one.configuration_index]: one for one in ended.of(Measurement)}
    assert measurements.keys() == set(PLANTED)
    going_on = {repeat: one for repeat, one in measurements.items() if one.stop_reason is not StopReason.ELIMINATED}
    assert min(going_on, key=lambda repeat: going_on[repeat].duration_median_ns) == 4
    (comparison,) = ended.of(PairedComparison)
    assert repeats[comparison.configuration_index] == 4
    assert comparison.verdict is Verdict.FASTER, comparison
    assert comparison.duration_ratio_high < 1
    assert comparison.block_count >= 20
    assert ended.payloads.index(comparison) > max(map(ended.payloads.index, measurements.values()))
    assert search_s(ended) < 60
    progress = ended.of(Progress)[-1]
    assert (progress.completed_configuration_count, progress.total_configuration_count) == (len(PLANTED), len(PLANTED))
    assert "not measured" not in lines(ended)
    if strategy is SearchStrategy.HALVING:
        assert len(going_on) == 2
        eliminated = [one.sample_count for one in measurements.values() if one.stop_reason is StopReason.ELIMINATED]
        assert max(eliminated) < min(one.sample_count for one in going_on.values())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [SearchStrategy.RANDOM, SearchStrategy.HALVING])
def test_a_budget_that_does_not_reach_for_everything_is_kept_and_what_is_left_out_is_said(strategy: SearchStrategy, tmp_path: Path) -> None:
    ended = run_worker(planted(strategy, 3, range(1, 201)), tmp_path)
    assert ended.exit_code == 0, ended.payloads[-1]
    measured_count = len(ended.of(Measurement))
    assert 2 <= measured_count < 200
    assert f"The budget of 3 s is spent: {200 - measured_count} configurations were not measured." in lines(ended)
    progress = ended.of(Progress)[-1]
    assert (progress.completed_configuration_count, progress.total_configuration_count) == (measured_count, 200)
    assert search_s(ended) < 20  # what is under way is finished: on a busy machine compiling takes seconds


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [SearchStrategy.RANDOM, SearchStrategy.HALVING])
def test_a_search_that_goes_on_leaves_out_what_was_measured_and_compares_its_best_with_that(
    strategy: SearchStrategy, tmp_path: Path
) -> None:
    known = (PLANTED.index(4), PLANTED.index(20))
    median_ns = 1_000.0  # below all that this run measures
    sweep = replace(planted(strategy, 60), done_configuration_indexes=known, rivals=(Rival(known[0], median_ns),))
    ended = run_worker(sweep, tmp_path)
    assert ended.exit_code == 0, ended.payloads[-1]
    measured = {one.configuration_index for one in ended.of(Measurement)}
    assert measured == set(range(len(PLANTED))) - set(known)
    (comparison,) = ended.of(PairedComparison)
    assert (comparison.configuration_index, comparison.verdict) == (known[0], Verdict.FASTER)
    assert comparison.baseline_configuration_index in measured
    progress = ended.of(Progress)[-1]
    assert (progress.completed_configuration_count, progress.total_configuration_count) == (len(PLANTED), len(PLANTED))


@pytest.mark.slow
def test_the_best_of_a_sweep_over_everything_is_confirmed_in_alternating_blocks(tmp_path: Path) -> None:
    thorough = replace(MEASURING, min_duration_ns=SECONDS // 2)
    sweep = replace(planted(SearchStrategy.ALL, None, PLANTED[:4]), measuring=thorough)
    ended = run_worker(sweep, tmp_path)
    assert ended.exit_code == 0, ended.payloads[-1]
    (comparison,) = ended.of(PairedComparison)
    repeats = repeat_of(ended)
    assert (repeats[comparison.configuration_index], comparison.verdict) == (4, Verdict.FASTER)
    assert ended.payloads.index(comparison) > max(map(ended.payloads.index, ended.of(Measurement)))
    assert len(ended.of(Measurement)) == 4


@pytest.mark.parametrize("strategy", [SearchStrategy.ALL, SearchStrategy.HALVING])
def test_nothing_is_confirmed_when_that_is_switched_off(strategy: SearchStrategy, tmp_path: Path) -> None:
    budget_s = None if strategy is SearchStrategy.ALL else 60
    sweep = replace(planted(strategy, budget_s, (4, 24, 40)), skip_confirmation=True)
    ended = run_worker(sweep, tmp_path)
    assert (ended.exit_code, len(ended.of(Measurement)), ended.of(PairedComparison)) == (0, 3, [])
    assert "was not compared" not in lines(ended)


@pytest.mark.slow
def test_the_order_of_a_random_search_is_that_of_its_seed(tmp_path: Path) -> None:
    orders: list[list[int]] = []
    for order_seed in (1, 1, 2):
        directory = tmp_path / str(len(orders))
        directory.mkdir()
        quick = replace(MEASURING, min_duration_ns=5_000_000, max_duration_ns=20_000_000)
        search = replace(planted(SearchStrategy.RANDOM, 20, range(1, 5)), order_seed=order_seed, measuring=quick, skip_confirmation=True)
        ended = run_worker(search, directory)
        orders.append([one.configuration_index for one in ended.of(Measurement)])
    assert orders[0] == orders[1] != orders[2]


def test_a_budget_too_short_for_the_comparison_says_that_there_was_none(tmp_path: Path) -> None:
    sweep = replace(planted(SearchStrategy.HALVING, 0.35, (4, 8)), measuring=replace(MEASURING, warm_up_count=400))
    ended = run_worker(sweep, tmp_path)
    assert ended.exit_code == 0, ended.payloads[-1]
    if len(ended.of(Measurement)) == 2:
        assert not ended.of(PairedComparison)
        assert "was not compared with scale N=100000" in lines(ended)
        assert "the budget is spent" in lines(ended)
    else:
        assert "1 configuration was not measured" in lines(ended)


def test_a_search_in_which_nothing_compiles_fails_by_the_first_error(tmp_path: Path) -> None:
    broken = own_kernel(REPEATED.replace("sqrtf", "undeclared_name"))
    ended = run_worker(replace(planted(SearchStrategy.HALVING, 5), kernels=(broken,)), tmp_path)
    last = ended.payloads[-1]
    assert isinstance(last, StateChanged)
    assert last.state is RunState.FAILED
    assert last.error is not None
    assert last.error.reason == "COMPILE_FAILED"
