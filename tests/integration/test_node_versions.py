"""An analyzer and a node of different versions: what is said of the node, and of a call that it does not know."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import pytest

from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import NotBuiltYetError
from kernalyse.services.core.model import NodeHealth, NodeStatus
from kernalyse.services.core.rpc import translated_errors
from kernalyse.services.ui.components.nodes import NodeFacts
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.services.ui.shell import Browser
from kernalyse.services.ui.tab import Context
from kernalyse.services.ui.view import NodesView, View
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.command import kernalyse
from tests.integration.analyzer_under_test import AnalyzerHere, eventually
from tests.integration.profiler_stand_in import ProfilerStandIn, standing_in

OWN = version("kernalyse")


class OlderNode(ProfilerStandIn):
    """One whose contract has no CancelRun and whose servicer has no bundles."""

    async def CancelRun(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")  # as gRPC says of a method that nobody has added

    async def ListKernels(self, request: Any, context: Any) -> Any:
        raise NotImplementedError("Method not implemented!")  # as the generated servicer says


@pytest.fixture
async def node(private_directories: Path) -> AsyncIterator[ProfilerStandIn]:
    async with standing_in(private_directories, OlderNode) as stand_in:
        stand_in.node = replace(stand_in.node, version="0.0.9")
        yield stand_in


async def test_a_call_that_an_older_node_does_not_know_names_node_versions_and_remedy(stub: Any, node: ProfilerStandIn) -> None:
    spec = protobuf.encode(node.add_run("aaaa-1").spec)
    started = (await stub.StartRun(messages.AnalyzerServiceStartRunRequest(spec=spec))).run
    calls = (
        (stub.CancelRun, messages.AnalyzerServiceCancelRunRequest(run_id=started.run_id)),
        (stub.ListKernels, messages.AnalyzerServiceListKernelsRequest(node_id=node.node.node_id)),
    )
    for call, request in calls:
        with pytest.raises(NotBuiltYetError) as caught, translated_errors():
            await call(request)
        for part in (node.address, "kernalyse 0.0.9", f"version {OWN}", f"Install kernalyse {OWN} on the node"):
            assert part in caught.value.message


async def test_a_node_of_another_minor_version_is_told_everywhere(stub: Any, node: ProfilerStandIn, analyzer: AnalyzerHere) -> None:
    note = f"stand-in has kernalyse 0.0.9, and this analyzer {OWN}"

    async def is_serving() -> bool:
        (status,) = (await stub.ListNodes(messages.ListNodesRequest())).nodes
        return protobuf.decode(status, NodeStatus).health is NodeHealth.SERVING

    await eventually(is_serving)  # doctor finds fault with a node that is still being connected to
    listed = await asyncio.to_thread(kernalyse, "nodes", "list", "--json", *options(analyzer))
    assert json.loads(listed.stdout)[0]["problem"].startswith(note)
    checked = await asyncio.to_thread(kernalyse, "doctor", "--fleet", *options(analyzer))
    assert (checked.returncode, note in checked.stdout) == (0, True), checked.stdout
    client = AnalyzerClient(analyzer.endpoint, lambda: None)
    client.start()
    try:

        async def is_known() -> bool:
            return bool(client.nodes.overview().nodes)

        await eventually(is_known)
        facts = NodeFacts(Context(client, View(), Browser(), lambda: None), NodesView(), lambda _: None)
        facts.update()
        assert note in str(facts._facts.object)
    finally:
        await asyncio.to_thread(client.stop)


async def test_a_node_of_another_patch_is_not(stub: Any, node: ProfilerStandIn) -> None:
    major, minor, *_ = OWN.split(".")
    node.node = replace(node.node, version=f"{major}.{minor}.99")
    await node.stop()
    await node.start()

    async def is_silent() -> bool:
        (status,) = (await stub.ListNodes(messages.ListNodesRequest())).nodes
        return status.node.version == node.node.version and not status.version_note

    await eventually(is_silent)


def options(analyzer: AnalyzerHere) -> tuple[str, ...]:
    return ("--server", analyzer.endpoint.address, "--token", analyzer.endpoint.token)
