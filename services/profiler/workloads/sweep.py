"""Runs a sweep: one configuration after the other, or two in turns, each measured or failed for a reason of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from services.core.model import KernelSweep, SearchStrategy
from services.profiler.backends.base import DeviceSession
from services.profiler.measuring.busy import Neighbours, open_use_meter
from services.profiler.measuring.clocks import open_clock_meter
from services.profiler.measuring.device_buffers import DeviceBuffers
from services.profiler.workloads.configuration_run import MeasurementContext
from services.profiler.workloads.confirming import Candidate, Contests, confirming_ns
from services.profiler.workloads.events import EventSink, ProgressReporter
from services.profiler.workloads.pairing import measure_pairs
from services.profiler.workloads.search import search_at_random, search_by_halving
from services.profiler.workloads.search_budget import ClockNs, SearchBudget
from services.profiler.workloads.sweep_compiler import SweepCompiler
from services.profiler.workloads.sweep_plan import PlannedConfiguration, SweepPlan
from services.profiler.workloads.sweep_progress import SweepProgress, measure_configuration


def run_sweep(
    sweep: KernelSweep,
    plan: SweepPlan,
    session: DeviceSession,
    sink: EventSink,
    folder: Path,
    process_index: int = 0,
    failed_count: int = 0,
) -> int:
    """Measure what `plan` leaves to one process, on an open session, and write what happens to `sink`.

    A configuration that cannot be measured is told as ConfigurationFailed, and the sweep goes on.

    Args:
        failed_count: configurations that failed in the processes before.

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
        folder=folder,
        clock_meter=open_clock_meter(session.device),
        neighbours=Neighbours(open_use_meter(session.device)),
        buffers=DeviceBuffers(session),
        compiler=SweepCompiler(sweep.compiler_options, session, sink, folder),
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
    contests = Contests(_rivals(plan, context.sweep))
    match context.sweep.strategy:
        case SearchStrategy.ALL:
            _measure_all(configurations, context, progress, contests)
        case SearchStrategy.RANDOM:
            search_at_random(configurations, context, progress, contests)
        case SearchStrategy.HALVING:
            search_by_halving(configurations, context, progress, contests)


def _measure_all(
    configurations: Sequence[PlannedConfiguration],
    context: MeasurementContext,
    progress: SweepProgress,
    contests: Contests,
    clock_ns: ClockNs = time.monotonic_ns,
) -> None:
    start_ns = clock_ns()
    for planned in configurations:
        contests.enter(planned, measure_configuration(planned, context, progress))
    allowed_ns = confirming_ns(clock_ns() - start_ns)
    is_decided_by_processes = context.sweep.process_count > 1
    if not (is_decided_by_processes or context.sweep.skip_confirmation) and contests.shortest_comparison_ns() <= allowed_ns:
        contests.confirm(context, progress, SearchBudget.of(int(allowed_ns), clock_ns))


def _rivals(plan: SweepPlan, sweep: KernelSweep) -> Iterator[Candidate]:
    """Yield what an earlier run of the sweep has measured, as far as it may be the fastest."""
    medians_ns = {rival.configuration_index: rival.duration_median_ns for rival in sweep.rivals}
    if medians_ns:
        for planned in plan.configurations():
            if planned.configuration_index in medians_ns:
                yield Candidate(planned, medians_ns[planned.configuration_index])
