"""`bench A B --paired`: the two configurations of each problem, measured in alternating blocks of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from services.core.errors import KernalyseError
from services.core.model import PairedComparison, StopReason
from services.profiler.measuring.busy import DeviceUse
from services.profiler.turn_note import CrashMarker, Turn
from services.profiler.workloads.configuration_run import ActivitySink, ConfigurationRun, MeasurementContext
from services.profiler.workloads.sweep_plan import PlannedConfiguration
from services.profiler.workloads.sweep_progress import SweepProgress
from services.profiler.workloads.turns import Turns


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
    """Both sides of one problem. What goes wrong with one is told, and the other is measured by itself."""

    def __init__(self, sides: list[ConfigurationRun], context: MeasurementContext, progress: SweepProgress) -> None:
        self._sides = sides  # without those that have failed
        self._context = context
        self._progress = progress
        self._stop_reasons: dict[ConfigurationRun, StopReason] = {}

    def measure(self, block_count: int) -> None:
        self._each(ConfigurationRun.announce)
        if len(self._sides) == 2:
            _share_device(*self._sides)
        self._each(lambda side: side.start(self._progress.report))
        comparison = self._compare(block_count) if len(self._sides) == 2 else None
        if comparison is None:
            self._each(self._sample_alone)
        use = self._context.neighbours.read()
        self._each(lambda side: self._finish(side, use))
        if comparison is not None and len(self._sides) == 2:
            self._context.sink.write(comparison)

    def _compare(self, block_count: int) -> PairedComparison | None:
        """Compare both sides. None: one has failed meanwhile."""
        baseline, candidate = self._sides
        note = CrashMarker(self._context.folder, [Turn(side.configuration_index, side.label, is_measurement=True) for side in self._sides])
        turns = Turns(baseline, candidate, self._progress.report, note.write)
        try:
            with note:
                comparison = turns.compare(block_count)
        except KernalyseError as error:
            failed = baseline if turns.whose is baseline else candidate
            self._sides.remove(failed)
            self._progress.fail(failed.planned, error)
            if failed.is_session_lost:
                raise
            return None
        self._stop_reasons = dict.fromkeys(self._sides, turns.stop_reason)
        return comparison

    def _sample_alone(self, side: ConfigurationRun) -> None:
        side.beside = ()
        side.reload()
        self._stop_reasons[side] = side.sample()

    def _finish(self, side: ConfigurationRun, use: DeviceUse) -> None:
        side.finish(self._stop_reasons[side], use)
        self._progress.complete()

    def _each(self, step: Callable[[ConfigurationRun], object]) -> None:
        self._sides = [side for side in self._sides if self._progress.attempt(side, partial(step, side))]


def _share_device(first: ConfigurationRun, second: ConfigurationRun) -> None:
    first.beside, second.beside = second.plan.buffers(), first.plan.buffers()
