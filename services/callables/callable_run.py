"""One Python function on its way to a measurement."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
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

LONG_CALL_NS: Final = 500_000_000
"""Such calls are timed one by one whatever else; each further one to warm up would only be waited for."""


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
        self._session, self._launch = CallableSession(desk.stopwatch), CallableLaunch(work.function)
        self.benchmark = self._new_benchmark()

    def _new_benchmark(self) -> Benchmark:
        desk, index = self._desk, self.configuration_index
        observer = Observer(on_activity=lambda _: None, on_batch=lambda batch: desk.write(batch.event(index)))
        return Benchmark(self._session, self._launch, self._method, desk.clock_meter, observer)

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
        self._refuse_unfinished(self._launch.function())
        if self._takes_long(start_ns) and self._takes_long():
            self._method = replace(self._method, warm_up_count=max(self._desk.options.warm_up_count, 1))
            self.benchmark = self._new_benchmark()
        self._further_ns = time.perf_counter_ns() - start_ns
        self.benchmark.start(lambda: NO_REFERENCE)

    def _takes_long(self, start_ns: int | None = None) -> bool:
        """Whether a call does, of which the first may have compiled. start_ns: of one that has begun; None: of one more."""
        if start_ns is None:
            start_ns = time.perf_counter_ns()
            self._launch.function()
        self._desk.stopwatch.synchronize()
        return time.perf_counter_ns() - start_ns > LONG_CALL_NS

    def _refuse_unfinished(self, answer: object) -> None:
        """Raises InvalidParameterError: the call has only made something that would do the work."""
        if isinstance(answer, Coroutine):
            answer.close()
        if isinstance(answer, Awaitable | Generator | AsyncGenerator):
            raise InvalidParameterError(
                f"function {self.configuration.kernel_name}",
                found=f"a {type(answer).__name__} that has not run yet",
                expected="a call that does the work",
                remedy="Wrap it: lambda: asyncio.run(work()) for a coroutine, lambda: list(work()) for a generator.",
            )

    def sample(self) -> StopReason:
        return self.benchmark.sample()

    def finish(self, stop_reason: StopReason) -> Measurement:
        """Writes the measurement."""
        result = self.benchmark.result(stop_reason)
        use = self._desk.neighbours.read()
        measurement = result.measurement(self.configuration_index, self._method, self.device, use, self._further_ns)
        self._desk.write(measurement)
        return measurement


def refuse_no_function(function: object, name: str) -> None:
    """name: of the argument. Raises InvalidParameterError."""
    if not callable(function):
        raise InvalidParameterError(f"argument {name}", found=repr(function), expected="a function without arguments")


def _configuration(index: int, work: Work, cache_mode: CacheMode) -> Configuration:
    if work.dtype not in DataType.__members__.values():
        raise InvalidParameterError("argument dtype", found=repr(work.dtype), expected=", ".join(DataType))
    for name, value in work.parameters.items():
        if not isinstance(value, int):
            raise InvalidParameterError(f"parameter {name}", found=repr(value), expected="a whole number")
    for argument, amount in (("flop", work.flop), ("bytes", work.bytes)):
        if amount is not None and not (math.isfinite(amount) and amount >= 0):
            raise InvalidParameterError(f"argument {argument}", found=str(amount), expected="a number of 0 or more, or None")
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
