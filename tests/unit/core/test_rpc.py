"""kernalyse.services.core.rpc: errors cross the wire whole, access is checked, and open addresses need TLS."""

from __future__ import annotations

import asyncio
import gc
import re
import shutil
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kernalyse import RequestError, connect
from kernalyse.channel import Endpoint, open_async_channel
from kernalyse.services.core import errors as core_errors
from kernalyse.services.core.errors import (
    InternalError,
    InvalidRequestError,
    InvalidSettingError,
    KernalyseError,
    LimitReachedError,
    NotBuiltYetError,
    NotFoundError,
    RunNotFoundError,
    TlsHandshakeError,
    UnauthenticatedError,
    UnavailableError,
    error_classes,
)
from kernalyse.services.core.rpc import (
    MAX_CHUNK_MESSAGE_BYTES,
    Health,
    ServerSecurity,
    build_server,
    cancel_and_wait,
    is_local,
    run_error,
    serve_health,
    translated_errors,
)
from kernalyse.services.core.settings import AnalyzerSettings
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1 import analyzer_service_pb2_grpc as stubs
from tests.certificates import make_certificate

TOKEN = "the token"
SERVICE = "kernalyse.v1.AnalyzerService"


class Servicer(stubs.AnalyzerServiceServicer):
    """Raises what the test gives it, from every kind of method."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    async def GetRun(self, request: Any, context: Any) -> Any:
        if self._error is not None:
            raise self._error
        return messages.AnalyzerServiceGetRunResponse()

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield messages.AnalyzerServiceWatchRunResponse(next_event_index=7)
        if self._error is not None:
            raise self._error

    async def UploadBundle(self, request_iterator: Any, context: Any) -> Any:
        async for _ in request_iterator:
            if self._error is not None:
                raise self._error
        return messages.AnalyzerServiceUploadBundleResponse()


@asynccontextmanager
async def serving(address: str, error: BaseException | None = None, security: ServerSecurity | None = None) -> AsyncIterator[str]:
    async with serving_health(address, error, security) as (real_address, _):
        yield real_address


@asynccontextmanager
async def serving_health(
    address: str, error: BaseException | None = None, security: ServerSecurity | None = None
) -> AsyncIterator[tuple[str, Health]]:
    """Serve, and tell the address and the health, which is SERVING."""
    server, real_address = build_server(address, security or ServerSecurity(TOKEN))
    stubs.add_AnalyzerServiceServicer_to_server(Servicer(error), server)  # type: ignore[no-untyped-call]
    health = serve_health(server, SERVICE)
    health.set_serving(True)
    await server.start()
    try:
        yield real_address, health
    finally:
        await server.stop(None)


@asynccontextmanager
async def stub_of(address: str, token: str = TOKEN, ca_certificate: bytes | None = None) -> AsyncIterator[Any]:
    async with open_async_channel(Endpoint(address, token, ca_certificate)) as channel:
        yield stubs.AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]


async def watch(stub: Any, received: list[int]) -> None:
    """Appends what the stream brings, until it ends or fails."""
    with translated_errors():
        async for response in stub.WatchRun(messages.AnalyzerServiceWatchRunRequest()):
            received.append(response.next_event_index)


@pytest.fixture
def socket(private_directories: Path) -> str:
    return f"unix:{private_directories}/run/test.sock"


@pytest.mark.parametrize("cls", [cls for cls in error_classes() if cls.__module__ == core_errors.__name__])
async def test_every_error_comes_out_as_it_went_in(socket: str, cls: type[KernalyseError]) -> None:
    raised = cls("parameter N", found="0", expected="at least 1", remedy="Choose another.")
    async with serving(socket, raised) as address, stub_of(address) as stub:
        with pytest.raises(cls) as caught, translated_errors():
            await stub.GetRun(messages.AnalyzerServiceGetRunRequest())
    assert type(caught.value) is cls
    assert caught.value.message == raised.message
    assert caught.value.metadata == raised.metadata


@pytest.mark.parametrize("text", ["a/" * 20_000, "é" * 20_000, "\udcff" * 20_000], ids=["long", "not ASCII", "no UTF-8"])
async def test_an_error_with_a_long_name_in_it_arrives_with_its_ends(socket: str, text: str) -> None:
    raised = RunNotFoundError(f"run {text} of today", found="no such run", expected=text, remedy="Name another.")
    async with serving(socket, raised) as address, stub_of(address) as stub:
        with pytest.raises(RunNotFoundError) as caught, translated_errors():
            await stub.GetRun(messages.AnalyzerServiceGetRunRequest())
    assert re.fullmatch(r"run .* \.\.\. .* of today: found no such run; expected .*\. Name another\.", caught.value.message)


async def test_an_error_in_the_middle_of_a_stream_comes_after_what_was_sent(socket: str) -> None:
    async with serving(socket, RunNotFoundError("run x", found="it was deleted")) as address, stub_of(address) as stub:
        received: list[int] = []
        with pytest.raises(RunNotFoundError, match="it was deleted"):
            await watch(stub, received)
    assert received == [7]


async def test_an_error_of_an_upload_comes_out(socket: str) -> None:
    async with serving(socket, RunNotFoundError("run x", found="no such run")) as address, stub_of(address) as stub:
        with pytest.raises(RunNotFoundError), translated_errors():
            await stub.UploadBundle(iter([messages.AnalyzerServiceUploadBundleRequest()]))


async def test_a_fault_of_the_service_becomes_an_internal_error_and_is_logged(socket: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(socket, ZeroDivisionError("division by zero")) as address, stub_of(address) as stub:
        with pytest.raises(InternalError, match="ZeroDivisionError: division by zero"), translated_errors():
            await stub.GetRun(messages.AnalyzerServiceGetRunRequest())
    assert "Traceback" in caplog.text


async def test_a_cancellation_that_nobody_asked_for_is_answered(socket: str, caplog: pytest.LogCaptureFixture) -> None:
    """As of a call to another service whose channel was closed: gRPC would end the handler and answer nothing."""
    async with serving(socket, asyncio.CancelledError()) as address, stub_of(address) as stub:
        with pytest.raises(InternalError, match="CancelledError"), translated_errors():
            await stub.GetRun(messages.AnalyzerServiceGetRunRequest(), timeout=10)
        with pytest.raises(InternalError, match="CancelledError"), translated_errors():
            async for _ in stub.WatchRun(messages.AnalyzerServiceWatchRunRequest(), timeout=10):
                pass
        with pytest.raises(InternalError, match="CancelledError"), translated_errors():
            await stub.UploadBundle(iter([messages.AnalyzerServiceUploadBundleRequest()]), timeout=10)
    assert "GetRun failed" in caplog.text


async def test_a_call_that_its_client_cancels_is_no_fault(socket: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(socket) as address, grpc.aio.insecure_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        watch.cancel()
    assert not caplog.records


async def test_a_method_that_is_missing_is_not_built_yet(socket: str) -> None:
    async with serving(socket) as address, stub_of(address) as stub:
        with pytest.raises(NotBuiltYetError), translated_errors():
            await stub.GetTable(messages.GetTableRequest()).read()


async def test_nobody_there_is_unavailable(socket: str) -> None:
    async with stub_of(socket) as stub:
        with pytest.raises(UnavailableError, match="Check that it runs"), translated_errors():
            await stub.GetRun(messages.AnalyzerServiceGetRunRequest())


@pytest.mark.parametrize("token", ["", "a token", TOKEN + "x"])
async def test_a_wrong_token_is_refused_by_unary_and_streaming_methods(socket: str, token: str) -> None:
    async with serving(socket) as address, stub_of(address, token) as stub:
        with pytest.raises(UnauthenticatedError, match=r"no token|not known here"), translated_errors():
            await stub.GetRun(messages.AnalyzerServiceGetRunRequest())
        received: list[int] = []
        with pytest.raises(UnauthenticatedError):
            await watch(stub, received)
        assert received == []
        with pytest.raises(UnauthenticatedError), translated_errors():
            await stub.UploadBundle(iter([messages.AnalyzerServiceUploadBundleRequest()]))


AUTHORIZED = (("authorization", f"Bearer {TOKEN}"),)
NO_MESSAGE = b"\xff\xff\xff"


def raw_channel(address: str) -> Any:
    """Open a channel of another make than ours: it sends bytes, as many as it likes, and no token by itself."""
    return grpc.aio.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])


@pytest.mark.parametrize("method", ["AnalyzerService/GetRun", "AnalyzerService/UploadBundle", "AnalyzerService/Nothing", "Nobody/Nothing"])
async def test_a_call_without_the_token_is_refused_before_its_first_message(socket: str, method: str) -> None:
    async with serving(socket) as address, raw_channel(address) as channel:
        call = channel.stream_stream(f"/kernalyse.v1.{method}")(timeout=10)
        with pytest.raises(UnauthenticatedError, match=r"no token|not known here"), translated_errors():
            await call.read()


async def test_bytes_that_are_no_message_are_not_read_without_the_token(socket: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(socket) as address, raw_channel(address) as channel:
        with pytest.raises(UnauthenticatedError), translated_errors():
            await channel.unary_unary("/kernalyse.v1.AnalyzerService/GetRun")(NO_MESSAGE)
    assert not caplog.records


@pytest.mark.parametrize(
    "method",
    [
        "kernalyse.v1.AnalyzerService/GetRun",
        "kernalyse.v1.AnalyzerService/WatchRun",
        "kernalyse.v1.AnalyzerService/UploadBundle",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "grpc.health.v1.Health/Check",
    ],
)
async def test_bytes_that_are_no_message_are_refused_in_one_line(socket: str, caplog: pytest.LogCaptureFixture, method: str) -> None:
    async with serving(socket) as address, raw_channel(address) as channel:
        call = channel.stream_stream(f"/{method}")(iter([NO_MESSAGE]), metadata=AUTHORIZED, timeout=10)
        with pytest.raises(InvalidRequestError, match="3 bytes that do not parse"), translated_errors():
            await call.read()
    (record,) = caplog.records
    assert re.fullmatch(rf"message to /{method}: found 3 bytes that do not parse.*", record.getMessage())
    assert record.exc_info is None


async def test_a_request_is_taken_up_to_8_mib(socket: str) -> None:
    largest = messages.AnalyzerServiceGetRunRequest(run_id="x" * (8 * 1024**2 - 5)).SerializeToString()
    assert len(largest) == 8 * 1024**2
    async with serving(socket) as address, raw_channel(address) as channel:
        call = channel.unary_unary("/kernalyse.v1.AnalyzerService/GetRun")
        await call(largest, metadata=AUTHORIZED)
        with pytest.raises(LimitReachedError, match="Received message larger than max"), translated_errors():
            await call(largest + b"x", metadata=AUTHORIZED)


async def test_our_client_sends_no_request_that_is_too_large(socket: str) -> None:
    async with serving(socket) as address, stub_of(address) as stub:
        with pytest.raises(LimitReachedError, match="Sent message larger than max"), translated_errors():
            await stub.GetRun(messages.AnalyzerServiceGetRunRequest(run_id="x" * 8 * 1024**2))


async def test_a_message_of_an_upload_is_taken_up_to_a_chunk_and_what_goes_with_it(socket: str) -> None:
    largest = messages.AnalyzerServiceUploadBundleRequest(chunk=bytes(MAX_CHUNK_MESSAGE_BYTES - 4)).SerializeToString()
    assert len(largest) == MAX_CHUNK_MESSAGE_BYTES
    async with serving(socket) as address, raw_channel(address) as channel:
        call = channel.stream_unary("/kernalyse.v1.AnalyzerService/UploadBundle")
        await call(iter([largest]), metadata=AUTHORIZED)
        with pytest.raises(LimitReachedError, match=f"{MAX_CHUNK_MESSAGE_BYTES + 1} bytes.*Send smaller chunks"), translated_errors():
            await call(iter([largest + b"x"]), metadata=AUTHORIZED)


async def test_health_is_watched_without_a_token(socket: str) -> None:
    async with serving_health(socket) as (address, health), grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        calls = [stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=30) for name in ("", SERVICE)]
        assert [(await call.read()).status for call in calls] == [health_pb2.HealthCheckResponse.SERVING] * 2
        health.set_serving(False)
        assert [(await call.read()).status for call in calls] == [health_pb2.HealthCheckResponse.NOT_SERVING] * 2
        unknown = stub.Watch(health_pb2.HealthCheckRequest(service="unknown"), timeout=30)
        assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


async def test_the_health_of_an_unknown_service_is_not_found(socket: str) -> None:
    async with serving(socket) as address, grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(NotFoundError, match=f"'unknown'.*{SERVICE}"), translated_errors():
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="unknown"))


# HTTP/2 by hand (RFC 9113, 7541): what gRPC's own clients never do.
DATA_FRAME, HEADERS_FRAME, SETTINGS_FRAME = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + struct.pack(">BBI", kind, flags, stream_id) + payload


def watch_without_a_window() -> bytes:
    """Make what a client sends to watch health when it lets the service send no byte of a message."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/grpc.health.v1.Health/Watch",
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    literals = b"".join(b"\0" + bytes([len(name)]) + name.encode() + bytes([len(text)]) + text.encode() for name, text in headers.items())
    return (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(SETTINGS_FRAME, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))
        + frame(HEADERS_FRAME, END_HEADERS, 1, literals)
        + frame(DATA_FRAME, END_STREAM, 1, bytes(5))  # an empty message
    )


async def next_frame_kind(reader: asyncio.StreamReader) -> int:
    head = await reader.readexactly(9)
    await reader.readexactly(int.from_bytes(head[:3]))
    return head[3]


async def test_a_watcher_of_health_that_reads_nothing_holds_nobody_up(socket: str) -> None:
    async with serving_health(socket) as (address, health), grpc.aio.insecure_channel(address) as channel:
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        writer.write(watch_without_a_window())
        while await next_frame_kind(reader) != HEADERS_FRAME:  # of the answer, whose message then waits for the window
            pass
        stub = health_pb2_grpc.HealthStub(channel)
        watching = stub.Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        health.set_serving(False)
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.NOT_SERVING
        writer.close()
        await writer.wait_closed()


async def test_health_needs_no_token_and_reflection_does(socket: str) -> None:
    async with serving(socket) as address, grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == health_pb2.HealthCheckResponse.SERVING
        listed = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        with pytest.raises(UnauthenticatedError), translated_errors():
            await listed.read()


async def test_reflection_names_the_service(socket: str) -> None:
    async with serving(socket) as address, grpc.aio.insecure_channel(address) as channel:
        listed = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=[("authorization", f"Bearer {TOKEN}")]
        )
        names = {service.name for service in (await listed.read()).list_services_response.service}
    assert SERVICE in names


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("unix:/run/x.sock", True),
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.168.0.2:1", False),
        ("node7:1", False),
        (":7001", False),
        ("localhost.example.org:1", False),
    ],
)
def test_only_loopback_and_sockets_are_local(address: str, expected: bool) -> None:
    assert is_local(address) is expected


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
async def test_listening_elsewhere_without_tls_is_refused_unless_said_aloud(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidSettingError, match="other machines can reach, without TLS"):
        build_server(address, ServerSecurity(TOKEN))
    server, _ = build_server("0.0.0.0:0", ServerSecurity(TOKEN, is_insecure_allowed=True))
    await server.stop(None)
    assert "in the clear" in caplog.text


async def test_a_taken_address_is_refused_and_named(capfd: pytest.CaptureFixture[str]) -> None:
    async with serving("127.0.0.1:0") as address:
        with pytest.raises(InvalidSettingError, match=f"listen address {address}"):
            build_server(address, ServerSecurity(TOKEN))


@pytest.mark.parametrize("client", ["blocking", "asyncio"])
async def test_a_port_beyond_the_last_leads_to_no_other_one(client: str) -> None:
    async with serving("127.0.0.1:0") as address:
        beyond = f"127.0.0.1:{int(address.rpartition(':')[2]) + 65_536}"  # for gRPC itself the same port
        if client == "blocking":
            with connect(beyond, TOKEN) as calls, pytest.raises(RequestError, match="no port from 1 to 65535"):
                await in_thread(lambda: calls.run("x"))
            return
        async with stub_of(beyond) as stub:
            with pytest.raises(InvalidRequestError, match=f"address {beyond}: found no port from 1 to 65535"), translated_errors():
                await stub.GetRun(messages.AnalyzerServiceGetRunRequest())
            with pytest.raises(InvalidRequestError):
                await watch(stub, [])


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:-1", ":7001"])
def test_nothing_listens_on_what_is_no_address(address: str) -> None:
    with pytest.raises(InvalidSettingError, match="no port from 0 to 65535"):
        build_server(address, ServerSecurity(TOKEN))


def certificate_and_key(directory: Path) -> tuple[bytes, bytes]:
    files = make_certificate(directory)
    return files.certificate.read_bytes(), files.key.read_bytes()


async def test_tls_lets_in_who_knows_the_certificate_and_nobody_else(tmp_path: Path) -> None:
    certificate, key = certificate_and_key(tmp_path)
    security = ServerSecurity(TOKEN, certificate, key)
    async with serving("127.0.0.1:0", security=security) as address:
        async with stub_of(address, ca_certificate=certificate) as stub:
            await stub.GetRun(messages.AnalyzerServiceGetRunRequest())
        stranger, _ = certificate_and_key(tmp_path / "other")
        async with stub_of(address, ca_certificate=stranger) as stub:
            with pytest.raises(TlsHandshakeError, match="not trusted"), translated_errors():
                await stub.GetRun(messages.AnalyzerServiceGetRunRequest())
        async with stub_of(address) as stub:
            with pytest.raises(TlsHandshakeError, match="a service with TLS"), translated_errors():
                await stub.GetRun(messages.AnalyzerServiceGetRunRequest())


async def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path, private_directories: Path) -> None:
    first, second = make_certificate(tmp_path / "first"), make_certificate(tmp_path / "second")
    served = {"certificate_file": tmp_path / "cert.pem", "key_file": tmp_path / "key.pem"}
    shutil.copy(first.certificate, served["certificate_file"])
    shutil.copy(first.key, served["key_file"])
    certificate, renewed = first.certificate.read_bytes(), second.certificate.read_bytes()
    security = replace(AnalyzerSettings.load(**served).security(), token=TOKEN)
    async with serving("127.0.0.1:0", security=security) as address:
        async with stub_of(address, ca_certificate=certificate) as before:
            await before.GetRun(messages.AnalyzerServiceGetRunRequest())
            shutil.copy(second.certificate, served["certificate_file"])  # half of it: the key is still the first one's
            async with stub_of(address, ca_certificate=certificate) as stub:
                await stub.GetRun(messages.AnalyzerServiceGetRunRequest())
            shutil.copy(second.key, served["key_file"])
            async with stub_of(address, ca_certificate=renewed) as stub:
                await stub.GetRun(messages.AnalyzerServiceGetRunRequest())
            await before.GetRun(messages.AnalyzerServiceGetRunRequest())  # its connection goes on
        async with stub_of(address, ca_certificate=certificate) as stub:
            with pytest.raises(TlsHandshakeError, match="not trusted"), translated_errors():
                await stub.GetRun(messages.AnalyzerServiceGetRunRequest())


async def test_mutual_tls_asks_for_the_client_certificate(tmp_path: Path) -> None:
    certificate, key = certificate_and_key(tmp_path)
    security = ServerSecurity(TOKEN, certificate, key, client_ca=certificate)
    async with serving("127.0.0.1:0", security=security) as address:
        async with stub_of(address, ca_certificate=certificate) as stub:
            with pytest.raises(TlsHandshakeError, match="no client certificate was shown"), translated_errors():
                await stub.GetRun(messages.AnalyzerServiceGetRunRequest())
        endpoint = Endpoint(address, TOKEN, certificate, certificate, key)
        async with open_async_channel(endpoint) as channel:
            await stubs.AnalyzerServiceStub(channel).GetRun(messages.AnalyzerServiceGetRunRequest())  # type: ignore[no-untyped-call]


def test_an_endpoint_does_not_show_its_token() -> None:
    assert TOKEN not in repr(Endpoint("127.0.0.1:1", TOKEN))


async def test_the_client_library_raises_request_errors_with_all_parts(socket: str) -> None:
    raised = RunNotFoundError("run x", found="no such run", remedy="List them.")
    async with serving(socket, raised) as address:
        with pytest.raises(RequestError) as caught:
            await in_thread(lambda: connect(address, TOKEN).run("x"))
    assert (caught.value.code, caught.value.reason, caught.value.message) == ("NOT_FOUND", "RUN_NOT_FOUND", raised.message)
    assert caught.value.metadata == raised.metadata


async def test_the_client_library_tells_that_nobody_answers(socket: str) -> None:
    with pytest.raises(RequestError) as caught, connect(socket, TOKEN) as client:
        client.run("x")
    assert (caught.value.code, caught.value.reason) == ("UNAVAILABLE", "")
    assert "kernalyse up" in caught.value.remedy


async def in_thread(call: Any) -> Any:
    return await asyncio.to_thread(call)


def test_a_run_keeps_the_error_whole() -> None:
    error = run_error(RunNotFoundError("run x", found="no such run"))
    assert (error.code, error.reason, error.message) == ("NOT_FOUND", "RUN_NOT_FOUND", "run x: no such run.")
    assert dict(error.metadata) == {"subject": "run x", "found": "no such run"}


# ---------------------------------------------------------------- tasks


async def test_tasks_that_are_cancelled_clean_up_whole_although_who_waits_is_cancelled_too() -> None:
    """A client that cancels its import and then hangs up does that."""
    cleaned: list[str] = []
    may_end = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            cleaned.append("all of it")

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(cancel_and_wait(working))
    for _ in range(2):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert cleaned == ["all of it"]


async def test_what_cancelled_tasks_raise_is_neither_raised_nor_complained_about(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("of the task")

    failed = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await cancel_and_wait(failed)
    await cancel_and_wait()
    del failed
    gc.collect()
    assert caplog.text == ""
