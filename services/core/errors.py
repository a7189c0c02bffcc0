"""Everything kernalyse can refuse or fail at, as one tree.

KernalyseError
├── InvalidRequestError            INVALID_ARGUMENT     the request cannot be carried out as written
│   ├── InvalidParameterError          a value that no run could use
│   ├── UnknownParameterError          a name the kernel does not have
│   ├── InvalidExpressionError         text that is not arithmetic
│   ├── InvalidCatalogError            a catalogue entry that cannot be used
│   ├── InvalidSourceError             kernel source that cannot be parsed
│   ├── UnsupportedConstructError      source that this runtime cannot take
│   ├── TooManyConfigurationsError     a sweep over the limit
│   ├── LaunchLimitError               a launch over the device's limits
│   ├── InvalidBundleError             an archive that must not be unpacked
│   ├── InvalidTraceError              a file to import that no reader can take
│   ├── InvalidModelError              a model or tokenizer file that cannot be used
│   ├── InvalidSettingError            a setting that cannot be used
│   └── UsageError                     a command line, or a form, that cannot be used as written
├── NotFoundError                  NOT_FOUND
│   ├── UnknownKernelError, UnknownModelError, RunNotFoundError, NodeNotFoundError, DeviceNotFoundError,
│   ├── ArtifactNotFoundError, TableNotFoundError
│   └── CommandNotFoundError           no program of that name on the node
├── ConflictError                  ALREADY_EXISTS
│   ├── RequestConflictError           same request_id, other body
│   └── NodeExistsError
├── UnmetConditionError            FAILED_PRECONDITION
│   ├── BackendUnavailableError, CompileError, VerificationFailedError, StoreLockedError, RunNotFinishedError
│   ├── CollectorUnavailableError, CollectorFailedError
│   └── TlsHandshakeError              the service's certificate, or the client's, is not accepted
├── UnauthenticatedError           UNAUTHENTICATED
├── ForbiddenError                 PERMISSION_DENIED    switched off on this node
├── EventExpiredError              OUT_OF_RANGE
├── LimitReachedError              RESOURCE_EXHAUSTED
│   ├── StorageFullError, QueueFullError, BundleTooLargeError, MemoryLimitError
├── UnavailableError               UNAVAILABLE
│   ├── NodeUnreachableError, ShuttingDownError
├── TimeLimitError                 DEADLINE_EXCEEDED
├── CancelledError                 CANCELLED
├── WorkerCrashedError             ABORTED
├── CommandFailedError             ABORTED              the profiled program did; its trace is kept
├── HardwareChangedError           ABORTED              somebody else has set something else meanwhile
├── RunLostError                   DATA_LOSS
├── StoredRunDamagedError          DATA_LOSS            a file of the store is not what was written
├── NotBuiltYetError               UNIMPLEMENTED
└── InternalError                  INTERNAL

An error names its subject, what was found, what was expected and the remedy. Its `code` is the name of a gRPC status
code; `kernalyse.services.core.rpc` maps it, so this module knows no transport.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar


class KernalyseError(Exception):
    """What went wrong, in four parts that every surface shows alike.

    Args:
        subject: the thing at fault, named as the user named it, e.g. ``parameter N of kernel saxpy``.
        found: what was there.
        expected: what would have been right.
        remedy: what the user can do now.
    """

    code: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "ERROR"

    def __init__(self, subject: str, *, found: str, expected: str = "", remedy: str = "") -> None:
        self.subject = subject
        self.found = found
        self.expected = expected
        self.remedy = remedy
        super().__init__(subject, found, expected, remedy)

    @property
    def message(self) -> str:
        """One paragraph: subject, found, expected, remedy."""
        text = f"{self.subject}: found {self.found}" if self.expected else f"{self.subject}: {self.found}"
        if self.expected:
            text += f"; expected {self.expected}"
        text = text if text.endswith((".", "!", "?", "\n")) else text + "."
        return f"{text} {self.remedy}" if self.remedy else text

    @property
    def metadata(self) -> dict[str, str]:
        """The four parts by name, empty ones left out: the metadata of google.rpc.ErrorInfo."""
        parts = {"subject": self.subject, "found": self.found, "expected": self.expected, "remedy": self.remedy}
        return {name: text for name, text in parts.items() if text}

    def __str__(self) -> str:
        return self.message


class InvalidRequestError(KernalyseError):
    code = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"


class InvalidParameterError(InvalidRequestError):
    reason = "INVALID_PARAMETER"


class UnknownParameterError(InvalidRequestError):
    reason = "UNKNOWN_PARAMETER"


class InvalidExpressionError(InvalidRequestError):
    reason = "INVALID_EXPRESSION"


class InvalidCatalogError(InvalidRequestError):
    reason = "INVALID_CATALOG"


class InvalidSourceError(InvalidRequestError):
    reason = "INVALID_SOURCE"


class UnsupportedConstructError(InvalidRequestError):
    reason = "UNSUPPORTED_CONSTRUCT"


class TooManyConfigurationsError(InvalidRequestError):
    reason = "TOO_MANY_CONFIGURATIONS"


class LaunchLimitError(InvalidRequestError):
    reason = "LAUNCH_LIMIT_EXCEEDED"


class InvalidBundleError(InvalidRequestError):
    reason = "INVALID_BUNDLE"


class InvalidTraceError(InvalidRequestError):
    reason = "INVALID_TRACE"


class InvalidModelError(InvalidRequestError):
    reason = "INVALID_MODEL"


class InvalidSettingError(InvalidRequestError):
    reason = "INVALID_SETTING"


class NotFoundError(KernalyseError):
    code = "NOT_FOUND"
    reason = "NOT_FOUND"


class UnknownKernelError(NotFoundError):
    reason = "UNKNOWN_KERNEL"


class UnknownModelError(NotFoundError):
    reason = "UNKNOWN_MODEL"


class RunNotFoundError(NotFoundError):
    reason = "RUN_NOT_FOUND"


class NodeNotFoundError(NotFoundError):
    reason = "NODE_NOT_FOUND"


class DeviceNotFoundError(NotFoundError):
    reason = "DEVICE_NOT_FOUND"


class ArtifactNotFoundError(NotFoundError):
    reason = "ARTIFACT_NOT_FOUND"


class TableNotFoundError(NotFoundError):
    reason = "TABLE_NOT_FOUND"


class CommandNotFoundError(NotFoundError):
    reason = "COMMAND_NOT_FOUND"


class ConflictError(KernalyseError):
    code = "ALREADY_EXISTS"
    reason = "CONFLICT"


class RequestConflictError(ConflictError):
    reason = "REQUEST_ID_REUSED"


class NodeExistsError(ConflictError):
    reason = "NODE_EXISTS"


class UnmetConditionError(KernalyseError):
    code = "FAILED_PRECONDITION"
    reason = "UNMET_CONDITION"


class BackendUnavailableError(UnmetConditionError):
    reason = "BACKEND_UNAVAILABLE"


class CompileError(UnmetConditionError):
    """The compiler refused the kernel; `found` carries the compiler's own lines."""

    reason = "COMPILE_FAILED"


class VerificationFailedError(UnmetConditionError):
    """What was computed is not what it should be."""

    reason = "VERIFICATION_FAILED"


class StoreLockedError(UnmetConditionError):
    reason = "STORE_LOCKED"


class RunNotFinishedError(UnmetConditionError):
    reason = "RUN_NOT_FINISHED"


class CollectorUnavailableError(UnmetConditionError):
    """A tool that collects is missing, or something on the node keeps it from collecting."""

    reason = "COLLECTOR_UNAVAILABLE"


class CollectorFailedError(UnmetConditionError):
    """A collector ran and left no trace that can be read; `found` carries its own last lines."""

    reason = "COLLECTOR_FAILED"


class TlsHandshakeError(UnmetConditionError):
    """One side does not accept the other's certificate, or serves no TLS: waiting does not help."""

    reason = "TLS_HANDSHAKE_FAILED"


class UnauthenticatedError(KernalyseError):
    code = "UNAUTHENTICATED"
    reason = "WRONG_TOKEN"


class ForbiddenError(KernalyseError):
    code = "PERMISSION_DENIED"
    reason = "SWITCHED_OFF"


class EventExpiredError(KernalyseError):
    code = "OUT_OF_RANGE"
    reason = "EVENT_EXPIRED"


class LimitReachedError(KernalyseError):
    code = "RESOURCE_EXHAUSTED"
    reason = "LIMIT_REACHED"


class StorageFullError(LimitReachedError):
    reason = "STORAGE_FULL"


class QueueFullError(LimitReachedError):
    reason = "QUEUE_FULL"


class BundleTooLargeError(LimitReachedError):
    reason = "BUNDLE_TOO_LARGE"


class MemoryLimitError(LimitReachedError):
    reason = "MEMORY_LIMIT"


class UnavailableError(KernalyseError):
    code = "UNAVAILABLE"
    reason = "UNAVAILABLE"


class NodeUnreachableError(UnavailableError):
    reason = "NODE_UNREACHABLE"


class ShuttingDownError(UnavailableError):
    reason = "SHUTTING_DOWN"


class TimeLimitError(KernalyseError):
    code = "DEADLINE_EXCEEDED"
    reason = "TIME_LIMIT"


class CancelledError(KernalyseError):
    code = "CANCELLED"
    reason = "CANCELLED"


class WorkerCrashedError(KernalyseError):
    code = "ABORTED"
    reason = "WORKER_CRASHED"


class CommandFailedError(KernalyseError):
    """The profiled program ended with a status other than 0; `found` carries its last lines."""

    code = "ABORTED"
    reason = "COMMAND_FAILED"


class HardwareChangedError(KernalyseError):
    """Ceilings or thresholds are not those that an edit began with."""

    code = "ABORTED"
    reason = "HARDWARE_CHANGED"


class RunLostError(KernalyseError):
    code = "DATA_LOSS"
    reason = "RUN_LOST"


class StoredRunDamagedError(KernalyseError):
    code = "DATA_LOSS"
    reason = "STORED_RUN_DAMAGED"


class NotBuiltYetError(KernalyseError):
    code = "UNIMPLEMENTED"
    reason = "NOT_BUILT_YET"


class InternalError(KernalyseError):
    code = "INTERNAL"
    reason = "INTERNAL"


def error_classes(root: type[KernalyseError] = KernalyseError) -> Iterator[type[KernalyseError]]:
    """Every class of the tree below and including ``root``."""
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)


def error_class(reason: str) -> type[KernalyseError]:
    """The class that carries ``reason``; InternalError for one this version does not know."""
    return next((cls for cls in error_classes() if cls.__dict__.get("reason") == reason), InternalError)


def error_from_parts(code: str, reason: str, details: str, metadata: Mapping[str, str]) -> KernalyseError:
    """Return the error that a service raised, or the nearest one for a failure of the transport.

    Args:
        code: name of the gRPC status code.
        reason: the service's own; empty for a failure of the transport.
        details: what the status says in words.
        metadata: the four parts by name, as far as they are known.
    """
    found = metadata.get("found", details)
    if reason:
        return error_class(reason)(
            metadata.get("subject", "request"), found=found, expected=metadata.get("expected", ""), remedy=metadata.get("remedy", "")
        )
    match code:
        case "UNAVAILABLE":
            return UnavailableError(
                "service", found=found, expected="an answer", remedy="Check that it runs and that the address is right."
            )
        case "CANCELLED":
            return CancelledError("call", found=found)
        case "UNAUTHENTICATED":
            return UnauthenticatedError("call", found=found)
        case "RESOURCE_EXHAUSTED":
            return LimitReachedError("call", found=found, remedy="Send or ask for less at once.")
        case "UNIMPLEMENTED":
            return NotBuiltYetError("call", found=found, remedy="The service may be of another version.")
        case _:
            return InternalError("call", found=f"{code}: {found}")


# ---------------------------------------------------------------- usage
# Mistakes on the command line, told apart from what a service refuses: they end with status 2.


class UsageError(InvalidRequestError):
    reason = "BAD_USAGE"
