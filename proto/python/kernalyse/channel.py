"""Channels to kernalyse services: address, token, TLS, keepalive and message limits in one place."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio

from kernalyse.errors import local_failure
from kernalyse.tls import connection_problem
from kernalyse.trace_context import HEADER, current_traceparent

MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
"""A run with 4 MiB of source, the most that a node accepts, must fit. A service holds every request in memory while it receives it."""

MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""Well above the largest chunk any method sends; gRPC's default of 4 MiB would reject a wide Arrow batch."""

KEEPALIVE_INTERVAL_MS: Final = 20_000
"""Detects a vanished peer within half a minute; below 10 s servers close connections with too_many_pings."""

PING_TIMEOUT_MS: Final = 30_000
"""For any ping, also those by which gRPC measures a line; its own minute would go before the timeout of keepalive. Much shorter, and a
narrow line that is busy with a chunk would be cut."""

RETURN_TIMEOUT_S: Final = 30.0
"""The time for a connection to be restored, after a restart or a change of network. If longer, a watching client seems to hang."""

RETRY_S: Final = 0.1
MAX_PORT: Final = 65_535

CONNECTION_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", KEEPALIVE_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
"""Options of clients and services alike."""

CHANNEL_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Each channel reconnects by itself: with the shared pool, one dead address would slow another channel's retry.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a service and the credentials for it.

    address: "host:port" or "unix:PATH". ca_certificate: PEM; None means no TLS. client_certificate and client_key: PEM,
    for services that require a client certificate. server_name: that the service's certificate is for; empty: the address.
    """

    address: str
    token: str = field(repr=False)
    ca_certificate: bytes | None = None
    client_certificate: bytes | None = None
    client_key: bytes | None = field(default=None, repr=False)
    server_name: str = ""


def is_address(address: str, *, is_to_listen: bool = False) -> bool:
    """Return whether the text is "unix:PATH", or "host:port" with a valid port; gRPC would take a larger port modulo 65536.

    Args:
        address: the text.
        is_to_listen: port 0, for a free one, is allowed.
    """
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host, _, port = address.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and (0 if is_to_listen else 1) <= int(port) <= MAX_PORT


def is_local(address: str) -> bool:
    """Return whether only this machine can reach the address: a Unix socket or a loopback host."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_channel(endpoint: Endpoint) -> grpc.Channel:
    """Return a channel for blocking calls; every call carries the token.

    A call fails at once, with cause and remedy, when the address is invalid or TLS with the service cannot work.
    """
    credentials = _credentials(endpoint)
    if credentials is None:
        channel = grpc.insecure_channel(endpoint.address, options=CHANNEL_OPTIONS)
    else:
        channel = grpc.secure_channel(endpoint.address, credentials, options=_secure_options(endpoint))
    return grpc.intercept_channel(channel, _CallInterceptor(endpoint))


def call_with_reconnect(method: Any, request: Any) -> Any:
    """Call a method until it succeeds, over a connection that is down and may break again.

    Raises:
        grpc.RpcError: the service rejects the call, or the connection is not restored within RETURN_TIMEOUT_S.
    """
    end_s = time.monotonic() + RETURN_TIMEOUT_S
    while True:
        try:
            return method(request, timeout=max(0.0, end_s - time.monotonic()), wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() >= end_s:
                raise
        time.sleep(RETRY_S)


def open_async_channel(endpoint: Endpoint) -> grpc.aio.Channel:
    """Return a channel for asyncio; every call carries the token, and fails like those of `open_channel`."""
    credentials = _credentials(endpoint)
    interceptors = [cls(endpoint) for cls in (_AsyncUnaryUnary, _AsyncUnaryStream, _AsyncStreamUnary, _AsyncStreamStream)]
    if credentials is None:
        channel = grpc.aio.insecure_channel(endpoint.address, options=CHANNEL_OPTIONS, interceptors=interceptors)
    else:
        options = _secure_options(endpoint)
        channel = grpc.aio.secure_channel(endpoint.address, credentials, options=options, interceptors=interceptors)
    for interceptor in interceptors:
        interceptor.channel = channel
    return channel


def _credentials(endpoint: Endpoint) -> grpc.ChannelCredentials | None:
    if endpoint.ca_certificate is None:
        return None
    if endpoint.client_certificate is None or endpoint.client_key is None:  # gRPC would end the process over half a pair
        return grpc.ssl_channel_credentials(endpoint.ca_certificate)
    return grpc.ssl_channel_credentials(endpoint.ca_certificate, endpoint.client_key, endpoint.client_certificate)


def _secure_options(endpoint: Endpoint) -> tuple[tuple[str, Any], ...]:
    """Return the options of a channel with TLS; a certificate cannot name a Unix socket, so its name is localhost."""
    name = endpoint.server_name or ("localhost" if endpoint.address.startswith("unix") else "")
    options = (("grpc.default_authority", name), ("grpc.ssl_target_name_override", name)) if name else ()
    return (*CHANNEL_OPTIONS, *options)


def _with_token(metadata: Any, token: str) -> list[tuple[str, Any]]:
    """Return the metadata of a call with the channel's token, unless the call brings one of its own, and the trace that it belongs to."""
    given = list(metadata or ())
    if traceparent := current_traceparent():
        given.append((HEADER, traceparent))
    return given if any(key == "authorization" for key, _ in given) else [*given, ("authorization", f"Bearer {token}")]


def _authorized(details: Any, token: str) -> Any:
    return details._replace(metadata=_with_token(details.metadata, token))


class _CallDetails(grpc.ClientCallDetails):  # type: ignore[misc]
    def __init__(self, details: Any, token: str) -> None:
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = _with_token(details.metadata, token)
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = details.compression


class _CallInterceptor(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._is_checked = False

    def _call(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        if not self._is_checked:
            with suppress(OSError, UnicodeError):  # no response, or an unknown name: gRPC knows how long to wait
                _check_connection(self._endpoint)
                self._is_checked = True
        return continuation(_CallDetails(details, self._endpoint.token), request)

    intercept_unary_unary = _call
    intercept_unary_stream = _call
    intercept_stream_unary = _call
    intercept_stream_stream = _call


class _AsyncCall:
    channel: grpc.aio.Channel

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def _call(self, continuation: Callable[[Any, Any], Awaitable[Any]], details: Any, request: Any) -> Any:
        if self.channel.get_state() is not grpc.ChannelConnectivity.READY:
            with suppress(OSError, UnicodeError):  # as above
                await asyncio.to_thread(_check_connection, self._endpoint)
        return await continuation(_authorized(details, self._endpoint.token), request)


def _check_connection(endpoint: Endpoint) -> None:
    """Raise AioRpcError, like an error of the service, where gRPC would connect elsewhere or fail without the reason.

    The address, the token and what TLS needs are looked at.

    Raises:
        OSError: nothing responds at the address.
    """
    if not is_address(endpoint.address):
        raise local_failure(
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
            f"address {endpoint.address}",
            found="no port from 1 to 65535",
            expected="host:port or unix:PATH",
            remedy="Correct the address.",
        )
    if not (endpoint.token.isascii() and endpoint.token.isprintable()):
        raise local_failure(
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
            f"token for {endpoint.address}",
            found="characters that no header can carry",
            expected="one line of ASCII letters, digits and signs",
            remedy="Copy it again from the service's token file.",
        )
    certificates = endpoint.ca_certificate, endpoint.client_certificate, endpoint.client_key
    problem = connection_problem(endpoint.address, *certificates, endpoint.server_name)
    if problem is not None:
        raise local_failure(
            grpc.StatusCode.FAILED_PRECONDITION,
            "TLS_HANDSHAKE_FAILED",
            f"connection to {endpoint.address}",
            found=problem.found,
            expected=problem.expected,
            remedy=problem.remedy,
        )


# grpc.aio sorts interceptors by class, and an object counts for its first kind only: hence one class per arity.
class _AsyncUnaryUnary(_AsyncCall, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    intercept_unary_unary = _AsyncCall._call


class _AsyncUnaryStream(_AsyncCall, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc]
    intercept_unary_stream = _AsyncCall._call


class _AsyncStreamUnary(_AsyncCall, grpc.aio.StreamUnaryClientInterceptor):  # type: ignore[misc]
    intercept_stream_unary = _AsyncCall._call


class _AsyncStreamStream(_AsyncCall, grpc.aio.StreamStreamClientInterceptor):  # type: ignore[misc]
    intercept_stream_stream = _AsyncCall._call
