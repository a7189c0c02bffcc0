"""The errors of kernalyse, as one tree.

KernalyseError
├── InvalidRequestError            INVALID_ARGUMENT     the request cannot be executed as written
│   ├── InvalidParameterError          a value that no run could use
│   ├── UnknownParameterError          a name the kernel does not have
│   ├── InvalidExpressionError         text that is not arithmetic
│   ├── InvalidCatalogError            a catalog entry that cannot be used
│   ├── InvalidSourceError             kernel source that cannot be parsed
│   ├── UnsupportedConstructError      source that this runtime does not support
│   ├── TooManyConfigurationsError     a sweep over the limit
│   ├── LaunchLimitError               a launch over the device's limits
│   ├── InvalidBundleError             an archive that must not be unpacked
│   ├── InvalidTraceError              a file to import that no reader accepts
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
│   ├── DeviceSetAsideError            the device has failed, and gets no runs until it answers again
│   ├── ClusterMismatchError           a worker of a Dask cluster sees other files, or is of another version
│   └── TlsHandshakeError              the service's certificate, or the client's, is not accepted
├── UnauthenticatedError           UNAUTHENTICATED
├── ForbiddenError                 PERMISSION_DENIED    switched off on this node
│   └── ScopeMissingError              the caller's token does not grant it
├── EventExpiredError              OUT_OF_RANGE
├── LimitReachedError              RESOURCE_EXHAUSTED
│   ├── StorageFullError, QueueFullError, BundleTooLargeError, MemoryLimitError
├── UnavailableError               UNAVAILABLE
│   ├── NodeUnreachableError, ClusterUnavailableError, ObjectsUnavailableError, ShuttingDownError
├── TimeLimitError                 DEADLINE_EXCEEDED
├── CancelledError                 CANCELLED
├── WorkerCrashedError             ABORTED
├── CommandFailedError             ABORTED              the profiled program failed; its trace is stored
├── HardwareChangedError           ABORTED              another client has changed the values meanwhile
├── RunLostError                   DATA_LOSS
├── StoredRunDamagedError          DATA_LOSS            a file of the store differs from what was written
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
        """Return one paragraph of subject, found, expected and remedy."""
        text = f"{self.subject}: found {self.found}" if self.expected else f"{self.subject}: {self.found}"
        if self.expected:
            text += f"; expected {self.expected}"
        text = text if text.endswith((".", "!", "?", "\n")) else text + "."
        return f"{text} {self.remedy}" if self.remedy else text

    @property
    def metadata(self) -> dict[str, str]:
        """Return the four parts by name without the empty ones: the metadata of google.rpc.ErrorInfo."""
        parts = {"subject": self.subject, "found": self.found, "expected": self.expected, "remedy": self.remedy}
        return {name: text for name, text in parts.items() if text}

    def __str__(self) -> str:
        return self.message


class InvalidRequestError(KernalyseError):
    """The request cannot be executed as written."""

    code = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"


class InvalidParameterError(InvalidRequestError):
    """A value that no run could use."""

    reason = "INVALID_PARAMETER"


class UnknownParameterError(InvalidRequestError):
    """A parameter name that the kernel does not have."""

    reason = "UNKNOWN_PARAMETER"


class InvalidExpressionError(InvalidRequestError):
    """A text that is not an arithmetic expression, or one without a usable value."""

    reason = "INVALID_EXPRESSION"


class InvalidCatalogError(InvalidRequestError):
    """An entry of the kernel catalog that cannot be used."""

    reason = "INVALID_CATALOG"


class InvalidSourceError(InvalidRequestError):
    """Kernel source that cannot be parsed."""

    reason = "INVALID_SOURCE"


class UnsupportedConstructError(InvalidRequestError):
    """Kernel source with a construct that this runtime does not support."""

    reason = "UNSUPPORTED_CONSTRUCT"


class TooManyConfigurationsError(InvalidRequestError):
    """A sweep with more configurations than the limit."""

    reason = "TOO_MANY_CONFIGURATIONS"


class LaunchLimitError(InvalidRequestError):
    """A launch that exceeds a limit of the device."""

    reason = "LAUNCH_LIMIT_EXCEEDED"


class InvalidBundleError(InvalidRequestError):
    """An archive that must not be unpacked."""

    reason = "INVALID_BUNDLE"


class InvalidTraceError(InvalidRequestError):
    """A file to import that no reader accepts."""

    reason = "INVALID_TRACE"


class InvalidModelError(InvalidRequestError):
    """A model or tokenizer file that cannot be used."""

    reason = "INVALID_MODEL"


class InvalidSettingError(InvalidRequestError):
    """A setting that cannot be used."""

    reason = "INVALID_SETTING"


class NotFoundError(KernalyseError):
    """Something that the request names does not exist."""

    code = "NOT_FOUND"
    reason = "NOT_FOUND"


class UnknownKernelError(NotFoundError):
    """The catalog or the source has no kernel of that name."""

    reason = "UNKNOWN_KERNEL"


class UnknownModelError(NotFoundError):
    """There is no ML model of that name."""

    reason = "UNKNOWN_MODEL"


class RunNotFoundError(NotFoundError):
    """There is no run with that id."""

    reason = "RUN_NOT_FOUND"


class NodeNotFoundError(NotFoundError):
    """There is no node with that id, address or name."""

    reason = "NODE_NOT_FOUND"


class DeviceNotFoundError(NotFoundError):
    """The node has no such device."""

    reason = "DEVICE_NOT_FOUND"


class ArtifactNotFoundError(NotFoundError):
    """The run has no artifact of that name."""

    reason = "ARTIFACT_NOT_FOUND"


class TableNotFoundError(NotFoundError):
    """There is no table of that name."""

    reason = "TABLE_NOT_FOUND"


class CommandNotFoundError(NotFoundError):
    """The node has no program of that name."""

    reason = "COMMAND_NOT_FOUND"


class ConflictError(KernalyseError):
    """The request contradicts something that already exists."""

    code = "ALREADY_EXISTS"
    reason = "CONFLICT"


class RequestConflictError(ConflictError):
    """The request_id was used before, with another body."""

    reason = "REQUEST_ID_REUSED"


class NodeExistsError(ConflictError):
    """The node is already registered."""

    reason = "NODE_EXISTS"


class UnmetConditionError(KernalyseError):
    """The request is valid, but the present state does not allow it."""

    code = "FAILED_PRECONDITION"
    reason = "UNMET_CONDITION"


def observing_error(hostname: str) -> UnmetConditionError:
    """Return the error of a run that is wanted on a node which only observes."""
    return UnmetConditionError(
        f"node {hostname}",
        found="a node that only observes (setting observe_only), so nothing is ever run on it",
        expected="a node that measures",
        remedy="Choose another node; in Kubernetes start the Job kernalyse-profiler, which requests a GPU, joins and measures on it.",
    )


class BackendUnavailableError(UnmetConditionError):
    """No device can run kernels with the requested backend."""

    reason = "BACKEND_UNAVAILABLE"


class DeviceSetAsideError(UnmetConditionError):
    """The device has failed, and gets no runs until it answers again."""

    reason = "DEVICE_SET_ASIDE"


class CompileError(UnmetConditionError):
    """The compiler rejected the kernel; `found` carries the compiler's own lines."""

    reason = "COMPILE_FAILED"


class VerificationFailedError(UnmetConditionError):
    """The computed result is not what it should be."""

    reason = "VERIFICATION_FAILED"


class StoreLockedError(UnmetConditionError):
    """Another process holds the store."""

    reason = "STORE_LOCKED"


class RunNotFinishedError(UnmetConditionError):
    """The run has not ended yet."""

    reason = "RUN_NOT_FINISHED"


class CollectorUnavailableError(UnmetConditionError):
    """A collector's program is missing, or something on the node prevents it from collecting."""

    reason = "COLLECTOR_UNAVAILABLE"


class CollectorFailedError(UnmetConditionError):
    """A collector ran and left no trace that can be read; `found` carries its own last lines."""

    reason = "COLLECTOR_FAILED"


class ClusterMismatchError(UnmetConditionError):
    """A worker of the Dask cluster does not see the analyzer's files, or is of another version."""

    reason = "CLUSTER_MISMATCH"


class TlsHandshakeError(UnmetConditionError):
    """One peer does not accept the other's certificate, or serves no TLS: waiting does not help."""

    reason = "TLS_HANDSHAKE_FAILED"


class UnauthenticatedError(KernalyseError):
    """The token is missing or wrong."""

    code = "UNAUTHENTICATED"
    reason = "WRONG_TOKEN"


class ForbiddenError(KernalyseError):
    """The operation is switched off on this node."""

    code = "PERMISSION_DENIED"
    reason = "SWITCHED_OFF"


class ScopeMissingError(ForbiddenError):
    """The caller's token does not grant the operation."""

    reason = "SCOPE_MISSING"


class EventExpiredError(KernalyseError):
    """The requested events are no longer in the journal."""

    code = "OUT_OF_RANGE"
    reason = "EVENT_EXPIRED"


class LimitReachedError(KernalyseError):
    """Something exceeds a limit of the service, or a resource is exhausted."""

    code = "RESOURCE_EXHAUSTED"
    reason = "LIMIT_REACHED"


class StorageFullError(LimitReachedError):
    """There is no space left to write to."""

    reason = "STORAGE_FULL"


class QueueFullError(LimitReachedError):
    """The queue of runs is full."""

    reason = "QUEUE_FULL"


class BundleTooLargeError(LimitReachedError):
    """A bundle that exceeds a size limit of the node."""

    reason = "BUNDLE_TOO_LARGE"


class MemoryLimitError(LimitReachedError):
    """Something needs more memory than there is, or than it may use."""

    reason = "MEMORY_LIMIT"


class UnavailableError(KernalyseError):
    """The service cannot be reached at present; another attempt may succeed."""

    code = "UNAVAILABLE"
    reason = "UNAVAILABLE"


class NodeUnreachableError(UnavailableError):
    """The node cannot be reached."""

    reason = "NODE_UNREACHABLE"


class ClusterUnavailableError(UnavailableError):
    """The scheduler of the Dask cluster cannot be reached."""

    reason = "CLUSTER_UNAVAILABLE"


class ObjectsUnavailableError(UnavailableError):
    """The object storage with the files of runs cannot be reached, or refuses the analyzer."""

    reason = "OBJECTS_UNAVAILABLE"


class ShuttingDownError(UnavailableError):
    """The service is shutting down."""

    reason = "SHUTTING_DOWN"


class TimeLimitError(KernalyseError):
    """The time limit was exceeded."""

    code = "DEADLINE_EXCEEDED"
    reason = "TIME_LIMIT"


class CancelledError(KernalyseError):
    """The work was cancelled."""

    code = "CANCELLED"
    reason = "CANCELLED"


class WorkerCrashedError(KernalyseError):
    """The process that did the work, or the device that it used, has failed."""

    code = "ABORTED"
    reason = "WORKER_CRASHED"


class CommandFailedError(KernalyseError):
    """The profiled program ended with a status other than 0; `found` carries its last lines."""

    code = "ABORTED"
    reason = "COMMAND_FAILED"


class HardwareChangedError(KernalyseError):
    """Ceilings or thresholds have changed since the edit began."""

    code = "ABORTED"
    reason = "HARDWARE_CHANGED"


class RunLostError(KernalyseError):
    """The run's data are lost."""

    code = "DATA_LOSS"
    reason = "RUN_LOST"


class StoredRunDamagedError(KernalyseError):
    """A file of the store differs from what was written."""

    code = "DATA_LOSS"
    reason = "STORED_RUN_DAMAGED"


class NotBuiltYetError(KernalyseError):
    """A feature that this version does not have."""

    code = "UNIMPLEMENTED"
    reason = "NOT_BUILT_YET"


class InternalError(KernalyseError):
    """An error in kernalyse itself."""

    code = "INTERNAL"
    reason = "INTERNAL"


def error_classes(root: type[KernalyseError] = KernalyseError) -> Iterator[type[KernalyseError]]:
    """Yield every class of the tree below ``root``, and ``root`` itself."""
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)


def error_class(reason: str) -> type[KernalyseError]:
    """Return the class that carries ``reason``; InternalError for a reason that this version does not know."""
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


# ---------------------------------------------------------------- command line
# Mistakes on the command line or in a form have a class of their own: unlike errors of a service, they end with status 2.


class UsageError(InvalidRequestError):
    """A command line, or a form, that cannot be used as written."""

    reason = "BAD_USAGE"
