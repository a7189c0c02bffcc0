"""Telemetry: readers, and where readings go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from kernalyse.services.core.model import Device, DeviceKind, ErrorCount, Telemetry
from kernalyse.services.profiler.measuring.device_state import NvidiaClockMeter
from kernalyse.services.profiler.node import HostReader, NvmlReader, TelemetrySampler, open_readers


class Counter:
    """Readings numbered by their time."""

    def __init__(self) -> None:
        self.count = 0

    def read(self) -> Telemetry:
        self.count += 1
        return Telemetry(measured_unix_ns=self.count)


class Broken:
    def read(self) -> Telemetry:
        raise OSError("no such sensor")


def sampler(
    readers: Sequence[Any],
    *,
    running: bool = False,
    recorded: list[Telemetry] | None = None,
    idle_interval_s: float = 0.001,
    wall_ns: Callable[[], int] = time.time_ns,
    monotonic_ns: Callable[[], int] = time.monotonic_ns,
) -> TelemetrySampler:
    async def record(readings: Sequence[Telemetry]) -> None:
        if recorded is not None:
            recorded.extend(readings)

    return TelemetrySampler(
        readers,
        interval_s=0.001,
        idle_interval_s=idle_interval_s,
        running=lambda: running,
        record=record,
        notify=lambda: None,
        wall_ns=wall_ns,
        monotonic_ns=monotonic_ns,
    )


async def sample_until(sampler: TelemetrySampler, reader: Counter, count: int) -> None:
    task = asyncio.create_task(sampler.sample())
    while reader.count < count:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_the_host_is_read() -> None:
    reading = HostReader().read()
    assert reading.device_id is None
    assert reading.utilization_ratio is not None
    assert 0 <= reading.utilization_ratio <= 1
    assert reading.memory_used_bytes is not None
    assert reading.memory_total_bytes is not None
    assert 0 < reading.memory_used_bytes < reading.memory_total_bytes
    assert reading.load_average is not None


async def test_readings_go_to_the_runs_while_one_goes_on() -> None:
    recorded: list[Telemetry] = []
    reader = Counter()
    telemetry = sampler([reader], running=True, recorded=recorded)
    await sample_until(telemetry, reader, 5)
    assert [reading.measured_unix_ns for reading in recorded][:4] == [1, 2, 3, 4]
    assert telemetry.idle_after(0) == ([], 0)


async def test_readings_of_an_idle_node_stay_in_the_ring_for_watchers_to_go_on_from() -> None:
    recorded: list[Telemetry] = []
    reader = Counter()
    telemetry = sampler([reader], running=False, recorded=recorded)
    await sample_until(telemetry, reader, 4)
    first, position = telemetry.idle_after(0)
    assert [reading.measured_unix_ns for reading in first][:3] == [1, 2, 3]
    assert telemetry.idle_after(position) == ([], position)
    await sample_until(telemetry, reader, reader.count + 2)
    second, _ = telemetry.idle_after(position)
    assert second[0].measured_unix_ns > first[-1].measured_unix_ns
    assert recorded == []


async def test_readings_go_on_in_order_when_the_clock_is_set_back() -> None:
    clock = SetClock()
    telemetry = sampler(
        [clock],
        wall_ns=lambda: clock.wall_ns,
        monotonic_ns=lambda: clock.monotonic_ns,
    )
    for step_ns, count in ((0, 3), (-3600 * 10**9, 3), (3600 * 10**9, 3), (7200 * 10**9, 2)):
        clock.wall_ns += step_ns
        await sample_until(telemetry, clock, clock.count + count)
    readings, _ = telemetry.idle_after(0)
    times_ns = [reading.measured_unix_ns for reading in readings]
    assert times_ns == sorted(set(times_ns))
    steps_s = [(later - earlier) / 1e9 for earlier, later in pairwise(times_ns)]
    assert sum(step_s > 7200 for step_s in steps_s) == 1  # set forward, they are where the clock is
    assert sum(step_s < 10 for step_s in steps_s) == len(steps_s) - 1


class SetClock(Counter):
    """Both clocks of a host, which go on by a second a reading."""

    def __init__(self) -> None:
        super().__init__()
        self.wall_ns, self.monotonic_ns = 10**18, 0

    def read(self) -> Telemetry:
        self.count += 1
        self.wall_ns += 10**9
        self.monotonic_ns += 10**9
        return Telemetry(measured_unix_ns=self.wall_ns)


async def test_a_reading_that_the_clock_is_set_back_after_is_not_ahead_of_the_next() -> None:
    clock = SetClock()
    telemetry = sampler(
        [clock],
        wall_ns=lambda: clock.wall_ns - (3600 * 10**9 if clock.count > 3 else 0),  # before the reader itself sees it
        monotonic_ns=lambda: clock.monotonic_ns,
    )
    await sample_until(telemetry, clock, 4)
    clock.wall_ns -= 3600 * 10**9
    clock.count = 0
    await sample_until(telemetry, clock, 3)
    times_ns = [reading.measured_unix_ns for reading in telemetry.idle_after(0)[0]]
    assert times_ns == sorted(set(times_ns))


async def test_a_late_watcher_gets_what_the_ring_still_has() -> None:
    reader = Counter()
    telemetry = sampler([reader], running=False, recorded=[], idle_interval_s=1200.0)  # a ring of three
    for _ in range(5):
        await sample_until(telemetry, reader, reader.count + 1)
    readings, position = telemetry.idle_after(0)
    assert len(readings) <= 3
    assert position >= 4


async def test_a_reader_that_fails_is_left_out_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    recorded: list[Telemetry] = []
    reader = Counter()
    await sample_until(sampler([Broken(), reader], running=True, recorded=recorded), reader, 3)
    assert len(recorded) >= 2
    assert [record.getMessage() for record in caplog.records] == ["Broken gives no more telemetry: no such sensor"]


def test_devices_without_nvidia_need_no_nvml() -> None:
    readers = open_readers([Device("opencl:pocl:0", "CPU", DeviceKind.CPU, ())])
    assert [type(reader) for reader in readers] == [HostReader]


def test_nvidia_devices_on_a_machine_without_their_driver_leave_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    readers = open_readers([Device("cuda:0", "H200", DeviceKind.GPU, (), uuid="GPU-1")])
    assert [type(reader) for reader in readers] == [HostReader]


def test_an_nvidia_device_is_read_in_the_models_units_and_what_it_does_not_tell_is_none() -> None:
    def refuse(*arguments: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    clocks = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}
    answers = SimpleNamespace(
        **{
            **vars(pynvml),
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=37),
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=5, total=7),
            "nvmlDeviceGetClockInfo": lambda handle, kind: clocks[kind],
            "nvmlDeviceGetPowerUsage": lambda handle: 123_456,
            "nvmlDeviceGetTemperature": refuse,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 4 | 8,
        }
    )
    reading = NvmlReader(answers, object(), "cuda:0").read()
    assert reading.device_id == "cuda:0"
    assert reading.utilization_ratio == 0.37
    assert (reading.memory_used_bytes, reading.memory_total_bytes) == (5, 7)
    assert (reading.clock_hz, reading.memory_clock_hz) == (1_980_000_000, 3_201_000_000)
    assert reading.power_watts == 123.456
    assert reading.temperature_celsius is None
    assert reading.throttle_reasons == ("HwSlowdown", "SwPowerCap")


def test_counters_of_errors_are_read_every_few_seconds_and_those_that_the_device_lacks_are_left_out() -> None:
    now_s, xid_events, replays = [0.0], [SimpleNamespace(eventData=79), SimpleNamespace(eventData=13)], [5]

    def wait(events: object, milliseconds: int) -> object:
        assert milliseconds == 0
        if not xid_events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return xid_events.pop()

    nvml = SimpleNamespace(
        **{
            **vars(pynvml),
            "nvmlDeviceGetTotalEccErrors": lambda handle, kind, since: 2 if kind == pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED else 0,
            "nvmlDeviceGetRemappedRows": lambda handle: (1, 2, 0, 0),
            "nvmlDeviceGetPcieReplayCounter": lambda handle: replays[0],
            "nvmlDeviceGetNvLinkState": lambda handle, link: link < 2,
            "nvmlDeviceGetNvLinkErrorCounter": lambda handle, link, kind: 1,
            "nvmlEventSetCreate": object,
            "nvmlDeviceRegisterEvents": lambda handle, kind, events: None,
            "nvmlEventSetWait_v2": wait,
        }
    )
    heard: list[tuple[str, int]] = []
    reader = NvmlReader(nvml, object(), "cuda:0", lambda: now_s[0], lambda device_id, number: heard.append((device_id, number)))
    counts = {count.name: count.count for count in reader.read().error_counts}
    assert counts == {
        "ECC uncorrected": 0,
        "ECC corrected": 2,
        "remapped rows": 3,
        "remapping pending": 0,
        "remapping failed": 0,
        "PCIe replays": 5,
        "NVLink errors": 6,
        "Xid errors": 2,
    }
    assert heard == [("cuda:0", 13), ("cuda:0", 79)]
    replays[0] = 9
    assert ErrorCount("PCIe replays", 5) in reader.read().error_counts
    now_s[0] = 6.0
    assert ErrorCount("PCIe replays", 9) in reader.read().error_counts
    assert NvmlReader(pynvml, object(), "cuda:0").read().error_counts == ()


@pytest.mark.parametrize(
    ("told", "milliwatts", "watts"),
    [(pynvml.NVML_SUCCESS, 650_000, 650.0), (pynvml.NVML_SUCCESS, 0, 123.456), (pynvml.NVML_ERROR_NOT_SUPPORTED, 650_000, 123.456)],
)
def test_power_is_that_of_the_moment_where_the_device_tells_it(told: int, milliwatts: int, watts: float) -> None:
    """By field 186; NVML's own figure is the mean of a second."""

    def field_values(handle: object, fields: Sequence[int]) -> list[SimpleNamespace]:
        assert fields == [186]
        return [SimpleNamespace(nvmlReturn=told, value=SimpleNamespace(uiVal=milliwatts))]

    asked = {"nvmlDeviceGetFieldValues": field_values, "nvmlDeviceGetPowerUsage": lambda handle: 123_456}
    nvml = SimpleNamespace(**{**vars(pynvml), **asked})
    assert NvidiaClockMeter(nvml, object()).read().power_watts == watts  # type: ignore[union-attr]
    assert NvmlReader(nvml, object(), "cuda:0").read().power_watts == watts
