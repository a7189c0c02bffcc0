"""A real service that keeps its disk within limits: what it deletes, and what it must not."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kernalyse.services.core.errors import ArtifactNotFoundError, InvalidBundleError
from kernalyse.services.core.model import KernelSelection, KernelSweep, RunSpec, RunState
from kernalyse.services.core.rpc import translated_errors
from kernalyse.v1 import profiler_service_pb2 as messages
from tests.integration import profiler_node
from tests.integration.profiler_node import Calls, ProfilerNode, behaving, calls_to, until
from tests.integration.test_profiler_service import archive, upload

INTERVAL_S = 0.1
SOME_LOOKS_S = 10 * INTERVAL_S
HOURS_S = 3600.0


@pytest.fixture
async def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Calls, Path]]:
    """A node that may keep next to nothing and looks often, and the directory of its data."""
    often = f"from kernalyse.services.profiler import server\nserver.INTERVAL_S = {INTERVAL_S}\n"
    monkeypatch.setattr(profiler_node, "_PROGRAM", often + profiler_node._PROGRAM)
    node = ProfilerNode(tmp_path, stand_in=True, artifacts_max_bytes=1, bundle_max_age_s=HOURS_S)
    try:
        node.start()
        async with calls_to(node) as calls:
            yield calls, node.data_directory
    finally:
        node.close()


async def artifact(calls: Calls, run_id: str, artifact_name: str) -> bytes:
    request = messages.ProfilerServiceReadArtifactRequest(run_id=run_id, artifact_name=artifact_name)
    with translated_errors():
        return b"".join([part.chunk async for part in calls.stub.ReadArtifact(request)])


def naming_bundle(spec: RunSpec, digest: str) -> RunSpec:
    assert isinstance(spec.work, KernelSweep)
    return replace(spec, work=replace(spec.work, kernels=(KernelSelection("saxpy", bundle_digest=digest),)))


async def begun(calls: Calls, spec: RunSpec) -> str:
    run_id = (await calls.start(spec)).run_id
    async for event in calls.watch(run_id):
        if event.WhichOneof("payload") == "sample_batch":
            break
    return run_id


@pytest.mark.slow
async def test_artifacts_over_the_limit_go_but_not_those_of_a_running_run(calls: tuple[Calls, Path]) -> None:
    service, data_directory = calls
    running_id = await begun(service, behaving("endless"))
    kept_file = data_directory / "runs" / running_id / "work" / "artifacts" / "id"
    await until(lambda: kept_file.is_file() and kept_file.read_text() != "")
    finished = await service.finished((await service.start(behaving("talk", device_id="opencl:gpu:0"))).run_id)
    assert finished.state is RunState.SUCCEEDED
    dropped_directory = data_directory / "runs" / finished.run_id / "work" / "artifacts"
    await until(lambda: not dropped_directory.exists())
    with pytest.raises(ArtifactNotFoundError, match=r"report\.txt"):
        await artifact(service, finished.run_id, "report.txt")
    assert (await service.get(finished.run_id)).state is RunState.SUCCEEDED  # and its events are all there
    assert any(event.WhichOneof("payload") == "artifact_stored" for event in await service.events(finished.run_id))

    await asyncio.sleep(SOME_LOOKS_S)  # it is over the limit all this time
    assert (await service.get(running_id)).state is RunState.RUNNING
    assert (await artifact(service, running_id, "id")).isdigit()
    await service.cancel(running_id)
    await service.finished(running_id)
    await until(lambda: not kept_file.exists())


@pytest.mark.slow
async def test_bundles_that_nobody_has_used_for_long_go_but_not_that_of_a_running_or_queued_run(calls: tuple[Calls, Path]) -> None:
    service, data_directory = calls
    digests = [(await upload(service, archive(name, b"#define ONE 1\n"))).digest for name in ("running.h", "queued.h", "nobody.h")]
    directories = [data_directory / "bundles" / digest.removeprefix("sha256:") for digest in digests]
    run_ids = [await begun(service, naming_bundle(behaving("endless"), digests[0]))]
    run_ids.append((await service.start(naming_bundle(behaving("succeed"), digests[1]))).run_id)
    long_ago_s = time.time() - 2 * HOURS_S
    for directory in directories:
        os.utime(directory, (long_ago_s, long_ago_s))
    await until(lambda: not directories[2].exists())
    with pytest.raises(InvalidBundleError, match="no such bundle on this node"):
        await service.start(naming_bundle(behaving("succeed"), digests[2]))
    await asyncio.sleep(SOME_LOOKS_S)
    assert [directory.is_dir() for directory in directories] == [True, True, False]

    await service.cancel(run_ids[0])
    assert (await service.finished(run_ids[1])).state is RunState.SUCCEEDED
    await until(lambda: not any(directory.exists() for directory in directories))
