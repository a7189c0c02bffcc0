"""The best configuration once more against the runner-up, in alternating blocks: is it really faster?

A sweep measures one after the other, and the fastest of many is taken: the winner is also the luckiest. Only a comparison
that is made after the choice, and under equal conditions, says what the margin is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.core.errors import KernalyseError
from services.core.model import EventPayload, LogLevel, LogLines, Measurement, SampleBatch, SearchStrategy, StopReason, VerificationState
from services.profiler.turn_note import CrashMarker, Turn
from services.profiler.workloads.configuration_run import ConfigurationRun, MeasurementContext
from services.profiler.workloads.events import EventSink
from services.profiler.workloads.pairing import start_pair
from services.profiler.workloads.search_budget import SearchBudget
from services.profiler.workloads.sweep_checks import MIN_BLOCK_COUNT
from services.profiler.workloads.sweep_plan import PlannedConfiguration
from services.profiler.workloads.sweep_progress import SweepProgress
from services.profiler.workloads.turns import CPU_BLOCK_NS, Turns

CONFIRMING_RATIO: Final = 0.2
"""Of a budget, kept for the comparison. With less, close rivals stay undecided; with more, the search itself goes short."""

CONFIRMING_SHARE_OF_ALL: Final = 0.1
"""Of the time that a sweep over everything took. With more, large sweeps would take noticeably longer than they used to."""

LEAST_CONFIRMING_NS: Final = 3_000_000_000  # for small sweeps, but no longer than they took: a comparison needs a second or two
SPARE_RATIO: Final = 2.0  # over the least time of the blocks: starting, and between them warming the cache and reading clocks, take as long


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that may be the fastest of its contest."""

    planned: PlannedConfiguration
    duration_median_ns: float


class Contests:
    """Candidates for the fastest of each contest, measured in this run or in an earlier run of the sweep.

    Medians of two runs are those of two processes, which drift apart; who is really faster, alternating blocks say.
    """

    def __init__(self, rivals: Iterable[Candidate] = ()) -> None:
        self._candidates: defaultdict[object, list[Candidate]] = defaultdict(list)
        for rival in rivals:
            self._enter(rival)

    def enter(self, planned: PlannedConfiguration, measurement: Measurement | None) -> None:
        """Enter a measured configuration. None: it could not be measured."""
        if measurement is not None and _can_win(measurement):
            self._enter(Candidate(planned, measurement.duration_median_ns))

    def _enter(self, candidate: Candidate) -> None:
        self._candidates[candidate.planned.contest].append(candidate)

    def confirm(self, context: MeasurementContext, progress: SweepProgress, budget: SearchBudget) -> None:
        """Compare the fastest two of each contest, after everything is measured.

        A comparison that takes longer than thought must cost no configuration its look.

        Raises:
            KernalyseError: a kernel has taken the session with it.
        """
        if context.sweep.skip_confirmation:
            return
        contested = self._contested()
        for position, two in enumerate(contested):
            least_ns = SPARE_RATIO * _shortest_comparison_ns(two)  # a few that are compared tell more than many that are begun
            confirm_best(two, context, progress, budget.part(1 / (len(contested) - position), least_ns))

    def shortest_comparison_ns(self) -> float:
        """Return the time of the shortest comparison. Infinity: there is none to make."""
        return min(map(_shortest_comparison_ns, self._contested()), default=math.inf)

    def _contested(self) -> list[Sequence[Candidate]]:
        """Return the fastest two of each contest that has as many."""
        ranked = (sorted(candidates, key=lambda one: one.duration_median_ns) for candidates in self._candidates.values())
        return [candidates[:2] for candidates in ranked if len(candidates) > 1]


def confirming_ns(measuring_ns: float) -> float:
    """Return the time for the comparisons of a sweep over everything, which took so long."""
    return min(measuring_ns, max(LEAST_CONFIRMING_NS, CONFIRMING_SHARE_OF_ALL * measuring_ns))


def confirm_best(fastest: Sequence[Candidate], context: MeasurementContext, progress: SweepProgress, budget: SearchBudget) -> None:
    """Compare the fastest two of one contest, if the budget allows it; a search says so where it does not.

    Samples of the comparison are not told: the measurements of both are closed, and stand on their own.

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
            context.folder, [Turn(one.configuration_index, one.label, is_measurement=False) for one in (best, runner_up)]
        ) as note:
            comparison = Turns(runner_up, best, progress.report, note.write).compare(MIN_BLOCK_COUNT, budget.left_ns())
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
    """Warn that nothing was confirmed. Of a sweep over everything, which keeps no time for it, table best says what margins rest on."""
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
