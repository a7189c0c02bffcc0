"""What can go wrong around a run, over real gRPC: nothing is lost, the error is clear, and the service goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.core.errors import (
    EventExpiredError,
    KernalyseError,
    QueueFullError,
    RequestConflictError,
    ShuttingDownError,
    StorageFullError,
    UnauthenticatedError,
)
from kernalyse.services.core.model import Run, RunLimits, RunState
from kernalyse.v1 import profiler_service_pb2 as messages
from tests.integration.profiler_node import (
    Calls,
    ProfilerNode,
    behaving,
    calls_to,
    is_alive,
    payload_names,
    running_node,
    states,
    until,
)

SETTINGS: dict[str, Any] = {"configuration_time_limit_s": 60.0, "telemetry_interval_s": 0.1, "idle_telemetry_interval_s": 0.5}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProfilerNode]:
    """For tests that leave the service as it was."""
    with running_node(tmp_path_factory.mktemp("node"), stand_in=True, **SETTINGS) as node:
        yield node


@pytest.fixture
def own_node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ProfilerNode]:
    """For tests that kill, stop or fill it. An indirect parameter adds settings."""
    with running_node(tmp_path, stand_in=True, **{**SETTINGS, **getattr(request, "param", {})}) as node:
        yield node


async def ended(calls: Calls, title: str, limits: RunLimits | None = None) -> Run:
    return await calls.finished((await calls.start(behaving(title, limits=limits))).run_id)


async def first_samples(calls: Calls, run_id: str) -> int:
    """Waits until a run has samples; the index of the first."""
    watching = calls.watch(run_id)
    async for event in watching:
        if event.WhichOneof("payload") == "sample_batch":
            await watching.aclose()  # type: ignore[attr-defined]
            return event.event_index
    raise AssertionError("the run ended without a sample")


# ---------------------------------------------------------------- the worker


async def test_a_worker_that_crashes_costs_its_run_only(calls: Calls) -> None:
    run = await calls.start(behaving("segfault"))
    events = await calls.events(run.run_id)
    crashed = await calls.get(run.run_id)
    assert states(events) == ["QUEUED", "RUNNING", "FAILED"]
    assert "sample_batch" in payload_names(events), "what was measured before is kept"
    assert crashed.error is not None
    assert crashed.error.reason == "WORKER_CRASHED"
    assert "measuring saxpy N=1024" in crashed.error.message
    assert "SIGSEGV" in crashed.error.message
    assert "about to write out of bounds" in crashed.error.message
    (failed,) = (event.configuration_failed for event in events if event.WhichOneof("payload") == "configuration_failed")
    assert (failed.configuration_index, failed.error.reason, failed.error.message) == (0, "WORKER_CRASHED", crashed.error.message)
    assert (crashed.completed_configuration_count, crashed.failed_configuration_count) == (1, 1)
    assert (await ended(calls, "succeed")).state is RunState.SUCCEEDED


async def test_an_endless_worker_deaf_to_term_is_ended_by_the_time_limit(calls: Calls) -> None:
    run = await ended(calls, "endless", RunLimits(time_limit_ns=800_000_000))
    assert run.state is RunState.FAILED
    assert run.error is not None
    assert run.error.reason == "TIME_LIMIT"
    assert run.failed_configuration_count == 0  # what was being measured is no worse than what was before it
    assert "after 0.8 s" in run.error.message  # a worker on a loaded machine may not have begun to measure by then


@pytest.mark.parametrize("own_node", [{"configuration_time_limit_s": 1.5}], indirect=True)
async def test_a_silent_worker_counts_as_hung(own_node: ProfilerNode) -> None:
    async with calls_to(own_node) as calls:
        run = await ended(calls, "hang")
    assert run.state is RunState.FAILED
    assert run.error is not None
    assert run.error.reason == "TIME_LIMIT"
    assert "no sign of life for 1.5 s" in run.error.message
    assert run.failed_configuration_count == 1


async def test_a_worker_over_the_memory_limit_is_ended(calls: Calls) -> None:
    run = await ended(calls, "eat", RunLimits(memory_limit_bytes=200_000_000))
    assert run.state is RunState.FAILED
    assert run.error is not None
    assert run.error.reason == "MEMORY_LIMIT"
    assert "at most 200000000" in run.error.message


async def test_garbage_on_the_event_pipe_ends_the_run(calls: Calls) -> None:
    run = await ended(calls, "garble")
    assert run.state is RunState.FAILED
    assert run.error is not None
    assert "event pipe" in run.error.message


async def test_a_failure_that_the_worker_tells_is_the_runs_error(calls: Calls) -> None:
    run = await calls.start(behaving("fail"))
    assert states(await calls.events(run.run_id)) == ["QUEUED", "RUNNING", "FAILED"]
    failed = await calls.get(run.run_id)
    assert failed.error is not None
    assert (failed.error.reason, failed.error.message) == ("COMPILE_FAILED", "line 3: no")


async def test_a_daemon_that_the_worker_leaves_is_gone_with_the_run(calls: Calls, node: ProfilerNode) -> None:
    run = await ended(calls, "leave_daemon")
    assert run.state is RunState.SUCCEEDED
    (id_file,) = (node.data_directory / "runs" / run.run_id).rglob("id")
    assert not is_alive(int(id_file.read_text()))


async def test_output_becomes_log_lines_and_files_become_artifacts(calls: Calls, node: ProfilerNode) -> None:
    run = await calls.start(behaving("talk"))
    events = await calls.events(run.run_id)
    lines = {event.log_lines.source: list(event.log_lines.lines) for event in events if event.WhichOneof("payload") == "log_lines"}
    assert sorted(line for event in events for line in event.log_lines.lines if event.log_lines.source == "program") == [
        "first",
        "second",
        "without end",
    ]
    assert lines["worker"] == ["warned"]
    request = messages.ProfilerServiceReadArtifactRequest(run_id=run.run_id, artifact_name="report.txt", offset=5)
    chunks = [answer.chunk async for answer in calls.stub.ReadArtifact(request)]
    assert b"".join(chunks) == (b"0123456789" * 300_000)[5:]
    assert max(map(len, chunks)) <= 2**20
    assert not list((node.data_directory / "runs" / run.run_id).rglob("scratch"))


# ---------------------------------------------------------------- cancelling and queueing


async def test_cancelling_ends_a_running_run_once(calls: Calls) -> None:
    run = await calls.start(behaving("stream"))
    await first_samples(calls, run.run_id)
    await asyncio.gather(*(calls.cancel(run.run_id) for _ in range(3)))
    assert states(await calls.events(run.run_id)) == ["QUEUED", "RUNNING", "CANCELLED"]
    assert (await calls.cancel(run.run_id)).state is RunState.CANCELLED


async def test_runs_of_one_device_follow_each_other_and_others_go_in_parallel(calls: Calls) -> None:
    first = await calls.start(behaving("stream"))
    same_cpu = await calls.start(behaving("succeed", device_id="opencl:intel:0"))
    other_device = await calls.start(behaving("succeed", device_id="opencl:gpu:0"))
    assert (await calls.finished(other_device.run_id)).state is RunState.SUCCEEDED
    assert (await calls.get(same_cpu.run_id)).state is RunState.QUEUED
    node = await calls.node()
    assert (list(node.running_run_ids), list(node.queued_run_ids)) == ([first.run_id], [same_cpu.run_id])
    await calls.cancel(first.run_id)
    waited, before = await calls.finished(same_cpu.run_id), await calls.get(first.run_id)
    assert waited.state is RunState.SUCCEEDED
    assert waited.start_time is not None
    assert before.end_time is not None
    assert waited.start_time >= before.end_time


async def test_a_queued_run_is_cancelled_at_once(calls: Calls) -> None:
    first = await calls.start(behaving("stream"))
    second = await calls.start(behaving("succeed"))
    assert (await calls.cancel(second.run_id)).state is RunState.CANCELLED
    assert states(await calls.events(second.run_id)) == ["QUEUED", "CANCELLED"]
    await calls.cancel(first.run_id)
    await calls.finished(first.run_id)


@pytest.mark.parametrize("own_node", [{"max_queued_run_count": 1}], indirect=True)
async def test_a_full_queue_refuses(own_node: ProfilerNode) -> None:
    async with calls_to(own_node) as calls:
        first = await calls.start(behaving("stream"))
        await first_samples(calls, first.run_id)
        await calls.start(behaving("succeed"))
        with pytest.raises(QueueFullError, match="fewer than 1"):
            await calls.start(behaving("succeed"))


async def test_one_request_id_makes_one_run(calls: Calls) -> None:
    spec = behaving("succeed")
    runs = await asyncio.gather(*(calls.start(spec, "the same") for _ in range(5)))
    assert len({run.run_id for run in runs}) == 1
    await calls.finished(runs[0].run_id)
    assert (await calls.start(spec, "the same")).state is RunState.SUCCEEDED
    with pytest.raises(RequestConflictError, match=runs[0].run_id):
        await calls.start(replace(spec, title="stream"), "the same")


# ---------------------------------------------------------------- watchers


async def test_a_wrong_token_is_refused(node: ProfilerNode) -> None:
    async with calls_to(node, token="wrong") as calls:
        with pytest.raises(UnauthenticatedError):
            await calls.node()
        with pytest.raises(UnauthenticatedError):
            await calls.events("any")


async def test_a_client_that_disconnects_does_not_touch_the_run(calls: Calls, node: ProfilerNode) -> None:
    run = await calls.start(behaving("stream:0.02"))
    async with calls_to(node) as leaving:
        await first_samples(leaving, run.run_id)
    await first_samples(calls, run.run_id)
    assert (await calls.get(run.run_id)).state is RunState.RUNNING
    await calls.cancel(run.run_id)
    await calls.finished(run.run_id)


async def test_watching_resumes_without_gaps_or_repeats(calls: Calls) -> None:
    run = await calls.start(behaving("stream"))
    seen: list[int] = []
    for _ in range(5):  # each connection is dropped after some events
        watching = calls.watch(run.run_id, seen[-1] + 1 if seen else 0)
        async for event in watching:
            seen.append(event.event_index)
            if len(seen) % 20 == 0:
                break
        await watching.aclose()  # type: ignore[attr-defined]
    await calls.cancel(run.run_id)
    seen += [event.event_index for event in await calls.events(run.run_id, seen[-1] + 1)]
    assert seen == [event.event_index for event in await calls.events(run.run_id)]
    assert seen == sorted(set(seen))


async def test_a_stalled_watcher_costs_twenty_others_nothing(calls: Calls, node: ProfilerNode) -> None:
    """It reads one response and then no more, while 20 MB pass."""
    run = await calls.start(behaving("succeed:5000"))
    async with calls_to(node) as stalling:
        stalled = stalling.stub.WatchRun(messages.ProfilerServiceWatchRunRequest(run_id=run.run_id))
        first = await stalled.read()
        counts = await asyncio.gather(*(sample_count(calls, run.run_id) for _ in range(20)))
        assert set(counts) == {5000 * 500}
        late = [event.event_index async for response in stalled for event in response.events]
        everything = [event.event_index for event in await calls.events(run.run_id)]
        assert [event.event_index for event in first.events] + late == everything, "and it gets the rest when it reads again"


async def sample_count(calls: Calls, run_id: str) -> int:
    count = 0
    async for response in calls.stub.WatchRun(messages.ProfilerServiceWatchRunRequest(run_id=run_id)):
        count += sum(len(event.sample_batch.duration_ns) for event in response.events)
    return count


async def test_a_collector_sees_every_run_and_the_telemetry(calls: Calls) -> None:
    stream = calls.stub.WatchNode(messages.WatchNodeRequest())
    first = await stream.read()
    assert first.HasField("node")
    run = await calls.start(behaving("stream:0.01"))
    seen: list[int] = []
    idle_count = 0
    telemetry_count = 0
    final = False
    async for response in stream:
        seen += [event.event_index for event in response.events]
        idle_count += len(response.idle_telemetry)
        own = [event for event in response.events if event.run_id == run.run_id]
        telemetry_count += payload_names(own).count("telemetry")
        if telemetry_count >= 3:
            await calls.cancel(run.run_id)  # which may be done again
        final = final or states(own)[-1:] == ["CANCELLED"]
        if final and idle_count:
            break
    stream.cancel()
    assert seen == sorted(set(seen))


# ---------------------------------------------------------------- the service


async def test_a_killed_service_keeps_everything_and_repeats_nothing(own_node: ProfilerNode) -> None:
    async with calls_to(own_node) as calls:
        running = await calls.start(behaving("stream"), "running")
        queued = await calls.start(behaving("succeed"), "queued")
        await first_samples(calls, running.run_id)
        seen: list[tuple[int, bytes]] = []
        with contextlib.suppress(KernalyseError):
            async for event in calls.watch(running.run_id):
                seen.append((event.event_index, event.SerializeToString()))
                if len(seen) == 50:
                    own_node.kill()
        assert len(seen) >= 50
    own_node.start()
    async with calls_to(own_node) as calls:
        events = await calls.events(running.run_id)
        assert [(event.event_index, event.SerializeToString()) for event in events][: len(seen)] == seen
        assert states(events) == ["QUEUED", "RUNNING", "LOST"]
        lost = await calls.get(running.run_id)
        assert lost.error is not None
        assert lost.error.reason == "RUN_LOST"
        assert lost.end_time is not None
        assert states(await calls.events(queued.run_id)) == ["QUEUED", "RUNNING", "SUCCEEDED"]
        assert (await calls.start(behaving("stream"), "running")).run_id == running.run_id
        assert (await calls.get(running.run_id)).state is RunState.LOST


async def test_nothing_of_a_run_survives_a_killed_service(own_node: ProfilerNode) -> None:
    async with calls_to(own_node) as calls:
        run = await calls.start(behaving("endless"))
        directory = own_node.data_directory / "runs" / run.run_id
        await until(lambda: any(path.stat().st_size for path in directory.rglob("id")))
        (id_file,) = directory.rglob("id")
        worker_id = int(id_file.read_text())
    assert is_alive(worker_id)
    own_node.kill()
    killed = time.monotonic()
    await until(lambda: not is_alive(worker_id))
    assert time.monotonic() - killed < 30


async def test_a_queued_run_waits_for_the_processes_of_a_lost_one(own_node: ProfilerNode) -> None:
    async with calls_to(own_node) as calls:
        run = await calls.start(behaving("endless"))
        queued = await calls.start(behaving("succeed"))
        directory = own_node.data_directory / "runs" / run.run_id
        await until(lambda: any(path.stat().st_size for path in directory.rglob("id")))
        (id_file,) = directory.rglob("id")
        worker_id = int(id_file.read_text())
        supervisor_id = int(Path(f"/proc/{worker_id}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor_id, signal.SIGSTOP)  # so that it does not end its tree by itself
    try:
        own_node.kill()
        own_node.start()
        async with calls_to(own_node) as calls:
            await asyncio.sleep(0.5)
            assert (await calls.get(run.run_id)).state is RunState.LOST
            assert (await calls.get(queued.run_id)).state is RunState.QUEUED
            os.kill(supervisor_id, signal.SIGCONT)
            assert (await calls.finished(queued.run_id)).state is RunState.SUCCEEDED
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor_id, signal.SIGCONT)
    assert not is_alive(worker_id)


@pytest.mark.parametrize("own_node", [{"drain_s": 10.0}], indirect=True)
async def test_a_stopping_service_lets_its_run_end_and_refuses_new_ones(own_node: ProfilerNode) -> None:
    async with calls_to(own_node) as calls:
        run = await calls.start(behaving("succeed:2000"))
        queued = await calls.start(behaving("succeed"))
        watching = asyncio.create_task(calls.events(run.run_id))
        waiting = asyncio.create_task(calls.events(queued.run_id))
        await first_samples(calls, run.run_id)
        own_node.signal(signal.SIGTERM)
        events = await watching
        assert states(events)[-1] == "SUCCEEDED"
        with pytest.raises(ShuttingDownError):
            await waiting
    assert own_node.wait() == 0
    own_node.start()
    async with calls_to(own_node) as calls:
        assert (await calls.finished(queued.run_id)).state is RunState.SUCCEEDED, "queued ones wait for the next start"
        assert [event.SerializeToString() for event in await calls.events(run.run_id)] == [event.SerializeToString() for event in events]


@pytest.mark.parametrize("own_node", [{"drain_s": 20.0}], indirect=True)
async def test_a_second_signal_cancels_what_runs(own_node: ProfilerNode) -> None:
    async with calls_to(own_node) as calls:
        run = await calls.start(behaving("stream"))
        await first_samples(calls, run.run_id)
        own_node.signal(signal.SIGTERM)
        await until(lambda: "Shutting down" in own_node.log())
        with pytest.raises(ShuttingDownError):
            await calls.start(behaving("succeed"))
        own_node.signal(signal.SIGINT)
        assert states(await calls.events(run.run_id))[-1] == "CANCELLED"
    assert own_node.wait() == 0


@pytest.mark.parametrize("own_node", [{"drain_s": 0.2}], indirect=True)
async def test_the_drain_has_an_end(own_node: ProfilerNode) -> None:
    async with calls_to(own_node) as calls:
        run = await calls.start(behaving("stream"))
        await first_samples(calls, run.run_id)
    own_node.signal(signal.SIGTERM)
    assert own_node.wait() == 0


@pytest.mark.parametrize("own_node", [{"journal_max_bytes": 2**20}], indirect=True)
async def test_an_expired_index_is_answered_with_the_oldest_kept(own_node: ProfilerNode) -> None:
    async with calls_to(own_node) as calls:
        first = await ended(calls, "succeed:300")
        await ended(calls, "succeed:300")
        for _ in range(1000):
            try:
                await calls.events(first.run_id)
            except EventExpiredError as error:
                oldest = int(error.expected)
                break
            await asyncio.sleep(0.05)
        stream = calls.stub.WatchNode(messages.WatchNodeRequest(next_event_index=oldest))
        answers = [await stream.read() for _ in range(2)]
        assert next(event for answer in answers for event in answer.events).event_index == oldest


# ---------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB of its own."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = shutil.which("mount")
    if mount is None or not _is_mounted(mount, directory):
        pytest.skip("mounting a small file system needs root")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


@pytest.mark.slow
async def test_a_full_disk_ends_the_run_and_not_the_service(tmp_path: Path, small_disk: Path) -> None:
    with running_node(tmp_path, stand_in=True, **{**SETTINGS, "data_directory": str(small_disk)}) as node:
        async with calls_to(node) as calls:
            before = await ended(calls, "succeed:20")
            ballast = small_disk / "ballast"
            ballast.write_bytes(bytes(14 * 2**20))
            run = await calls.start(behaving("stream:0.001"))
            for _ in range(1200):
                failed = await calls.get(run.run_id)
                if failed.state.is_final:
                    break
                await asyncio.sleep(0.05)
            assert failed.state is RunState.FAILED
            assert failed.error is not None
            assert failed.error.reason == "STORAGE_FULL"
            fill(small_disk / "more")
            with pytest.raises(StorageFullError):
                await calls.start(behaving("succeed"))
            assert states(await calls.events(before.run_id))[-1] == "SUCCEEDED"
            ballast.unlink()
            (small_disk / "more").unlink()
            for _ in range(600):
                try:
                    after = await ended(calls, "succeed")
                    break
                except StorageFullError:
                    await asyncio.sleep(0.1)
            assert after.state is RunState.SUCCEEDED
            assert states(await calls.events(run.run_id)) == ["QUEUED", "RUNNING", "FAILED"], "written when there was room again"


def _is_mounted(mount: str, directory: Path) -> bool:
    command = [mount, "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(directory)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
