"""Profilers that come by themselves, over real gRPC: with a join token, by a tunnel, from a file, from DNS; and those that may not."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kernalyse.bundle import pack
from kernalyse.channel import Endpoint
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import ForbiddenError, NodeExistsError
from kernalyse.services.core.identity import Kind, Scope, TokenFile
from kernalyse.services.core.join_tokens import JoinToken
from kernalyse.services.core.model import Node, NodeHealth, NodeOrigin, NodeStatus, RunState
from kernalyse.services.core.rpc import translated_errors
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.certificates import CertificateFiles, make_certificate
from tests.integration.analyzer_under_test import AnalyzerHere, connected, eventually, in_state, serving
from tests.integration.profiler_node import ProfilerNode, behaving, running_node
from tests.service_processes import free_port


@asynccontextmanager
async def analyzer_with_tls(directory: Path, **settings: Any) -> AsyncIterator[AnalyzerHere]:
    pair = CertificateFiles(directory / "cert.pem", directory / "key.pem")
    files = pair if pair.certificate.exists() else make_certificate(directory)
    tls = {"certificate_file": files.certificate, "key_file": files.key}
    places = {"tokens_file": directory / "tokens.json", "announcement_file": directory / "analyzer.json"}
    async with serving(directory, **{"address": "127.0.0.1:0", **tls, **places, **settings}) as analyzer:
        yield analyzer


async def join_token(stub: Any, path: Path, uses: int = 1, lifetime_s: float = 3600) -> Path:
    """A file with a join token."""
    with translated_errors():
        made = await stub.CreateJoinToken(messages.CreateJoinTokenRequest(use_count=uses, lifetime_s=lifetime_s))
    path.write_text(made.join_token + "\n")
    return path


async def statuses(stub: Any) -> list[NodeStatus]:
    return [protobuf.decode(status, NodeStatus) for status in (await stub.ListNodes(messages.ListNodesRequest())).nodes]


async def until_nodes(stub: Any, is_so: Callable[[list[NodeStatus]], bool]) -> list[NodeStatus]:
    async def check() -> bool:
        return is_so(await statuses(stub))

    await eventually(check)
    return await statuses(stub)


def serves(count: int = 1) -> Callable[[list[NodeStatus]], bool]:
    return lambda found: len(found) == count and all(status.health is NodeHealth.SERVING for status in found)


def is_gone(found: list[NodeStatus]) -> bool:
    return [status.health for status in found] == [NodeHealth.UNREACHABLE]


async def said(node: ProfilerNode, *parts: str) -> None:
    """Waits until the node's log has all of it."""

    async def check() -> bool:
        log = " ".join(node.log().split())
        return all(part in log for part in parts)

    await eventually(check)


@contextmanager
def joining(directory: Path, analyzer: AnalyzerHere, token_file: Path, name: str, **settings: Any) -> Iterator[ProfilerNode]:
    """A profiler that joins. Its worker does what a run's title says."""
    directory.mkdir(exist_ok=True)
    with running_node(
        directory, stand_in=True, join=analyzer.endpoint.address, join_token_file=str(token_file), node_name=name, **settings
    ) as node:
        yield node


async def refusal(directory: Path, analyzer: AnalyzerHere, token_file: Path, name: str) -> str:
    """What a profiler says that may not join."""
    return await ended(
        ProfilerNode(directory, stand_in=True, join=analyzer.endpoint.address, join_token_file=str(token_file), node_name=name)
    )


async def ended(node: ProfilerNode) -> str:
    """The log of a node that is started and ends by itself."""
    try:
        with suppress(AssertionError):  # it may have ended before it could be seen to serve
            await asyncio.to_thread(node.start)
        assert await asyncio.to_thread(node.wait) != 0
    finally:
        node.close()
    return " ".join(node.log().split())


async def measured(stub: Any, node_id: str, title: str = "succeed") -> str:
    with translated_errors():
        spec = protobuf.encode(behaving(title))
        run = (await stub.StartRun(messages.AnalyzerServiceStartRunRequest(node_id=node_id, spec=spec))).run
    await in_state(stub, run.run_id, RunState.SUCCEEDED)
    return str(run.run_id)


async def test_a_node_joins_measures_and_comes_again_without_the_join_token(tmp_path: Path) -> None:
    async with analyzer_with_tls(tmp_path / "a") as analyzer, connected(analyzer.endpoint) as stub:
        token_file = await join_token(stub, tmp_path / "join")
        with joining(tmp_path / "n", analyzer, token_file, "gpu1") as node:
            [status] = await until_nodes(stub, serves())
            assert (status.origin, status.node is not None and status.node.hostname) == (NodeOrigin.JOINED, "gpu1")
            assert status.address == node.endpoint.address
            await measured(stub, id_of(status))
            node.kill()
            [gone] = await until_nodes(stub, is_gone)
            assert gone.unreachable_since_time is not None
            assert abs(gone.unreachable_since_time.timestamp() - time.time()) < 60
            token_file.unlink()
            node.start()  # at another port
            [back] = await until_nodes(stub, serves())
            assert back.address == node.endpoint.address != status.address
            assert back.unreachable_since_time is None
            await measured(stub, id_of(back))
        entries = TokenFile(tmp_path / "a" / "tokens.json").read()
        assert [(entry.kind, entry.uses_left) for entry in entries] == [(Kind.JOIN, 0), (Kind.NODE, None)]
        recorded = [json.loads(line) for line in (tmp_path / "a" / "store" / "audit.jsonl").read_text().splitlines()]
        joined = [(line["who"], line["on"], line["decision"]) for line in recorded if line["what"] == "Join"]
        assert [who.split()[0] for who, _, _ in joined] == ["join", "gpu1"]
        assert [(on, decision) for _, on, decision in joined] == [(address, "allowed") for address in (status.address, back.address)]


async def test_a_tunnel_carries_runs_bundles_and_files_of_a_node_that_nobody_can_call(tmp_path: Path) -> None:
    async with analyzer_with_tls(tmp_path / "a") as analyzer, connected(analyzer.endpoint) as stub:
        token_file = await join_token(stub, tmp_path / "join")
        with joining(tmp_path / "n", analyzer, token_file, "behind nat", tunnel=True) as node:
            [status] = await until_nodes(stub, serves())
            assert (status.address, status.origin) == ("tunnel:behind nat", NodeOrigin.TUNNEL)
            await measured(stub, id_of(status))
            data = pack({"large.bin": random_file(tmp_path / "large.bin", 3_000_000)})
            chunks = (data[start : start + 500_000] for start in range(0, len(data), 500_000))
            uploaded = await stub.UploadBundle(
                messages.AnalyzerServiceUploadBundleRequest(node_id=id_of(status), chunk=chunk) for chunk in chunks
            )
            assert uploaded.size_bytes == len(data)
            node.kill()
            await until_nodes(stub, is_gone)
            node.start()
            await until_nodes(stub, serves())
            await measured(stub, id_of(status))


async def test_a_tunnel_comes_back_to_an_analyzer_that_was_restarted(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with analyzer_with_tls(tmp_path / "a", address=address) as analyzer, connected(analyzer.endpoint) as stub:
        token_file = await join_token(stub, tmp_path / "join")
        node = ProfilerNode(made(tmp_path / "n"), stand_in=True, join=address, join_token_file=str(token_file), tunnel=True)
        node.start()
        await until_nodes(stub, serves())
    try:
        async with analyzer_with_tls(tmp_path / "a", address=address) as analyzer, connected(analyzer.endpoint) as stub:
            [status] = await until_nodes(stub, serves())
            await measured(stub, id_of(status))
    finally:
        sys.stdout.write(node.log())  # shown when it fails
        node.close()


async def test_refused_profilers_end_and_say_why(tmp_path: Path) -> None:
    async with analyzer_with_tls(tmp_path / "a") as analyzer, connected(analyzer.endpoint) as stub:
        once, short = await join_token(stub, tmp_path / "once"), await join_token(stub, tmp_path / "short", lifetime_s=0.5)
        (tmp_path / "none").write_text("not a token")
        foreign = JoinToken.parse(once.read_text(), "")
        other = tmp_path / "other"
        other.write_text(str(JoinToken(foreign.secret, f"sha256:{'0' * 64}", None, 1)))
        expected = {
            once: "a token that has been used as often as it may be",
            short: "a join token that ended at",
            tmp_path / "none": "letters that are no join token; expected one line that begins with kernalyse-join-1.",
            other: f"a certificate whose key is {foreign.key_digest}; expected sha256:000000",
            tmp_path / "missing": "No such file or directory",
        }
        with joining(tmp_path / "first", analyzer, once, "first"):
            await until_nodes(stub, serves())
            for number, (token_file, sentence) in enumerate(expected.items()):
                assert sentence in await refusal(made(tmp_path / str(number)), analyzer, token_file, f"n{number}")
        assert len(await statuses(stub)) == 1


async def test_one_node_of_each_name_and_none_takes_the_place_of_another(tmp_path: Path) -> None:
    async with analyzer_with_tls(tmp_path / "a") as analyzer, connected(analyzer.endpoint) as stub:
        token_file = await join_token(stub, tmp_path / "join", uses=0)
        with joining(tmp_path / "n", analyzer, token_file, "gpu1"):
            [status] = await until_nodes(stub, serves())
            refused = await refusal(made(tmp_path / "m"), analyzer, token_file, "gpu1")
            assert f"another node of that name at {status.address}" in refused
            # Whoever has a join token claims to be the node that is there.
            token = JoinToken.parse(token_file.read_text(), "").secret
            as_stranger = Endpoint(analyzer.endpoint.address, token, analyzer.endpoint.ca_certificate)
            claim = messages.JoinRequest(node=protobuf.encode(status.node), address="127.0.0.1:9", token="t")
            async with connected(as_stranger) as stranger:
                with pytest.raises(NodeExistsError), translated_errors():
                    await stranger.Join(claim)
            assert await statuses(stub) == [status]


async def test_only_join_tokens_nodes_and_admins_may_join_and_nodes_only_as_themselves(tmp_path: Path) -> None:
    async with analyzer_with_tls(tmp_path / "a") as analyzer, connected(analyzer.endpoint) as stub:
        token_file = await join_token(stub, tmp_path / "join")
        with joining(tmp_path / "n", analyzer, token_file, "gpu1"):
            [status] = await until_nodes(stub, serves())
        tokens = TokenFile(tmp_path / "a" / "tokens.json")
        person = tokens.issue("ann", Scope.COMMAND)[1]
        other_node = tokens.issue(f"gpu2 {'0' * 32}", Scope.JOIN, Kind.NODE)[1]
        claim = messages.JoinRequest(node=protobuf.encode(status.node), address=status.address, token="t")
        for token, sentence in ((person, "nodes join-token"), (other_node, "the one that this node was given")):
            async with connected(Endpoint(analyzer.endpoint.address, token, analyzer.endpoint.ca_certificate)) as stranger:
                with pytest.raises(ForbiddenError, match=sentence), translated_errors():
                    await stranger.Join(claim)
        async with connected(Endpoint(analyzer.endpoint.address, other_node, analyzer.endpoint.ca_certificate)) as stranger:
            with pytest.raises(ForbiddenError, match="scope read"), translated_errors():
                await stranger.ListRuns(messages.AnalyzerServiceListRunsRequest())


async def test_the_way_back_is_tried_at_once_and_the_message_names_it(tmp_path: Path) -> None:
    async with analyzer_with_tls(tmp_path / "a") as analyzer, connected(analyzer.endpoint) as stub:
        token_file = await join_token(stub, tmp_path / "join")
        closed = f"127.0.0.1:{free_port()}"
        with joining(tmp_path / "n", analyzer, token_file, "gpu1", advertised_address=closed) as node:
            await said(node, f"the way back, from the analyzer to gpu1 at {closed}", "advertised_address")
            assert await statuses(stub) == []
            entries = TokenFile(tmp_path / "a" / "tokens.json").read()
            assert [entry.uses_left for entry in entries] == [1]  # it was no use


async def test_a_node_waits_for_its_analyzer(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    token_file = tmp_path / "join"
    async with analyzer_with_tls(tmp_path / "a", address=address) as analyzer, connected(analyzer.endpoint) as stub:
        await join_token(stub, token_file)
    with joining(tmp_path / "n", analyzer, token_file, "gpu1") as node:
        await said(node, f"The way from this node to the analyzer at {address} does not work")
        async with analyzer_with_tls(tmp_path / "a", address=address) as analyzer, connected(analyzer.endpoint) as stub:
            await until_nodes(stub, serves())


async def test_a_node_that_stays_away_leaves_and_one_that_was_removed_may_not_come_again(tmp_path: Path) -> None:
    async with analyzer_with_tls(tmp_path / "a", forget_joined_nodes_after_s=0.4) as analyzer, connected(analyzer.endpoint) as stub:
        token_file = await join_token(stub, tmp_path / "join", uses=1)
        with joining(tmp_path / "n", analyzer, token_file, "gpu1") as node:
            await until_nodes(stub, serves())
            node.kill()
            await until_nodes(stub, is_gone)
            await until_nodes(stub, lambda found: not found)
            node.start()
            [status] = await until_nodes(stub, serves())
            await stub.RemoveNode(messages.RemoveNodeRequest(address=status.address))
            node.kill()
            assert "no longer knows this node's token" in await ended(node)


async def test_nodes_of_a_file_come_and_go_with_it(tmp_path: Path) -> None:
    listed = tmp_path / "nodes.toml"
    with running_node(made(tmp_path / "n"), stand_in=True) as node:
        row = f'[[nodes]]\naddress = "{node.endpoint.address}"\ntoken_file = "n/token"\n'
        async with serving(tmp_path, nodes_file=listed, nodes_look_interval_s=0.1) as analyzer, connected(analyzer.endpoint) as stub:
            listed.write_text(row)
            [status] = await until_nodes(stub, serves())
            assert status.origin is NodeOrigin.FILE
            listed.write_text("[[nodes]\n")  # half written: nothing changes
            await asyncio.sleep(0.3)
            assert len(await statuses(stub)) == 1
            listed.write_text("")
            await until_nodes(stub, lambda found: not found)


async def test_addresses_of_a_name_in_dns_are_nodes(tmp_path: Path) -> None:
    files = make_certificate(tmp_path / "tls")
    with running_node(made(tmp_path / "n"), stand_in=True, certificate_file=str(files.certificate), key_file=str(files.key)) as node:
        port = node.endpoint.address.rpartition(":")[2]
        settings = {
            "nodes_dns": f"localhost:{port}",
            "nodes_dns_token_file": tmp_path / "n" / "token",
            "nodes_dns_ca_file": files.certificate,
        }
        async with serving(tmp_path, nodes_look_interval_s=0.1, **settings) as analyzer, connected(analyzer.endpoint) as stub:
            [status] = await until_nodes(stub, serves())
            assert (status.address, status.origin) == (f"127.0.0.1:{port}", NodeOrigin.DNS)


def id_of(status: NodeStatus) -> str:
    assert isinstance(status.node, Node)
    return status.node.node_id


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def random_file(path: Path, size_bytes: int) -> Path:
    path.write_bytes(os.urandom(size_bytes))
    return path
