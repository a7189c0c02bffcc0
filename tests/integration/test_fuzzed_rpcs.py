"""Some hundred hostile requests to each running service, and what such requests have found before. `make soak` sends them for minutes."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from kernalyse.channel import Endpoint, open_channel
from kernalyse.services.core.errors import ArtifactNotFoundError, InvalidRequestError, InvalidTraceError
from kernalyse.services.core.rpc import translated_errors
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1.analyzer_service_pb2_grpc import AnalyzerServiceStub
from tests.browser.socket_viewer import ask, log_in
from tests.fuzzing.rpcs import target_of
from tests.fuzzing.services import Fuzzed, fuzzed_services
from tests.private_directory import private_directory

pytestmark = pytest.mark.slow

CASES = {"profiler": 300, "analyzer": 300, "ui": 60}


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, Fuzzed]]:
    with private_directory() as directory, fuzzed_services(directory) as running:
        yield running


@pytest.fixture
def stub(services: dict[str, Fuzzed]) -> Iterator[Any]:
    with open_channel(services["analyzer"].endpoint) as channel, translated_errors():
        yield AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", CASES)
def test_hostile_requests_are_answered_and_the_service_goes_on(services: dict[str, Fuzzed], name: str) -> None:
    with target_of(services[name]) as target:
        for seed in range(CASES[name]):
            data, kind = target.attempt(Random(seed))
            try:
                target.check(data)
            except AssertionError:
                sys.stderr.write(f"case {seed}, {kind}: {data[:3000]!r}\n")
                raise


# ---------------------------------------------------------------- what was found


@pytest.mark.parametrize(("seconds", "nanos"), [(2**63 - 1, 0), (0, 2**31 - 1), (-(2**63), 0)])
def test_a_time_that_is_none_is_refused_by_name(stub: Any, seconds: int, nanos: int) -> None:
    request = messages.JoinRequest(address="127.0.0.1:1")
    request.node.node_id = request.node.hostname = "n"
    request.node.start_time.seconds, request.node.start_time.nanos = seconds, nanos
    with (
        pytest.raises(InvalidRequestError, match=r"Node\.start_time: found .* expected a time of the years 1 to 9999"),
        translated_errors(),
    ):
        stub.Join(request)


@pytest.mark.parametrize(("offset", "limit"), [(2**64 - 1, 5), (2**63, 0), (0, 2**64 - 1), (2**33, 2**33)])
@pytest.mark.parametrize("table", ["measurements", "runs", "kernel_launches", "history", "timeline_matches"])
def test_a_page_beyond_every_table_is_empty_or_all_of_it(
    services: dict[str, Fuzzed], stub: Any, table: str, offset: int, limit: int
) -> None:
    request = messages.GetTableRequest(table_name=table, offset=offset, limit=limit, run_ids=[services["analyzer"].ids[3]])
    assert list(stub.GetTable(request))


def test_a_further_trace_with_none_before_it_is_no_error_of_the_service(stub: Any) -> None:
    first = messages.ImportTraceRequest(file_name="a.json", is_further_trace=True)
    with pytest.raises(InvalidTraceError), translated_errors():
        stub.ImportTrace(iter([first, messages.ImportTraceRequest(chunk=b"nonsense", digest="sha256:0", is_last=True)]))


@pytest.mark.parametrize("token", ["١٢", "a\nb", "é", "a\0"])
def test_a_token_that_no_header_can_carry_is_refused(stub: Any, token: str) -> None:
    with (
        pytest.raises(InvalidRequestError, match=r"token for 127\.0\.0\.1:1: found characters that no header can carry"),
        translated_errors(),
    ):
        stub.AddNode(messages.AddNodeRequest(address="127.0.0.1:1", token=token))


def test_a_client_with_such_a_token_says_so(services: dict[str, Fuzzed]) -> None:
    endpoint = Endpoint(services["analyzer"].endpoint.address, "schlüssel")
    with open_channel(endpoint) as channel, pytest.raises(InvalidRequestError, match="token for"), translated_errors():
        AnalyzerServiceStub(channel).ListNodes(messages.ListNodesRequest())  # type: ignore[no-untyped-call]


def test_a_name_too_long_for_a_file_is_no_artifact(services: dict[str, Fuzzed], stub: Any) -> None:
    request = messages.AnalyzerServiceReadArtifactRequest(run_id=services["analyzer"].ids[0], artifact_name="9" * 5000)
    with pytest.raises(ArtifactNotFoundError), translated_errors():
        list(stub.ReadArtifact(request))


@pytest.mark.parametrize("query", ["days=x", "days=nan", "address=/charts/roofline%0d%0ax", "address=/live"])
def test_a_link_that_cannot_be_made_is_refused(services: dict[str, Fuzzed], query: str) -> None:
    ui = services["ui"].endpoint
    answer = ask(f"http://{ui.address}/link?{query}", Cookie=log_in(ui.address, ui.token))
    assert (answer.status, answer.text[:7]) == (400, "A link ")


def test_a_file_of_an_infinite_time_is_refused(services: dict[str, Fuzzed]) -> None:
    body = b'{"files": [{"name": "a.json", "size": 10, "modified": Infinity}]}'
    address = services["ui"].endpoint.address
    head = f"POST /imports HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nCookie: @cookie@\r\nX-Kernalyse-Page: 1\r\n"
    raw = head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    with target_of(services["ui"]) as target:
        assert "400" in target.check(json.dumps({"kind": "upload", "raw": base64.b64encode(raw).decode(), "is_cut": False}).encode())
