"""What all measurements of one model run share, and how far the run is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.core.model import Progress
from services.profiler.backends.passes import PassSession
from services.profiler.measuring.benchmark import Method
from services.profiler.measuring.busy import Neighbours
from services.profiler.measuring.clocks import ClockMeter
from services.profiler.workloads.events import EventSink

INPUT_DISTRIBUTION: Final = "normal"  # of the weights


@dataclass(frozen=True, slots=True)
class PassBench:
    session: PassSession
    sink: EventSink
    clock_meter: ClockMeter
    neighbours: Neighbours
    method: Method
    seed: int


class PassProgress:
    """Counts configurations that are done, and tells it."""

    def __init__(self, sink: EventSink, total_count: int, device_id: str | None = None) -> None:
        self.total_count = total_count
        self._sink = sink
        self._device_id = device_id
        self._completed_count = 0

    def tell(self, activity: str) -> None:
        self._sink.write(Progress(self._completed_count, 0, self.total_count, activity, self._device_id))

    def complete(self, count: int) -> None:
        self._completed_count += count
        self.tell("")
