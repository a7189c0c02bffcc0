"""Progress of a sweep: what is measured, what has failed, and which failure ends the process."""

from __future__ import annotations

from collections.abc import Callable

from services.core.errors import KernalyseError
from services.core.model import Measurement
from services.profiler.workloads.configuration_run import ConfigurationRun, MeasurementContext
from services.profiler.workloads.events import ProgressReporter
from services.profiler.workloads.sweep_plan import PlannedConfiguration


class SweepProgress:
    """Attempts configurations and reports how far the sweep is.

    reporter: earlier processes and an earlier run of the sweep are counted in.
    """

    def __init__(self, reporter: ProgressReporter) -> None:
        self._reporter = reporter
        self._has_measured = False
        self._first_error: KernalyseError | None = None

    def report(self, activity: str) -> None:
        self._reporter.report(activity)

    def complete(self) -> None:
        self._has_measured = True
        self._reporter.complete()

    def fail(self, planned: PlannedConfiguration, error: KernalyseError) -> None:
        self._first_error = self._first_error or error
        self._reporter.fail(planned.configuration_index, error)

    def attempt(self, run: ConfigurationRun, action: Callable[[], object]) -> bool:
        """Return whether the action went through; what goes wrong is reported as the configuration's failure and goes no further.

        Raises:
            KernalyseError: the session is lost with it, so nothing can be measured after it in this process.
        """
        self._reporter.configuration_index = run.configuration_index
        try:
            action()
        except KernalyseError as error:
            self._reporter.configuration_index = None
            self.fail(run.planned, error)
            if run.is_session_lost:
                raise
            return False
        self._reporter.configuration_index = None
        return True

    def raise_if_nothing_was_measured(self) -> None:
        """Raise the first configuration's error if not a single one was measured."""
        if self._first_error is not None and not self._has_measured:
            raise self._first_error


def measure_configuration(planned: PlannedConfiguration, context: MeasurementContext, progress: SweepProgress) -> Measurement | None:
    """Announce and measure one configuration. None: it failed, which is reported and goes no further."""
    run = ConfigurationRun(planned, context)

    def measure() -> None:
        run.announce()
        run.measure(progress.report)

    if progress.attempt(run, measure):
        progress.complete()
    return run.measurement
