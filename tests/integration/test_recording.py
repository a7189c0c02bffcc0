"""A node that replays a recording: its runs, what it refuses, and what an analyzer makes of it. Real services, a shortened recording."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernalyse.services.core.errors import UnmetConditionError
from kernalyse.services.core.model import KernelSelection, KernelSweep, RunSpec, RunState, TableQuery
from kernalyse.services.profiler.workloads.recording import EVENTS_FILE, H200, Recording
from kernalyse.v1 import profiler_service_pb2 as messages
from tests.integration.analyzer_under_test import add_node, connected, eventually, get_table, in_state, serving
from tests.integration.profiler_node import ProfilerNode, calls_to, running_node

TRAINING = 1
KERNEL_COUNT = 250
SHORTENING = 50


def shortened(path: Path, pace: int = SHORTENING) -> Path:
    """The package's recording, with less time between the events."""
    with zipfile.ZipFile(H200) as recorded, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in recorded.namelist():
            data = recorded.read(name)
            if name.endswith(EVENTS_FILE.format("")):
                response = messages.ProfilerServiceWatchRunResponse.FromString(data)
                first_ns = response.events[0].event_unix_ns
                for event in response.events:
                    event.event_unix_ns = first_ns + (event.event_unix_ns - first_ns) // pace
                data = response.SerializeToString()
            archive.writestr(name, data)
    return path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProfilerNode]:
    directory = tmp_path_factory.mktemp("node")
    with running_node(directory, replay=str(shortened(directory / "short.zip"))) as node:
        yield node


async def test_its_runs_are_replayed_at_the_start_on_the_recorded_device(node: ProfilerNode) -> None:
    async with calls_to(node) as calls:
        described = await calls.node()
        assert [device.name for device in described.devices] == ["NVIDIA H200"]
        assert described.policy.observe_only
        runs = [await calls.finished(run.run_id) for run in reversed(await calls.runs())]
        assert [run.spec.title for run in runs] == [run.spec.title for run in Recording.open(H200).runs]
        assert {(run.state, run.device_id) for run in runs} == {(RunState.SUCCEEDED, "cuda:0")}
        product = await calls.events(runs[0].run_id)
        assert sum(event.WhichOneof("payload") == "measurement" for event in product) == runs[0].completed_configuration_count == 12


async def test_other_work_is_refused(node: ProfilerNode) -> None:
    async with calls_to(node) as calls:
        with pytest.raises(UnmetConditionError, match="measures nothing"):
            await calls.start(RunSpec(KernelSweep((KernelSelection("saxpy"),))))


async def test_an_analyzer_has_its_kernels_layers_and_roofline(node: ProfilerNode, tmp_path: Path) -> None:
    async with calls_to(node) as calls:
        runs = [await calls.finished(run.run_id) for run in reversed(await calls.runs())]
    async with serving(tmp_path / "store") as analyzer, connected(analyzer.endpoint) as stub:
        await add_node(stub, node.endpoint)
        run_id = runs[TRAINING].run_id
        await in_state(stub, run_id, RunState.SUCCEEDED)

        async def is_read() -> bool:
            _, count = await get_table(stub, TableQuery("kernel_launches", run_ids=(run_id,)))
            return count == KERNEL_COUNT

        await eventually(is_read)
        layers, _ = await get_table(stub, TableQuery("layers", run_ids=(run_id,)))
        assert "nn.Module: blocks.0.attn" in layers["layer"].to_list()
        points, _ = await get_table(stub, TableQuery("roofline", run_ids=(runs[0].run_id,)))
        assert points["attainable_flop_per_s"].null_count() == 0


async def test_what_waits_when_it_stops_is_cancelled(tmp_path: Path) -> None:
    """The runs begin anew at the next start: none is to be repeated by it."""
    node = ProfilerNode(tmp_path, replay=str(H200), drain_s=0)
    node.start()
    try:
        async with calls_to(node) as calls:
            assert {run.state for run in await calls.runs()} <= {RunState.RUNNING, RunState.QUEUED}
    finally:
        node.close()
    node.start()
    try:
        async with calls_to(node) as calls:
            states = [run.state for run in await calls.runs()]
        assert states[4:] == [RunState.CANCELLED] * 4
    finally:
        node.close()
