"""Commands under a collector through a real service: what becomes of them, of what they print, and of what they leave."""

from __future__ import annotations

import asyncio
import io
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from kernalyse.services.core.model import CommandProfile, EnvironmentVariable, Run, RunLimits, RunSpec, RunState
from kernalyse.services.profiler.processes.children import MAX_LOG_BYTES
from kernalyse.v1 import profiler_service_pb2 as messages
from tests.integration.profiler_node import Calls, ProfilerNode, payload_names, processes_with, running_node

SERVICE_VARIABLES = {
    "HF_TOKEN": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "DB_PASSWORD": "secret",
    "NGC_API_KEY": "secret",
    "KERNALYSE_TOKEN": "secret",
    "TOKENIZERS_PARALLELISM": "false",
    "DATA_DIRECTORY": "/data",
}

STAND_IN_NSYS = Path(__file__).with_name("stand_in_nsys.py")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProfilerNode]:
    directory = tmp_path_factory.mktemp("node")
    program = directory / "nsys"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN_NSYS} "$@"\n')
    program.chmod(0o700)
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in SERVICE_VARIABLES.items():
            monkeypatch.setenv(name, value)
        with running_node(directory, nsys_program=str(program)) as node:
            yield node


async def profiled(calls: Calls, directory: Path, *arguments: str, time_limit_s: float = 60.0, **options: Any) -> tuple[Run, list[Any]]:
    """The ended run and its events. directory: for the stand-in's notes; its name marks the processes of this run."""
    environment = (EnvironmentVariable("STAND_IN_DIRECTORY", str(directory)), *options.pop("environment", ()))
    work = CommandProfile(arguments, "nsys", environment=environment, **options)
    run = await calls.start(RunSpec(work, limits=RunLimits(time_limit_ns=int(time_limit_s * 1e9))))
    events = await calls.events(run.run_id)
    return await calls.get(run.run_id), events


def printed(events: list[Any]) -> list[str]:
    return [line for event in events for line in event.log_lines.lines if event.log_lines.source == "program"]


@pytest.mark.slow
async def test_a_command_has_its_bundle_and_variables_and_leaves_artifacts(calls: Calls, node: ProfilerNode, tmp_path: Path) -> None:
    digest = await upload(calls, {"train.sh": b"#!/bin/sh\necho $GREETING $(cat data); echo changed >data; rm $0\n", "data": b"first\n"})
    greeting = (EnvironmentVariable("GREETING", "hello"),)
    for _ in range(2):  # a run that changes its copy changes no other's
        run, events = await profiled(calls, tmp_path, "./train.sh", bundle_digest=digest, environment=greeting)
        assert run.error is None
        assert printed(events) == ["hello first"]
    assert run.state is RunState.SUCCEEDED
    (stored,) = [event.trace_stored for event in events if event.WhichOneof("payload") == "trace_stored"]
    assert (list(stored.artifact_names)[-1], stored.collector) == ("export.parquetdir/StringIds.parquet", "nsys")
    request = messages.ProfilerServiceReadArtifactRequest(run_id=run.run_id, artifact_name=stored.artifact_names[-1])
    assert b"".join([answer.chunk async for answer in calls.stub.ReadArtifact(request)]) == b"PAR1"
    work = node.data_directory / "runs" / run.run_id / "work"
    assert [path.name for path in work.iterdir()] == ["artifacts"]


async def test_a_command_gets_no_secret_of_the_service_that_its_run_does_not_name_and_the_log_says_so(calls: Calls, tmp_path: Path) -> None:
    own = (EnvironmentVariable("HF_TOKEN", "mine"),)
    run, events = await profiled(
        calls, tmp_path, sys.executable, "-c", "import os; print(*(f'{k}={v}' for k, v in os.environ.items()), sep='\\n')", environment=own
    )
    assert run.error is None
    got = dict(line.partition("=")[::2] for line in printed(events))
    assert {name: got.get(name) for name in SERVICE_VARIABLES} == {
        "HF_TOKEN": "mine",
        "AWS_SECRET_ACCESS_KEY": None,
        "DB_PASSWORD": None,
        "NGC_API_KEY": None,
        "KERNALYSE_TOKEN": None,
        "TOKENIZERS_PARALLELISM": "false",
        "DATA_DIRECTORY": "/data",
    }
    (notice,) = [line for event in events for line in event.log_lines.lines if event.log_lines.source == "service"]
    assert "AWS_SECRET_ACCESS_KEY, DB_PASSWORD, KERNALYSE_TOKEN, NGC_API_KEY. " in notice
    assert "HF_TOKEN" not in notice
    assert "--env" in notice


async def test_a_program_waits_for_the_instant_that_several_nodes_start_at(calls: Calls, tmp_path: Path) -> None:
    start_unix_ns = time.time_ns() + 4_000_000_000
    run, events = await profiled(calls, tmp_path, "date", "+%s%N", start_unix_ns=start_unix_ns)
    assert run.error is None
    assert 0 <= int(printed(events)[0]) - start_unix_ns < 2_000_000_000
    assert "waiting for the start on all nodes" in {event.progress.activity for event in events}


@pytest.mark.parametrize(("ahead_s", "said"), [(-2, "after the instant set for all nodes"), (3_600, "ahead of this node's clock")])
async def test_a_program_that_cannot_start_with_the_others_says_so(calls: Calls, tmp_path: Path, ahead_s: int, said: str) -> None:
    run, events = await profiled(calls, tmp_path, "true", start_unix_ns=time.time_ns() + ahead_s * 1_000_000_000)
    assert run.error is None
    assert said in "\n".join(line for event in events for line in event.log_lines.lines)


async def test_a_program_that_prints_a_gigabyte_neither_stalls_nor_fills_the_journal(calls: Calls, tmp_path: Path) -> None:
    code = "import os\nblock = (b'x' * 99 + b'\\n') * 10_000\nfor _ in range(1_000): os.write(1, block)\nos.write(1, b'the end')"
    began = time.monotonic()
    run, events = await profiled(calls, tmp_path, sys.executable, "-S", "-c", code)
    assert run.state is RunState.SUCCEEDED
    lines = printed(events)
    assert lines[-1] == "the end"
    assert sum(map(len, lines)) < MAX_LOG_BYTES * 1.01
    assert time.monotonic() - began < 50


@pytest.mark.slow
async def test_a_program_that_forks_for_ever_is_ended_with_all_its_processes(calls: Calls, tmp_path: Path) -> None:
    run, _ = await profiled(calls, tmp_path, "sh", "-c", "trap '' TERM; f() { sleep 0.01; f & }; f; wait; sleep 600", time_limit_s=8)
    assert run.error is not None
    assert run.error.reason == "TIME_LIMIT"
    assert processes_with(str(tmp_path)) == []


async def test_a_program_that_is_not_there_or_fails_is_told_by_name(calls: Calls, tmp_path: Path) -> None:
    missing, _ = await profiled(calls, tmp_path, "./train.sh")
    assert missing.error is not None
    assert missing.error.reason == "COMMAND_NOT_FOUND"
    assert "no such file in the working directory" in missing.error.message
    failing, events = await profiled(calls, tmp_path, "sh", "-c", "kill -SEGV $$")
    assert failing.error is not None
    assert (failing.state, failing.error.reason) == (RunState.FAILED, "COMMAND_FAILED")
    assert "signal 11" in failing.error.message
    assert [event.trace_stored.collector for event in events if event.WhichOneof("payload") == "trace_stored"] == ["nsys"]


async def test_cancelling_ends_the_program_and_keeps_its_trace(calls: Calls, tmp_path: Path) -> None:
    work = CommandProfile(("sleep", "600"), "nsys", environment=(EnvironmentVariable("STAND_IN_DIRECTORY", str(tmp_path)),))
    run = await calls.start(RunSpec(work))
    async for event in calls.watch(run.run_id):
        if event.progress.activity.startswith("running sleep 600 for "):
            await calls.cancel(run.run_id)
    assert "trace_stored" in payload_names(await calls.events(run.run_id))
    assert (await calls.get(run.run_id)).state is RunState.CANCELLED
    assert processes_with(str(tmp_path)) == []


async def test_a_command_whose_supervisor_is_killed_fails_and_leaves_no_process(calls: Calls, tmp_path: Path) -> None:
    program = ("sh", "-c", "while sleep 0.1; do echo on; done")  # what goes on printing is not silent either
    work = CommandProfile(program, "nsys", environment=(EnvironmentVariable("STAND_IN_DIRECTORY", str(tmp_path)),))
    run = await calls.start(RunSpec(work))
    async with asyncio.timeout(60):
        async for event in calls.watch(run.run_id):
            if event.progress.activity.startswith("running sh "):
                for process in supervisors_of(processes_with(str(tmp_path))):
                    process.kill()
    ended = await calls.get(run.run_id)
    assert ended.error is not None
    assert (ended.state, ended.error.reason) == (RunState.FAILED, "INTERNAL")
    assert "supervisor of the command: found it ended with status -9" in ended.error.message
    assert processes_with(str(tmp_path)) == []


def supervisors_of(process_ids: list[int]) -> list[psutil.Process]:
    """The supervisor of the command among these: the run's own has no variable of the command."""
    found = []
    for process_id in process_ids:
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            process = psutil.Process(process_id)
            if any(part.endswith("/supervisor.py") for part in process.cmdline()):
                found.append(process)
    return found


async def upload(calls: Calls, files: dict[str, bytes]) -> str:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))

    async def chunks() -> AsyncIterator[Any]:
        yield messages.ProfilerServiceUploadBundleRequest(chunk=packed.getvalue())

    answer = await calls.stub.UploadBundle(chunks())
    return str(answer.digest)
