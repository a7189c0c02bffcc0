"""What a caller needs for each RPC, the interceptor that sees to it, and the record of what was decided.

`METHOD_SCOPES` has every RPC of both services; a test compares it with the contract. Some requests need more than their
RPC: `require` is for these. An analyzer that calls a profiler for somebody says for whom (`caller_metadata`), and the
profiler grants what both have.
"""

from __future__ import annotations

import json
import logging
import ssl
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from kernalyse.services.core.errors import ForbiddenError, InvalidParameterError, LimitReachedError, ScopeMissingError, UnauthenticatedError
from kernalyse.services.core.identity import OWNER, Identities, Identity, Scope, highest, parse_scope, with_lower
from kernalyse.services.core.model import CommandProfile, KernelSweep, ModelRun, RunSpec

ANALYZER: Final = "/kernalyse.v1.AnalyzerService/"
PROFILER: Final = "/kernalyse.v1.ProfilerService/"

METHOD_SCOPES: Final[Mapping[str, Scope]] = {
    **dict.fromkeys((f"{ANALYZER}Join", f"{ANALYZER}Tunnel"), Scope.JOIN),
    **dict.fromkeys(
        (
            *(f"{ANALYZER}{name}" for name in ("ListNodes", "WatchNodes", "ReadArtifact", "ListKernels", "GetRun", "ListRuns")),
            *(f"{ANALYZER}{name}" for name in ("WatchImport", "WatchRun", "GetTable", "GetHardware", "ExportReport")),
            *(f"{ANALYZER}{name}" for name in ("SignIn", "RenewToken")),
            *(f"{PROFILER}{name}" for name in ("GetNode", "GetRun", "ListRuns", "WatchRun", "WatchNode", "ReadArtifact", "ListKernels")),
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        ),
        Scope.READ,
    ),
    **dict.fromkeys(
        (
            *(f"{ANALYZER}{name}" for name in ("StartRun", "CancelRun", "UpdateRun", "DeleteRun")),
            *(f"{ANALYZER}{name}" for name in ("ImportTrace", "ResumeUpload", "CancelImport")),
            *(f"{PROFILER}{name}" for name in ("StartRun", "CancelRun")),
        ),
        Scope.MEASURE,
    ),
    **dict.fromkeys((f"{ANALYZER}UploadBundle", f"{PROFILER}UploadBundle"), Scope.SOURCE),
    **dict.fromkeys((f"{ANALYZER}{name}" for name in ("AddNode", "RemoveNode", "UpdateHardware", "CreateJoinToken")), Scope.ADMIN),
}
"""The scope that each RPC needs. One that is not here needs admin."""

OPEN_METHODS: Final = ("/grpc.health.v1.Health/",)
"""Whoever can connect may ask whether the service is alive."""

IDENTITY_KEY: Final = "kernalyse-identity-bin"
SCOPES_KEY: Final = "kernalyse-scopes"

SUBJECTS: Final = ("run_id", "file_name", "address", "node_id", "upload_id", "digest", "device_id", "table_name")
"""Fields of requests that say what a call is about, the most telling first."""

RECORDED_READS: Final = (f"{ANALYZER}SignIn",)
ALLOWED: Final = "allowed"

AUDIT_FILE_BYTES: Final = 10 * 1024**2
AUDIT_FILE_COUNT: Final = 5

_caller: ContextVar[Identity] = ContextVar("caller", default=OWNER)


def caller() -> Identity:
    """Return who has called the RPC that this code serves; outside of calls the service itself, which may do everything."""
    return _caller.get()


def require(scope: Scope, subject: str) -> None:
    """Let the caller go on only with the scope.

    Args:
        subject: what is to be done, for the message.

    Raises:
        ScopeMissingError: the caller lacks it.
    """
    identity = caller()
    if scope not in identity.scopes:
        raise ScopeMissingError(
            subject,
            found=f"a token of {identity} with scope {highest(identity.scopes) or 'none'}",
            expected=f"scope {scope}",
            remedy=f"Ask the owner of the service for one: kernalyse {_ISSUING.get(scope, f'tokens issue NAME --scope {scope}')}",
        )


def require_for_run(spec: RunSpec) -> None:
    """Let the caller go on only with the scope that the run needs. Raises ScopeMissingError."""
    scope = scope_of_run(spec)
    require(scope, _RUN_SUBJECTS[scope])


_ISSUING: Final = {Scope.JOIN: "nodes join-token"}

_RUN_SUBJECTS: Final = {
    Scope.MEASURE: "a run of what the catalogue has",
    Scope.SOURCE: "a run of kernels, options or models of one's own",
    Scope.COMMAND: "a run of a command",
}


def scope_of_run(spec: RunSpec) -> Scope:
    """Return the scope that a run needs: code of its own needs more than what the catalogue has."""
    match spec.work:
        case CommandProfile():
            return Scope.COMMAND
        case KernelSweep(kernels=kernels, compiler_options=options):
            is_own = any(kernel.source or kernel.definition or kernel.bundle_digest for kernel in kernels)
            return Scope.SOURCE if is_own or options else Scope.MEASURE
        case ModelRun(bundle_digest=str()):
            return Scope.SOURCE
        case _:
            return Scope.MEASURE


def require_own(owner: str, subject: str) -> None:
    """Let the caller change only what is his own, or everybody's with scope admin.

    Args:
        owner: the name of who it belongs to; empty: not known, which is the service's owner.

    Raises:
        ScopeMissingError: it is another's.
    """
    if owner != caller().name:
        require(Scope.ADMIN, f"{subject} of {owner or OWNER.name}")


def caller_metadata() -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata that tells a profiler for whom it is called."""
    identity = caller()
    return ((IDENTITY_KEY, identity.name.encode()), (SCOPES_KEY, ",".join(sorted(identity.scopes))))


# ---------------------------------------------------------------- audit


class Audit:
    """One JSON line for each decision: refusals, and whatever needs more than reading.

    Args:
        path: of the file, mode 0600, of which five of 10 MiB are kept; None: nothing is written.
        clock: seconds since the epoch.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._logger: logging.Logger | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            handler = RotatingFileHandler(path, maxBytes=AUDIT_FILE_BYTES, backupCount=AUDIT_FILE_COUNT - 1, delay=True)
            self._logger = logging.Logger(f"audit {path}")  # of this service alone: tests have several in one process
            self._logger.addHandler(handler)
            weakref.finalize(self, handler.close)

    def write(self, method: str, identity: Identity | None, decision: str, subject: str, peer: str) -> None:
        """Write a line.

        Args:
            method: path of the RPC.
            identity: of the caller; None: not known.
            decision: ALLOWED, or why not.
            subject: what the call is about.
            peer: address of the caller, as gRPC has it.
        """
        if self._logger is None:
            return
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock())),
            "who": "" if identity is None else identity.name,
            "via": "" if identity is None else identity.via,
            "token_id": "" if identity is None else identity.token_id,
            "what": method.rpartition("/")[2],
            "on": subject,
            "decision": decision,
            "peer": peer,
        }
        self._logger.info(json.dumps(line, ensure_ascii=False))


def subject_of(request: Any) -> str:
    """Return what a request is about: the first of its fields that says so, or the title of its run."""
    names = request.DESCRIPTOR.fields_by_name
    if "password" in names:
        return str(request.password.name)
    if "join" in names:  # of a tunnel
        return str(request.join.node.hostname)
    if "spec" in names:
        work = request.spec.WhichOneof("work") or "run"
        only_checked = "(only checked)" if request.validate_only else ""  # as forms do while they are filled in
        return " ".join(part for part in (work, request.spec.title, only_checked) if part)
    return next((str(value) for name in SUBJECTS if name in names and (value := getattr(request, name))), "")


# ---------------------------------------------------------------- the interceptor


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    scope: Scope
    metadata: Sequence[tuple[str, str | bytes]]


class AuthInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """An interceptor that lets a call through if its caller is known and has the RPC's scope.

    A caller without a token is refused before anybody learns whether the method exists, unless it may show a certificate.
    A stream ends as soon as its caller's token has ended or been revoked and there is something to send.

    Args:
        identities: who is known.
        audit: where decisions are written.
        has_certificates: clients show certificates, which may be those of identities.
    """

    def __init__(self, identities: Identities, audit: Audit, *, has_certificates: bool = False) -> None:
        self._identities = identities
        self._audit = audit
        self._has_certificates = has_certificates

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Return the method's handler with the check around it, or a handler that refuses the call."""
        method = details.method
        if method.startswith(OPEN_METHODS):
            return await continuation(details)
        token = _bearer(details.invocation_metadata)
        identity = None if token is None else self._identities.of_token(token)
        if identity is None and not (token is None and self._has_certificates):
            return self._refusing(method, "no token" if token is None else self._identities.refusal(token))
        call = _Call(method, METHOD_SCOPES.get(method, Scope.ADMIN), details.invocation_metadata)
        if identity is not None and call.scope not in self._effective(identity, call).scopes:
            # Always a stream handler: for any other kind gRPC would receive the entire message first.
            return grpc.stream_stream_rpc_method_handler(self._forbidding(call, identity))
        handler = await continuation(details)
        return None if handler is None else self._checked(handler, call, identity)

    def _checked(self, handler: Any, call: _Call, identity: Identity | None) -> Any:
        if handler.response_streaming:
            stream = handler.stream_stream or handler.unary_stream

            async def answer_stream(request: Any, context: Any) -> AsyncIterator[Any]:
                known = self._let_in(call, identity, context)
                with self._recorded(call, request, context) as told:
                    async for response in stream(told, context):
                        if not self._identities.is_valid(known):
                            raise _unknown("a token that has ended or been revoked meanwhile")
                        yield response

            behavior: Callable[..., Any] = answer_stream
        else:
            unary = handler.stream_unary or handler.unary_unary

            async def answer(request: Any, context: Any) -> Any:
                self._let_in(call, identity, context)
                with self._recorded(call, request, context) as told:
                    return await unary(told, context)

            behavior = answer
        build = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        return build(behavior, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer)

    def _let_in(self, call: _Call, identity: Identity | None, context: Any) -> Identity:
        """Set the caller for the code that serves the call, and return whose token or certificate was shown."""
        identity = identity or self._of_certificate(context)
        if identity is None:
            self._audit.write(call.method, None, "neither a token nor a known certificate", "", context.peer())
            raise _unknown("no token, and no certificate that is known")
        _caller.set(self._effective(identity, call))
        try:
            require(call.scope, call.method.rpartition("/")[2])
        except ScopeMissingError:
            self._audit.write(call.method, caller(), f"scope {call.scope} is missing", "", context.peer())
            raise
        return identity

    @contextmanager
    def _recorded(self, call: _Call, request: Any, context: Any) -> Iterator[Any]:
        """Yield the request, and write how the call was decided: refused by what serves it too, or allowed."""
        subject = subject_of(request) if hasattr(request, "DESCRIPTOR") else ""
        identity, peer, decision = caller(), context.peer(), ALLOWED

        async def seen() -> AsyncIterator[Any]:
            """Yield the messages of a stream, whose first one says what it is about."""
            nonlocal subject
            async for part in request:
                subject = subject or subject_of(part)
                yield part

        try:
            yield request if hasattr(request, "DESCRIPTOR") else seen()
        except (UnauthenticatedError, ForbiddenError, LimitReachedError) as error:
            decision = error.message
            raise
        finally:
            if decision != ALLOWED or call.scope is not Scope.READ or call.method in RECORDED_READS:
                self._audit.write(call.method, identity, decision, subject, peer)

    def _effective(self, identity: Identity, call: _Call) -> Identity:
        """Return for whom an analyzer calls; others call for themselves. Everybody may give scopes up for a call."""
        passed = {key: value for key, value in call.metadata if key in (IDENTITY_KEY, SCOPES_KEY)}
        if not passed:
            return identity
        name = passed.get(IDENTITY_KEY, b"") if identity.may_speak_for_others else b""
        try:
            scopes = with_lower(parse_scope(text) for text in str(passed.get(SCOPES_KEY, "")).split(",") if text)
        except InvalidParameterError:
            scopes = frozenset()  # of a newer version: what is not understood is not granted
        return identity.narrowed(name.decode(errors="replace") if isinstance(name, bytes) else name, scopes)

    def _of_certificate(self, context: Any) -> Identity | None:
        shown = context.auth_context().get("x509_pem_cert", [])
        return self._identities.of_certificate(ssl.PEM_cert_to_DER_cert(shown[0].decode())) if shown else None

    def _refusing(self, method: str, found: str) -> Any:
        async def refuse(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            self._audit.write(method, None, found, "", context.peer())
            raise _unknown(found)
            yield  # type: ignore[unreachable]  # the handler of a stream must be a generator

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _forbidding(self, call: _Call, identity: Identity) -> Callable[..., Any]:
        async def forbid(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            self._let_in(call, identity, context)
            yield  # never reached: the scope is missing

        return forbid


def _bearer(metadata: Sequence[tuple[str, str | bytes]]) -> str | None:
    """Return the token of a call; None: it has none."""
    credentials = next((str(value) for key, value in metadata if key == "authorization"), "")
    scheme, _, token = credentials.partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _unknown(found: str) -> UnauthenticatedError:
    return UnauthenticatedError(
        "metadata authorization",
        found=found,
        expected="Bearer and a token of this service",
        remedy="Pass the token that was issued for you, or the content of the service's token file.",
    )
