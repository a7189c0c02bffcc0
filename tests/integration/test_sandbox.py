"""What a hostile program reaches from within a run: nothing with bubblewrap, everything without."""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kernalyse.services.core.errors import ArtifactNotFoundError, UnmetConditionError
from kernalyse.services.core.identity import Kind, Scope, TokenFile
from kernalyse.services.core.model import CommandProfile, Run, RunLimits, RunSpec, RunState
from kernalyse.services.profiler.processes.sandbox import OPENINGS, RunPlaces, Sandbox, kind_of, open_sandbox
from tests.integration.profiler_node import Calls, ProfilerNode, calls_to, processes_with, quick_sweep, running_node
from tests.integration.recording_nsys import write_recording_nsys
from tests.integration.test_command_profiles import printed
from tests.integration.test_python_api import needs_opencl
from tests.unit.nsys_export import kernel, write_export

HOSTILE_PROGRAM = Path(__file__).with_name("hostile_program.py")
PROBE = open_sandbox("all", is_required=False)

needs_bubblewrap = pytest.mark.skipif(not PROBE.program, reason=f"needs bubblewrap: {PROBE.explanation}")


@contextmanager
def outside(node: ProfilerNode, directory: Path) -> Iterator[dict[str, str]]:
    """What there is to reach: files of the service, of the user, of another run, a listener, a socket, a process."""
    other_run = node.data_directory / "runs" / "other" / "work" / "artifacts" / "secret"
    home = Path.home() / f".kernalyse-test-{uuid4().hex}"
    shared_memory = Path("/dev/shm") / home.name
    address = (Path("/run") if os.access("/run", os.W_OK) else directory) / home.name  # where systemd and others listen
    private = Path(__file__).with_name(f"{home.name}.key")
    for path in (other_run, home, shared_memory, directory / "temporary", private):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a secret")
    private.chmod(0o600)
    cache = node.data_directory / "caches" / "spoiled"
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as local,
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process,
    ):
        try:
            local.bind(str(address))
            local.listen()
            yield {
                "token": str(node.data_directory.parent / "token"),
                "journal": str(node.data_directory / "journal.sqlite"),
                "other_run": str(other_run),
                "home": str(home),
                "shared_memory": str(shared_memory),
                "temporary": str(directory / "temporary"),
                "listener": f"127.0.0.1:{listener.getsockname()[1]}",
                "socket": str(address),
                "process": str(process.pid),
                "private": str(private),
                "cache": str(cache),
                "write": str(Path(__file__).with_name(f"{home.name}.txt")),
            }
        finally:
            process.kill()
            for path in (home, shared_memory, Path(__file__).with_name(f"{home.name}.txt"), address, private):
                path.unlink(missing_ok=True)


@contextmanager
def node_with(directory: Path, **settings: Any) -> Iterator[ProfilerNode]:
    """A node whose nsys runs the program, and leaves an export."""
    programs = directory / "programs"
    programs.mkdir()
    export = write_export(
        programs / "export.sqlite", kernels=[kernel(1_000, 6_000, 1)], gpus=[{}], calls=[{"end": 500, "correlationId": 1}]
    )
    with running_node(directory, nsys_program=str(write_recording_nsys(programs, export)), **settings) as node:
        yield node


async def carried_out(calls: Calls, *arguments: str, **options: Any) -> tuple[Run, list[str]]:
    work = CommandProfile(arguments, "nsys", **options)
    run = await calls.start(RunSpec(work, limits=RunLimits(time_limit_ns=60_000_000_000)))
    events = await calls.events(run.run_id)
    return await calls.get(run.run_id), printed(events)


async def reached(node: ProfilerNode, directory: Path, token: str | None = None, **options: Any) -> dict[str, bool]:
    """What a hostile program has reached; its own caches, which lie where those of the node do, are none of others."""
    with outside(node, directory) as places:
        async with calls_to(node, token) as calls:
            words = (f"{name}={value}" for name, value in places.items())
            run, lines = await carried_out(calls, sys.executable, str(HOSTILE_PROGRAM), *words, **options)
    assert run.state is RunState.SUCCEEDED, run.error
    assert processes_with("a hostile daemon") == []
    is_spoiled = Path(places["cache"]).exists()
    Path(places["cache"]).unlink(missing_ok=True)
    return dict(json.loads(lines[-1])) | {"caches of others": is_spoiled}


def guest_token(node: ProfilerNode) -> str:
    return TokenFile(node.tokens_file).issue("guest", Scope.COMMAND, Kind.PERSON)[1]


IS_ROOT = os.geteuid() == 0
OF_ITS_USER = () if IS_ROOT else ("private",)
"""What the user of the service can read beyond what is hidden; where that is root, runs are of another user."""


@needs_bubblewrap
async def test_a_hostile_program_reaches_nothing(tmp_path: Path) -> None:
    with node_with(tmp_path) as node:
        found = await reached(node, tmp_path, guest_token(node))
    assert tuple(name for name, value in found.items() if value) == OF_ITS_USER


@needs_bubblewrap
@pytest.mark.skipif(not IS_ROOT, reason="needs root: the others run so anyway")
async def test_as_the_services_own_user_it_reaches_what_that_user_can_read_elsewhere(tmp_path: Path) -> None:
    with node_with(tmp_path, sandbox_user="") as node:
        assert [name for name, value in (await reached(node, tmp_path, guest_token(node))).items() if value] == ["private"]


FORKING = """
import os, sys, time
started = 0
try:
    while started < 300:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        started += 1
except OSError:
    pass
print(started, flush=True)
"""


@needs_bubblewrap
async def test_a_fork_bomb_ends_at_the_limit_of_processes(tmp_path: Path) -> None:
    with node_with(tmp_path, sandbox="all", sandbox_process_count=100) as node:
        async with calls_to(node) as calls:
            run, lines = await carried_out(calls, sys.executable, "-c", FORKING)
    assert run.state is RunState.SUCCEEDED, run.error
    assert 10 < int(lines[-1]) < 100
    assert processes_with("time.sleep(60)") == []


@needs_bubblewrap
async def test_a_run_cannot_have_the_service_read_for_it(tmp_path: Path) -> None:
    """It puts a link to the token's directory in the place of its artifacts, while it runs."""
    script = f"rmdir artifacts && ln -s {tmp_path} artifacts && echo linked && sleep 60"
    with node_with(tmp_path, sandbox="all") as node:
        assert (node.data_directory.parent / "token").is_file()
        async with calls_to(node) as calls:
            started = await calls.start(RunSpec(CommandProfile(("sh", "-c", script), "nsys")))
            async for event in calls.watch(started.run_id):
                if "linked" in event.log_lines.lines:
                    break
            with pytest.raises(ArtifactNotFoundError):
                await calls.artifact(started.run_id, "token")
            await calls.cancel(started.run_id)
            await calls.events(started.run_id)


@needs_bubblewrap
async def test_what_is_secret_stays_hidden_within_what_runs_may_read(tmp_path: Path) -> None:
    """Home is readable by a setting, and all of the node's files lie within another readable directory."""
    with node_with(tmp_path, sandbox_user="", sandbox_readable=(str(Path.home()), str(tmp_path))) as node:
        found = await reached(node, tmp_path, guest_token(node))
    assert [name for name, value in found.items() if value] == ["home", "temporary", "private"]


@needs_bubblewrap
async def test_without_the_sandbox_it_reaches_nearly_everything(tmp_path: Path) -> None:
    with node_with(tmp_path, sandbox="off") as node:
        missed = [name for name, value in (await reached(node, tmp_path)).items() if not value]
    assert set(missed) <= {"passwords", "trace"}  # of root, and where the kernel lets only a parent trace


@needs_bubblewrap
async def test_runs_of_others_are_sandboxed_by_default_and_those_of_the_owner_are_not(tmp_path: Path) -> None:
    with node_with(tmp_path) as node:
        assert (await reached(node, tmp_path))["home"]
        assert not (await reached(node, tmp_path, guest_token(node)))["home"]


@needs_bubblewrap
async def test_a_command_that_asks_for_the_network_has_it_and_nothing_else(tmp_path: Path) -> None:
    with node_with(tmp_path) as node:
        found = await reached(node, tmp_path, guest_token(node), network=True)
    assert [name for name, value in found.items() if value] == ["network", *OF_ITS_USER]


@needs_bubblewrap
async def test_a_sandboxed_program_is_cancelled_ends_by_a_signal_and_fails_as_any_other(tmp_path: Path) -> None:
    with node_with(tmp_path, sandbox="all") as node:
        async with calls_to(node) as calls:
            run, _ = await carried_out(calls, "sh", "-c", "exit 3")
            assert run.error is not None
            assert "status 3" in run.error.message
            script = "trap 'echo told to end; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
            limits = RunLimits(time_limit_ns=60_000_000_000)
            started = await calls.start(RunSpec(CommandProfile(("sh", "-c", script), "nsys"), limits=limits))
            async for event in calls.watch(started.run_id):
                if "ready" in event.log_lines.lines:
                    break
            await calls.cancel(started.run_id)
            events = await calls.events(started.run_id)
            assert (await calls.get(started.run_id)).state is RunState.CANCELLED
            assert "told to end" in printed(events)


@needs_bubblewrap
@needs_opencl
@pytest.mark.slow
async def test_kernels_are_measured_in_the_sandbox(tmp_path: Path) -> None:
    with running_node(tmp_path, sandbox="all") as node:
        async with calls_to(node) as calls:
            run = await calls.start(quick_sweep())
            await calls.events(run.run_id)
            found = await calls.get(run.run_id)
        assert found.state is RunState.SUCCEEDED, found.error
        assert found.completed_configuration_count == 2
        assert (node.data_directory / "caches" / "ceilings.json").exists()


@needs_bubblewrap
def test_a_sandbox_starts_within_50_ms(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "spec").touch()
    sandbox = open_sandbox("all", is_required=True, hidden=(Path.home(),), user_name="nobody", process_count=1000)
    command = sandbox.command(quick_sweep(), ("true",), RunPlaces(work, tmp_path / "spec"), os.environ)
    taken_s: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(15):
        for is_sandboxed, words in ((True, command), (False, ("true",))):
            begin_s = time.perf_counter()
            subprocess.run(words, check=True)
            taken_s[is_sandboxed].append(time.perf_counter() - begin_s)
    assert statistics.median(taken_s[True]) - statistics.median(taken_s[False]) <= 0.05


def test_what_each_kind_of_run_opens_is_what_stands_in_the_table() -> None:
    specs = {
        "kernels": quick_sweep(),
        "command": RunSpec(CommandProfile(("true",), "nsys")),
        "command with network": RunSpec(CommandProfile(("true",), "nsys", network=True)),
    }
    assert {name: kind_of(spec) for name, spec in specs.items()} == {name: name for name in OPENINGS}
    sandbox = Sandbox("bwrap", "", True, (Path("/srv"),), (), Path("/caches"))
    for name, spec in specs.items():
        words = sandbox.command(spec, ("worker",), RunPlaces(Path("/work"), Path("/spec"), (), Path("/of-guest")), {})
        opening = OPENINGS[name]
        assert ("--unshare-net" in words) is not opening.network
        assert words[words.index("--size") + 1] == str(opening.memory_bytes)
        writable = [words[place + 2] for place, word in enumerate(words) if word == "--bind"]
        assert writable == ["/caches", "/work"]


def test_where_it_is_missing_the_node_says_so_and_a_setting_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    found = open_sandbox("others", is_required=False)
    assert found.explanation == "none: bubblewrap is not installed"
    assert not found.is_for("guest")
    with pytest.raises(UnmetConditionError, match="apt-get install bubblewrap"):
        open_sandbox("others", is_required=True)
