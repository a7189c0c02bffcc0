"""kernalyse.services.profiler.measuring.stopping, driven by a clock that the tests turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from kernalyse.services.core.model import DeviceKind, MeasuringOptions, StopReason
from kernalyse.services.core.model import StoppingCriterion as CriterionName
from kernalyse.services.core.statistics import Samples
from kernalyse.services.profiler.measuring import stopping
from kernalyse.services.profiler.measuring.stopping import StoppingCriterion, StoppingRule, confidence_half_width

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
RULE = StoppingRule(
    criterion=CriterionName.CONFIDENCE,
    target_ratio=0.02,
    min_sample_count=10,
    max_sample_count=100_000,
    min_duration_ns=SECOND_NS // 2,
    max_duration_ns=15 * SECOND_NS,
)


class TurnedClock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def run_until_stopped(rule: StoppingRule, batch: Callable[[int], Samples], batch_duration_ns: int) -> tuple[StopReason, StoppingCriterion]:
    """Feeds batches, each taking `batch_duration_ns`, until the criterion stops."""
    clock = TurnedClock()
    criterion = StoppingCriterion(rule, clock)
    for index in range(1_000_000):
        clock.now_ns += batch_duration_ns
        reason = criterion.add(batch(index))
        if reason is not None:
            return reason, criterion
    raise AssertionError("never stopped")


def test_steady_samples_stop_at_the_minimum_duration() -> None:
    reason, criterion = run_until_stopped(RULE, lambda _: np.full(10, 1e6), 10 * MILLISECOND_NS)
    assert reason is StopReason.CONFIDENCE_REACHED
    assert criterion.elapsed_ns == RULE.min_duration_ns
    assert criterion.sample_count == 500


def test_slow_steady_samples_stop_at_the_minimum_count() -> None:
    reason, criterion = run_until_stopped(RULE, lambda _: np.full(1, 1e9), SECOND_NS)
    assert reason is StopReason.CONFIDENCE_REACHED
    assert criterion.sample_count == RULE.min_sample_count


def test_noisy_samples_go_on_until_the_interval_is_narrow() -> None:
    random = np.random.default_rng(1)
    reason, criterion = run_until_stopped(RULE, lambda _: random.normal(1e6, 3e5, 20), 30 * MILLISECOND_NS)
    assert reason is StopReason.CONFIDENCE_REACHED
    assert criterion.elapsed_ns > RULE.min_duration_ns
    assert confidence_half_width(criterion.samples()) <= RULE.target_ratio


def test_samples_that_drift_stop_without_improvement() -> None:
    drift = np.array([1e6, 2e6])  # two modes, so the median's interval spans both however many samples there are
    reason, criterion = run_until_stopped(RULE, lambda _: drift, 20 * MILLISECOND_NS)
    assert reason is StopReason.NO_IMPROVEMENT
    assert criterion.elapsed_ns < RULE.max_duration_ns


def test_independent_noise_is_not_taken_for_lack_of_improvement() -> None:
    random = np.random.default_rng(3)
    rule = StoppingRule(CriterionName.CONFIDENCE, 1e-6, 10, 20_000, SECOND_NS // 2, 10_000 * SECOND_NS)
    reason, _ = run_until_stopped(rule, lambda _: random.lognormal(0, 0.3, 10) * 1e6, 10 * MILLISECOND_NS)
    assert reason is StopReason.SAMPLE_LIMIT


def test_very_slow_samples_stop_at_the_time_limit_with_at_least_two() -> None:
    reason, criterion = run_until_stopped(RULE, lambda index: np.array([1e9 * (index + 1)]), 20 * SECOND_NS)
    assert reason is StopReason.TIME_LIMIT
    assert criterion.sample_count == 2


def test_time_limit_holds_before_the_minimum_count() -> None:
    reason, criterion = run_until_stopped(RULE, lambda index: np.array([1e9 * (index + 1)]), 5 * SECOND_NS)
    assert reason is StopReason.TIME_LIMIT
    assert criterion.sample_count == 3


def test_sample_limit_stops_quick_kernels_before_the_minimum_duration() -> None:
    reason, criterion = run_until_stopped(RULE, lambda _: np.full(4_000, 1e3), 4 * MILLISECOND_NS)
    assert reason is StopReason.SAMPLE_LIMIT
    assert criterion.elapsed_ns < RULE.min_duration_ns


def test_cost_of_the_checks_grows_linearly() -> None:
    random = np.random.default_rng(5)
    looked_at: list[int] = []

    def counting(samples: Samples) -> float:
        looked_at.append(samples.size)
        return confidence_half_width(samples)

    rule = StoppingRule(CriterionName.CONFIDENCE, 1e-9, 10, 50_000, 0, 10_000 * SECOND_NS)
    with patch.object(stopping, "confidence_half_width", counting):
        _, criterion = run_until_stopped(rule, lambda _: random.lognormal(0, 0.5, 1) * 1e6, MILLISECOND_NS)
    assert sum(looked_at) < 12 * criterion.sample_count


def test_samples_keep_the_order_in_which_they_were_taken() -> None:
    criterion = StoppingCriterion(RULE, TurnedClock())
    criterion.add(np.array([3.0, 1.0]))
    criterion.add(np.array([2.0]))
    assert criterion.samples().tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(("kind", "ratio"), [(DeviceKind.CPU, 0.02), (DeviceKind.GPU, 0.005), (DeviceKind.ACCELERATOR, 0.005)])
def test_target_defaults_to_that_of_the_device_kind(kind: DeviceKind, ratio: float) -> None:
    assert StoppingRule.of(MeasuringOptions(), kind).target_ratio == ratio


def test_options_override_the_defaults() -> None:
    options = MeasuringOptions(target_half_width_ratio=0.1, max_sample_count=1, min_sample_count=1)
    rule = StoppingRule.of(options, DeviceKind.CPU)
    assert rule.target_ratio == 0.1
    assert (rule.min_sample_count, rule.max_sample_count) == (2, 2)


# ---------------------------------------------------------------- the other criteria


def test_noise_that_is_low_enough_stops() -> None:
    random = np.random.default_rng(5)
    rule = replace(RULE, criterion=CriterionName.NOISE, target_ratio=0.05)
    reason, criterion = run_until_stopped(rule, lambda _: random.normal(1e6, 1e4, 10), 10 * MILLISECOND_NS)
    assert reason is StopReason.NOISE_REACHED
    assert criterion.elapsed_ns == RULE.min_duration_ns


def test_noise_that_stays_high_is_given_up() -> None:
    random = np.random.default_rng(6)
    rule = replace(RULE, criterion=CriterionName.NOISE, target_ratio=0.01, max_duration_ns=10_000 * SECOND_NS)
    reason, criterion = run_until_stopped(rule, lambda _: random.normal(1e6, 1e5, 10), 10 * MILLISECOND_NS)
    assert reason is StopReason.NO_IMPROVEMENT
    assert criterion.sample_count < 10_000


def test_entropy_settles_once_both_modes_are_known() -> None:
    random = np.random.default_rng(7)
    rule = replace(RULE, criterion=CriterionName.ENTROPY, max_duration_ns=10_000 * SECOND_NS)
    modes = np.array([1e6, 1.4e6])
    reason, criterion = run_until_stopped(rule, lambda _: random.choice(modes, 10, p=[0.9, 0.1]), 10 * MILLISECOND_NS)
    assert reason is StopReason.ENTROPY_SETTLED
    assert set(modes) <= set(criterion.samples())


def test_entropy_of_a_drifting_kernel_does_not_settle() -> None:
    rule = replace(RULE, criterion=CriterionName.ENTROPY, max_sample_count=5_000, max_duration_ns=10_000 * SECOND_NS)
    reason, _ = run_until_stopped(rule, lambda index: 1e6 * 1.01**index * np.ones(10), 10 * MILLISECOND_NS)
    assert reason is StopReason.SAMPLE_LIMIT


def test_a_sample_count_is_taken_whatever_the_samples_are() -> None:
    options = MeasuringOptions(stopping_criterion=CriterionName.SAMPLE_COUNT, max_sample_count=37)
    reason, criterion = run_until_stopped(StoppingRule.of(options, DeviceKind.GPU), lambda _: np.full(1, 1e6), MILLISECOND_NS)
    assert (reason, criterion.sample_count) == (StopReason.SAMPLE_LIMIT, 37)


def test_time_in_a_pause_does_not_count() -> None:
    clock = TurnedClock()
    criterion = StoppingCriterion(RULE, clock)
    clock.now_ns += SECOND_NS
    criterion.pause()
    clock.now_ns += 100 * SECOND_NS
    assert criterion.elapsed_ns == SECOND_NS
    criterion.resume()
    clock.now_ns += SECOND_NS
    assert criterion.elapsed_ns == 2 * SECOND_NS
