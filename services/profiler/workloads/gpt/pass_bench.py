"""State that all measurements of one model run share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.profiler.backends.passes import PassSession
from services.profiler.measuring.benchmark import Method
from services.profiler.measuring.busy import Neighbours
from services.profiler.measuring.clocks import ClockMeter
from services.profiler.workloads.events import EventSink

INPUT_DISTRIBUTION: Final = "normal"  # of the weights


@dataclass(frozen=True, slots=True)
class PassContext:
    """Session, sink, meters and method of one model run."""

    session: PassSession
    sink: EventSink
    clock_meter: ClockMeter
    neighbours: Neighbours
    method: Method
    seed: int
