"""Measures one prepared launch: check, warm up, trials, statistics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from services.core.errors import UnmetConditionError
from services.core.model import CacheMode, Device, DeviceKind, MeasuringOptions, StopReason, Verification
from services.core.statistics import Samples, SampleSummary, summarize
from services.profiler.backends.base import DeviceSession, PreparedLaunch
from services.profiler.measuring.clocks import ClockMeter, ClockReading, ClockRecord
from services.profiler.measuring.stopping import MIN_SPREAD_COUNT, StoppingCriterion, StoppingRule

# Shorter batches spend the time between launches, longer ones let whoever watches wait for more than 50 ms.
TARGET_BATCH_NS: Final = 40_000_000
MAX_BATCH_COUNT: Final = 4_096  # 32 KiB of samples: one event stays small
MAX_BATCH_GROWTH: Final = 8  # the first launches may be untypically quick; a wrong guess must not last seconds


@dataclass(frozen=True, slots=True)
class Method:
    """How one configuration is measured."""

    cache_mode: CacheMode  # COLD or HOT
    warm_up_count: int
    rule: StoppingRule

    @classmethod
    def of(cls, options: MeasuringOptions, device: Device) -> Method:
        """What `options` ask for. GPUs default to cold; CPU devices to hot, for flushing the cache they report costs 45 ms a launch."""
        cache_mode = options.cache_mode
        if cache_mode is CacheMode.DEFAULT:
            cache_mode = CacheMode.HOT if device.kind is DeviceKind.CPU else CacheMode.COLD
        return cls(cache_mode, options.warm_up_count, StoppingRule.of(options, device.kind))


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive samples, as they arrive."""

    first_sample_index: int
    duration_ns: Samples  # shape (n,)
    measured_unix_ns: int


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    summary: SampleSummary
    verification: Verification
    stop_reason: StopReason
    discarded_sample_count: int
    measured_unix_ns: int  # when the last sample had been taken
    clocks: ClockReading  # means while sampling


@dataclass(frozen=True, slots=True)
class Observer:
    """Whom a benchmark tells how it goes."""

    on_activity: Callable[[str], None]  # "verifying", "measuring"
    on_batch: Callable[[Batch], None]


class Benchmark:
    """One configuration on its way to a measurement."""

    def __init__(
        self,
        session: DeviceSession,
        launch: PreparedLaunch,
        method: Method,
        clock_meter: ClockMeter,
        observer: Observer,
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        unix_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._session = session
        self._launch = launch
        self._method = method
        self._clock_meter = clock_meter
        self._observer = observer
        self._clock_ns = clock_ns
        self._unix_clock_ns = unix_clock_ns
        self._clocks = ClockRecord()
        self._batch_count = 1
        self._discarded_count = 0
        self._measured_unix_ns = 0

    def run(self, check: Callable[[], Verification]) -> BenchmarkResult:
        """Checks, warms up, takes samples until there are enough, and sums them up.

        A failed check is kept in the result: a wrong kernel is measured all the same.

        Raises:
            UnmetConditionError: the device's clock was held back the whole time, so no sample could be kept.
        """
        self._observer.on_activity("verifying")
        verification = check()
        self._observer.on_activity("measuring")
        self._warm_up()
        criterion = StoppingCriterion(self._method.rule, self._clock_ns)
        stop_reason = self._take_samples(criterion)
        return self._result(criterion, stop_reason, verification)

    def _warm_up(self) -> None:
        if self._method.warm_up_count > 0:
            self._time(self._method.warm_up_count)

    def _take_samples(self, criterion: StoppingCriterion) -> StopReason:
        while True:
            left_count = self._method.rule.max_sample_count - criterion.sample_count
            batch = self._time(min(self._batch_count, left_count))
            measured_unix_ns = self._unix_clock_ns()
            reading = self._clock_meter.read()
            self._clocks.add(reading)
            if reading is not None and reading.is_throttled:
                self._discard(batch, criterion)
                batch = np.empty(0)
            else:
                self._measured_unix_ns = measured_unix_ns
                self._observer.on_batch(Batch(criterion.sample_count, batch, measured_unix_ns))
            stop_reason = criterion.add(batch)
            if stop_reason is not None:
                return stop_reason

    def _time(self, count: int) -> Samples:
        """Times `count` launches, and from their wall clock chooses the number of launches in the next batch."""
        start_ns = self._clock_ns()
        durations_ns = self._session.time(self._launch, count, cold=self._method.cache_mode is CacheMode.COLD)
        launch_ns = max(1, (self._clock_ns() - start_ns) // count)
        self._batch_count = max(1, min(TARGET_BATCH_NS // launch_ns, MAX_BATCH_GROWTH * count, MAX_BATCH_COUNT))
        return durations_ns

    def _discard(self, batch: Samples, criterion: StoppingCriterion) -> None:
        self._discarded_count += batch.size
        if criterion.sample_count < MIN_SPREAD_COUNT and criterion.elapsed_ns >= self._method.rule.max_duration_ns:
            raise UnmetConditionError(
                f"sampling of {self._discarded_count} launches",
                found=f"a clock held back by {', '.join(self._clocks.mean().throttle_reasons or ())}",
                expected="a device that is not throttled",
                remedy="Look after its cooling and power supply, then try again.",
            )

    def _result(self, criterion: StoppingCriterion, stop_reason: StopReason, verification: Verification) -> BenchmarkResult:
        return BenchmarkResult(
            summary=summarize(criterion.samples()),
            verification=verification,
            stop_reason=stop_reason,
            discarded_sample_count=self._discarded_count,
            measured_unix_ns=self._measured_unix_ns,
            clocks=self._clocks.mean(),
        )
