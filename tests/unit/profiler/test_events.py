"""kernalyse.services.profiler.workloads.events: what a workload reports of its progress."""

from __future__ import annotations

from kernalyse.services.core.errors import InvalidParameterError
from kernalyse.services.core.model import ConfigurationFailed, EventPayload, Progress
from kernalyse.services.profiler.workloads.events import ProgressReporter


class Collected:
    def __init__(self) -> None:
        self.payloads: list[EventPayload] = []

    def write(self, payload: EventPayload) -> None:
        self.payloads.append(payload)


def test_progress_counts_failed_configurations_as_done_and_those_of_earlier_processes_too() -> None:
    sink = Collected()
    progress = ProgressReporter(sink, total_count=6, device_id="cpu:0", completed_count=2, failed_count=1)
    progress.configuration_index = 2
    progress.report("measuring saxpy")
    progress.configuration_index = None
    progress.complete(2)
    progress.fail(4, InvalidParameterError("parameter N", found="0"))
    progresses = [payload for payload in sink.payloads if isinstance(payload, Progress)]
    assert progresses == [Progress(2, 1, 6, "measuring saxpy", "cpu:0", 2), Progress(4, 1, 6, "", "cpu:0"), Progress(5, 2, 6, "", "cpu:0")]
    (failed,) = (payload for payload in sink.payloads if isinstance(payload, ConfigurationFailed))
    assert failed.configuration_index == 4
    assert failed.error.message == "parameter N: 0."
