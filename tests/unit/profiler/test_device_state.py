"""kernalyse.services.profiler.measuring.device_state: recorded, waited for, refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from kernalyse.services.core.disturbance import disturbance_note, disturbances
from kernalyse.services.core.errors import UnmetConditionError
from kernalyse.services.core.model import BusyPolicy, Device, DeviceKind
from kernalyse.services.profiler.measuring.device_state import (
    REUSE_S,
    ContentionCheck,
    DeviceUse,
    NvidiaUsers,
    RecentReading,
    open_use_meter,
)

IDLE = DeviceUse(other_process_count=0)
SHARED = DeviceUse(other_process_count=2)


class Scripted:
    """Reads `uses` in turn, then the last of them for ever; its clock moves with every sleep."""

    def __init__(self, *uses: DeviceUse) -> None:
        self._uses = chain(uses, repeat(uses[-1]))
        self.now_s = 0.0
        self.activities: list[str] = []

    def read(self) -> DeviceUse:
        return next(self._uses)

    def contention_check(self) -> ContentionCheck:
        return ContentionCheck(self, clock_s=lambda: self.now_s, sleep=self._sleep, wait_limit_s=60.0)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_shared_device_is_recorded_and_nothing_else() -> None:
    scripted = Scripted(SHARED)
    scripted.contention_check().ensure_idle(BusyPolicy.RECORD, scripted.activities.append)
    assert (scripted.now_s, scripted.activities) == (0.0, [])


def test_waiting_ends_when_the_device_is_idle_and_says_meanwhile_why() -> None:
    scripted = Scripted(SHARED, SHARED, SHARED, IDLE)
    scripted.contention_check().ensure_idle(BusyPolicy.WAIT, scripted.activities.append)
    assert scripted.now_s == 3.0
    assert scripted.activities == ["waiting for an idle device: 2 other processes on it"] * 3


def test_waiting_has_a_limit() -> None:
    scripted = Scripted(DeviceUse(host_busy_ratio=0.9))
    with pytest.raises(UnmetConditionError, match=r"a host that other programs keep 90% busy; expected an idle device within 60 s"):
        scripted.contention_check().ensure_idle(BusyPolicy.WAIT, scripted.activities.append)


def test_refusing_refuses_at_once() -> None:
    scripted = Scripted(SHARED)
    with pytest.raises(UnmetConditionError, match=r"2 other processes on it.*--wait-idle"):
        scripted.contention_check().ensure_idle(BusyPolicy.REFUSE, scripted.activities.append)


def test_what_disturbed_a_measurement_is_told_in_words() -> None:
    assert disturbances(0.98, None, None) == ("host 98 % busy",)
    assert disturbances(0.25, 0, ("sw_power_cap",)) == ()  # large GPUs run every dense kernel under their power cap
    assert disturbances(None, 2, ("hw_slowdown", "sw_power_cap")) == (
        "device shared with 2 other processes",
        "clock throttled by hw_slowdown",
    )


def test_of_many_disturbed_measurements_the_worst_is_named() -> None:
    texts = ["host 40 % busy", None, "host 98 % busy; device shared with 1 other process", None]
    assert disturbance_note(texts) == "⚠ 2 of 4 disturbed: host 98 % busy, device shared with 1 other process."
    assert disturbance_note(texts[:1]) == "⚠ Disturbed: host 40 % busy."
    assert disturbance_note([None, None]) == ""


@pytest.mark.parametrize("use", [DeviceUse(), IDLE, DeviceUse(host_busy_ratio=0.2)])
def test_an_idle_or_unknown_device_is_taken(use: DeviceUse) -> None:
    Scripted(use).contention_check().ensure_idle(BusyPolicy.REFUSE, lambda _: None)


def test_own_work_on_the_host_does_not_count_as_a_neighbours() -> None:
    meter = open_use_meter(Device("opencl:pocl:0", "a CPU", DeviceKind.CPU, ()))
    total = 0
    while meter.read().host_busy_ratio is None:
        total += sum(range(10_000))  # the first tick of the clock
    for number in range(3_000_000):
        total += number
    use = meter.read()
    assert total > 0
    assert use.host_busy_ratio is not None
    assert use.host_busy_ratio <= 1.0


# ---------------------------------------------------------------- others on a GPU


def listing(*process_ids: int, **answers: Any) -> Any:
    """A stand-in NVML that lists these processes as computing."""
    told = {
        "nvmlDeviceGetMigMode": refuse(pynvml.NVML_ERROR_NOT_SUPPORTED),
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [SimpleNamespace(pid=process_id) for process_id in process_ids],
        "nvmlDeviceGetGraphicsRunningProcesses": refuse(pynvml.NVML_ERROR_NOT_SUPPORTED),
    }
    return SimpleNamespace(**{**vars(pynvml), **told, **answers})


def refuse(number: int) -> Any:
    def call(*_: Any) -> Any:
        raise pynvml.NVMLError(number)

    return call


def names(stand_in_nvml: Any, *, can_tell: bool = True) -> tuple[str, ...] | None:
    return NvidiaUsers(stand_in_nvml, "handle", can_tell=can_tell).names()


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that is nobody's child here: its parent has ended."""
    program = "import subprocess as s; print(s.Popen(['sleep', '60'], stdout=s.DEVNULL, stderr=s.DEVNULL).pid)"
    process_id = int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    yield process_id
    psutil.Process(process_id).kill()


def test_others_on_a_gpu_are_named_and_own_processes_are_none_of_them(stranger: int) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        own = (os.getpid(), os.getppid(), child.pid)
        assert names(listing(*own, stranger)) == (f"sleep {stranger}",)
        assert names(listing(*own)) == ()
        child.kill()


def test_programs_that_draw_are_users_too(stranger: int) -> None:
    drawing = listing(nvmlDeviceGetGraphicsRunningProcesses=lambda _: [SimpleNamespace(pid=stranger)])
    assert names(drawing) == (f"sleep {stranger}",)


def test_a_process_that_cannot_be_seen_counts() -> None:
    assert names(listing(2**22 + 1)) == (f"process {2**22 + 1}",)


@pytest.mark.parametrize(
    "stand_in_nvml",
    [
        listing(nvmlDeviceGetComputeRunningProcesses=refuse(pynvml.NVML_ERROR_NO_PERMISSION)),
        listing(nvmlDeviceGetGraphicsRunningProcesses=refuse(pynvml.NVML_ERROR_UNKNOWN)),
        listing(nvmlDeviceGetMigMode=lambda _: (1, 1)),
    ],
)
def test_what_nvml_cannot_tell_is_unknown_and_not_free(stand_in_nvml: Any) -> None:
    assert names(stand_in_nvml) is None


def test_in_a_container_that_hides_processes_others_are_unknown() -> None:
    assert names(listing(), can_tell=False) is None
    assert names(listing()) == ()


def test_a_reading_stands_for_those_that_follow_at_once() -> None:
    now_s, readings = 5.0, iter((1, 2))
    meter = RecentReading(lambda: next(readings), clock_s=lambda: now_s)
    assert [meter.read(), meter.read()] == [1, 1]
    now_s += 0.9 * REUSE_S
    assert meter.read() == 1
    now_s += 0.2 * REUSE_S
    assert meter.read() == 2
