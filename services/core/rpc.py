"""gRPC on both ends: errors in and out, access control, channels and servers.

A servicer raises KernalyseError; the error interceptor turns it into a google.rpc.Status with one ErrorInfo. A client
wraps its calls in `translated_errors`, and the same class comes out again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from kernalyse.channel import (
    CONNECTION_OPTIONS,
    MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES,
    Endpoint,
    is_address,
    is_local,
    open_async_channel,
    open_channel,
)
from kernalyse.errors import request_error
from kernalyse.services.core.access import Audit, AuthInterceptor
from kernalyse.services.core.errors import (
    InternalError,
    InvalidRequestError,
    InvalidSettingError,
    KernalyseError,
    LimitReachedError,
    NotBuiltYetError,
    NotFoundError,
    error_from_parts,
)
from kernalyse.services.core.identity import Identities
from kernalyse.services.core.metrics import Metrics
from kernalyse.services.core.model import RunError
from kernalyse.services.core.tracing import span
from kernalyse.trace_context import HEADER

__all__ = [
    "Endpoint",
    "Health",
    "ServerSecurity",
    "build_server",
    "error_from_rpc",
    "is_cancelled",
    "is_local",
    "open_async_channel",
    "open_channel",
    "run_error",
    "serve_health",
    "translated_errors",
]

ERROR_DOMAIN: Final = "kernalyse"
CUT: Final = b" ... "

MAX_TEXT_BYTES: Final = 2000
MAX_OTHER_TEXT_BYTES: Final = 1300  # for texts that are not ASCII only
"""The size of an error's four parts together. They travel twice, in base64 and with non-ASCII letters escaped, among headers of which
gRPC accepts 8 KiB for certain: a larger error would arrive as a broken stream without a message."""

MAX_CHUNK_MESSAGE_BYTES: Final = (1024 + 64) * 1024
"""The size of each message of a stream to a service: a chunk of 1 MiB, with names and digests."""

LASTING: Final = ("Watch", "Tunnel")
"""How the names of methods begin whose streams end with the service, or when the client goes."""

logger = logging.getLogger(__name__)

SERVER_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", MAX_RESPONSE_BYTES),
    # Clients ping every 20 s (kernalyse.channel); a server that allows fewer closes their connections.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    # Two services on one port would split their clients silently.
    ("grpc.so_reuseport", 0),
)


# ---------------------------------------------------------------- errors


def error_status(error: KernalyseError) -> status_pb2.Status:
    """Return the google.rpc.Status with one ErrorInfo for the error; long parts are shortened in the middle."""
    parts = _fitting(error.metadata)
    shortened = type(error)(parts.pop("subject", ""), **{"found": "", **parts})
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN, metadata=shortened.metadata)
    detail = AnyMessage()
    detail.Pack(info)
    code: int = grpc.StatusCode[error.code].value[0]
    return status_pb2.Status(code=code, message=shortened.message, details=[detail])


def _fitting(parts: dict[str, str]) -> dict[str, str]:
    """Shorten the parts until they fit into the trailing metadata: the longest is cut first, never below an even share."""
    # Invalid text, such as a file name that is not UTF-8, could not be sent at all.
    texts = {name: text.encode(errors="backslashreplace") for name, text in parts.items()}
    most = MAX_TEXT_BYTES if all(map(bytes.isascii, texts.values())) else MAX_OTHER_TEXT_BYTES
    while (excess := sum(map(len, texts.values())) - most) > 0:
        longest = max(texts, key=lambda name: len(texts[name]))
        texts[longest] = _without_middle(texts[longest], max(len(texts[longest]) - excess, most // len(texts)))
    return {name: text.decode(errors="ignore") for name, text in texts.items()}


def _without_middle(text: bytes, length: int) -> bytes:
    """Return the beginning and the end of the text."""
    end_length = (length - len(CUT)) // 2
    return text[:end_length] + CUT + text[-end_length:]


def error_from_rpc(error: grpc.RpcError) -> KernalyseError:
    """Return the KernalyseError that a service raised, or the nearest one for a failure of the transport."""
    failure = request_error(error)
    return error_from_parts(failure.code, failure.reason, failure.message, failure.metadata)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise KernalyseError for every RpcError inside the block, of blocking and asyncio calls alike."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error) from error


def run_error(error: KernalyseError) -> RunError:
    """Return the error as part of a run's record."""
    return RunError(error.code, error.reason, error.message, tuple(sorted(error.metadata.items())))


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """An interceptor that turns the exceptions of servicers into statuses; an unexpected one is logged and becomes INTERNAL.

    It parses the messages too: left to gRPC, bytes that do not parse end in a traceback and UNKNOWN, past this interceptor. Calls of the
    contract are spans, but for LASTING ones, which may go on as long as the service.

    Args:
        metrics: told how long each call took and how it ended; None: nobody is.
    """

    def __init__(self, metrics: Metrics | None = None) -> None:
        self._metrics = metrics

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Return the method's handler with parsing and translation of errors around it."""
        handler = await continuation(details)
        if handler is None:
            return None
        request_of = _parsed_stream if handler.request_streaming else _parsed
        parse, method = handler.request_deserializer, details.method
        if handler.response_streaming:
            stream = handler.stream_stream or handler.unary_stream

            async def answer_stream(data: Any, context: Any) -> AsyncIterator[Any]:
                with self._timed(context, method):
                    try:
                        with _spanned(method, details.invocation_metadata):
                            async for response in stream(request_of(parse, data, method), context):
                                yield response
                    except (Exception, asyncio.CancelledError) as error:
                        await _abort(context, error, method)

            return _replaced(handler, answer_stream)
        unary = handler.stream_unary or handler.unary_unary

        async def answer(data: Any, context: Any) -> Any:
            with self._timed(context, method):
                try:
                    with _spanned(method, details.invocation_metadata):
                        return await unary(request_of(parse, data, method), context)
                except (Exception, asyncio.CancelledError) as error:
                    await _abort(context, error, method)

        return _replaced(handler, answer)

    @contextmanager
    def _timed(self, context: Any, method: str) -> Iterator[None]:
        if self._metrics is None:
            yield
            return
        begin_s, code = time.perf_counter(), "CANCELLED"  # as a call whose client has gone, which ends in no Exception
        try:
            yield
            code = "OK"
        except Exception:
            code = _code_name(context)
            raise
        finally:
            self._metrics.rpc_duration.labels(method.rpartition("/")[2], code).observe(time.perf_counter() - begin_s)


@contextmanager
def _spanned(method: str, metadata: Any) -> Iterator[None]:
    """Make a call a span of its caller's trace; lasting ones, and calls of gRPC's own services, as of health, are none."""
    if not method.startswith("/kernalyse.") or method.rpartition("/")[2].startswith(LASTING):
        yield
        return
    parent = next((value for key, value in metadata or () if key == HEADER), "")
    service, _, name = method.removeprefix("/").partition("/")
    with span(name, {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}, parent=parent):
        yield


def _code_name(context: Any) -> str:
    """Return the name of the status that a call has been ended with."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return str(code.name)
    return next((str(known.name) for known in grpc.StatusCode if known.value[0] == code), "UNKNOWN")


def _replaced(handler: Any, behavior: Callable[..., Any]) -> Any:
    """Return a handler of the same kind whose behavior gets the bytes of each message."""
    build = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return build(behavior, request_deserializer=None, response_serializer=handler.response_serializer)


def _parsed(parse: Callable[[bytes], Any], data: bytes, method: str) -> Any:
    try:
        return parse(data)
    except DecodeError as problem:
        error = InvalidRequestError(
            f"message to {method}",
            found=f"{len(data)} bytes that do not parse: {problem}",
            expected="a message of the contract",
            remedy="The client may be built for another version of it.",
        )
        logger.warning("%s", error.message)  # other clients may show only the code
        raise error from problem


async def _parsed_stream(parse: Callable[[bytes], Any], stream: AsyncIterator[bytes], method: str) -> AsyncIterator[Any]:
    async for data in stream:
        if len(data) > MAX_CHUNK_MESSAGE_BYTES:
            raise LimitReachedError(
                f"message to {method}",
                found=f"{len(data)} bytes",
                expected=f"at most {MAX_CHUNK_MESSAGE_BYTES}",
                remedy="Send smaller chunks.",
            )
        yield _parsed(parse, data, method)


async def _abort(context: Any, error: BaseException, method: str) -> None:
    if isinstance(error, grpc.aio.AbortError) or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
        raise error
    if isinstance(error, grpc.RpcError):
        error = error_from_rpc(error)
    if isinstance(error, NotImplementedError):  # raised by the generated servicer for methods that ours lacks
        error = NotBuiltYetError(method, found="a method that this service does not have", remedy="It may be of another version.")
    if not isinstance(error, KernalyseError):
        logger.exception("%s failed", method, exc_info=error)
        error = InternalError(method, found=f"{type(error).__name__}: {error}", remedy="See the service's log; please report it.")
    await context.abort_with_status(rpc_status.to_status(error_status(error)))


def is_cancelled() -> bool:
    """Return whether somebody has cancelled this task. If not, a CancelledError is that of something it waited for.

    gRPC cancels the task of a call whose client has gone, and to whatever ends in a CancelledError it answers nothing.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def cancel_and_wait(*tasks: asyncio.Task[object]) -> None:
    """Cancel the tasks and wait until they have ended, even if this is cancelled meanwhile: they are cancelled once and clean up whole.

    What they raise is not raised here.
    """
    ended = asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        task.cancel()
    interruption = None
    while not ended.done():
        try:
            await asyncio.wait({ended})  # unlike a gather that is awaited, it cancels nothing a second time
        except asyncio.CancelledError as error:
            interruption = error
    if interruption is not None:
        raise interruption


# ---------------------------------------------------------------- servers


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """What a server is served with.

    Args:
        token: the service's own, whose holder may do everything.
        certificate, key: PEM; None: no TLS.
        client_ca: PEM; set, clients must show a certificate that it signed.
        is_insecure_allowed: other machines may reach it without TLS.
        tokens_file: issued tokens and certificates with scopes; None: there are none.
        audit_file: where decisions are written; None: nowhere.
        identities: who is known; None: the holders of `token` and of what is in `tokens_file`.
        renewed_pair: asked before each handshake; returns certificate and key where they are others than before. None: they stay.
        metrics: that the time of calls is told to; None: nobody counts.
    """

    token: str
    certificate: bytes | None = None
    key: bytes | None = None
    client_ca: bytes | None = None
    is_insecure_allowed: bool = False
    tokens_file: Path | None = None
    audit_file: Path | None = None
    identities: Identities | None = None
    renewed_pair: Callable[[], tuple[bytes, bytes] | None] | None = None
    metrics: Metrics | None = None


def build_server(address: str, security: ServerSecurity, further: Sequence[grpc.aio.ServerInterceptor] = ()) -> tuple[grpc.aio.Server, str]:
    """Return a server with both interceptors, bound to `address`, and its actual address (with port 0 resolved).

    Args:
        address: host:port or unix:PATH.
        security: what it is served with.
        further: interceptors of calls that have been let in.

    Raises:
        InvalidSettingError: the address is not valid, is reachable from elsewhere without TLS, or cannot be bound.
    """
    if not is_address(address, is_to_listen=True):
        raise InvalidSettingError(
            f"listen address {address}",
            found="no port from 0 to 65535",
            expected="host:port or unix:PATH",
            remedy="Correct the address; port 0 takes a free one.",
        )
    identities = security.identities or Identities(security.token, security.tokens_file)
    access = AuthInterceptor(identities, Audit(security.audit_file), has_certificates=security.client_ca is not None)
    server = grpc.aio.server(interceptors=(ErrorInterceptor(security.metrics), access, *further), options=SERVER_OPTIONS)
    if security.certificate is None and not is_local(address):
        if not security.is_insecure_allowed:
            raise InvalidSettingError(
                f"listen address {address}",
                found="an address that other machines can reach, without TLS",
                expected="loopback, a Unix socket, or a certificate",
                remedy="Set certificate and key, or say --insecure to send token and results in the clear.",
            )
        logger.warning("Listening on %s without TLS: token and results travel in the clear.", address)
    try:
        port = _bind(server, address, security)
    except RuntimeError as error:
        raise InvalidSettingError(
            f"listen address {address}",
            found=str(error),
            expected="an address of this machine that is free",
            remedy="Stop the program that uses it, or choose another.",
        ) from error
    return server, address if address.startswith("unix") else f"{address.rpartition(':')[0]}:{port}"


def _bind(server: grpc.aio.Server, address: str, security: ServerSecurity) -> int:
    if security.certificate is None:
        port: int = server.add_insecure_port(address)
        return port

    def renewed() -> Any:
        """Tell gRPC of a certificate that has been renewed, on a thread of gRPC; None: it goes on with the one before."""
        pair = None if security.renewed_pair is None else security.renewed_pair()
        return None if pair is None else _certificate_configuration(security, *pair)

    credentials = grpc.dynamic_ssl_server_credentials(
        _certificate_configuration(security, security.certificate, security.key),
        renewed,
        require_client_authentication=security.client_ca is not None,
    )
    secure_port: int = server.add_secure_port(address, credentials)
    return secure_port


def _certificate_configuration(security: ServerSecurity, certificate: bytes, key: bytes | None) -> Any:
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=security.client_ca)


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The standard health service, for one service and for the entire server.

    Not grpcio's own: that one holds a lock while it writes to a watcher, and a watcher that reads nothing, which needs no
    token, would keep it from ever changing its state, and the service from stopping.
    """

    def __init__(self, service_name: str) -> None:
        self._service_name = service_name
        self._status = health_pb2.HealthCheckResponse.NOT_SERVING
        self._change = asyncio.Event()

    def set_serving(self, is_serving: bool) -> None:
        """Set the state and notify every watcher."""
        self._status = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        self._change.set()
        self._change = asyncio.Event()

    async def Check(self, request: Any, context: Any) -> Any:
        """Return the state once.

        Raises:
            NotFoundError: the request names another service.
        """
        if request.service not in ("", self._service_name):
            raise NotFoundError(f"service {request.service!r}", found="no such service", expected=f"{self._service_name}, or no name")
        return health_pb2.HealthCheckResponse(status=self._status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Yield the state, and again each time it changes."""
        if request.service not in ("", self._service_name):
            yield health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            await asyncio.Event().wait()  # by the protocol, the watcher waits for a service that may appear
        while True:
            change = self._change
            yield health_pb2.HealthCheckResponse(status=self._status)
            await change.wait()


def serve_health(server: grpc.aio.Server, service_name: str) -> Health:
    """Add health and reflection for the service, and return the health, which is NOT_SERVING."""
    servicer = Health(service_name)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((service_name, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return servicer
