"""kernalyse.services.profiler.measuring.benchmark, device_buffers and clocks, on a session whose launches only turn a clock."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from kernalyse.services.core.errors import UnmetConditionError
from kernalyse.services.core.model import (
    BufferRole,
    CacheMode,
    DataType,
    Device,
    DeviceKind,
    Dim3,
    KernelResources,
    MeasuringOptions,
    StoppingCriterion,
    StopReason,
    TimingMethod,
    Verification,
    VerificationState,
)
from kernalyse.services.profiler.backends.base import (
    Argument,
    Build,
    CompiledKernel,
    DeviceBuffer,
    LaunchConfiguration,
    PreparedLaunch,
    TimedSamples,
    Timing,
)
from kernalyse.services.profiler.measuring.benchmark import Batch, Benchmark, BenchmarkResult, Method, Observer, Recorder
from kernalyse.services.profiler.measuring.buffers import Array, BufferPlan, DeviceBuffers
from kernalyse.services.profiler.measuring.device_state import ClockReading, ClockRecord, NoClockMeter, open_clock_meter, reason_names
from kernalyse.services.profiler.measuring.verification import SWITCHED_OFF

MILLISECOND_NS = 1_000_000
CPU = Device("opencl:pocl:0", "a CPU", DeviceKind.CPU, ())
GPU = Device("cuda:0", "a GPU", DeviceKind.GPU, ())


@dataclass
class Launch:
    configuration: LaunchConfiguration = field(default_factory=lambda: LaunchConfiguration(Dim3(1), Dim3(1)))


@dataclass
class Memory:
    size_bytes: int


class ClockedSession:
    """Every launch takes `launch_ns` of the clock, and nothing else happens."""

    def __init__(self, launch_ns: int, device: Device = CPU) -> None:
        self.device = device
        self.launch_ns = launch_ns
        self.now_ns = 0
        self.counts: list[int] = []
        self.timings: list[Timing] = []
        self.sm_clock_hz: Iterator[float] | None = None
        self.live: list[DeviceBuffer] = []
        self.allocated_count = 0

    def clock_ns(self) -> int:
        return self.now_ns

    @property
    def timing_methods(self) -> frozenset[TimingMethod]:
        return frozenset({TimingMethod.SINGLE, TimingMethod.BATCHED})

    is_lost = False

    def time(self, launch: PreparedLaunch, timing: Timing, count: int) -> TimedSamples:
        self.now_ns += count * timing.launches_per_sample * self.launch_ns
        self.counts.append(count)
        self.timings.append(timing)
        clocks = None if self.sm_clock_hz is None else np.array([next(self.sm_clock_hz) for _ in range(count)])
        return TimedSamples(np.full(count, float(self.launch_ns)), clocks)

    def allocate(self, size_bytes: int) -> DeviceBuffer:
        self.allocated_count += 1
        self.live.append(Memory(size_bytes))
        return self.live[-1]

    def release(self, buffer: DeviceBuffer) -> None:
        self.live = [one for one in self.live if one is not buffer]

    def compile(self, build: Build, block: Dim3) -> CompiledKernel:
        raise NotImplementedError

    def resources(self, kernel: CompiledKernel, configuration: LaunchConfiguration) -> KernelResources | None:
        raise NotImplementedError

    def upload(self, buffer: DeviceBuffer, values: Array) -> None:
        raise NotImplementedError

    def download(self, buffer: DeviceBuffer, values: Array) -> None:
        raise NotImplementedError

    def prepare(self, kernel: CompiledKernel, arguments: Sequence[Argument], configuration: LaunchConfiguration) -> PreparedLaunch:
        raise NotImplementedError

    def run(self, launch: PreparedLaunch) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class ScriptedMeter:
    """Reads `readings` in turn, then the last of them for ever."""

    def __init__(self, *readings: ClockReading) -> None:
        self._readings = list(readings)

    def read(self) -> ClockReading | None:
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


def run_benchmark(
    session: ClockedSession, options: MeasuringOptions | None = None, meter: ScriptedMeter | NoClockMeter | None = None
) -> tuple[BenchmarkResult, list[Batch]]:
    batches: list[Batch] = []
    benchmark = Benchmark(
        session,
        Launch(),
        Method.of(options or MeasuringOptions(), session.device),
        meter or NoClockMeter(),
        Observer(on_activity=lambda _: None, on_batch=batches.append),
        clock_ns=session.clock_ns,
        unix_clock_ns=session.clock_ns,
    )
    return benchmark.run(lambda: SWITCHED_OFF), batches


@pytest.mark.parametrize("launch_ns", [2_000, 40_000, MILLISECOND_NS, 20 * MILLISECOND_NS, 70 * MILLISECOND_NS])
def test_batches_arrive_at_least_every_50_ms_or_launch_by_launch(launch_ns: int) -> None:
    _, batches = run_benchmark(ClockedSession(launch_ns))
    gaps_ns = np.diff([batch.measured_unix_ns for batch in batches])
    assert gaps_ns.max() <= max(50 * MILLISECOND_NS, launch_ns)
    assert max(batch.samples.duration_ns.size for batch in batches) <= 4_096


def test_quick_launches_are_gathered_into_few_batches() -> None:
    _, batches = run_benchmark(ClockedSession(40_000))
    assert len(batches) < 25


def test_samples_are_numbered_without_gap() -> None:
    result, batches = run_benchmark(ClockedSession(MILLISECOND_NS))
    expected_index = 0
    for batch in batches:
        assert batch.first_sample_index == expected_index
        expected_index += batch.samples.duration_ns.size
    assert result.summary.sample_count == expected_index
    assert result.measured_unix_ns == batches[-1].measured_unix_ns


def test_warm_up_is_not_among_the_samples() -> None:
    session = ClockedSession(MILLISECOND_NS)
    result, _ = run_benchmark(session, MeasuringOptions(warm_up_count=7))
    assert session.counts[0] == 7
    assert sum(session.counts) == result.summary.sample_count + 7


def test_sample_limit_is_kept_exactly() -> None:
    options = MeasuringOptions(max_sample_count=1_234, timing_method=TimingMethod.SINGLE)
    result, _ = run_benchmark(ClockedSession(1_000), options)
    assert result.stop_reason is StopReason.SAMPLE_LIMIT
    assert result.summary.sample_count == 1_234


@pytest.mark.parametrize(
    ("device", "asked_for", "is_cold"),
    [(CPU, CacheMode.DEFAULT, False), (GPU, CacheMode.DEFAULT, True), (CPU, CacheMode.COLD, True), (GPU, CacheMode.HOT, False)],
)
def test_gpus_default_to_cold_and_cpu_devices_to_hot(device: Device, asked_for: CacheMode, is_cold: bool) -> None:
    session = ClockedSession(MILLISECOND_NS, device)
    run_benchmark(session, MeasuringOptions(cache_mode=asked_for))
    assert {timing.cache_mode for timing in session.timings} == {CacheMode.COLD if is_cold else CacheMode.HOT}


def test_failed_check_is_kept_and_the_launch_still_measured() -> None:
    session = ClockedSession(MILLISECOND_NS)
    wrong = Verification(VerificationState.FAILED, message="c[0]: found 1, expected 2")
    observer = Observer(on_activity=lambda _: None, on_batch=lambda _: None)
    method = Method.of(MeasuringOptions(), CPU)
    result = Benchmark(session, Launch(), method, NoClockMeter(), observer, clock_ns=session.clock_ns).run(lambda: wrong)
    assert result.verification is wrong
    assert result.summary.sample_count >= 10


# ---------------------------------------------------------------- clocks


def test_throttled_samples_are_discarded_and_counted() -> None:
    calm = ClockReading(sm_clock_hz=1_980_000_000, throttle_reasons=())
    hot = ClockReading(sm_clock_hz=900_000_000, throttle_reasons=("hw_thermal_slowdown",))
    session = ClockedSession(MILLISECOND_NS)
    result, batches = run_benchmark(session, meter=ScriptedMeter(calm, hot, hot, calm))
    assert result.discarded_sample_count == sum(session.counts[2:4]) == sum(len(batch.discarded_positions) for batch in batches)
    assert result.summary.sample_count == sum(batch.samples.duration_ns.size for batch in batches) - result.discarded_sample_count
    assert result.clocks.throttle_reasons == ("hw_thermal_slowdown",)


def test_samples_of_a_slow_clock_are_discarded_one_by_one() -> None:
    session = ClockedSession(MILLISECOND_NS, GPU)
    session.sm_clock_hz = itertools.cycle([1.98e9, 1.97e9, 1.2e9, 1.98e9])
    result, batches = run_benchmark(session, MeasuringOptions(max_sample_count=60, timing_method=TimingMethod.SINGLE))
    for batch in batches:
        assert batch.samples.sm_clock_hz is not None
        assert batch.discarded_positions == tuple(np.flatnonzero(batch.samples.sm_clock_hz < 1.5e9).tolist())
    assert result.summary.sample_count == 60
    assert result.discarded_sample_count == sum(len(batch.discarded_positions) for batch in batches) > 0
    assert result.clocks.sm_clock_hz is not None


def test_a_clock_that_stays_low_is_the_devices_usual_clock() -> None:
    session = ClockedSession(MILLISECOND_NS, GPU)
    session.sm_clock_hz = itertools.repeat(1.2e9)
    result, _ = run_benchmark(session)
    assert (result.discarded_sample_count, result.clocks.sm_clock_hz) == (0, 1_200_000_000)


def test_short_hot_kernels_are_batched_and_cold_ones_are_not() -> None:
    hot = run_benchmark(ClockedSession(2_000, GPU), MeasuringOptions(cache_mode=CacheMode.HOT))[0]
    cold = run_benchmark(ClockedSession(2_000, GPU), MeasuringOptions(cache_mode=CacheMode.COLD))[0]
    long = run_benchmark(ClockedSession(20_000, GPU), MeasuringOptions(cache_mode=CacheMode.HOT))[0]
    assert (hot.timing.method, hot.timing.launches_per_sample) == (TimingMethod.BATCHED, 50)
    assert (cold.timing.method, long.timing.method) == (TimingMethod.SINGLE, TimingMethod.SINGLE)


def test_a_search_goes_on_where_it_stopped_and_time_between_does_not_count() -> None:
    session = ClockedSession(MILLISECOND_NS)
    options = MeasuringOptions(stopping_criterion=StoppingCriterion.SAMPLE_COUNT, max_sample_count=40)
    method = Method.of(options, CPU)
    observer = Observer(on_activity=lambda _: None, on_batch=lambda _: None)
    benchmark = Benchmark(session, Launch(), method, NoClockMeter(), observer, clock_ns=session.clock_ns)
    benchmark.start(lambda: SWITCHED_OFF)
    first = benchmark.sample(replace(method.rule, max_sample_count=10))
    session.now_ns += 3_600 * 1_000 * MILLISECOND_NS
    second = benchmark.sample(method.rule)
    assert (first, second) == (StopReason.SAMPLE_LIMIT, StopReason.SAMPLE_LIMIT)
    assert benchmark.result(second).summary.sample_count == 40


def test_power_cap_is_recorded_but_discards_nothing() -> None:
    capped = ClockReading(throttle_reasons=("sw_power_cap",))
    result, _ = run_benchmark(ClockedSession(MILLISECOND_NS), meter=ScriptedMeter(capped))
    assert result.discarded_sample_count == 0
    assert result.clocks.throttle_reasons == ("sw_power_cap",)


def test_device_that_stays_throttled_fails_the_configuration_at_the_time_limit() -> None:
    session = ClockedSession(MILLISECOND_NS)
    with pytest.raises(UnmetConditionError, match="hw_slowdown"):
        run_benchmark(session, meter=ScriptedMeter(ClockReading(throttle_reasons=("hw_slowdown",))))
    assert 15_000 * MILLISECOND_NS <= session.now_ns < 16_000 * MILLISECOND_NS


def test_recorder_refuses_where_throttling_has_left_nothing_and_the_time_is_up() -> None:
    session = ClockedSession(MILLISECOND_NS)
    rule = replace(Method.of(MeasuringOptions(), session.device).rule, max_duration_ns=2 * MILLISECOND_NS)
    recorder = Recorder(rule, session.clock_ns, session.clock_ns)
    recorder.criterion.resume()
    for _ in range(2):
        recorder.check_clock("launches of a pass")
        timed = session.time(Launch(), Timing(TimingMethod.SINGLE, CacheMode.HOT), 1)
        batch = recorder.record(timed, ClockReading(throttle_reasons=("hw_slowdown",)))
        recorder.criterion.keep(batch.counted_ns)
    assert (recorder.taken_count, recorder.discarded_count, recorder.criterion.sample_count) == (2, 2, 0)
    with pytest.raises(UnmetConditionError, match="launches of a pass: found a clock held back by hw_slowdown"):
        recorder.check_clock("launches of a pass")


def test_clocks_are_averaged_and_unknown_ones_stay_unknown() -> None:
    record = ClockRecord()
    for clock_hz, temperature_celsius in ((1_000, 40.0), (2_000, None)):
        record.add(ClockReading(sm_clock_hz=clock_hz, temperature_celsius=temperature_celsius))
    record.add(None)
    mean = record.mean()
    assert (mean.sm_clock_hz, mean.temperature_celsius, mean.power_watts, mean.throttle_reasons) == (1_500, 40.0, None, None)


def test_nvml_bits_become_names_without_idleness() -> None:
    assert reason_names(0x1) == ()
    assert reason_names(0x1 | 0x4 | 0x40) == ("sw_power_cap", "hw_thermal_slowdown")


def test_cpu_device_has_no_clock_meter() -> None:
    assert open_clock_meter(CPU).read() is None


# ---------------------------------------------------------------- buffers


def plans(**sizes: int) -> tuple[BufferPlan, ...]:
    return tuple(BufferPlan(name, (size,), DataType.UINT8, BufferRole.INPUT) for name, size in sizes.items())


def test_buffers_of_a_size_that_comes_again_are_reused() -> None:
    session = ClockedSession(1)
    buffers = DeviceBuffers(session)
    first = buffers.take(plans(a=10, b=10, c=20))
    second = buffers.take(plans(x=20, y=10, z=10))
    assert session.allocated_count == 3
    assert {id(buffer) for buffer in first.values()} == {id(buffer) for buffer in second.values()}


def test_two_buffers_never_share_memory_and_the_surplus_is_released_first() -> None:
    session = ClockedSession(1)
    buffers = DeviceBuffers(session)
    buffers.take(plans(a=10, b=10))
    taken = buffers.take(plans(a=10, b=30, c=10, d=10))
    assert len({id(buffer) for buffer in taken.values()}) == 4
    assert sorted(buffer.size_bytes for buffer in session.live) == [10, 10, 10, 30]
    buffers.take(plans(a=30))
    assert [buffer.size_bytes for buffer in session.live] == [30]
    buffers.release()
    assert session.live == []
