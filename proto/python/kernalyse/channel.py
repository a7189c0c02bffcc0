"""Channels to kernalyse services: address, token, TLS, keepalive and message limits in one place."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio

MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
"""A run with 4 MiB of source, the most that a node takes, must fit in. A service holds every request in memory while it comes."""

MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""Well above the largest chunk any method sends; gRPC's own 4 MiB would refuse a wide Arrow batch."""

KEEPALIVE_INTERVAL_MS: Final = 20_000
"""Finds a vanished peer within half a minute; below 10 s servers answer too_many_pings."""

RETURN_TIMEOUT_S: Final = 20.0
"""For a line to come back: a service is started again, a network changes. Longer, and who watches takes it for hanging."""

RETRY_S: Final = 0.1

CONNECTION_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", KEEPALIVE_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
"""What clients and services share."""

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
    """Where a service is and how to talk to it.

    address: "host:port" or "unix:PATH". ca_certificate: PEM; None means no TLS. client_certificate and client_key: PEM,
    for services that ask for a client certificate.
    """

    address: str
    token: str = field(repr=False)
    ca_certificate: bytes | None = None
    client_certificate: bytes | None = None
    client_key: bytes | None = field(default=None, repr=False)


def is_local(address: str) -> bool:
    """Whether nobody but this machine can reach the address: a Unix socket or a loopback host."""
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
    """A channel for blocking calls; every call carries the token."""
    credentials = _credentials(endpoint)
    if credentials is None:
        channel = grpc.insecure_channel(endpoint.address, options=CHANNEL_OPTIONS)
    else:
        channel = grpc.secure_channel(endpoint.address, credentials, options=CHANNEL_OPTIONS)
    return grpc.intercept_channel(channel, _TokenInterceptor(endpoint.token))


def answer_when_back(method: Any, request: Any) -> Any:
    """Calls a method over a line that has broken, and may break again while it is asked, until it answers.

    Raises:
        grpc.RpcError: it refuses, or the line is not back within RETURN_TIMEOUT_S.
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
    """A channel for asyncio; every call carries the token."""
    credentials = _credentials(endpoint)
    interceptors = [cls(endpoint.token) for cls in (_AsyncUnaryUnary, _AsyncUnaryStream, _AsyncStreamUnary)]
    if credentials is None:
        return grpc.aio.insecure_channel(endpoint.address, options=CHANNEL_OPTIONS, interceptors=interceptors)
    return grpc.aio.secure_channel(endpoint.address, credentials, options=CHANNEL_OPTIONS, interceptors=interceptors)


def _credentials(endpoint: Endpoint) -> grpc.ChannelCredentials | None:
    if endpoint.ca_certificate is None:
        return None
    return grpc.ssl_channel_credentials(endpoint.ca_certificate, endpoint.client_key, endpoint.client_certificate)


def _authorized(details: Any, token: str) -> Any:
    metadata = [*(details.metadata or ()), ("authorization", f"Bearer {token}")]
    return details._replace(metadata=metadata)


class _CallDetails(grpc.ClientCallDetails):  # type: ignore[misc]
    def __init__(self, details: Any, token: str) -> None:
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = [*(details.metadata or ()), ("authorization", f"Bearer {token}")]
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = details.compression


class _TokenInterceptor(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    def __init__(self, token: str) -> None:
        self._token = token

    def _call(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        return continuation(_CallDetails(details, self._token), request)

    intercept_unary_unary = _call
    intercept_unary_stream = _call
    intercept_stream_unary = _call
    intercept_stream_stream = _call


class _AsyncToken:
    def __init__(self, token: str) -> None:
        self._token = token

    async def _call(self, continuation: Callable[[Any, Any], Awaitable[Any]], details: Any, request: Any) -> Any:
        return await continuation(_authorized(details, self._token), request)


# grpc.aio sorts interceptors by class and keeps only the first kind of each, so one class an arity.
class _AsyncUnaryUnary(_AsyncToken, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    intercept_unary_unary = _AsyncToken._call


class _AsyncUnaryStream(_AsyncToken, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc]
    intercept_unary_stream = _AsyncToken._call


class _AsyncStreamUnary(_AsyncToken, grpc.aio.StreamUnaryClientInterceptor):  # type: ignore[misc]
    intercept_stream_unary = _AsyncToken._call
