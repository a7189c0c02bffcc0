"""One Python function on its way to a measurement."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from services.callables.session import Call, CallableLaunch, CallableSession, Stopwatch
from services.core.errors import InvalidParameterError
from services.core.model import (
    CacheMode,
    Configuration,
    DataType,
    Device,
    Dim3,
    EventPayload,
    Measurement,
    MeasuringOptions,
    ParameterValue,
    StopReason,
)
from services.profiler.measuring.benchmark import Benchmark, Method, Observer
from services.profiler.measuring.busy import Neighbours
from services.profiler.measuring.clocks import ClockMeter
from services.profiler.measuring.stopping import StoppingRule
from services.profiler.measuring.verification import NO_REFERENCE

MIN_WARM_UP_COUNT: Final = 5
"""The fastest of them decides whether calls are timed one by one; fewer may all have met caches and pages for the first time."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is called, and what is known of it. flop, bytes: of one call; None: not known."""

    function: Call
    name: str
    parameters: Mapping[str, int]
    flop: float | None = None
    bytes: float | None = None
    dtype: str = DataType.FLOAT32
    category: str = "other"


@dataclass(frozen=True, slots=True)
class Desk:
    """What all functions of one measurement share."""

    stopwatch: Stopwatch
    options: MeasuringOptions
    clock_meter: ClockMeter
    neighbours: Neighbours
    write: Callable[[EventPayload], None]


class CallableRun:
    """Call `start` first. Then `sample`, or turns with another one; then `finish`."""

    def __init__(self, configuration_index: int, work: Work, desk: Desk) -> None:
        self._desk = desk
        self._method = Method.of(desk.options, desk.stopwatch.device)
        self._method = replace(self._method, warm_up_count=max(self._method.warm_up_count, MIN_WARM_UP_COUNT))
        if self._method.cache_mode is CacheMode.BOTH:
            raise InvalidParameterError("argument cache", found="'both'", expected="cold or hot", remedy="Measure once with each.")
        self.configuration = _configuration(configuration_index, work, self._method.cache_mode)
        self._further_ns = 0  # wall clock beside the benchmark's
        observer = Observer(on_activity=lambda _: None, on_batch=lambda batch: desk.write(batch.event(configuration_index)))
        self._session, self._launch = CallableSession(desk.stopwatch), CallableLaunch(work.function)
        self.benchmark = Benchmark(self._session, self._launch, self._method, desk.clock_meter, observer)

    @property
    def configuration_index(self) -> int:
        return self.configuration.configuration_index

    @property
    def label(self) -> str:
        return self.configuration.label

    @property
    def device(self) -> Device:
        return self._desk.stopwatch.device

    @property
    def rule(self) -> StoppingRule:
        return self._method.rule

    def start(self) -> None:
        """Tells the configuration, warms up and chooses how to time. The first call, which may compile for minutes, is no sample."""
        start_ns = time.perf_counter_ns()
        self._desk.write(self.configuration)
        self._desk.neighbours.wait_or_refuse(self._desk.options.busy_policy, lambda _: None)
        self._session.run(self._launch)
        self._further_ns = time.perf_counter_ns() - start_ns
        self.benchmark.start(lambda: NO_REFERENCE)

    def sample(self) -> StopReason:
        return self.benchmark.sample()

    def finish(self, stop_reason: StopReason) -> Measurement:
        """Writes the measurement."""
        result = self.benchmark.result(stop_reason)
        use = self._desk.neighbours.read()
        measurement = result.measurement(self.configuration_index, self._method, self.device, use, self._further_ns)
        self._desk.write(measurement)
        return measurement


def refuse_what_does_no_work(function: object, name: str) -> None:
    """Raises InvalidParameterError: it cannot be called, or a call would only prepare what is to be awaited."""
    if not callable(function):
        raise InvalidParameterError(f"argument {name}", found=repr(function), expected="a function without arguments")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidParameterError(
            f"argument {name}",
            found=f"{getattr(function, '__name__', function)}, whose calls only make a coroutine or a generator",
            expected="a function that does its work when it is called",
            remedy="Run it to its end inside, as lambda: asyncio.run(f()) or lambda: list(f()).",
        )


def _configuration(index: int, work: Work, cache_mode: CacheMode) -> Configuration:
    if work.dtype not in DataType.__members__.values():
        raise InvalidParameterError("argument dtype", found=repr(work.dtype), expected=", ".join(DataType))
    for name, value in work.parameters.items():
        if not isinstance(value, int):
            raise InvalidParameterError(f"parameter {name}", found=repr(value), expected="a whole number")
    return Configuration(
        configuration_index=index,
        kernel_name=work.name,
        parameters=tuple(ParameterValue(name, value) for name, value in work.parameters.items()),
        block=Dim3(1),
        grid=Dim3(1),
        dynamic_shared_memory_bytes=0,
        category=work.category,
        dtype=DataType(work.dtype),
        flop=work.flop,
        bytes=work.bytes,
        cache_mode=cache_mode,
    )
