"""How far a sweep is: counted and told."""

from __future__ import annotations

from collections.abc import Callable

from services.core.errors import KernalyseError
from services.core.model import ConfigurationFailed, Measurement, Progress
from services.profiler.workloads.configuration_run import Bench, ConfigurationRun
from services.profiler.workloads.events import EventSink, run_error
from services.profiler.workloads.sweep_plan import PlannedConfiguration, SweepPlan


class SweepProgress:
    """Counts what is done, and tells it. Earlier processes and an earlier run of the sweep are counted in.

    Args:
        failed_count: configurations that failed in earlier processes and runs of the sweep.
    """

    def __init__(self, sink: EventSink, plan: SweepPlan, device_id: str, process_index: int = 0, failed_count: int = 0) -> None:
        self._sink = sink
        self._plan = plan
        self._device_id = device_id
        self._completed_count = plan.completed_count(process_index)
        self._measured_count = 0
        self._first_error: KernalyseError | None = None
        self._attempted_index: int | None = None
        self.failed_count = failed_count

    def tell(self, activity: str) -> None:
        self._sink.write(
            Progress(
                completed_configuration_count=self._completed_count,
                failed_configuration_count=self.failed_count,
                total_configuration_count=self._plan.configuration_count,
                activity=activity,
                device_id=self._device_id,
                configuration_index=self._attempted_index,
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
        self.failed_count += 1
        self.tell("")

    def attempt(self, run: ConfigurationRun, action: Callable[[], object]) -> bool:
        """Whether the action went through; what goes wrong is told as the configuration's failure and goes no further.

        Raises:
            KernalyseError: the session is lost with it, so nothing can be measured after it in this process.
        """
        self._attempted_index = run.configuration_index
        try:
            action()
        except KernalyseError as error:
            self._attempted_index = None
            self.fail(run.planned, error)
            if run.is_session_lost:
                raise
            return False
        self._attempted_index = None
        return True

    def raise_if_nothing_was_measured(self) -> None:
        if self._first_error is not None and self._measured_count == 0:
            raise self._first_error


def measure_configuration(planned: PlannedConfiguration, bench: Bench, progress: SweepProgress) -> Measurement | None:
    """Announces and measures one; what goes wrong is told and does not go further: None."""
    run = ConfigurationRun(planned, bench)

    def measure() -> None:
        run.announce()
        run.measure(progress.tell)

    if progress.attempt(run, measure):
        progress.complete()
    return run.measurement
