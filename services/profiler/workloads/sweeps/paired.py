"""Comparisons in interleaved trials: paired problems, confirmation of the best, and the time budget of a search."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Self

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import (
    EventPayload,
    LogLevel,
    LogLines,
    Measurement,
    PairedComparison,
    SampleBatch,
    SearchStrategy,
    StopReason,
    VerificationState,
)
from kernalyse.services.profiler.measuring.device_state import DeviceUse
from kernalyse.services.profiler.measuring.paired import CPU_BLOCK_NS, InterleavedTrials
from kernalyse.services.profiler.processes.event_pipe import CrashMarker, MarkedTrial
from kernalyse.services.profiler.workloads.events import EventSink
from kernalyse.services.profiler.workloads.sweeps.checks import MIN_BLOCK_COUNT
from kernalyse.services.profiler.workloads.sweeps.configuration import ActivitySink, ConfigurationRun, MeasurementContext, SweepProgress
from kernalyse.services.profiler.workloads.sweeps.plan import PlannedConfiguration

# ---------------------------------------------------------------- paired problems
# `bench A B --paired`: the two configurations of each problem, measured in interleaved trials of one process.


def measure_pairs(
    to_measure: Iterable[PlannedConfiguration], block_count: int, context: MeasurementContext, progress: SweepProgress
) -> None:
    """Measure and compare the configurations of each problem, the one listed first being the baseline.

    Of a problem of which an earlier run has measured one side, the other is measured by itself.
    """
    by_problem: dict[tuple[object, ...], list[PlannedConfiguration]] = {}
    for planned in to_measure:
        by_problem.setdefault(planned.problem, []).append(planned)
    for problem in by_problem.values():
        sides = sorted(problem, key=lambda planned: planned.configuration_index)
        ProblemRun([ConfigurationRun(planned, context) for planned in sides], context, progress).measure(block_count)


def start_pair(baseline: ConfigurationRun, candidate: ConfigurationRun, on_activity: ActivitySink) -> None:
    """Start two configurations that are to alternate, with the buffers of both on the device.

    Raises:
        MemoryLimitError: the device does not hold the buffers of both.
        KernalyseError: what `ConfigurationRun.start` raises.
    """
    _share_device(baseline, candidate)
    for side in (baseline, candidate):
        side.start(on_activity)


class ProblemRun:
    """Both sides of one problem. If one of them fails, that is reported, and the other is measured by itself."""

    def __init__(self, sides: list[ConfigurationRun], context: MeasurementContext, progress: SweepProgress) -> None:
        self._sides = sides  # without those that have failed
        self._context = context
        self._progress = progress
        self._stop_reasons: dict[ConfigurationRun, StopReason] = {}

    def measure(self, block_count: int) -> None:
        """Measure both sides in alternating blocks, and report measurements and comparison."""
        self._each(ConfigurationRun.report_configuration)
        if len(self._sides) == 2:
            _share_device(*self._sides)
        self._each(lambda side: side.start(self._progress.report))
        comparison = self._compare(block_count) if len(self._sides) == 2 else None
        if comparison is None:
            self._each(self._sample_alone)
        use = self._context.contention.read()
        self._each(lambda side: self._finish(side, use))
        if comparison is not None and len(self._sides) == 2:
            self._context.sink.write(comparison)

    def _compare(self, block_count: int) -> PairedComparison | None:
        """Compare both sides; None where one of them has failed."""
        baseline, candidate = self._sides
        note = CrashMarker(
            self._context.directory, [MarkedTrial(side.configuration_index, side.label, is_measurement=True) for side in self._sides]
        )
        turns = InterleavedTrials(baseline, candidate, self._progress.report, note.write)
        try:
            with note:
                comparison = turns.compare(block_count)
        except KernalyseError as error:
            failed = baseline if turns.active is baseline else candidate
            self._sides.remove(failed)
            self._progress.fail(failed.planned, error)
            if failed.is_session_lost:
                raise
            return None
        self._stop_reasons = dict.fromkeys(self._sides, turns.stop_reason)
        return comparison

    def _sample_alone(self, side: ConfigurationRun) -> None:
        side.companions = ()
        side.reload()
        self._stop_reasons[side] = side.sample()

    def _finish(self, side: ConfigurationRun, use: DeviceUse) -> None:
        side.finish(self._stop_reasons[side], use)
        self._progress.complete()

    def _each(self, step: Callable[[ConfigurationRun], object]) -> None:
        self._sides = [side for side in self._sides if self._progress.attempt(side, partial(step, side))]


def _share_device(first: ConfigurationRun, second: ConfigurationRun) -> None:
    first.companions, second.companions = second.plan.buffers(), first.plan.buffers()


# ---------------------------------------------------------------- confirmation of the best
# The best configuration is compared once more with the runner-up, in interleaved trials.
#
# A sweep measures one configuration after the other and takes the fastest of many, so the winner is also the luckiest. Only a
# comparison made after that choice, under equal conditions, gives the real margin.

CONFIRMATION_RATIO: Final = 0.2
"""Of a budget, kept for the comparison. With less, close rivals stay undecided; with more, the search itself goes short."""

CONFIRMATION_FRACTION: Final = 0.1
"""Of the time that a sweep over everything took. With more, large sweeps would take noticeably longer than they used to."""

MIN_CONFIRMATION_NS: Final = 3_000_000_000  # for small sweeps, but no longer than they took: a comparison needs a second or two
SPARE_RATIO: Final = 2.0  # over the least time of the blocks: starting, and between them warming the cache and reading clocks, take as long


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that may be the fastest of its group."""

    planned: PlannedConfiguration
    duration_median_ns: float


class TournamentGroups:
    """The candidates of each tournament group, measured in this run or in an earlier run of the sweep.

    Medians of two runs are those of two processes, which drift apart; who is really faster, alternating blocks say.
    """

    def __init__(self, contenders: Iterable[Candidate] = ()) -> None:
        self._candidates: defaultdict[object, list[Candidate]] = defaultdict(list)
        for contender in contenders:
            self._enter(contender)

    def enter(self, planned: PlannedConfiguration, measurement: Measurement | None) -> None:
        """Add a measured configuration. measurement: None where it could not be measured."""
        if measurement is not None and _can_win(measurement):
            self._enter(Candidate(planned, measurement.duration_median_ns))

    def _enter(self, candidate: Candidate) -> None:
        self._candidates[candidate.planned.tournament_group].append(candidate)

    def confirm(self, context: MeasurementContext, progress: SweepProgress, budget: SearchBudget) -> None:
        """Compare the fastest two of each group, after everything is measured.

        A comparison that takes longer than thought must cost no configuration its look.

        Raises:
            KernalyseError: a kernel has taken the session with it.
        """
        if context.sweep.skip_confirmation:
            return
        contested = self._contested()
        for position, two in enumerate(contested):
            least_ns = SPARE_RATIO * _shortest_comparison_ns(two)  # a few complete comparisons are worth more than many begun ones
            confirm_best(two, context, progress, budget.part(1 / (len(contested) - position), least_ns))

    def shortest_comparison_ns(self) -> float:
        """Return the time of the shortest comparison; infinity where there is none to make."""
        return min(map(_shortest_comparison_ns, self._contested()), default=math.inf)

    def _contested(self) -> list[Sequence[Candidate]]:
        """Return the fastest two of each group that has at least two."""
        ranked = (sorted(candidates, key=lambda one: one.duration_median_ns) for candidates in self._candidates.values())
        return [candidates[:2] for candidates in ranked if len(candidates) > 1]


def confirmation_budget_ns(measuring_ns: float) -> float:
    """Return the time for the final comparisons of an exhaustive sweep that took `measuring_ns`."""
    return min(measuring_ns, max(MIN_CONFIRMATION_NS, CONFIRMATION_FRACTION * measuring_ns))


def confirm_best(fastest: Sequence[Candidate], context: MeasurementContext, progress: SweepProgress, budget: SearchBudget) -> None:
    """Compare the fastest two of one group, if the budget allows it; a search warns where it does not.

    Samples of the comparison are not reported: the measurements of both are complete, and stand on their own.

    Raises:
        KernalyseError: a kernel has taken the session with it.
    """
    verified = replace(context.sweep.measuring, skip_verification=True)  # when they were measured
    quiet = replace(context, sink=_WithoutSamples(context.sink), sweep=replace(context.sweep, measuring=verified))
    best, runner_up = (ConfigurationRun(one.planned, quiet) for one in fastest)
    shortest_ns = _shortest_comparison_ns(fastest)
    try:
        if budget.left_ns() >= shortest_ns:
            start_pair(runner_up, best, progress.report)
        if budget.left_ns() < shortest_ns:  # also when starting has taken it
            _report_unconfirmed(best, runner_up, "the budget is spent.", context)
            return
        with CrashMarker(
            context.directory, [MarkedTrial(one.configuration_index, one.label, is_measurement=False) for one in (best, runner_up)]
        ) as note:
            comparison = InterleavedTrials(runner_up, best, progress.report, note.write).compare(MIN_BLOCK_COUNT, budget.left_ns())
    except KernalyseError as error:  # both are measured all the same
        if best.is_session_lost:
            raise
        _report_unconfirmed(best, runner_up, error.message, context)
    else:
        if comparison.block_count < MIN_BLOCK_COUNT:  # the intervals of so few say nothing
            _report_unconfirmed(best, runner_up, f"the budget is spent. {comparison.reason}", context)
        else:
            context.sink.write(comparison)


def _can_win(measurement: Measurement) -> bool:
    return measurement.verification.state is not VerificationState.FAILED and measurement.stop_reason is not StopReason.ELIMINATED


def _shortest_comparison_ns(fastest: Sequence[Candidate]) -> float:
    return MIN_BLOCK_COUNT * sum(max(CPU_BLOCK_NS, one.duration_median_ns) for one in fastest)


def _report_unconfirmed(best: ConfigurationRun, runner_up: ConfigurationRun, why: str, context: MeasurementContext) -> None:
    """Warn that a search's best was not confirmed. For an exhaustive sweep, table best says what the margins rest on."""
    if context.sweep.strategy is SearchStrategy.ALL:
        return
    line = f"{best.label} was not compared with {runner_up.label} in alternating blocks: {why}"
    context.sink.write(LogLines(LogLevel.WARNING, "worker", tuple(line.splitlines())))


class _WithoutSamples:
    def __init__(self, sink: EventSink) -> None:
        self._sink = sink

    def write(self, payload: EventPayload) -> None:
        if not isinstance(payload, SampleBatch):
            self._sink.write(payload)


# ---------------------------------------------------------------- search budget

ClockNs = Callable[[], int]


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """The time that a search may take. end_ns: on the clock; infinity: no limit."""

    end_ns: float
    clock_ns: ClockNs = time.monotonic_ns

    @classmethod
    def of(cls, budget_ns: int | None, clock_ns: ClockNs) -> Self:
        """Return a budget that starts now; duration None: no limit."""
        return cls(math.inf if budget_ns is None else clock_ns() + budget_ns, clock_ns)

    def left_ns(self) -> float:
        """Return the time that is left; negative when it is overspent."""
        return self.end_ns - self.clock_ns()

    def is_spent(self) -> bool:
        """Return whether no time is left."""
        return self.left_ns() <= 0

    def part(self, ratio: float, least_ns: float = 0) -> Self:
        """Return a fraction of the time that is left, at least `least_ns` if there is as much."""
        left_ns = self.left_ns()
        return replace(self, end_ns=self.clock_ns() + max(left_ns * ratio, min(left_ns, least_ns)))
