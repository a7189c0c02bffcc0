"""Searches: how a sweep spends a budget of time where it cannot measure everything.

RANDOM measures in random order until the budget is spent. HALVING is successive halving: a short look at every
configuration, then the faster half goes on with twice the samples, and so on; the last two are measured as thoroughly as in
a sweep over everything. Both keep a part of the budget to compare the best of each contest with its runner-up. Source:
K. Jamieson and A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016,
algorithm 1.

Own code, because what is spent here are samples of one configuration, which come in any number and add up: libraries such
as Optuna prune a trial for good, but cannot come back to one for more samples.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from services.core.model import LogLevel, LogLines, StoppingCriterion, StopReason
from services.core.statistics import MedianInterval, median_interval
from services.profiler.workloads.configuration_run import ConfigurationRun, MeasurementContext
from services.profiler.workloads.confirming import CONFIRMING_RATIO, Contests
from services.profiler.workloads.search_budget import ClockNs, SearchBudget
from services.profiler.workloads.sweep_plan import PlannedConfiguration
from services.profiler.workloads.sweep_progress import SweepProgress, measure_configuration

FIRST_LOOK_COUNT: Final = 8  # samples: below six the median has no 95 % interval, many more would make the first look dear
FIRST_LOOK_NS: Final = 200_000_000  # of sampling: slow kernels get fewer samples, for the first look is at all of them
FINALIST_COUNT: Final = 2  # measured thoroughly: with one there would be no margin to tell


def search_at_random(
    configurations: Iterable[PlannedConfiguration],
    context: MeasurementContext,
    progress: SweepProgress,
    contests: Contests,
    clock_ns: ClockNs = time.monotonic_ns,
) -> None:
    """Measure one after the other in random order until the budget is spent; the last one gets fewer samples where it must."""
    order_seed, seed = context.sweep.order_seed, context.sweep.measuring.seed
    waiting = list(configurations)
    random.Random(f"search/{seed if order_seed is None else order_seed}").shuffle(waiting)
    budget = SearchBudget.of(context.sweep.budget_ns, clock_ns)
    searching = _searching_part(budget, context)
    while waiting and not searching.is_spent():
        planned = waiting.pop(0)
        contests.enter(planned, measure_configuration(planned, _limited(context, searching.left_ns()), progress))
    _report_left(len(waiting), context)
    contests.confirm(context, progress, budget)


def search_by_halving(
    configurations: Iterable[PlannedConfiguration],
    context: MeasurementContext,
    progress: SweepProgress,
    contests: Contests,
    clock_ns: ClockNs = time.monotonic_ns,
) -> None:
    """Find the fastest configuration of each contest; each gets an equal share of the budget that is left when it begins."""
    by_contest: dict[object, list[PlannedConfiguration]] = {}
    for planned in configurations:
        by_contest.setdefault(planned.contest, []).append(planned)
    budget = SearchBudget.of(context.sweep.budget_ns, clock_ns)
    searching = _searching_part(budget, context)
    left_count = 0
    for position, contest in enumerate(by_contest.values()):
        halving = _Halving(context, progress, searching.part(1 / (len(by_contest) - position)), contests)
        left_count += halving.hold(contest)
    _report_left(left_count, context)
    contests.confirm(context, progress, budget)


def _searching_part(budget: SearchBudget, context: MeasurementContext) -> SearchBudget:
    return budget if context.sweep.skip_confirmation else budget.part(1 - CONFIRMING_RATIO)


def _limited(context: MeasurementContext, left_ns: float) -> MeasurementContext:
    """Return the context with no more time for the samples of a configuration than this, but enough for a look."""
    measuring = context.sweep.measuring
    if left_ns >= measuring.max_duration_ns:
        return context
    limited = replace(measuring, max_duration_ns=min(measuring.max_duration_ns, max(int(left_ns), FIRST_LOOK_NS)))
    return replace(context, sweep=replace(context.sweep, measuring=limited))


def faster_half(standings: Sequence[MedianInterval]) -> list[int]:
    """Return the positions of the faster half and of those whose interval does not lie above the best's; at least the two best."""
    order = sorted(range(len(standings)), key=lambda position: standings[position].median)
    half = order[: max(FINALIST_COUNT, (len(order) + 1) // 2)]
    best = standings[order[0]]
    return [position for place, position in enumerate(half) if place < FINALIST_COUNT or standings[position].low <= best.high]


def _report_left(left_count: int, context: MeasurementContext) -> None:
    if left_count:
        budget_s = (context.sweep.budget_ns or 0) / 1e9
        text = f"The budget of {budget_s:g} s is spent: {left_count} configuration{'s were' if left_count > 1 else ' was'} not measured."
        remedy = "kernalyse resume with --budget SECONDS goes on with what is left."
        context.sink.write(LogLines(LogLevel.WARNING, "worker", (f"{text} {remedy}",)))


class _Halving:
    """Successive halving of one contest: configurations of which the fastest is sought."""

    def __init__(self, context: MeasurementContext, progress: SweepProgress, budget: SearchBudget, contests: Contests) -> None:
        self._context = context
        self._progress = progress
        self._budget = budget
        self._on_device: ConfigurationRun | None = None
        self._contests = contests

    def hold(self, contest: Sequence[PlannedConfiguration]) -> int:
        """Measure until two are left and thoroughly known, or the budget is spent; return how many had no look at all."""
        waiting, rivals = list(contest), list[ConfigurationRun]()
        while waiting and not self._budget.is_spent():
            run = ConfigurationRun(waiting.pop(0), self._context)
            if self._progress.attempt(run, partial(self._first_look, run)):
                rivals.append(run)
        wrong = [run for run in rivals if run.is_wrong]  # measured, for all to see; but a wrong result may be the fastest
        rivals = self._without(rivals, wrong)
        look_count = FIRST_LOOK_COUNT
        while len(rivals) > FINALIST_COUNT and not self._budget.is_spent():
            kept = [rivals[position] for position in faster_half([median_interval(run.samples()) for run in rivals])]
            rivals = self._without(rivals, [run for run in rivals if run not in kept])
            look_count *= 2
            rivals = [run for run in rivals if self._look_again(run, look_count)]
        for position, run in enumerate(rivals):
            self._finish(run, partial(self._last_samples, len(rivals) - position))
        return len(waiting)

    def _without(self, rivals: Sequence[ConfigurationRun], leaving: Sequence[ConfigurationRun]) -> list[ConfigurationRun]:
        """Return the configurations that go on; the others' measurements are reported as they are."""
        for run in leaving:
            self._finish(run, lambda _: StopReason.ELIMINATED)
        return [run for run in rivals if run not in leaving]

    def _last_samples(self, sharing_count: int, run: ConfigurationRun) -> StopReason:
        """Sample as in a sweep over everything, for as long as the budget has it for one of `sharing_count`."""
        if run.samples().size >= run.rule.max_sample_count:
            return StopReason.SAMPLE_LIMIT
        left_ns = self._budget.left_ns()
        if left_ns <= 0:
            return StopReason.BUDGET_SPENT
        limit_ns = run.benchmark.sampling_ns + left_ns / sharing_count
        if limit_ns >= run.rule.max_duration_ns:
            return run.sample(run.rule)
        reason = run.sample(replace(run.rule, max_duration_ns=int(limit_ns)))
        return StopReason.BUDGET_SPENT if reason is StopReason.TIME_LIMIT else reason

    def _first_look(self, run: ConfigurationRun) -> None:
        self._bring(None)
        run.announce()
        run.start(self._progress.report)
        self._on_device = run
        self._sample(run, FIRST_LOOK_COUNT)

    def _look_again(self, run: ConfigurationRun, count: int) -> bool:
        """Return whether the run goes on. Without budget it does with what it has."""
        return self._budget.is_spent() or self._progress.attempt(run, partial(self._sample, run, count))

    def _sample(self, run: ConfigurationRun, count: int) -> None:
        """Take samples up to this many in all."""
        self._progress.report(f"looking at {run.label}")
        self._bring(run)
        rule = run.rule
        if run.samples().size < min(count, rule.max_sample_count):
            share = count / FIRST_LOOK_COUNT
            look = replace(
                rule,
                criterion=StoppingCriterion.SAMPLE_COUNT,
                max_sample_count=min(count, rule.max_sample_count),
                max_duration_ns=min(int(FIRST_LOOK_NS * share), rule.max_duration_ns),
            )
            run.sample(look)

    def _finish(self, run: ConfigurationRun, ending: Callable[[ConfigurationRun], StopReason]) -> None:
        def finish() -> None:
            self._progress.report(f"measuring {run.label}")
            self._bring(run)
            run.finish(ending(run))

        if self._progress.attempt(run, finish):
            self._contests.enter(run.planned, run.measurement)
            self._progress.complete()

    def _bring(self, run: ConfigurationRun | None) -> None:
        """Make the device's buffers those of `run`; None: they are about to become another one's."""
        if self._on_device is not run:
            if self._on_device is not None:
                self._on_device.unload()
            if run is not None:
                run.reload()
            self._on_device = run
