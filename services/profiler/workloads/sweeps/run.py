"""The run of a sweep: exhaustive, at random, or by successive halving."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from kernalyse.services.core.model import KernelSweep, LogLevel, LogLines, SearchStrategy, StoppingCriterion, StopReason
from kernalyse.services.core.statistics import MedianInterval, median_interval
from kernalyse.services.profiler.backends.base import DeviceSession
from kernalyse.services.profiler.measuring.buffers import DeviceBuffers
from kernalyse.services.profiler.measuring.device_state import ContentionCheck, open_clock_meter, open_use_meter
from kernalyse.services.profiler.workloads.events import EventSink, ProgressReporter
from kernalyse.services.profiler.workloads.sweeps.configuration import (
    ConfigurationRun,
    MeasurementContext,
    SweepProgress,
    measure_configuration,
)
from kernalyse.services.profiler.workloads.sweeps.launches import SweepCompiler
from kernalyse.services.profiler.workloads.sweeps.paired import (
    CONFIRMATION_RATIO,
    Candidate,
    ClockNs,
    SearchBudget,
    TournamentGroups,
    confirmation_budget_ns,
    measure_pairs,
)
from kernalyse.services.profiler.workloads.sweeps.plan import PlannedConfiguration, SweepPlan

# ---------------------------------------------------------------- sweep
# An exhaustive sweep measures one configuration after the other, or two in interleaved trials. Each may fail for its own reason.


def run_sweep(
    sweep: KernelSweep,
    plan: SweepPlan,
    session: DeviceSession,
    sink: EventSink,
    directory: Path,
    process_index: int = 0,
    failed_count: int = 0,
    clocks: str | None = None,
) -> int:
    """Measure the configurations of one process on an open session, and write events to `sink`.

    A configuration that cannot be measured is reported as ConfigurationFailed, and the sweep continues.

    Args:
        failed_count: configurations that failed in the processes before.
        clocks: what has been made of the device's clocks, for the measurements; None: not known.

    Returns:
        The count of failed ones, this process's included.

    Raises:
        KernalyseError: the first configuration's, when not a single one could be measured; or of one whose kernel has taken
            the session with it, so that those after it are not measured.
    """
    context = MeasurementContext(
        sweep=sweep,
        session=session,
        sink=sink,
        directory=directory,
        clock_meter=open_clock_meter(session.device),
        contention=ContentionCheck(open_use_meter(session.device)),
        buffers=DeviceBuffers(session),
        compiler=SweepCompiler(sweep.compiler_options, session, sink, directory),
        clocks=clocks,
    )
    reporter = ProgressReporter(sink, plan.configuration_count, session.device.device_id, plan.completed_count(process_index), failed_count)
    progress = SweepProgress(reporter)
    try:
        _measure(plan, process_index, context, progress)
    finally:
        context.buffers.release()
    progress.raise_if_nothing_was_measured()
    return reporter.failed_count


def _measure(plan: SweepPlan, process_index: int, context: MeasurementContext, progress: SweepProgress) -> None:
    configurations = plan.to_measure(process_index)
    if context.sweep.pairing is not None:
        measure_pairs(configurations, context.sweep.pairing.block_count, context, progress)
        return
    groups = TournamentGroups(_earlier_contenders(plan, context.sweep))
    match context.sweep.strategy:
        case SearchStrategy.ALL:
            _measure_all(configurations, context, progress, groups)
        case SearchStrategy.RANDOM:
            search_at_random(configurations, context, progress, groups)
        case SearchStrategy.HALVING:
            search_by_halving(configurations, context, progress, groups)


def _measure_all(
    configurations: Sequence[PlannedConfiguration],
    context: MeasurementContext,
    progress: SweepProgress,
    groups: TournamentGroups,
    clock_ns: ClockNs = time.monotonic_ns,
) -> None:
    start_ns = clock_ns()
    for planned in configurations:
        groups.enter(planned, measure_configuration(planned, context, progress))
    allowed_ns = confirmation_budget_ns(clock_ns() - start_ns)
    is_decided_by_processes = context.sweep.process_count > 1
    if not (is_decided_by_processes or context.sweep.skip_confirmation) and groups.shortest_comparison_ns() <= allowed_ns:
        groups.confirm(context, progress, SearchBudget.of(int(allowed_ns), clock_ns))


def _earlier_contenders(plan: SweepPlan, sweep: KernelSweep) -> Iterator[Candidate]:
    """Yield the fastest configurations of an earlier run of the sweep."""
    medians_ns = {contender.configuration_index: contender.duration_median_ns for contender in sweep.rivals}
    if medians_ns:
        for planned in plan.configurations():
            if planned.configuration_index in medians_ns:
                yield Candidate(planned, medians_ns[planned.configuration_index])


# ---------------------------------------------------------------- search
# Searches spend a time budget where a sweep cannot measure everything.
#
# RANDOM measures in random order until the budget is spent. HALVING is successive halving: a short look at every configuration, then
# the faster half goes on with twice the samples, and so on; the last two are measured as thoroughly as in a sweep over everything. Both
# keep a part of the budget to compare the best of each group with its runner-up. Source: K. Jamieson and A. Talwalkar, "Non-
# stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016, algorithm 1.
#
# This is own code because the budget is spent on samples, which add up over several looks at a configuration. Libraries such as
# Optuna prune a trial for good and cannot return to it for more samples.

FIRST_LOOK_COUNT: Final = 8  # samples: below six the median has no 95 % interval, many more would make the first look dear
FIRST_LOOK_NS: Final = 200_000_000  # of sampling: slow kernels get fewer samples, for the first look is at all of them
FINALIST_COUNT: Final = 2  # measured thoroughly: with one there would be no margin to report


def search_at_random(
    configurations: Iterable[PlannedConfiguration],
    context: MeasurementContext,
    progress: SweepProgress,
    groups: TournamentGroups,
    clock_ns: ClockNs = time.monotonic_ns,
) -> None:
    """Measure one after the other in random order until the budget is spent; the last one gets fewer samples where it must."""
    order_seed, seed = context.sweep.order_seed, context.sweep.measuring.seed
    waiting = list(configurations)
    random.Random(f"search/{seed if order_seed is None else order_seed}").shuffle(waiting)
    budget = SearchBudget.of(context.sweep.budget_ns, clock_ns)
    searching = _search_share(budget, context)
    while waiting and not searching.is_spent():
        planned = waiting.pop(0)
        groups.enter(planned, measure_configuration(planned, _limited(context, searching.left_ns()), progress))
    _report_left(len(waiting), context)
    groups.confirm(context, progress, budget)


def search_by_halving(
    configurations: Iterable[PlannedConfiguration],
    context: MeasurementContext,
    progress: SweepProgress,
    groups: TournamentGroups,
    clock_ns: ClockNs = time.monotonic_ns,
) -> None:
    """Find the fastest configuration of each group; each group gets an equal fraction of the budget left when it begins."""
    by_group: dict[object, list[PlannedConfiguration]] = {}
    for planned in configurations:
        by_group.setdefault(planned.tournament_group, []).append(planned)
    budget = SearchBudget.of(context.sweep.budget_ns, clock_ns)
    searching = _search_share(budget, context)
    left_count = 0
    for position, tournament_group in enumerate(by_group.values()):
        halving = _Halving(context, progress, searching.part(1 / (len(by_group) - position)), groups)
        left_count += halving.search(tournament_group)
    _report_left(left_count, context)
    groups.confirm(context, progress, budget)


def _search_share(budget: SearchBudget, context: MeasurementContext) -> SearchBudget:
    return budget if context.sweep.skip_confirmation else budget.part(1 - CONFIRMATION_RATIO)


def _limited(context: MeasurementContext, left_ns: float) -> MeasurementContext:
    """Return the context with a time limit per configuration, but never below that of a first look."""
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
    """Successive halving within one tournament group."""

    def __init__(self, context: MeasurementContext, progress: SweepProgress, budget: SearchBudget, groups: TournamentGroups) -> None:
        self._context = context
        self._progress = progress
        self._budget = budget
        self._on_device: ConfigurationRun | None = None
        self._groups = groups

    def search(self, tournament_group: Sequence[PlannedConfiguration]) -> int:
        """Search until two are left and thoroughly measured, or the budget is spent; return how many had no look at all."""
        waiting, contenders = list(tournament_group), list[ConfigurationRun]()
        while waiting and not self._budget.is_spent():
            run = ConfigurationRun(waiting.pop(0), self._context)
            if self._progress.attempt(run, partial(self._first_look, run)):
                contenders.append(run)
        wrong = [run for run in contenders if run.is_wrong]  # measured, for all to see; but a wrong result may be the fastest
        contenders = self._without(contenders, wrong)
        look_count = FIRST_LOOK_COUNT
        while len(contenders) > FINALIST_COUNT and not self._budget.is_spent():
            remaining = [contenders[position] for position in faster_half([median_interval(run.samples()) for run in contenders])]
            contenders = self._without(contenders, [run for run in contenders if run not in remaining])
            look_count *= 2
            contenders = [run for run in contenders if self._look_again(run, look_count)]
        for position, run in enumerate(contenders):
            self._finish(run, partial(self._last_samples, len(contenders) - position))
        return len(waiting)

    def _without(self, contenders: Sequence[ConfigurationRun], excluded: Sequence[ConfigurationRun]) -> list[ConfigurationRun]:
        """Return the configurations that go on; the others' measurements are reported as they are."""
        for run in excluded:
            self._finish(run, lambda _: StopReason.ELIMINATED)
        return [run for run in contenders if run not in excluded]

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
        self._give_buffers(None)
        run.report_configuration()
        run.start(self._progress.report)
        self._on_device = run
        self._sample(run, FIRST_LOOK_COUNT)

    def _look_again(self, run: ConfigurationRun, count: int) -> bool:
        """Sample a configuration again; return whether it stays in the search. Without budget it stays as it is."""
        return self._budget.is_spent() or self._progress.attempt(run, partial(self._sample, run, count))

    def _sample(self, run: ConfigurationRun, count: int) -> None:
        """Take samples up to this many in all."""
        self._progress.report(f"looking at {run.label}")
        self._give_buffers(run)
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
            self._give_buffers(run)
            run.finish(ending(run))

        if self._progress.attempt(run, finish):
            self._groups.enter(run.planned, run.measurement)
            self._progress.complete()

    def _give_buffers(self, run: ConfigurationRun | None) -> None:
        """Give the device's buffers to `run`; None: only unload the present one."""
        if self._on_device is not run:
            if self._on_device is not None:
                self._on_device.unload()
            if run is not None:
                run.reload()
            self._on_device = run
