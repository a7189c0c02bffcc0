"""The best configuration of a search once more against the runner-up, in alternating blocks: is it really faster?

A search measures one after the other, and takes the fastest of many: the winner is also the luckiest. Only a comparison
that is made after the choice, and under equal conditions, says what the margin is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.core.errors import KernalyseError
from services.core.model import EventPayload, LogLevel, LogLines, Measurement, SampleBatch, StopReason, VerificationState
from services.profiler.workloads.configuration_run import Bench, ConfigurationRun
from services.profiler.workloads.events import EventSink
from services.profiler.workloads.pairing import run_pair
from services.profiler.workloads.search_budget import SearchBudget
from services.profiler.workloads.sweep_checks import MIN_BLOCK_COUNT
from services.profiler.workloads.sweep_plan import PlannedConfiguration
from services.profiler.workloads.sweep_progress import SweepProgress
from services.profiler.workloads.turns import CPU_BLOCK_NS

CONFIRMING_RATIO: Final = 0.2
"""Of a budget, kept for the comparison. With less, close rivals stay undecided; with more, the search itself goes short."""


@dataclass(frozen=True, slots=True)
class Candidate:
    planned: PlannedConfiguration
    duration_median_ns: float


class Contests:
    """Who may be the fastest of each contest: what this run has measured, and what an earlier run of the sweep has.

    Medians of two runs are those of two processes, which drift apart; who is really faster, alternating blocks say.
    """

    def __init__(self, rivals: Iterable[Candidate] = ()) -> None:
        self._candidates: defaultdict[object, list[Candidate]] = defaultdict(list)
        for rival in rivals:
            self._enter(rival)

    def enter(self, planned: PlannedConfiguration, measurement: Measurement | None) -> None:
        """None: it could not be measured."""
        if measurement is not None and _can_win(measurement):
            self._enter(Candidate(planned, measurement.duration_median_ns))

    def _enter(self, candidate: Candidate) -> None:
        self._candidates[candidate.planned.contest].append(candidate)

    def confirm(self, bench: Bench, progress: SweepProgress, budget: SearchBudget) -> None:
        """Compares the fastest two of each, after everything is measured: a comparison that takes longer than thought must
        cost no configuration its look."""
        for position, candidates in enumerate(self._candidates.values()):
            confirm_best(candidates, bench, progress, budget.part(1 / (len(self._candidates) - position)))


def confirm_best(candidates: Sequence[Candidate], bench: Bench, progress: SweepProgress, budget: SearchBudget) -> None:
    """Compares the fastest two of one contest, if the budget allows it; says so where it does not.

    Samples of the comparison are not told: the measurements of both are closed, and stand on their own.

    Raises:
        KernalyseError: a kernel has taken the session with it.
    """
    fastest = sorted(candidates, key=lambda one: one.duration_median_ns)[:2]
    if len(fastest) < 2:
        return
    verified = replace(bench.sweep.measuring, skip_verification=True)  # when they were measured
    quiet = replace(bench, sink=_WithoutSamples(bench.sink), sweep=replace(bench.sweep, measuring=verified))
    best, runner_up = (ConfigurationRun(one.planned, quiet) for one in fastest)
    if budget.left_ns() < _shortest_comparison_ns(fastest):
        _tell_unconfirmed(best, runner_up, "the budget is spent.", bench)
        return
    try:
        comparison = run_pair(runner_up, best, MIN_BLOCK_COUNT, progress.tell, budget.left_ns())
    except KernalyseError as error:  # both are measured all the same
        if best.is_session_lost:
            raise
        _tell_unconfirmed(best, runner_up, error.message, bench)
    else:
        if comparison.block_count < MIN_BLOCK_COUNT:  # the intervals of so few say nothing
            _tell_unconfirmed(best, runner_up, f"the budget is spent. {comparison.reason}", bench)
        else:
            bench.sink.write(comparison)


def _can_win(measurement: Measurement) -> bool:
    return measurement.verification.state is not VerificationState.FAILED and measurement.stop_reason is not StopReason.ELIMINATED


def _shortest_comparison_ns(fastest: Sequence[Candidate]) -> float:
    return MIN_BLOCK_COUNT * sum(max(CPU_BLOCK_NS, one.duration_median_ns) for one in fastest)


def _tell_unconfirmed(best: ConfigurationRun, runner_up: ConfigurationRun, why: str, bench: Bench) -> None:
    line = f"{best.label} was not compared with {runner_up.label} in alternating blocks: {why}"
    bench.sink.write(LogLines(LogLevel.WARNING, "worker", tuple(line.splitlines())))


class _WithoutSamples:
    def __init__(self, sink: EventSink) -> None:
        self._sink = sink

    def write(self, payload: EventPayload) -> None:
        if not isinstance(payload, SampleBatch):
            self._sink.write(payload)
