"""Measurements of Python callables: the implementation of `kernalyse.bench` and `kernalyse.compare`."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kernalyse.errors import RequestError
from kernalyse.measuring import Measuring
from kernalyse.revision import git_revision
from kernalyse.services.callables.results import Bench, Comparison, Record
from kernalyse.services.callables.timers import Call, CallableLaunch, CallableSession, CallTimer, select_timer
from kernalyse.services.core import protobuf
from kernalyse.services.core.comparison import MIN_PAIR_COUNT
from kernalyse.services.core.errors import InvalidParameterError, KernalyseError
from kernalyse.services.core.model import (
    CacheMode,
    Configuration,
    DataType,
    Device,
    Dim3,
    EventPayload,
    Measurement,
    MeasuringOptions,
    ParameterValue,
    Revision,
    StopReason,
)
from kernalyse.services.profiler.measuring.benchmark import Benchmark, Method, Observer
from kernalyse.services.profiler.measuring.device_state import ClockMeter, ContentionCheck, open_clock_meter, open_use_meter
from kernalyse.services.profiler.measuring.paired import InterleavedTrials
from kernalyse.services.profiler.measuring.stopping import StoppingRule
from kernalyse.services.profiler.measuring.verification import NO_REFERENCE

# ---------------------------------------------------------------- entry points
# Their arguments are documented in `kernalyse.timing`.


def bench(
    function: Callable[[], object],
    *,
    name: str | None,
    parameters: Mapping[str, int],
    flop: float | None,
    bytes: float | None,
    dtype: str,
    category: str,
    timer: str,
    measuring: Measuring,
) -> Bench:
    """Measure a function, as `kernalyse.bench` documents."""
    with _request_errors(), _opened(timer, function=function) as call_timer:
        work = MeasuredCallable(function, name or _name_of(function), parameters, flop, bytes, dtype, category)
        record = _record(work.name, call_timer)
        run = CallableRun(0, work, _measurement_context(call_timer, measuring, record))
        run.start()
        return _bench(run, run.sample(), call_timer, record)


def compare(
    candidate: Callable[[], object],
    baseline: Callable[[], object],
    *,
    names: tuple[str, str] | None,
    parameters: Mapping[str, int],
    timer: str,
    measuring: Measuring,
) -> Comparison:
    """Compare two functions, as `kernalyse.compare` documents."""
    with _request_errors(), _opened(timer, candidate=candidate, baseline=baseline) as call_timer:
        candidate_name, baseline_name = _different(_name_of(candidate), _name_of(baseline)) if names is None else _checked(names)
        record = _record(f"{candidate_name} against {baseline_name}", call_timer)
        context = _measurement_context(call_timer, measuring, record)
        runs = (
            CallableRun(0, MeasuredCallable(baseline, baseline_name, parameters), context),
            CallableRun(1, MeasuredCallable(candidate, candidate_name, parameters), context),
        )
        for run in runs:
            run.start()
        turns = InterleavedTrials(*runs, on_activity=lambda _: None)
        paired = turns.compare(MIN_PAIR_COUNT)
        baseline_bench, candidate_bench = (_bench(run, turns.stop_reason, call_timer, record) for run in runs)
        record.write(paired)
        return Comparison(candidate_bench, baseline_bench, paired, record)


def _bench(run: CallableRun, stop_reason: StopReason, call_timer: CallTimer, record: Record) -> Bench:
    return Bench(run.configuration, run.finish(stop_reason), call_timer.device, call_timer.description, call_timer.notice, record)


def _record(title: str, call_timer: CallTimer) -> Record:
    revision = git_revision(Path.cwd())
    return Record(title, call_timer, None if revision is None else Revision(*revision))


def _measurement_context(call_timer: CallTimer, measuring: Measuring, record: Record) -> MeasurementContext:
    device = call_timer.device
    return MeasurementContext(
        call_timer,
        protobuf.decode(measuring.message(), MeasuringOptions),
        open_clock_meter(device),
        ContentionCheck(open_use_meter(device)),
        record.write,
    )


def _name_of(function: Callable[[], object]) -> str:
    """Return the function's name; for an object without one, such as a functools.partial, that of its function or class."""
    inner = getattr(function, "func", function)
    name: str = getattr(inner, "__name__", type(inner).__name__)
    return "callable" if name == "<lambda>" else name


def _different(candidate_name: str, baseline_name: str) -> tuple[str, str]:
    return (
        (candidate_name, baseline_name)
        if candidate_name != baseline_name
        else (f"{candidate_name} (candidate)", f"{baseline_name} (baseline)")
    )


def _checked(names: tuple[str, ...]) -> tuple[str, str]:
    if len(names) != 2 or len(set(names)) != 2 or not all(names):
        raise InvalidParameterError("argument names", found=repr(names), expected="two different names, the candidate's first")
    return names[0], names[1]


@contextmanager
def _opened(timer: str, **functions: object) -> Iterator[CallTimer]:
    """Yield the timer for these functions, which are passed by the names of their arguments."""
    for name, function in functions.items():
        check_callable(function, name)
    call_timer = select_timer(timer)
    try:
        yield call_timer
    finally:
        call_timer.close()


@contextmanager
def _request_errors() -> Iterator[None]:
    """Raise KernalyseError as RequestError, as if a service had rejected the request."""
    try:
        yield
    except KernalyseError as error:
        raise RequestError(error.code, error.reason, error.message, error.metadata) from error


# ---------------------------------------------------------------- measured function

MIN_WARM_UP_COUNT: Final = 5
"""The fastest of them decides whether calls are timed one by one; with fewer, all may have met cold caches and unmapped pages."""

LONG_CALL_NS: Final = 500_000_000
"""Longer calls are timed one by one in any case, and further warm-up calls would only cost time."""


@dataclass(frozen=True, slots=True)
class MeasuredCallable:
    """A function and what is known of one call of it; flop and bytes are None where not known."""

    function: Call
    name: str
    parameters: Mapping[str, int]
    flop: float | None = None
    bytes: float | None = None
    dtype: str = DataType.FLOAT32
    category: str = "other"


@dataclass(frozen=True, slots=True)
class MeasurementContext:
    """What the functions of one measurement share: timer, options, and what observes the device meanwhile."""

    call_timer: CallTimer
    options: MeasuringOptions
    clock_meter: ClockMeter
    neighbours: ContentionCheck
    write: Callable[[EventPayload], None]


class CallableRun:
    """The measurement of one function: call `start`, then `sample` or an interleaved comparison, then `finish`."""

    def __init__(self, configuration_index: int, work: MeasuredCallable, context: MeasurementContext) -> None:
        self._context = context
        self._method = Method.of(context.options, context.call_timer.device)
        self._method = replace(self._method, warm_up_count=max(self._method.warm_up_count, MIN_WARM_UP_COUNT))
        if self._method.cache_mode is CacheMode.BOTH:
            raise InvalidParameterError("argument cache", found="'both'", expected="cold or hot", remedy="Measure once with each.")
        self.configuration = _configuration(configuration_index, work, self._method.cache_mode)
        self._setup_ns = 0  # wall clock time of `start`, in addition to the benchmark's
        self._session, self._launch = CallableSession(context.call_timer), CallableLaunch(work.function)
        self.benchmark = self._new_benchmark()

    def _new_benchmark(self) -> Benchmark:
        context, index = self._context, self.configuration_index
        observer = Observer(on_activity=lambda _: None, on_batch=lambda batch: context.write(batch.event(index)))
        return Benchmark(self._session, self._launch, self._method, context.clock_meter, observer)

    @property
    def configuration_index(self) -> int:
        """Return the index of its configuration."""
        return self.configuration.configuration_index

    @property
    def label(self) -> str:
        """Return the function's name and parameters."""
        return self.configuration.label

    @property
    def device(self) -> Device:
        """Return the device whose clock is used."""
        return self._context.call_timer.device

    @property
    def rule(self) -> StoppingRule:
        """Return the stopping rule."""
        return self._method.rule

    def start(self) -> None:
        """Record the configuration, warm up and choose how to time; the first call, which may compile for minutes, is no sample.

        Raises:
            InvalidParameterError: the function returns a coroutine or generator that has not run.
        """
        start_ns = time.perf_counter_ns()
        self._context.write(self.configuration)
        self._context.neighbours.ensure_idle(self._context.options.busy_policy, lambda _: None)
        self._check_finished(self._launch.function())
        if self._takes_long(start_ns) and self._takes_long():
            self._method = replace(self._method, warm_up_count=max(self._context.options.warm_up_count, 1))
            self.benchmark = self._new_benchmark()
        self._setup_ns = time.perf_counter_ns() - start_ns
        self.benchmark.start(lambda: NO_REFERENCE)

    def _takes_long(self, start_ns: int | None = None) -> bool:
        """Return whether a call is long; `start_ns` belongs to one in progress, None makes another one.

        The first call may have included a compilation, so one long call decides nothing.
        """
        if start_ns is None:
            start_ns = time.perf_counter_ns()
            self._launch.function()
        self._context.call_timer.synchronize()
        return time.perf_counter_ns() - start_ns > LONG_CALL_NS

    def _check_finished(self, result: object) -> None:
        """Raise InvalidParameterError if the call has only created something that would do the work."""
        if isinstance(result, Coroutine):
            result.close()
        if isinstance(result, Awaitable | Generator | AsyncGenerator):
            raise InvalidParameterError(
                f"function {self.configuration.kernel_name}",
                found=f"a {type(result).__name__} that has not run yet",
                expected="a call that does the work",
                remedy="Wrap it: lambda: asyncio.run(work()) for a coroutine, lambda: list(work()) for a generator.",
            )

    def sample(self) -> StopReason:
        """Take samples until a stopping rule applies, and return which."""
        return self.benchmark.sample()

    def finish(self, stop_reason: StopReason) -> Measurement:
        """Record the measurement and return it."""
        result = self.benchmark.result(stop_reason)
        use = self._context.neighbours.read()
        measurement = result.measurement(self.configuration_index, self._method, self.device, use, self._setup_ns)
        self._context.write(measurement)
        return measurement


def check_callable(function: object, name: str) -> None:
    """Raise InvalidParameterError if the argument `name` is not callable."""
    if not callable(function):
        raise InvalidParameterError(f"argument {name}", found=repr(function), expected="a function without arguments")


def _configuration(index: int, work: MeasuredCallable, cache_mode: CacheMode) -> Configuration:
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
