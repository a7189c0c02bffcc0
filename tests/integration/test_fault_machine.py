"""Runs under every fault in any order: what was measured is stored once, no run is repeated, and nothing stays behind.

A state machine starts, repeats, watches and cancels runs, and kills, holds, restarts real services, fills their disk and sets
their clock meanwhile. At the end it lets all of it come to rest and compares what the node has in its journal with what the
analyzer has stored.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import KernalyseError, StorageFullError, UnavailableError
from kernalyse.services.core.model import Run, RunState, TableQuery
from kernalyse.services.core.rpc import translated_errors
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1 import profiler_service_pb2 as profiler_messages
from tests.clock import WHY_NO_CLOCK, settable_clock
from tests.examples import SHARE
from tests.integration.analyzer_under_test import AnalyzerProcess, add_node, connected, get_run, get_table
from tests.integration.profiler_node import Calls, ProfilerNode, behaving, calls_to, processes_with
from tests.integration.test_profiler_faults import fill

ResultT = TypeVar("ResultT")

MACHINE_COUNT = 3 if SHARE < 1 else round(20 * SHARE)
STEP_COUNT = 12
REST_LIMIT_S = 90.0
BEHAVIOURS = ("succeed:20", "succeed:200", "stream:0.002", "segfault", "endless", "leave_daemon", "fail")
DISK_BYTES = 64 * 2**20
CAN_MOUNT = os.geteuid() == 0 and shutil.which("mount") is not None


@dataclass(slots=True)
class Submitted:
    """A run that was asked for. run_id: None as long as nobody has answered."""

    title: str
    run_id: str | None = None


def carried_out(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    return asyncio.run(work)


def eventually(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + REST_LIMIT_S
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


class FaultMachine(RuleBasedStateMachine):
    """A node whose worker is a stand-in, and an analyzer, each a process of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="kn-"))
        self.disk = self.directory / "disk"
        self.disk.mkdir()
        environment = {name: str(self.directory / name.lower()) for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR")}
        self.environment = mock.patch.dict(os.environ, environment)
        self.environment.start()
        self.clock_there = ExitStack()
        self.clock = None if WHY_NO_CLOCK else self.clock_there.enter_context(settable_clock(self.directory))
        for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
            Path(environment[name]).mkdir(mode=0o700)
        if CAN_MOUNT:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.disk)], check=True)
        address = f"unix:{self.directory}/p.sock"
        self.node = ProfilerNode(self.directory, stand_in=True, address=address, data_directory=str(self.disk / "data"))
        self.analyzer = AnalyzerProcess(self.directory)
        self.submitted: dict[str, Submitted] = {}
        self.is_full = False

    @initialize(titles=st.lists(st.sampled_from(BEHAVIOURS), min_size=2, max_size=4))
    def start_services(self, titles: list[str]) -> None:
        self.node.start()
        self.analyzer.start()

        async def join() -> None:
            async with connected(self.analyzer.endpoint) as stub:
                await add_node(stub, self.node.endpoint)

        carried_out(join())
        for title in titles:
            self.submit(title)

    # ------------------------------------------------------------ what users do

    @rule(title=st.sampled_from(BEHAVIOURS))
    def submit(self, title: str) -> None:
        self._submit(title, f"request-{len(self.submitted)}")

    @precondition(lambda self: self.submitted)
    @rule(which=st.integers(0, 99))
    def submit_again(self, which: int) -> None:
        request_id = sorted(self.submitted)[which % len(self.submitted)]
        self._submit(self.submitted[request_id].title, request_id)

    @precondition(lambda self: self.submitted)
    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        one = list(self.submitted.values())[which % len(self.submitted)]
        if one.run_id is not None:
            with suppress(UnavailableError, StorageFullError):
                carried_out(self._with_node(lambda calls: calls.cancel(str(one.run_id))))

    @precondition(lambda self: self.submitted)
    @rule(which=st.integers(0, 99), seconds=st.sampled_from((0.01, 0.2)))
    def watch_and_go_away(self, which: int, seconds: float) -> None:
        one = list(self.submitted.values())[which % len(self.submitted)]

        async def watch(calls: Calls) -> None:
            with suppress(TimeoutError, KernalyseError):
                async with asyncio.timeout(seconds):
                    await calls.events(str(one.run_id))

        if one.run_id is not None:
            carried_out(self._with_node(watch))

    # ------------------------------------------------------------ what goes wrong

    @rule()
    def kill_node(self) -> None:
        self.node.kill()
        self.node.start()

    @rule()
    def kill_analyzer(self) -> None:
        self.analyzer.kill()
        self.analyzer.start()

    @rule(milliseconds=st.integers(0, 40), title=st.sampled_from(BEHAVIOURS))
    def kill_node_while_it_is_asked(self, milliseconds: int, title: str) -> None:
        request_id = f"request-{len(self.submitted)}"
        self.submitted[request_id] = Submitted(title)

        async def ask() -> None:
            async with calls_to(self.node) as calls:
                asking = asyncio.create_task(calls.start(behaving(title), request_id))
                await asyncio.sleep(milliseconds / 1000)
                self.node.kill()
                with suppress(KernalyseError):
                    await asking

        carried_out(ask())
        self.node.start()
        self._submit(title, request_id)

    @rule()
    def restart_node(self) -> None:
        self.node.signal(signal.SIGTERM)
        self.node.signal(signal.SIGTERM)  # the second one cancels what runs
        self.node.wait()
        self.node.start()

    @rule()
    def restart_analyzer(self) -> None:
        assert self.analyzer.stop() == 0
        self.analyzer.start()

    @rule(seconds=st.sampled_from((0.3, 1.5)), is_node=st.booleans())
    def hold(self, seconds: float, is_node: bool) -> None:
        process = self.node.process if is_node else self.analyzer.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    @precondition(lambda self: self.clock is not None)
    @rule(offset_s=st.sampled_from((3600, -3600, 1, -1, 0)))
    def set_clock(self, offset_s: int) -> None:
        assert self.clock is not None
        self.clock.set(offset_s)

    @precondition(lambda self: CAN_MOUNT and not self.is_full)
    @rule(seconds=st.sampled_from((0.1, 1.0)))
    def fill_disk(self, seconds: float) -> None:
        fill(self.disk / "ballast")
        self.is_full = True
        time.sleep(seconds)

    @precondition(lambda self: self.is_full)
    @rule()
    def free_disk(self) -> None:
        (self.disk / "ballast").unlink()
        self.is_full = False

    # ------------------------------------------------------------ what has to hold

    def teardown(self) -> None:
        try:
            if self.node.process is not None and self.analyzer.process is not None:
                self._come_to_rest()
        finally:
            self.node.close()
            self.analyzer.kill()
            self.clock_there.close()
            self.environment.stop()
            if CAN_MOUNT:
                subprocess.run(["umount", "-l", str(self.disk)], check=True)
            shutil.rmtree(self.directory, ignore_errors=True)

    def _come_to_rest(self) -> None:
        if self.is_full:
            self.free_disk()
        for request_id, one in self.submitted.items():
            self._submit(one.title, request_id)
        for one in self.submitted.values():
            if one.title.startswith(("stream", "endless")):
                carried_out(self._cancelled(str(one.run_id)))
        run_ids = [str(one.run_id) for one in self.submitted.values()]
        assert len(set(run_ids)) == len(run_ids)
        eventually(lambda: all(self._ended_on_node(run_id) for run_id in run_ids), "runs do not end on their node")
        listed = carried_out(
            self._with_node(lambda calls: calls.stub.ListRuns(profiler_messages.ProfilerServiceListRunsRequest(page_size=1000)))
        )
        assert sorted(run.run_id for run in listed.runs) == sorted(run_ids)  # each once, and no others
        eventually(lambda: all(self._ended_in_store(run_id) for run_id in run_ids), "runs do not end in the store")
        for run_id in run_ids:
            carried_out(self._compare(run_id))
            assert processes_with(run_id) == []
        for log in (self.node.log(), self.analyzer.log):
            assert "Traceback" not in log, log

    def _ended_on_node(self, run_id: str) -> bool:
        return carried_out(self._with_node(lambda calls: calls.get(run_id))).state.is_final

    def _ended_in_store(self, run_id: str) -> bool:
        async def state() -> RunState | None:
            async with connected(self.analyzer.endpoint) as stub:
                with suppress(KernalyseError):
                    return (await get_run(stub, run_id)).state
            return None

        found = carried_out(state())
        return found is not None and found.is_final

    async def _compare(self, run_id: str) -> None:
        async with calls_to(self.node) as calls, connected(self.analyzer.endpoint) as stub:
            run, events = await calls.get(run_id), await calls.events(run_id)
            stored: Run = await get_run(stub, run_id)
            assert (stored.state, stored.error) == (run.state, run.error)
            indexes = [event.event_index for event in events]
            assert indexes == sorted(set(indexes))
            times_ns = [event.event_unix_ns for event in events]
            assert times_ns == sorted(times_ns)
            assert run.end_time is not None
            assert stored.end_time is not None  # that of the event, which is stamped when it is journaled
            assert stored.end_time >= run.end_time >= (run.start_time or run.create_time)
            states = [event.state_changed.state for event in events if event.WhichOneof("payload") == "state_changed"]
            assert states == sorted(states, key=list(dict.fromkeys(states)).index)
            assert len(states) == len(set(states))  # none is entered twice: it was not run again
            measured = [ns for event in events for ns in event.sample_batch.duration_ns]
            frame, _ = await get_table(stub, TableQuery("samples", (run_id,), columns=("duration_ns",)))
            assert frame["duration_ns"].to_list() == measured

    # ------------------------------------------------------------ calls

    def _submit(self, title: str, request_id: str) -> None:
        """Through the analyzer, until somebody answers; as a full disk allows nothing, not then."""
        one = self.submitted.setdefault(request_id, Submitted(title))

        def ask() -> bool:
            try:
                run_id = carried_out(self._started(title, request_id))
            except UnavailableError:  # the analyzer has not found its node again
                return False
            except StorageFullError:
                assert self.is_full
                return True
            assert one.run_id in (None, run_id)
            one.run_id = run_id
            return True

        eventually(ask, "nobody takes a run")
        if one.run_id is None:
            del self.submitted[request_id]

    async def _started(self, title: str, request_id: str) -> str:
        request = messages.AnalyzerServiceStartRunRequest(spec=protobuf.encode(behaving(title)), request_id=request_id)
        async with connected(self.analyzer.endpoint) as stub:
            with translated_errors():
                return str((await stub.StartRun(request, timeout=30)).run.run_id)

    async def _cancelled(self, run_id: str) -> None:
        async with calls_to(self.node) as calls:
            await calls.cancel(run_id)

    async def _with_node(self, work: Callable[[Calls], Coroutine[Any, Any, ResultT]]) -> ResultT:
        async with calls_to(self.node) as calls:
            return await work(calls)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_is_lost_or_repeated_whatever_happens() -> None:
    if not CAN_MOUNT:
        sys.stdout.write("The disk is never full here: mounting a small one needs root.\n")
    if WHY_NO_CLOCK:
        sys.stdout.write(f"The clock is never set here: {WHY_NO_CLOCK}.\n")
    run_state_machine_as_test(
        FaultMachine,
        settings=settings(
            max_examples=MACHINE_COUNT,
            stateful_step_count=STEP_COUNT,
            deadline=None,
            derandomize=SHARE < 1,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            database=None,
            phases=(Phase.generate,),  # what depends on moments is not the same a second time; nor made smaller
            verbosity=Verbosity.debug,  # prints the steps
        ),
    )
