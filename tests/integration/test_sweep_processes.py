"""A sweep in several processes, from request to results, and what becomes of it when one of them ends early."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec

import psutil
import pytest

from kernalyse.services.core.model import Axis, KernelSelection, KernelSweep, MeasuringOptions, RunSpec, RunState
from kernalyse.v1 import run_pb2
from tests.integration.profiler_node import Calls, ProfilerNode, quick_sweep, states, until

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

PROCESS_COUNT = 3
SIZES = (1024, 2048)
SECONDS = 1_000_000_000


def slow_sweep() -> RunSpec:
    """Each configuration takes longer than a test needs to do something to its process."""
    measuring = MeasuringOptions(min_duration_ns=3 * SECONDS, max_duration_ns=3 * SECONDS)
    return RunSpec(KernelSweep((KernelSelection("saxpy"),), axes=(Axis("N", SIZES[:1]),), measuring=measuring, process_count=PROCESS_COUNT))


def of(events: Sequence[run_pb2.RunEvent], payload_name: str) -> list[run_pb2.RunEvent]:
    return [event for event in events if event.WhichOneof("payload") == payload_name]


def workers(node: ProfilerNode) -> list[psutil.Process]:
    """The processes that measure, without the one that starts them."""
    assert node.process is not None
    return [child for child in psutil.Process(node.process.pid).children(recursive=True) if "--process-index" in command_of(child)]


def command_of(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return []


async def first_samples_of(calls: Calls, run_id: str, process_index: int) -> list[run_pb2.RunEvent]:
    """Events until the process has told its first samples."""
    events: list[run_pb2.RunEvent] = []
    is_begun = False
    async for event in calls.watch(run_id):
        events.append(event)
        name = event.WhichOneof("payload")
        is_begun = is_begun or (name == "configuration" and event.configuration.process_index == process_index)
        if is_begun and name == "sample_batch":
            return events
    raise AssertionError(f"process {process_index} has told no samples: {states(events)}")


async def crash(worker: psutil.Process, number: signal.Signals) -> None:
    """Intel's runtime catches the first such signal and goes back to the faulty instruction, which a sent signal does not have."""

    def is_over() -> bool:
        with suppress(psutil.NoSuchProcess):
            worker.send_signal(number)
            return worker.status() == psutil.STATUS_ZOMBIE
        return True

    await until(is_over)


@pytest.mark.slow
async def test_every_process_measures_everything_and_one_run_tells_it_all(node: ProfilerNode, calls: Calls) -> None:
    run = await calls.start(quick_sweep(values=SIZES, process_count=PROCESS_COUNT))
    seen: set[int] = set()
    async for event in calls.watch(run.run_id):
        if event.WhichOneof("payload") == "sample_batch":
            seen |= {process.pid for process in workers(node)}
    events = await calls.events(run.run_id)
    run = await calls.get(run.run_id)
    assert run.state is RunState.SUCCEEDED, run.error
    assert len(seen) == PROCESS_COUNT
    configurations = [event.configuration for event in of(events, "configuration")]
    count = PROCESS_COUNT * len(SIZES)
    assert [one.configuration_index for one in configurations] == list(range(count))
    assert [one.process_index for one in configurations] == [index // len(SIZES) for index in range(count)]
    assert [one.variant for one in configurations[:: len(SIZES)]] == ["process=1", "process=2", "process=3"]
    measurements = [event.measurement for event in of(events, "measurement")]
    assert [one.configuration_index for one in measurements] == list(range(count))
    for one in measurements:
        batches = [event.sample_batch for event in of(events, "sample_batch")]
        told = sum(len(batch.duration_ns) for batch in batches if batch.configuration_index == one.configuration_index)
        assert told == one.sample_count + one.discarded_sample_count > 0
    assert (run.completed_configuration_count, run.failed_configuration_count, run.total_configuration_count) == (count, 0, count)
    completed_counts = [event.progress.completed_configuration_count for event in of(events, "progress")]
    assert completed_counts == sorted(completed_counts)
    assert len({event.artifact_stored.artifact_name for event in of(events, "artifact_stored")}) == len(of(events, "artifact_stored"))


async def test_failed_configurations_are_counted_over_all_processes(calls: Calls) -> None:
    spec = quick_sweep(values=(1024, 2**60), process_count=2)
    run = await calls.finished((await calls.start(spec)).run_id)
    assert run.state is RunState.SUCCEEDED, run.error
    assert (run.completed_configuration_count, run.failed_configuration_count, run.total_configuration_count) == (4, 2, 4)


@pytest.mark.slow
async def test_cancelling_ends_the_process_at_work_and_starts_no_other(node: ProfilerNode, calls: Calls) -> None:
    run = await calls.start(slow_sweep())
    await first_samples_of(calls, run.run_id, 1)
    await calls.cancel(run.run_id)
    async with asyncio.timeout(60):
        run = await calls.finished(run.run_id)
    assert run.state is RunState.CANCELLED
    await until(lambda: not workers(node))
    events = await calls.events(run.run_id)
    assert [event.measurement.configuration_index for event in of(events, "measurement")] == [0]
    assert {event.configuration.process_index for event in of(events, "configuration")} == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
async def test_a_crash_of_the_second_process_fails_the_run_and_keeps_what_the_first_has_measured(
    node: ProfilerNode, calls: Calls, number: signal.Signals
) -> None:
    run = await calls.start(slow_sweep())
    await first_samples_of(calls, run.run_id, 1)
    (worker,) = workers(node)
    await crash(worker, number)
    run = await calls.finished(run.run_id)
    assert run.state is RunState.FAILED
    assert run.error is not None
    assert run.error.reason == "WORKER_CRASHED"
    assert number.name in run.error.message
    events = await calls.events(run.run_id)
    assert [event.measurement.configuration_index for event in of(events, "measurement")] == [0]
    assert {event.configuration.process_index for event in of(events, "configuration")} == {0, 1}
    again = await calls.finished((await calls.start(quick_sweep(values=(1024,)))).run_id)
    assert again.state is RunState.SUCCEEDED  # the service has taken no harm
