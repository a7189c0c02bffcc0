"""A device that falls over is set aside with its reason, and the others go on: real services, with a stand-in for drivers that fail."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from kernalyse.services.core.errors import DeviceSetAsideError
from kernalyse.services.core.model import BackendName, Device, DeviceKind, RunError, RunState
from kernalyse.services.profiler.backends.discovery import write_probe
from kernalyse.services.profiler.processes import supervisor
from kernalyse.services.profiler.runs import device_watch
from kernalyse.services.profiler.runs.device_watch import DeviceWatch
from tests.integration.profiler_node import STAND_IN_WORKER, ProfilerNode, behaving, calls_to

FREEZER = Path("/sys/fs/cgroup/freezer")
GPUS = tuple(Device(f"cuda:{index}", "a stand-in", DeviceKind.GPU, (BackendName.PYCUDA,), uuid=f"GPU-{index}") for index in range(2))
CRASHED = RunError("ABORTED", "WORKER_CRASHED", "worker: SIGSEGV")


class Driver:
    """What finds devices, and loses them when the test wants it to."""

    def __init__(self, *devices: Device) -> None:
        self.devices = devices
        self.look_count = 0

    async def probe(self) -> tuple[tuple[Device, ...], tuple[str, ...]]:
        self.look_count += 1
        return self.devices, () if len(self.devices) == len(GPUS) else ("Backend PYCUDA: the driver is lost.",)


async def test_a_device_that_a_crash_has_left_there_goes_on() -> None:
    driver = Driver(*GPUS)
    watch = DeviceWatch(GPUS, driver.probe)
    await watch.look_after("cuda:0", "r1", CRASHED)
    assert (driver.look_count, watch.notices) == (1, ())
    for error in (None, RunError("INVALID_ARGUMENT", "INVALID_SOURCE", "x"), RunError("FAILED_PRECONDITION", "COMPILE_FAILED", "x")):
        await watch.look_after("cuda:0", "r2", error)
    assert driver.look_count == 1


async def test_a_search_that_cannot_be_started_says_nothing_about_the_device() -> None:
    async def probe() -> tuple[tuple[Device, ...], tuple[str, ...]]:
        raise OSError("Cannot allocate memory")

    watch = DeviceWatch(GPUS, probe)
    await watch.look_after("cuda:0", "r1", CRASHED)
    assert not watch.notices


async def test_a_device_that_its_driver_has_lost_is_set_aside_until_it_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watch, "LOOK_INTERVAL_S", 0.01)
    driver = Driver(GPUS[1])
    watch = DeviceWatch(GPUS, driver.probe)
    await watch.look_after("cuda:0", "r1", CRASHED)
    reason = "its driver does not find it since run r1 has failed (Backend PYCUDA: the driver is lost)"
    assert watch.notices == (f"Device cuda:0 is set aside: {reason}.",)
    with pytest.raises(DeviceSetAsideError, match="r1 has failed"):
        watch.check("cuda:0")
    watch.check("cuda:1")
    assert watch.usable(GPUS) == [GPUS[1]]
    with pytest.raises(DeviceSetAsideError):
        watch.usable(GPUS[:1])
    back = asyncio.Event()
    looking = asyncio.create_task(watch.look(back.set))
    await asyncio.sleep(0.1)
    assert watch.notices
    driver.devices = GPUS
    await asyncio.wait_for(back.wait(), 10)
    looking.cancel()
    assert watch.usable(GPUS) == list(GPUS)


async def test_after_an_xid_that_needs_a_reset_it_comes_back_with_a_restart_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watch, "LOOK_INTERVAL_S", 0.01)
    watch = DeviceWatch(GPUS, Driver(*GPUS).probe)
    watch.hear_xid("cuda:1", 13)  # an exception of a kernel's own
    assert not watch.notices
    watch.hear_xid("cuda:1", 79)
    looking = asyncio.create_task(watch.look(lambda: None))
    await asyncio.sleep(0.1)
    looking.cancel()
    assert watch.notices == ("Device cuda:1 is set aside: Xid 79, it has fallen off the bus.",)


async def test_a_lost_device_gets_no_run_and_the_other_devices_of_the_node_do(tmp_path: Path) -> None:
    """The probe is of a file that the test writes: the second time without the GPU."""
    cpu = Device("opencl:pocl:0", "CPU", DeviceKind.CPU, (BackendName.OPENCL,))
    gpu = Device("opencl:gpu:0", "GPU", DeviceKind.GPU, (BackendName.OPENCL,))
    (tmp_path / "probe").write_text(write_probe((cpu, gpu), ()))
    node = ProfilerNode(tmp_path, worker=STAND_IN_WORKER, probe=("cat", str(tmp_path / "probe")))
    node.start()
    try:
        async with calls_to(node) as calls:
            crashed = await calls.start(behaving("segfault", device_id=gpu.device_id))
            assert (await calls.finished(crashed.run_id)).state is RunState.FAILED
            again = await calls.start(behaving("succeed", device_id=gpu.device_id))  # it is still there
            assert (await calls.finished(again.run_id)).state is RunState.SUCCEEDED
            (tmp_path / "probe").write_text(write_probe((cpu,), ("Backend OPENCL: the GPU does not answer.",)))
            runs = [await calls.start(behaving(title, device_id=gpu.device_id)) for title in ("segfault", "succeed")]
            ended = [await calls.finished(run.run_id) for run in runs]
            assert [run.error.reason for run in ended if run.error] == ["WORKER_CRASHED", "DEVICE_SET_ASIDE"]
            with pytest.raises(DeviceSetAsideError, match="the GPU does not answer"):
                await calls.start(behaving("succeed", device_id=gpu.device_id))
            assert "Device opencl:gpu:0 is set aside" in (await calls.node()).notices[0]
            other = await calls.start(behaving("succeed", device_id=cpu.device_id))
            assert (await calls.finished(other.run_id)).state is RunState.SUCCEEDED
    finally:
        node.close()


@contextmanager
def frozen(process_id: int) -> Iterator[None]:
    """Holds a process so that KILL does not end it, as a driver does whose call does not return."""
    group = FREEZER / f"kernalyse-test-{uuid4().hex}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(process_id))
        (group / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        while (group / "cgroup.procs").read_text():
            time.sleep(0.01)
        group.rmdir()


@pytest.mark.slow
@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason=f"needs {FREEZER}, the freezer of cgroups v1: only there KILL does nothing")
async def test_a_run_whose_processes_do_not_end_is_over_and_its_device_is_set_aside_until_they_do(tmp_path: Path) -> None:
    gpu, cpu = "opencl:gpu:0", "opencl:pocl:0"
    node = ProfilerNode(tmp_path, stand_in=True)
    node.start()
    try:
        async with calls_to(node) as calls:
            run = await calls.start(behaving("endless", device_id=gpu))
            process_file = node.data_directory / "runs" / run.run_id / "work" / "artifacts" / "id"
            while not (process_file.exists() and process_file.read_text()):
                await asyncio.sleep(0.05)
            with frozen(int(process_file.read_text())):
                await calls.cancel(run.run_id)
                found = await asyncio.wait_for(calls.finished(run.run_id), supervisor.STUCK_S + 20)
                assert found.state is RunState.FAILED
                assert found.error is not None
                assert "do not end although they were killed" in found.error.message
                with pytest.raises(DeviceSetAsideError, match=f"of run {run.run_id} do not end"):
                    await calls.start(behaving("succeed", device_id=gpu))
                other = await calls.start(behaving("succeed", device_id=cpu))
                assert (await calls.finished(other.run_id)).state is RunState.SUCCEEDED
            async with asyncio.timeout(device_watch.LOOK_INTERVAL_S + 20):
                while (await calls.node()).notices[0] != "a notice":
                    await asyncio.sleep(0.2)
            again = await calls.start(behaving("succeed", device_id=gpu))
            assert (await calls.finished(again.run_id)).state is RunState.SUCCEEDED
    finally:
        node.close()
