"""The exception of this package, and its conversion from gRPC errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

STATUS_KEY: Final = "grpc-status-details-bin"
ERROR_DOMAIN: Final = "kernalyse"


class RequestError(Exception):
    """A request that the service rejected, that did not reach it, or that could not be sent as written.

    Attributes:
        code: name of the gRPC status code, e.g. "NOT_FOUND".
        reason: the service's own reason, e.g. "RUN_NOT_FOUND"; empty for a failure of the transport.
        message: what went wrong, for people.
        metadata: subject, found, expected and remedy, as far as known; also available as properties.
    """

    def __init__(self, code: str, reason: str, message: str, metadata: Mapping[str, str]) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata)
        super().__init__(code, reason, message, self.metadata)

    @property
    def subject(self) -> str:
        """Return the thing at fault, named as the caller named it; empty: not known."""
        return self.metadata.get("subject", "")

    @property
    def found(self) -> str:
        """Return what was there; empty: not known."""
        return self.metadata.get("found", "")

    @property
    def expected(self) -> str:
        """Return what would have been right; empty: not known."""
        return self.metadata.get("expected", "")

    @property
    def remedy(self) -> str:
        """Return what can be done now; empty: not known."""
        return self.metadata.get("remedy", "")

    def __str__(self) -> str:
        return f"{self.reason or self.code}: {self.message}"


def call_error(
    subject: str, *, found: str, expected: str, remedy: str = "", code: str = "INVALID_ARGUMENT", reason: str = "INVALID_CALL"
) -> RequestError:
    """Return the error of a request that this package rejects before it is sent."""
    parts = {"subject": subject, "found": found, "expected": expected, "remedy": remedy}
    message = f"{subject}: found {found}; expected {expected}.{' ' if remedy else ''}{remedy}"
    return RequestError(code, reason, message, {name: text for name, text in parts.items() if text})


def local_failure(code: grpc.StatusCode, reason: str, subject: str, *, found: str, expected: str, remedy: str) -> grpc.aio.AioRpcError:
    """Return a call's error for a cause found on this machine, in the form of a service's error; also for blocking calls."""
    parts = {"subject": subject, "found": found, "expected": expected, "remedy": remedy}
    message = f"{subject}: found {found}; expected {expected}. {remedy}"
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=ERROR_DOMAIN, metadata=parts))
    status = status_pb2.Status(code=code.value[0], message=message, details=[detail])
    trailing = grpc.aio.Metadata((STATUS_KEY, status.SerializeToString()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=message)


@contextmanager
def request_errors() -> Iterator[None]:
    """Raise RequestError for every RpcError inside the block."""
    try:
        yield
    except grpc.RpcError as error:
        raise request_error(error) from error


def request_error(error: grpc.RpcError) -> RequestError:
    """Return the error of a failed call, with the service's reason and metadata, or those of the transport."""
    code: str = error.code().name
    message: str = error.details() or code
    for key, value in error.trailing_metadata() or ():
        if key != STATUS_KEY:
            continue
        for detail in status_pb2.Status.FromString(value).details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                return RequestError(code, info.reason, message, info.metadata)
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        remedy = "Check that the analyzer runs (kernalyse up), and that the address is its own."
        return RequestError(code, "", f"{message}. {remedy}", {"found": message, "remedy": remedy})
    return RequestError(code, "", message, {})
