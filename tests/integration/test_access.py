"""Who may do what, over real gRPC: scopes of every RPC, the profiler's own checks, owners of runs, the record of decisions."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from kernalyse.channel import Endpoint, open_async_channel
from kernalyse.services.core import protobuf
from kernalyse.services.core.access import METHOD_SCOPES, RECORDED_READS, scope_of_run
from kernalyse.services.core.errors import LimitReachedError, ScopeMissingError, UnauthenticatedError
from kernalyse.services.core.identity import Kind, Scope, TokenFile, with_lower
from kernalyse.services.core.model import (
    Axis,
    CommandProfile,
    KernelSelection,
    KernelSource,
    KernelSweep,
    ModelRun,
    Run,
    RunSpec,
)
from kernalyse.services.core.rpc import ServerSecurity, build_server, translated_errors
from kernalyse.services.core.settings import AnalyzerSettings
from kernalyse.v1 import analyzer_service_pb2, profiler_service_pb2
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1.analyzer_service_pb2_grpc import AnalyzerServiceServicer, AnalyzerServiceStub, add_AnalyzerServiceServicer_to_server
from kernalyse.v1.profiler_service_pb2_grpc import (
    ProfilerServiceServicer,
    ProfilerServiceStub,
    add_ProfilerServiceServicer_to_server,
)
from tests.certificates import make_certificate
from tests.command import kernalyse
from tests.integration.analyzer_under_test import AnalyzerHere, code_of, serving
from tests.integration.profiler_node import ProfilerNode, behaving, running_node
from tests.unit.analyzer.readers.test_kineto import call, kernel

SERVICES = {
    service.full_name: service
    for service in (
        analyzer_service_pb2.DESCRIPTOR.services_by_name["AnalyzerService"],
        profiler_service_pb2.DESCRIPTOR.services_by_name["ProfilerService"],
    )
}
METHODS = [(f"/{name}/{method.name}", method) for name, service in SERVICES.items() for method in service.methods]

CATALOG = KernelSweep((KernelSelection("saxpy"),), (Axis("N", (1024,)),))
OWN = KernelSweep((KernelSelection("f", source=KernelSource("f.cu", "__global__ void f() {}")),))


def test_every_rpc_has_a_scope_and_no_other_has_one() -> None:
    assert {path for path in METHOD_SCOPES if "grpc.reflection" not in path} == {path for path, _ in METHODS}


@pytest.mark.parametrize(
    ("work", "scope"),
    [
        (CATALOG, Scope.MEASURE),
        (OWN, Scope.SOURCE),
        (KernelSweep((KernelSelection("saxpy", bundle_digest="sha256:0"),)), Scope.SOURCE),
        (KernelSweep((KernelSelection("saxpy"),), compiler_options=("--use_fast_math",)), Scope.SOURCE),
        (ModelRun("gpt-nano"), Scope.MEASURE),
        (ModelRun("m.onnx", bundle_digest="sha256:0"), Scope.SOURCE),
        (CommandProfile(("true",), "nsys"), Scope.COMMAND),
    ],
)
def test_a_run_with_code_of_its_own_needs_more(work: Any, scope: Scope) -> None:
    assert scope_of_run(RunSpec(work)) is scope


# ---------------------------------------------------------------- every RPC, every scope


@pytest.mark.parametrize("granted", list(Scope))
async def test_each_rpc_is_let_in_with_its_scope_and_refused_without(tmp_path: Path, granted: Scope) -> None:
    """What is let in reaches the generated servicers, which have no method: UNIMPLEMENTED."""
    file = tmp_path / "tokens.json"
    _, token = TokenFile(file).issue("alice", granted)
    server, address = build_server("127.0.0.1:0", ServerSecurity("own", tokens_file=file, audit_file=tmp_path / "audit.jsonl"))
    add_AnalyzerServiceServicer_to_server(AnalyzerServiceServicer(), server)  # type: ignore[no-untyped-call]
    add_ProfilerServiceServicer_to_server(ProfilerServiceServicer(), server)  # type: ignore[no-untyped-call]
    await server.start()
    codes: dict[str, grpc.StatusCode] = {}
    try:
        async with open_async_channel(Endpoint(address, token)) as channel:
            stubs = (AnalyzerServiceStub(channel), ProfilerServiceStub(channel))  # type: ignore[no-untyped-call]
            for path, method in METHODS:
                stub = stubs["Profiler" in path]
                codes[path] = await code_of(stub, method)
    finally:
        await server.stop(None)
    scopes = with_lower([granted])
    for path, code in codes.items():
        is_granted = METHOD_SCOPES[path] in scopes
        assert code is (grpc.StatusCode.UNIMPLEMENTED if is_granted else grpc.StatusCode.PERMISSION_DENIED), path
    recorded = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    recorded_reads = {path for path in codes if path in RECORDED_READS or METHOD_SCOPES[path] not in scopes}
    above_read = [path for path in codes if METHOD_SCOPES[path] is not Scope.READ or path in recorded_reads]
    assert [line["what"] for line in recorded] == [path.rpartition("/")[2] for path in codes if path in above_read]
    assert {line["who"] for line in recorded} == {"alice"}
    refused = [line for line in recorded if line["decision"] != "allowed"]
    assert len(refused) == sum(METHOD_SCOPES[path] not in scopes for path in codes)


# ---------------------------------------------------------------- real services


@pytest.fixture
async def analyzer(private_directories: Path) -> AsyncIterator[AnalyzerHere]:
    async with serving(private_directories) as here:
        yield here


@pytest.fixture
def node(tmp_path: Path, private_directories: Path) -> Iterator[ProfilerNode]:
    with running_node(tmp_path, stand_in=True) as running:
        yield running


def issued(name: str, scope: Scope) -> str:
    return TokenFile(AnalyzerSettings.load().tokens_path()).issue(name, scope)[1]


async def start(endpoint: Endpoint, work: Any, *, validate_only: bool = False) -> Run:
    spec = work if isinstance(work, RunSpec) else RunSpec(work)
    request = messages.AnalyzerServiceStartRunRequest(spec=protobuf.encode(spec), validate_only=validate_only)
    async with open_async_channel(endpoint) as channel:
        with translated_errors():
            response = await AnalyzerServiceStub(channel).StartRun(request)  # type: ignore[no-untyped-call]
    return protobuf.decode(response.run, Run)


async def test_a_person_starts_what_the_scope_grants_and_owns_it(analyzer: AnalyzerHere, node: ProfilerNode) -> None:
    address = analyzer.endpoint.address
    async with open_async_channel(analyzer.endpoint) as channel:
        stub: Any = AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
        await stub.AddNode(messages.AddNodeRequest(address=node.endpoint.address, token=node.endpoint.token))
        await served(stub)
        alice, bob = Endpoint(address, issued("alice", Scope.MEASURE)), Endpoint(address, issued("bob", Scope.COMMAND))
        run = await start(alice, CATALOG)
        assert run.owner == "alice"
        with pytest.raises(ScopeMissingError, match=r"token of alice with scope measure; expected scope source"):
            await start(alice, OWN)
        with pytest.raises(ScopeMissingError, match="tokens issue NAME --scope command"):
            await start(alice, CommandProfile(("true",), "nsys"), validate_only=True)
        async with open_async_channel(bob) as of_bob:
            cancel = messages.AnalyzerServiceCancelRunRequest(run_id=run.run_id)
            with pytest.raises(ScopeMissingError, match=f"run {run.run_id} of alice"), translated_errors():
                await AnalyzerServiceStub(of_bob).CancelRun(cancel)  # type: ignore[no-untyped-call]
        async with open_async_channel(alice) as of_alice:
            await AnalyzerServiceStub(of_alice).CancelRun(cancel)  # type: ignore[no-untyped-call]
        stored = await stub.GetRun(messages.AnalyzerServiceGetRunRequest(run_id=run.run_id))
        assert stored.run.owner == "alice"
    audit_path = AnalyzerSettings.load(data_directory=analyzer.directory / "store").audit_path()
    lines = [json.loads(line) for line in audit_path.read_text().splitlines()]
    told = [(line["who"], line["what"], line["decision"] == "allowed") for line in lines]
    assert told == [
        ("owner", "AddNode", True),
        ("alice", "StartRun", True),
        ("alice", "StartRun", False),  # of a kernel of her own
        ("alice", "StartRun", False),
        ("bob", "CancelRun", False),
        ("alice", "CancelRun", True),
    ]
    assert [line["on"] for line in lines[3:5]] == ["command_profile (only checked)", run.run_id]


async def test_the_profiler_checks_for_itself_what_an_analyzer_passes_on(analyzer: AnalyzerHere, node: ProfilerNode) -> None:
    _, of_node = TokenFile(node.tokens_file).issue("analyzer-1", Scope.MEASURE, Kind.ANALYZER)
    async with open_async_channel(analyzer.endpoint) as channel:
        stub: Any = AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
        await stub.AddNode(messages.AddNodeRequest(address=node.endpoint.address, token=of_node))
        await served(stub)
        assert (await start(analyzer.endpoint, CATALOG)).owner == "owner"
        with pytest.raises(ScopeMissingError, match="owner via analyzer-1 with scope measure"):
            await start(analyzer.endpoint, OWN)  # the analyzer grants everything, the node's token does not
        with pytest.raises(ScopeMissingError, match="a run of a command"):
            await start(analyzer.endpoint, CommandProfile(("true",), "nsys"))


async def test_who_calls_for_others_cannot_grant_more_than_he_has(node: ProfilerNode) -> None:
    _, person = TokenFile(node.tokens_file).issue("eve", Scope.MEASURE)
    spec = protobuf.encode(RunSpec(OWN))
    request = profiler_service_pb2.ProfilerServiceStartRunRequest(spec=spec, validate_only=True)
    claimed = (("kernalyse-identity-bin", b"owner"), ("kernalyse-scopes", "admin"))
    async with open_async_channel(Endpoint(node.endpoint.address, person)) as channel:
        with pytest.raises(ScopeMissingError, match="a token of eve"), translated_errors():
            await ProfilerServiceStub(channel).StartRun(request, metadata=claimed)  # type: ignore[no-untyped-call]


async def served(stub: Any) -> None:
    """Waits until the analyzer has heard of the node."""
    for _ in range(400):
        nodes = (await stub.ListNodes(messages.ListNodesRequest())).nodes
        if nodes and nodes[0].HasField("node"):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(nodes)


async def test_a_stream_ends_when_its_token_is_revoked(analyzer: AnalyzerHere, node: ProfilerNode) -> None:
    endpoint = Endpoint(analyzer.endpoint.address, issued("alice", Scope.READ))
    async with open_async_channel(endpoint) as channel, open_async_channel(analyzer.endpoint) as owners:
        stream = AnalyzerServiceStub(channel).WatchNodes(messages.WatchNodesRequest())  # type: ignore[no-untyped-call]
        await stream.read()
        TokenFile(AnalyzerSettings.load().tokens_path()).revoke("alice")
        await asyncio.sleep(1.1)
        stub: Any = AnalyzerServiceStub(owners)  # type: ignore[no-untyped-call]
        await stub.AddNode(messages.AddNodeRequest(address=node.endpoint.address, token=node.endpoint.token))  # something to send
        with pytest.raises(UnauthenticatedError, match="ended or been revoked"), translated_errors():
            await read_out(stream)


async def read_out(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


async def test_a_client_certificate_can_stand_for_a_token(tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    certificate, key = files.certificate.read_bytes(), files.key.read_bytes()
    file = tmp_path / "tokens.json"
    security = ServerSecurity("own", certificate, key, client_ca=certificate, tokens_file=file)
    server, address = build_server("127.0.0.1:0", security)
    add_AnalyzerServiceServicer_to_server(AnalyzerServiceServicer(), server)  # type: ignore[no-untyped-call]
    await server.start()
    endpoint = Endpoint(address, "", certificate, certificate, key)
    try:
        async with open_async_channel(endpoint) as channel:
            stub: Any = AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(UnauthenticatedError, match="no certificate that is known"), translated_errors():
                await stub.ListNodes(messages.ListNodesRequest())
            TokenFile(file).admit("gpu-7", Scope.READ, ssl.PEM_cert_to_DER_cert(certificate.decode().strip()))
            await asyncio.sleep(1.1)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ListNodes(messages.ListNodesRequest())
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED  # it is let in
            with pytest.raises(ScopeMissingError, match="a token of gpu-7 with scope read"), translated_errors():
                await stub.StartRun(messages.AnalyzerServiceStartRunRequest())
    finally:
        await server.stop(None)


# ---------------------------------------------------------------- sign-in


@asynccontextmanager
async def stub_of(address: str, token: str) -> AsyncIterator[Any]:
    async with open_async_channel(Endpoint(address, token)) as channel:
        yield AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]


async def test_a_dashboard_gets_a_short_token_for_a_person_and_nobody_else_does(analyzer: AnalyzerHere) -> None:
    address, file = analyzer.endpoint.address, TokenFile(AnalyzerSettings.load().tokens_path())
    of_alice, (_, of_dashboard) = issued("alice", Scope.MEASURE), file.issue("ui-1", Scope.READ, Kind.DASHBOARD)
    async with stub_of(address, of_dashboard) as dashboard, stub_of(address, of_alice) as alice:
        with pytest.raises(ScopeMissingError, match="a token of alice; expected that of a dashboard"), translated_errors():
            await alice.SignIn(messages.SignInRequest(token=of_alice))
        with pytest.raises(UnauthenticatedError, match="a token that is not known"), translated_errors():
            await dashboard.SignIn(messages.SignInRequest(token="x"))
        signed_in = (await dashboard.SignIn(messages.SignInRequest(token=of_alice))).signed_in
        assert (signed_in.name, signed_in.scope) == ("alice", "measure")
        async with stub_of(address, signed_in.short_token) as as_alice:
            await as_alice.ListRuns(messages.AnalyzerServiceListRunsRequest())
            with pytest.raises(ScopeMissingError, match="a token of alice with scope measure"), translated_errors():
                await as_alice.RemoveNode(messages.RemoveNodeRequest(address="x"))
            with pytest.raises(ScopeMissingError, match="that of a dashboard"), translated_errors():
                await as_alice.RenewToken(messages.RenewTokenRequest(short_token=signed_in.short_token))
        renewed = (await dashboard.RenewToken(messages.RenewTokenRequest(short_token=signed_in.short_token))).signed_in
        assert (renewed.name, renewed.session_end_time) == ("alice", signed_in.session_end_time)
        file.revoke("alice")
        await asyncio.sleep(1.1)
        with pytest.raises(UnauthenticatedError, match="Sign in again"), translated_errors():
            await dashboard.RenewToken(messages.RenewTokenRequest(short_token=signed_in.short_token))
        with pytest.raises(UnauthenticatedError, match="trusts no provider"), translated_errors():
            await dashboard.SignIn(messages.SignInRequest(id_token="a.b.c"))


async def test_passwords_are_not_tried_without_end(analyzer: AnalyzerHere) -> None:
    TokenFile(AnalyzerSettings.load().tokens_path()).set_password("alice", Scope.MEASURE, "correct horse battery")
    async with stub_of(analyzer.endpoint.address, analyzer.endpoint.token) as dashboard:
        right = messages.SignInRequest(password=messages.Password(name="alice", password="correct horse battery"))
        assert (await dashboard.SignIn(right)).signed_in.name == "alice"
        wrong = messages.SignInRequest(password=messages.Password(name="alice", password="x"))
        for _ in range(10):
            with pytest.raises(UnauthenticatedError, match="a name or password that is not known"), translated_errors():
                await dashboard.SignIn(wrong)
        with pytest.raises(LimitReachedError, match="10 wrong passwords within 60 s"), translated_errors():
            await dashboard.SignIn(right)


# ---------------------------------------------------------------- limits


@pytest.fixture
async def limited(private_directories: Path) -> AsyncIterator[AnalyzerHere]:
    limits = {"max_active_runs_per_person": 1, "max_device_s_per_person_and_day": 0.5, "max_stored_bytes_per_person": 1}
    async with serving(private_directories, **limits) as here:
        yield here


async def test_a_person_has_no_more_than_the_limits_allow(limited: AnalyzerHere, node: ProfilerNode) -> None:
    address = limited.endpoint.address
    alice = Endpoint(address, issued("alice", Scope.MEASURE))
    async with stub_of(address, limited.endpoint.token) as owner, stub_of(address, alice.token) as of_alice:
        await owner.AddNode(messages.AddNodeRequest(address=node.endpoint.address, token=node.endpoint.token))
        await served(owner)
        run = await start(alice, behaving("endless"))
        with pytest.raises(LimitReachedError, match=r"runs of alice: found 1 that wait or run; expected fewer than 1"):
            await start(alice, CATALOG)
        await start(Endpoint(address, issued("bob", Scope.MEASURE)), CATALOG)  # each has his own
        await start(limited.endpoint, CATALOG)  # and admins none
        await asyncio.sleep(0.6)
        await of_alice.CancelRun(messages.AnalyzerServiceCancelRunRequest(run_id=run.run_id))
        await ended(owner, run.run_id)
        with pytest.raises(LimitReachedError, match=r"device time of alice: found 1 s in the last 24 hours"):
            await start(alice, CATALOG)


async def test_a_person_stores_no_more_than_the_limit_allows(limited: AnalyzerHere) -> None:
    content = json.dumps({"schemaVersion": 1, "traceEvents": [call(12, 1), kernel("gemm", 200, 2, 1)]}).encode()
    async with stub_of(limited.endpoint.address, issued("alice", Scope.MEASURE)) as stub:
        imported = (await stub.ImportTrace(iter(sent("a.json", content)))).run
        assert imported.owner == "alice"
        with pytest.raises(LimitReachedError, match=r"store of alice: found \d+ bytes; expected less than 1"), translated_errors():
            await stub.ImportTrace(iter(sent("b.json", content + b" ")))
        await stub.DeleteRun(messages.DeleteRunRequest(run_id=imported.run_id))
        assert (await stub.ImportTrace(iter(sent("b.json", content + b" ")))).run.owner == "alice"
    audit_path = AnalyzerSettings.load(data_directory=limited.directory / "store").audit_path()
    lines = [json.loads(line) for line in audit_path.read_text().splitlines()]
    # Refused before it was read: nobody knows what it was about.
    assert {line["on"] for line in lines if line["what"] == "ImportTrace"} == {"a.json", "", "b.json"}


def sent(name: str, content: bytes) -> list[messages.ImportTraceRequest]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return [messages.ImportTraceRequest(file_name=name, chunk=content, digest=digest), messages.ImportTraceRequest(is_last=True)]


async def ended(stub: Any, run_id: str) -> None:
    async for response in stub.WatchRun(messages.AnalyzerServiceWatchRunRequest(run_id=run_id), timeout=60):
        if response.HasField("run") and protobuf.decode(response.run, Run).state.is_final:
            return


# ---------------------------------------------------------------- commands


def test_tokens_are_issued_listed_rotated_and_revoked(private_directories: Path) -> None:
    issued_token = kernalyse("tokens", "issue", "alice", "--scope", "measure")
    assert issued_token.stdout.strip()
    assert "person alice, scope measure, ends " in issued_token.stderr
    listed = kernalyse("tokens", "list").stdout
    assert "alice" in listed
    assert issued_token.stdout.strip() not in listed
    rotated = kernalyse("tokens", "rotate", "alice")
    assert rotated.stdout.strip() != issued_token.stdout.strip()
    assert [row["state"] for row in json.loads(kernalyse("tokens", "list", "--json").stdout)] == ["ended", "valid"]
    kernalyse("tokens", "revoke", "alice")
    assert [row["state"] for row in json.loads(kernalyse("tokens", "list", "--json").stdout)] == ["ended", "revoked"]
    missing = kernalyse("tokens", "revoke", "alice")
    assert missing.returncode == 1
    assert "token alice: no valid token of that id or name" in missing.stderr
    assert "No token has been issued for the profiler" in kernalyse("tokens", "list", "--service", "profiler").stdout


def test_the_record_of_decisions_is_shown(private_directories: Path) -> None:
    path = AnalyzerSettings.load().audit_path()
    path.parent.mkdir(parents=True)
    line = {"time": "2026-01-01T00:00:00Z", "who": "alice", "via": "", "token_id": "1", "what": "StartRun", "on": "x", "peer": "unix:"}
    path.write_text(
        "".join(json.dumps({**line, "decision": text}) + "\n" for text in ("allowed", "scope command is missing")) + '{"time": "20'
    )
    assert kernalyse("audit").stdout.count("StartRun") == 2
    refused = kernalyse("audit", "--refused", "--who", "alice", "--json").stdout.splitlines()
    assert [json.loads(text)["decision"] for text in refused] == ["scope command is missing"]
    assert "Nothing recorded" in kernalyse("audit", "--who", "bob").stdout
