"""Nodes that only observe: nothing is run there, whoever asks; what is known of their devices goes on being told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import UnmetConditionError
from kernalyse.services.core.model import CeilingMeasurement, CommandProfile, DeviceCheck, ModelRun, RunSpec, RunState
from kernalyse.services.core.rpc import translated_errors
from kernalyse.v1 import profiler_service_pb2 as messages
from tests.command import kernalyse
from tests.integration.analyzer_under_test import running_analyzer
from tests.integration.profiler_node import behaving, calls_to, processes_with, running_node

REFUSAL = "node watcher: found a node that only observes .* Job kernalyse-profiler, which requests a GPU, joins and measures"


async def test_a_node_that_only_observes_refuses_every_work_and_tells_of_its_devices(tmp_path: Path) -> None:
    specs = (
        behaving("succeed"),
        RunSpec(CommandProfile(("true",), "nsys")),
        RunSpec(CeilingMeasurement()),
        RunSpec(DeviceCheck()),
        RunSpec(ModelRun("gpt-tile-small")),
    )
    with running_node(tmp_path, stand_in=True, observe_only=True, node_name="watcher") as node:
        async with calls_to(node) as calls:
            described = await calls.node()
            assert described.policy.observe_only
            assert [device.device_id for device in described.devices] == ["opencl:pocl:0", "opencl:intel:0", "opencl:gpu:0"]
            for spec in specs:
                for is_only_checked in (False, True):
                    request = messages.ProfilerServiceStartRunRequest(spec=protobuf.encode(spec), validate_only=is_only_checked)
                    with pytest.raises(UnmetConditionError, match=REFUSAL), translated_errors():
                        await calls.stub.StartRun(request)
            with pytest.raises(UnmetConditionError, match=REFUSAL), translated_errors():
                await calls.stub.UploadBundle(messages.ProfilerServiceUploadBundleRequest(chunk=b"x") for _ in range(1))
            async for response in calls.stub.WatchNode(messages.WatchNodeRequest()):
                if response.idle_telemetry:
                    break
            assert not (await calls.stub.ListRuns(messages.ProfilerServiceListRunsRequest())).runs
        assert not list((node.data_directory / "runs").glob("*"))


async def test_runs_that_waited_when_the_node_became_an_observer_fail_with_the_remedy(tmp_path: Path) -> None:
    with running_node(tmp_path, stand_in=True, drain_s=0.0) as node:
        async with calls_to(node) as calls:
            await calls.start(behaving("sleep"))
            waiting = await calls.start(behaving("succeed"))
    with running_node(tmp_path, stand_in=True, observe_only=True) as node:
        async with calls_to(node) as calls:
            run = await calls.finished(waiting.run_id)
    assert run.state is RunState.FAILED
    assert run.error is not None
    assert "only observes" in run.error.message
    assert not processes_with(waiting.run_id)


@pytest.mark.usefixtures("private_directories")
def test_commands_leave_observers_out_and_say_so(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with (
        running_node(tmp_path / "a", stand_in=True, observe_only=True, node_name="watcher") as watcher,
        running_node(tmp_path / "b", stand_in=True, node_name="gpu1") as gpu1,
        running_analyzer(),
    ):
        for node, name in ((watcher, "a"), (gpu1, "b")):
            added = kernalyse("nodes", "add", node.endpoint.address, "--node-token-file", tmp_path / name / "token")
            assert added.returncode == 0, added.stderr
        assert {row["hostname"]: row["role"] for row in json.loads(kernalyse("nodes", "list", "--json").stdout)} == {
            "watcher": "observes",
            "gpu1": "measures",
        }
        fleet = kernalyse("doctor", "--fleet")
        assert fleet.returncode == 0, fleet.stderr
        assert "only observes" in fleet.stdout
        refused = kernalyse("bench", "saxpy", "--node", "watcher")
        assert refused.returncode != 0
        assert "only observes" in " ".join(refused.stderr.split())
        kernalyse("bench", "saxpy", "--title", "succeed")  # the first that serves is the observer
        assert "SUCCEEDED" in kernalyse("runs").stdout
        checked = kernalyse("fleet", "check", "--on", "all")
        assert "Left out, as nothing is run there: watcher (observe_only)." in checked.stderr
