"""Clocks that a run has locked are reset whatever ends it, by real processes over a stand-in for NVML that writes down each call."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kernalyse.services.core.model import ClockMode, KernelSweep, RunSpec, RunState
from kernalyse.v1 import run_pb2
from tests.integration.profiler_node import (
    Calls,
    ProfilerNode,
    behaving,
    calls_to,
    is_alive,
    payload_names,
    processes_with,
    quick_sweep,
    running_node,
    until,
)

LOCKED = ["SM base GPU-stand-in", "memory 2619 GPU-stand-in"]
RESET = ["memory reset GPU-stand-in", "SM reset GPU-stand-in"]


@pytest.fixture
def node(tmp_path: Path, nvml_calls: Path) -> Iterator[ProfilerNode]:
    with running_node(tmp_path, stand_in=True, telemetry_interval_s=0.1) as node:
        yield node


def locking(title: str, mode: ClockMode = ClockMode.BASE) -> RunSpec:
    spec = behaving(title)
    assert isinstance(spec.work, KernelSweep)
    return replace(spec, work=replace(spec.work, clock_mode=mode))


async def until_locked(calls: Calls, file: Path) -> tuple[int, int]:
    """Starts a run without end; the ids of its worker and of its supervisor."""
    run = await calls.start(locking("stream"))
    await until(lambda: file.read_text().splitlines() == LOCKED)
    async for event in calls.watch(run.run_id):
        if event.WhichOneof("payload") == "sample_batch":
            break
    processes = {int(Path(f"/proc/{found}/stat").read_text().rpartition(")")[2].split()[1]): found for found in processes_with(run.run_id)}
    (supervisor_id,) = processes.keys() & set(processes.values())
    return processes[supervisor_id], supervisor_id


def lock_files(node: ProfilerNode) -> list[Path]:
    return list((node.data_directory / "runs").glob("*/clock_lock"))


async def until_reset(node: ProfilerNode, file: Path) -> None:
    await until(lambda: file.read_text().splitlines() == LOCKED + RESET and not lock_files(node))


async def test_clocks_are_locked_during_a_run_and_reset_after_it(node: ProfilerNode, nvml_calls: Path) -> None:
    async with calls_to(node) as calls:
        run = await calls.finished((await calls.start(locking("succeed"))).run_id)
        assert run.state is RunState.SUCCEEDED
        assert nvml_calls.read_text().splitlines() == LOCKED + RESET
        assert not lock_files(node)
        await calls.finished((await calls.start(locking("fail", ClockMode.MAX))).run_id)
        assert nvml_calls.read_text().splitlines()[4:] == ["SM 1980 GPU-stand-in", LOCKED[1], *RESET]
        await calls.finished((await calls.start(behaving("succeed"))).run_id)
        assert len(nvml_calls.read_text().splitlines()) == 8, "a run that asks for no lock touches no clock"


async def test_a_killed_worker_leaves_no_locked_clocks(node: ProfilerNode, nvml_calls: Path) -> None:
    async with calls_to(node) as calls:
        worker_id, _ = await until_locked(calls, nvml_calls)
        os.kill(worker_id, signal.SIGKILL)
        await until_reset(node, nvml_calls)


async def test_a_killed_supervisor_leaves_no_locked_clocks(node: ProfilerNode, nvml_calls: Path) -> None:
    async with calls_to(node) as calls:
        worker_id, supervisor_id = await until_locked(calls, nvml_calls)
        os.kill(supervisor_id, signal.SIGKILL)
        await until_reset(node, nvml_calls)
        await until(lambda: not is_alive(worker_id))


async def test_a_killed_service_leaves_no_locked_clocks_though_it_does_not_come_back(node: ProfilerNode, nvml_calls: Path) -> None:
    async with calls_to(node) as calls:
        await until_locked(calls, nvml_calls)
        node.kill()
    await until_reset(node, nvml_calls)


async def test_what_a_service_killed_with_its_supervisor_has_left_locked_the_next_one_resets(node: ProfilerNode, nvml_calls: Path) -> None:
    async with calls_to(node) as calls:
        worker_id, supervisor_id = await until_locked(calls, nvml_calls)
        node.signal(signal.SIGSTOP)  # so that it sees nothing of what follows
        os.kill(supervisor_id, signal.SIGKILL)
        node.kill()
    await until(lambda: not is_alive(worker_id))
    assert nvml_calls.read_text().splitlines() == LOCKED, "nobody was left to reset them"
    assert lock_files(node)
    node.start()
    await until_reset(node, nvml_calls)


async def test_a_lock_that_is_not_permitted_costs_the_run_nothing(
    tmp_path: Path, nvml_calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVML_STAND_IN_REFUSES", "1")
    with running_node(tmp_path, stand_in=True) as node:
        async with calls_to(node) as calls:
            run = await calls.finished((await calls.start(locking("succeed"))).run_id)
    assert run.state is RunState.SUCCEEDED
    assert nvml_calls.read_text().splitlines() == ["SM base GPU-stand-in refused"]
    assert not lock_files(node)


@pytest.mark.slow
async def test_a_sweep_on_a_cpu_says_that_its_clocks_are_as_they_are(tmp_path: Path, ceilings_file: Path) -> None:
    with running_node(tmp_path, ceilings_file=ceilings_file) as node:
        async with calls_to(node) as calls:
            spec = quick_sweep(values=(1024,), clock_mode=ClockMode.BASE)
            events = await calls.events((await calls.start(spec)).run_id)
    (measured,) = (event.measurement for event in events if event.WhichOneof("payload") == "measurement")
    assert measured.clocks == "as it is: only clocks of NVIDIA devices can be locked"
    assert _warnings(events) == ["Clocks are not locked: only clocks of NVIDIA devices can be locked."], payload_names(events)


def _warnings(events: list[run_pb2.RunEvent]) -> list[str]:
    lines = (event.log_lines for event in events if event.WhichOneof("payload") == "log_lines")
    return [line for found in lines if found.level == run_pb2.LOG_LEVEL_WARNING for line in found.lines if line.startswith("Clocks")]
