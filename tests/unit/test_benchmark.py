"""services.profiler.measuring.benchmark, device_buffers and clocks, on a session whose launches only turn a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from services.core.errors import UnmetConditionError
from services.core.model import (
    BufferRole,
    CacheMode,
    DataType,
    Device,
    DeviceKind,
    Dim3,
    KernelSource,
    MeasuringOptions,
    StopReason,
    Verification,
    VerificationState,
)
from services.core.statistics import Samples
from services.profiler.backends.base import Argument, CompiledKernel, DeviceBuffer, LaunchConfiguration, PreparedLaunch
from services.profiler.measuring.benchmark import Batch, Benchmark, BenchmarkResult, Method, Observer
from services.profiler.measuring.clocks import ClockReading, ClockRecord, NoClockMeter, open_clock_meter, reason_names
from services.profiler.measuring.device_buffers import DeviceBuffers
from services.profiler.measuring.inputs import Array, BufferPlan
from services.profiler.measuring.verification import SWITCHED_OFF

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
        self.was_cold: list[bool] = []
        self.live: list[DeviceBuffer] = []
        self.allocated_count = 0

    def clock_ns(self) -> int:
        return self.now_ns

    def time(self, launch: PreparedLaunch, count: int, *, cold: bool) -> Samples:
        self.now_ns += count * self.launch_ns
        self.counts.append(count)
        self.was_cold.append(cold)
        return np.full(count, float(self.launch_ns))

    def allocate(self, size_bytes: int) -> DeviceBuffer:
        self.allocated_count += 1
        self.live.append(Memory(size_bytes))
        return self.live[-1]

    def release(self, buffer: DeviceBuffer) -> None:
        self.live = [one for one in self.live if one is not buffer]

    def compile(self, source: KernelSource, function_name: str, block: Dim3, options: Sequence[str] = ()) -> CompiledKernel:
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
    assert max(batch.duration_ns.size for batch in batches) <= 4_096


def test_quick_launches_are_gathered_into_few_batches() -> None:
    _, batches = run_benchmark(ClockedSession(40_000))
    assert len(batches) < 25


def test_samples_are_numbered_without_gap() -> None:
    result, batches = run_benchmark(ClockedSession(MILLISECOND_NS))
    expected_index = 0
    for batch in batches:
        assert batch.first_sample_index == expected_index
        expected_index += batch.duration_ns.size
    assert result.summary.sample_count == expected_index
    assert result.measured_unix_ns == batches[-1].measured_unix_ns


def test_warm_up_is_not_among_the_samples() -> None:
    session = ClockedSession(MILLISECOND_NS)
    result, _ = run_benchmark(session, MeasuringOptions(warm_up_count=7))
    assert session.counts[0] == 7
    assert sum(session.counts) == result.summary.sample_count + 7


def test_sample_limit_is_kept_exactly() -> None:
    result, _ = run_benchmark(ClockedSession(1_000), MeasuringOptions(max_sample_count=1_234))
    assert result.stop_reason is StopReason.SAMPLE_LIMIT
    assert result.summary.sample_count == 1_234


@pytest.mark.parametrize(
    ("device", "asked_for", "is_cold"),
    [(CPU, CacheMode.DEFAULT, False), (GPU, CacheMode.DEFAULT, True), (CPU, CacheMode.COLD, True), (GPU, CacheMode.HOT, False)],
)
def test_gpus_default_to_cold_and_cpu_devices_to_hot(device: Device, asked_for: CacheMode, is_cold: bool) -> None:
    session = ClockedSession(MILLISECOND_NS, device)
    run_benchmark(session, MeasuringOptions(cache_mode=asked_for))
    assert set(session.was_cold) == {is_cold}


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
    assert result.discarded_sample_count == sum(session.counts[2:4])
    assert result.summary.sample_count == sum(batch.duration_ns.size for batch in batches)
    assert result.clocks.throttle_reasons == ("hw_thermal_slowdown",)


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
