"""Runs a sweep: one configuration after the other, or two in turns, each measured or failed for a reason of its own."""

from __future__ import annotations

from pathlib import Path

from services.core.errors import KernalyseError
from services.core.model import ConfigurationFailed, KernelSweep, Progress
from services.profiler.backends.base import DeviceSession
from services.profiler.measuring.busy import Neighbours, open_use_meter
from services.profiler.measuring.clocks import open_clock_meter
from services.profiler.measuring.device_buffers import DeviceBuffers
from services.profiler.workloads.configuration_run import Bench, ConfigurationRun
from services.profiler.workloads.events import EventSink, run_error
from services.profiler.workloads.pairing import measure_pairs
from services.profiler.workloads.sweep_plan import PlannedConfiguration, SweepPlan


def run_sweep(sweep: KernelSweep, plan: SweepPlan, session: DeviceSession, sink: EventSink, folder: Path, process_index: int = 0) -> None:
    """Measures what `plan` leaves to one process, on an open session, and writes what happens to `sink`.

    A configuration that cannot be measured is told as ConfigurationFailed, and the sweep goes on.

    Raises:
        KernalyseError: the first configuration's, when not a single one could be measured.
    """
    bench = Bench(
        sweep=sweep,
        session=session,
        sink=sink,
        folder=folder,
        clock_meter=open_clock_meter(session.device),
        neighbours=Neighbours(open_use_meter(session.device)),
        buffers=DeviceBuffers(session),
    )
    progress = SweepProgress(sink, plan, session.device.device_id, process_index)
    try:
        if sweep.pairing is not None:
            measure_pairs(plan.to_measure(process_index), sweep.pairing.block_count, bench, progress)
        else:
            for planned in plan.to_measure(process_index):
                measure_configuration(planned, bench, progress)
    finally:
        bench.buffers.release()
    progress.raise_if_nothing_was_measured()


def measure_configuration(planned: PlannedConfiguration, bench: Bench, progress: SweepProgress) -> None:
    """Announces and measures one; what goes wrong is told and does not go further."""
    run = ConfigurationRun(planned, bench)
    try:
        run.announce()
        run.measure(progress.tell)
    except KernalyseError as error:
        progress.fail(planned, error)
    else:
        progress.complete()


class SweepProgress:
    """Counts what is done, and tells it. Earlier processes and an earlier run of the sweep are counted in."""

    def __init__(self, sink: EventSink, plan: SweepPlan, device_id: str, process_index: int) -> None:
        self._sink = sink
        self._plan = plan
        self._device_id = device_id
        self._completed_count = len(plan.done_indexes) + sum(len(plan.to_measure(index)) for index in range(process_index))
        self._failed_count = 0
        self._measured_count = 0
        self._first_error: KernalyseError | None = None

    def tell(self, activity: str) -> None:
        self._sink.write(
            Progress(
                completed_configuration_count=self._completed_count,
                failed_configuration_count=self._failed_count,
                total_configuration_count=self._plan.configuration_count,
                activity=activity,
                device_id=self._device_id,
            )
        )

    def complete(self) -> None:
        self._completed_count += 1
        self._measured_count += 1
        self.tell("")

    def fail(self, planned: PlannedConfiguration, error: KernalyseError) -> None:
        self._sink.write(ConfigurationFailed(planned.configuration_index, run_error(error)))
        self._first_error = self._first_error or error
        self._completed_count += 1
        self._failed_count += 1
        self.tell("")

    def raise_if_nothing_was_measured(self) -> None:
        if self._first_error is not None and self._measured_count == 0:
            raise self._first_error
