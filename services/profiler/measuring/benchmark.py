"""Measurement of one prepared launch: check, warm up, choose how to time, trials, statistics."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from kernalyse.services.core.errors import InvalidParameterError, UnmetConditionError
from kernalyse.services.core.model import (
    CacheMode,
    Device,
    DeviceKind,
    Measurement,
    MeasuringOptions,
    SampleBatch,
    StopReason,
    TimingMethod,
    Verification,
)
from kernalyse.services.core.statistics import Samples, SampleSummary, summarize
from kernalyse.services.profiler.backends.base import LaunchTimer, PreparedLaunch, TimedSamples, Timing
from kernalyse.services.profiler.measuring.device_state import ClockMeter, ClockReading, ClockRecord, DeviceUse
from kernalyse.services.profiler.measuring.stopping import MIN_SPREAD_COUNT, StoppingCriterion, StoppingRule

# Shorter batches spend the time between launches and cost everybody who watches an event each; longer ones let them wait.
TARGET_BATCH_NS: Final = 40_000_000
MAX_BATCH_COUNT: Final = 4_096  # 32 KiB of samples: one event stays small
MAX_BATCH_GROWTH: Final = 8  # the first launches may be untypically quick; a wrong guess must not last seconds


@dataclass(frozen=True, slots=True)
class Method:
    """The method by which one configuration is measured."""

    cache_mode: CacheMode  # COLD or HOT
    timing_method: TimingMethod  # as asked for
    warm_up_count: int
    rule: StoppingRule

    @classmethod
    def of(cls, options: MeasuringOptions, device: Device) -> Method:
        """Return the method of `options`, with the device's defaults for what they leave open."""
        return cls(
            cache_mode=default_cache_mode(device) if options.cache_mode is CacheMode.DEFAULT else options.cache_mode,
            timing_method=options.timing_method,
            warm_up_count=options.warm_up_count,
            rule=StoppingRule.of(options, device.kind),
        )

    def with_cache(self, cache_mode: CacheMode) -> Method:
        """Return the same method for another cache mode."""
        return replace(self, cache_mode=cache_mode)


def default_cache_mode(device: Device) -> CacheMode:
    """Return COLD for a GPU, HOT for a CPU device: flushing the cache that CPUs report costs 45 ms a launch."""
    return CacheMode.HOT if device.kind is DeviceKind.CPU else CacheMode.COLD


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive samples, as they were taken.

    is_discarded: mask, shape (n,), of the samples that do not count.
    """

    first_sample_index: int
    samples: TimedSamples
    is_discarded: npt.NDArray[np.bool_]
    measured_unix_ns: int

    @property
    def discarded_positions(self) -> tuple[int, ...]:
        """Return the positions in the batch of the samples that do not count."""
        return tuple(np.flatnonzero(self.is_discarded).tolist())

    @property
    def counted_ns(self) -> Samples:
        """Return the durations of the samples that count."""
        return self.samples.duration_ns[~self.is_discarded]

    def event(self, configuration_index: int) -> SampleBatch:
        """Return the batch as the event that reports it."""
        clocks = self.samples.sm_clock_hz
        return SampleBatch(
            configuration_index=configuration_index,
            first_sample_index=self.first_sample_index,
            duration_ns=tuple(self.samples.duration_ns.tolist()),
            measured_unix_ns=self.measured_unix_ns,
            sm_clock_hz=() if clocks is None else tuple(np.nan_to_num(clocks).astype(np.int64).tolist()),
            discarded_positions=self.discarded_positions,
        )


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """Summary of the samples of one configuration."""

    summary: SampleSummary
    verification: Verification
    stop_reason: StopReason
    discarded_sample_count: int
    measured_unix_ns: int  # when the last sample had been taken
    elapsed_ns: int  # wall clock of check, warm-up and sampling
    clocks: ClockReading  # means while sampling
    timing: Timing
    is_blocked: bool

    def measurement(self, configuration_index: int, method: Method, device: Device, use: DeviceUse, further_ns: int = 0) -> Measurement:
        """Return the measurement event; the caller adds what it knows of compilation and launch.

        further_ns: wall clock that the configuration took beside the benchmark.
        """
        return Measurement(
            configuration_index=configuration_index,
            **asdict(self.summary),
            discarded_sample_count=self.discarded_sample_count,
            warm_up_count=method.warm_up_count,
            stop_reason=self.stop_reason,
            cache_mode=method.cache_mode,
            verification=self.verification,
            measured_unix_ns=self.measured_unix_ns,
            elapsed_ns=self.elapsed_ns + further_ns,
            compile_ns=0,
            driver_version=device.driver_version,
            toolkit_version=device.toolkit_version,
            device_uuid=device.uuid,
            timing_method=self.timing.method,
            launches_per_sample=self.timing.launches_per_sample,
            is_blocked=self.is_blocked,
            stopping_criterion=method.rule.criterion,
            other_process_count=use.other_process_count,
            host_busy_ratio=use.host_busy_ratio,
            **asdict(self.clocks),
        )


class Recorder:
    """The record of one configuration's samples: which of them count, whether they are enough, and their summary.

    The criterion is paused whenever no samples are being taken; whoever takes them resumes it, and gives it those that count.

    Attributes:
        elapsed_ns: wall clock of all that was done for the samples; added to by whoever does it.
        taken_count: samples so far, discarded ones included.
        discarded_count: samples that do not count.
    """

    def __init__(
        self, rule: StoppingRule, clock_ns: Callable[[], int] = time.perf_counter_ns, unix_clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self.criterion = StoppingCriterion(rule, clock_ns)
        self.criterion.pause()
        self.elapsed_ns = 0
        self.taken_count = 0
        self.discarded_count = 0
        self._unix_clock_ns = unix_clock_ns
        self._clocks = ClockRecord()
        self._throttling = ThrottleFilter()
        self._measured_unix_ns = 0
        self._is_blocked = False

    def record(self, timed: TimedSamples, reading: ClockReading | None = None) -> Batch:
        """Record samples that were just taken. reading: the device's state after them; None where it has no meter."""
        measured_unix_ns = self._unix_clock_ns()
        self._clocks.add(reading)
        self._clocks.add_sm_clocks(timed.sm_clock_hz)
        self._is_blocked = timed.is_blocked
        is_discarded = self._throttling.discarded(timed.sm_clock_hz)
        if is_discarded is None or (reading is not None and reading.is_throttled):
            is_discarded = np.full(timed.duration_ns.size, reading is not None and reading.is_throttled)
        batch = Batch(self.taken_count, timed, is_discarded, measured_unix_ns)
        discarded_count = int(is_discarded.sum())
        self.taken_count += timed.duration_ns.size
        self.discarded_count += discarded_count
        if discarded_count < timed.duration_ns.size:
            self._measured_unix_ns = measured_unix_ns
        return batch

    def check_clock(self, subject: str) -> None:
        """Raise UnmetConditionError where the time is up and throttling has left too few samples."""
        criterion = self.criterion
        is_late = criterion.sample_count < MIN_SPREAD_COUNT and criterion.elapsed_ns >= criterion.rule.max_duration_ns
        if is_late and self.discarded_count:  # without: a launch that is longer than the limit, and the second one is on its way
            reasons = ", ".join(self._clocks.mean().throttle_reasons or ("an unknown reason",))
            raise throttled_error(subject, f"a clock held back by {reasons}")

    def result(self, stop_reason: StopReason, verification: Verification, timing: Timing) -> BenchmarkResult:
        """Return the summary of the samples so far."""
        return BenchmarkResult(
            summary=summarize(self.criterion.samples()),
            verification=verification,
            stop_reason=stop_reason,
            discarded_sample_count=self.discarded_count,
            measured_unix_ns=self._measured_unix_ns,
            elapsed_ns=self.elapsed_ns,
            clocks=self._clocks.mean(),
            timing=timing,
            is_blocked=self._is_blocked,
        )


@dataclass(frozen=True, slots=True)
class Observer:
    """The receiver of a benchmark's progress."""

    on_activity: Callable[[str], None]  # "verifying", "measuring"
    on_batch: Callable[[Batch], None]


class Benchmark:
    """Measurement of one configuration, in one go or step by step.

    `run` does everything. A search that comes back to a configuration calls `start` once, then `sample` as often as it
    likes, then `result`.
    """

    def __init__(
        self,
        session: LaunchTimer,
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
        self._recorder = Recorder(method.rule, clock_ns, unix_clock_ns)
        self._criterion = self._recorder.criterion
        self._timing = Timing(TimingMethod.SINGLE, method.cache_mode)
        self._verification: Verification | None = None
        self._batch_count = 1
        self._launch_ns = 0.0  # of the fastest launch while warming up
        self._sample_ns = 0  # wall clock of one, everything included

    def run(self, check: Callable[[], Verification]) -> BenchmarkResult:
        """Check, warm up, take samples until there are enough, and sum them up.

        A failed check is part of the result: a wrong kernel is still measured.

        Raises:
            UnmetConditionError: the device's clock was throttled all the time, so no sample counts.
            InvalidParameterError: the timing method that was asked for does not go with the rest.
        """
        self.start(check)
        return self.result(self.sample())

    def start(self, check: Callable[[], Verification]) -> None:
        """Check, warm up and choose how to time."""
        with self._counted():
            self._observer.on_activity("verifying")
            self._verification = check()
            self._observer.on_activity("measuring")
            self._warm_up()

    def reload(self, launch: PreparedLaunch) -> None:
        """Continue with a new launch of the same configuration, after others have used its buffers."""
        self._launch = launch

    def sample(self, rule: StoppingRule | None = None) -> StopReason:
        """Take samples until `rule` has enough of them, those taken before included; the method's own rule if not given."""
        if rule is not None:
            self._criterion.change_rule(rule)
        self._criterion.resume()
        with self._counted():
            while True:
                stop_reason = self._criterion.add(self._take_batch())
                if stop_reason is not None:
                    self._criterion.pause()
                    return stop_reason
                self._recorder.check_clock(f"sampling of {self._recorder.discarded_count} launches")

    @property
    def verification(self) -> Verification | None:
        """Return the result of the check; None: not checked yet."""
        return self._verification

    @property
    def timing(self) -> Timing:
        """Return how samples are taken, which `start` chooses."""
        return self._timing

    @property
    def sample_ns(self) -> int:
        """Return the wall clock of a sample, as the last ones took it."""
        return self._sample_ns

    @property
    def sampling_ns(self) -> int:
        """Return the wall clock of all sampling so far."""
        return self._criterion.elapsed_ns

    def change_method(self, method: TimingMethod) -> None:
        """Switch to another timing method: benchmarks that are compared have to be timed alike."""
        self._timing = choose_timing(method, self._method.cache_mode, self._launch_ns, self._session.timing_methods)
        self._time(1)  # as in `_warm_up`

    def take_block(self, count: int) -> TimedSamples:
        """Take `count` samples while another benchmark alternates on the device; `report_blocks` makes them count.

        A hot block begins with a launch that is not timed: the other one may have taken the cache.
        """
        with self._counted():
            if self._method.cache_mode is CacheMode.HOT:
                self._session.run(self._launch)
            return self._time(count)

    def report_blocks(self, blocks: Sequence[TimedSamples]) -> tuple[TimedSamples, ...]:
        """Report consecutive blocks as one batch, and return the samples of each that count."""
        counted_masks = np.split(~self._report(_joined(blocks)).is_discarded, np.cumsum([block.duration_ns.size for block in blocks])[:-1])
        counted = tuple(_selected(block, mask) for block, mask in zip(blocks, counted_masks, strict=True))
        self._criterion.keep(np.concatenate([block.duration_ns for block in counted]))
        return counted

    def samples(self) -> Samples:
        """Return all samples that count so far, shape (n,)."""
        return self._criterion.samples()

    def result(self, stop_reason: StopReason) -> BenchmarkResult:
        """Return the summary of all samples so far."""
        assert self._verification is not None
        return self._recorder.result(stop_reason, self._verification, self._timing)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        start_ns = self._clock_ns()
        yield
        self._recorder.elapsed_ns += self._clock_ns() - start_ns

    def _warm_up(self) -> None:
        """Warm up, and choose the timing by the fastest of the first launches, timed one by one."""
        timed = self._time(max(1, self._method.warm_up_count))
        self._launch_ns = float(timed.duration_ns.min())
        self._timing = choose_timing(self._method.timing_method, self._method.cache_mode, self._launch_ns, self._session.timing_methods)
        if self._timing.method is not TimingMethod.SINGLE:
            self._time(1)  # a graph is made, and the batch count learns how long a sample of several launches takes

    def _take_batch(self) -> Samples:
        left_count = self._criterion.rule.max_sample_count - self._criterion.sample_count
        timed = self._time(min(self._batch_count, left_count))
        return self._report(timed).counted_ns

    def _report(self, timed: TimedSamples) -> Batch:
        batch = self._recorder.record(timed, self._clock_meter.read())
        self._observer.on_batch(batch)
        return batch

    def _time(self, count: int) -> TimedSamples:
        """Take `count` samples, and choose the number of samples in the next batch from their wall clock."""
        start_ns = self._clock_ns()
        timed = self._session.time(self._launch, self._timing, count)
        self._sample_ns = max(1, (self._clock_ns() - start_ns) // count)
        self._batch_count = max(1, min(TARGET_BATCH_NS // self._sample_ns, MAX_BATCH_GROWTH * count, MAX_BATCH_COUNT))
        return timed


def _joined(blocks: Sequence[TimedSamples]) -> TimedSamples:
    clocks = [block.sm_clock_hz for block in blocks if block.sm_clock_hz is not None]
    return TimedSamples(
        duration_ns=np.concatenate([block.duration_ns for block in blocks]),
        sm_clock_hz=np.concatenate(clocks) if len(clocks) == len(blocks) else None,
        is_blocked=all(block.is_blocked for block in blocks),
    )


def _selected(block: TimedSamples, mask: npt.NDArray[np.bool_]) -> TimedSamples:
    return replace(block, duration_ns=block.duration_ns[mask], sm_clock_hz=None if block.sm_clock_hz is None else block.sm_clock_hz[mask])


# ---------------------------------------------------------------- timing rule
# The timing method of AUTO, chosen by the duration of a launch:
#
# - cold samples: one launch each. The cache has to be flushed between launches, so there is nothing to batch.
# - hot samples of kernels of 10 us and more: one launch each.
# - hot samples of shorter kernels: as many launches between two events as take 100 us, as one CUDA graph where the backend
#   has graphs, else enqueued one after the other. Events resolve about half a microsecond and cost as much themselves, which
#   is 5 % of 10 us and 1 % of a batch.

SHORT_KERNEL_NS: Final = 10_000.0
BATCH_NS: Final = 100_000.0
MAX_LAUNCHES_PER_SAMPLE: Final = 1_024  # of an empty kernel: more would fill the queue of any runtime


def choose_timing(asked: TimingMethod, cache_mode: CacheMode, launch_ns: float, known: frozenset[TimingMethod]) -> Timing:
    """Return the timing of a kernel whose launch was seen to take `launch_ns`.

    Args:
        cache_mode: COLD or HOT.
        known: methods of the backend.

    Raises:
        InvalidParameterError: the request asks for what cold samples, or this backend, cannot have.
    """
    method = _method(asked, cache_mode, launch_ns, known)
    if method is TimingMethod.SINGLE:
        return Timing(method, cache_mode)
    count = math.ceil(BATCH_NS / max(launch_ns, 1.0))
    return Timing(method, cache_mode, min(max(count, 2), MAX_LAUNCHES_PER_SAMPLE))


def _method(asked: TimingMethod, cache_mode: CacheMode, launch_ns: float, known: frozenset[TimingMethod]) -> TimingMethod:
    if asked is TimingMethod.AUTO:
        if cache_mode is CacheMode.COLD or launch_ns >= SHORT_KERNEL_NS:
            return TimingMethod.SINGLE
        return next(method for method in (TimingMethod.GRAPH, TimingMethod.BATCHED, TimingMethod.SINGLE) if method in known)
    if asked not in known:
        raise InvalidParameterError(
            f"timing method {asked.lower()}",
            found="a backend without it",
            expected=f"one of {', '.join(sorted(method.lower() for method in known))}, or auto",
            remedy="Choose another method or backend.",
        )
    if asked is not TimingMethod.SINGLE and cache_mode is CacheMode.COLD:
        raise InvalidParameterError(
            f"timing method {asked.lower()}",
            found="cold samples, for which the cache is flushed before each launch",
            expected="hot samples",
            remedy="Use --cache hot, or --timing single.",
        )
    return asked


# ---------------------------------------------------------------- throttling
# Samples that were taken at a reduced clock do not count; when too few are left, that is an error.

MIN_CLOCK_RATIO: Final = 0.75
"""Of the clock seen so far. NVBench discards below 75 % of the default clock too; but a large GPU runs every dense kernel
well below that under its power cap, for good, and discarding those samples would leave none."""

REMEMBERED_COUNT: Final = 256  # clocks of the latest samples that count: a lasting change of clock becomes the new normal


class ThrottleFilter:
    """The filter of throttled samples of one configuration, by their SM clock."""

    def __init__(self) -> None:
        self._clocks_hz: deque[float] = deque(maxlen=REMEMBERED_COUNT)

    def discarded(self, sm_clock_hz: npt.NDArray[np.float64] | None) -> npt.NDArray[np.bool_] | None:
        """Return the mask of throttled samples, shape (n,); None where no clock is known, and then all samples count."""
        if sm_clock_hz is None:
            return None
        known = sm_clock_hz[np.isfinite(sm_clock_hz)]
        usual_hz = float(np.median([*self._clocks_hz, *known])) if known.size or self._clocks_hz else 0.0
        is_slow: npt.NDArray[np.bool_] = np.nan_to_num(sm_clock_hz, nan=usual_hz) < MIN_CLOCK_RATIO * usual_hz
        self._clocks_hz.extend(sm_clock_hz[np.isfinite(sm_clock_hz) & ~is_slow].tolist())
        return is_slow


def throttled_error(subject: str, found: str) -> UnmetConditionError:
    """Return the error for samples of which too few remain without throttling."""
    return UnmetConditionError(
        subject, found=found, expected="a device that is not throttled", remedy="Look after its cooling and power supply, then try again."
    )
