"""A run as lists and headers show it, and runs that the dashboard starts: checked, with what has to travel before, and queued."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kernalyse.bundle import pack
from kernalyse.services.core.artifacts import DIRECTORY_LIST
from kernalyse.services.core.demo import TITLE as DEMO_TITLE
from kernalyse.services.core.demo import demo_spec
from kernalyse.services.core.errors import ArtifactNotFoundError, InvalidSourceError, KernalyseError, NotFoundError
from kernalyse.services.core.model import (
    CommandProfile,
    KernelDefinition,
    KernelSource,
    KernelSweep,
    ModelRun,
    Run,
    RunSpec,
    RunState,
    TableQuery,
    Work,
)
from kernalyse.services.core.protobuf import decode, decode_json, encode
from kernalyse.services.core.reruns import (
    RESUME_COLUMNS,
    SPEC_ARTIFACT,
    StoppedSweep,
    bundle_artifact_name,
    continuation_spec,
    repetition_spec,
)
from kernalyse.services.core.tracing import span
from kernalyse.services.ui import theme
from kernalyse.services.ui.data.client import CALL_TIMEOUT_S, AnalyzerClient
from kernalyse.services.ui.data.memory import Overview
from kernalyse.services.ui.forms.form import SourceKernels
from kernalyse.services.ui.uploads.given_files import GivenFile
from kernalyse.v1 import analyzer_service_pb2 as messages


@dataclass(frozen=True, slots=True)
class RunCard:
    """A run as lists and headers show it."""

    run_id: str
    title: str
    state: str
    is_active: bool
    progress_ratio: float | None
    completed: int
    failed: int
    total: int | None
    elapsed_s: float | None
    left_s: float | None
    activity: str
    device_id: str | None
    node_name: str
    is_imported: bool
    is_trace: bool
    is_model: bool
    has_timeline: bool
    command: str  # that was profiled; empty: none
    collector: str  # of the command
    create_text: str
    problem: str
    notes: str
    tags: tuple[str, ...]
    continues_run_id: str  # empty: none


def run_card(run: Run, overview: Overview, now_unix_s: float) -> RunCard:
    start_s = run.start_time.timestamp() if run.start_time else None
    end_s = run.end_time.timestamp() if run.end_time else now_unix_s
    elapsed_s = None if start_s is None else max(0.0, end_s - start_s)
    done, total = run.completed_configuration_count, run.total_configuration_count
    work = run.spec.work
    return RunCard(
        run_id=run.run_id,
        title=run.title,
        state=run.state.value,
        is_active=not run.state.is_final,
        progress_ratio=1.0 if run.state is RunState.SUCCEEDED else min(1.0, done / total) if total else None,
        completed=done,
        failed=run.failed_configuration_count,
        total=total,
        elapsed_s=elapsed_s,
        left_s=_left_s(run, overview.progress_unix_s.get(run.run_id, now_unix_s), now_unix_s),
        activity=run.activity,
        device_id=run.device_id,
        node_name=run.node_name,
        is_imported=run.is_imported,
        is_trace=run.is_trace,
        is_model=isinstance(work, ModelRun),
        has_timeline=run.has_timeline,
        command=shlex.join(work.arguments) if isinstance(work, CommandProfile) else "",
        collector=work.collector if isinstance(work, CommandProfile) else "",
        create_text=theme.moment(int(run.create_time.timestamp() * 1e9)),
        problem=run.error.message if run.error else run.problem,
        notes=run.notes,
        tags=run.tags,
        continues_run_id=run.spec.continues_run_id or "",
    )


def _left_s(run: Run, progress_unix_s: float, now_unix_s: float) -> float | None:
    """As long for each of the configurations left as for those that are done; the one that goes on has used some of its time."""
    done, total = run.completed_configuration_count, run.total_configuration_count
    if run.state is not RunState.RUNNING or run.start_time is None or not done or not total:
        return None
    each_s = max(0.0, progress_unix_s - run.start_time.timestamp()) / done
    return max(0.0, each_s * (total - done) - (now_unix_s - progress_unix_s))


CHUNK_BYTES: Final = 512 * 1024
UPLOAD_TIMEOUT_S: Final = 600.0
MAX_SOURCE_BYTES: Final = 4 * 1024 * 1024  # as nodes take


async def kernels_of_node(client: AnalyzerClient, node_id: str) -> tuple[KernelDefinition, ...]:
    """Its catalogue. node_id: empty for the analyzer's choice. Raises KernalyseError."""

    async def call(stub: Any) -> tuple[KernelDefinition, ...]:
        request = messages.AnalyzerServiceListKernelsRequest(node_id=node_id)
        response = await stub.ListKernels(request, timeout=CALL_TIMEOUT_S)
        return tuple(decode(kernel, KernelDefinition) for kernel in response.kernels)

    return await client.call(call)


async def kernels_of_source(client: AnalyzerClient, node_id: str, file: GivenFile) -> SourceKernels:
    """What the node says of a file's kernels. Raises KernalyseError."""
    source = KernelSource(file.name, await asyncio.to_thread(_text, file))

    async def call(stub: Any) -> SourceKernels:
        request = messages.AnalyzerServiceListKernelsRequest(node_id=node_id, source=encode(source))
        response = await stub.ListKernels(request, timeout=CALL_TIMEOUT_S)
        return SourceKernels(source, tuple(decode(kernel, KernelDefinition) for kernel in response.kernels), tuple(response.notices))

    return await client.call(call)


async def check_run(client: AnalyzerClient, spec: RunSpec, node_id: str) -> Run | KernalyseError:
    """The run that it would be, or why it would be refused."""
    try:
        return await _start(client, spec, node_id, validate_only=True)
    except KernalyseError as error:
        return error


async def start_run(client: AnalyzerClient, spec: RunSpec, bundle: Sequence[GivenFile], node_id: str) -> Run:
    """Queues it, its files first. Raises KernalyseError."""
    if bundle:
        is_sweep = isinstance(spec.work, KernelSweep)
        digest = await _upload(client, await asyncio.to_thread(_packed, bundle, with_directory_list=is_sweep), node_id)
        spec = replace(spec, work=_with_bundle(spec.work, digest))
    return await _start(client, spec, node_id, validate_only=False)


async def start_demo(client: AnalyzerClient) -> tuple[Run, bool]:
    """The demo sweep, and whether it runs already: the list of runs that pages show may not have it yet. Raises KernalyseError."""

    async def newest(stub: Any) -> list[Run]:
        answer = await stub.ListRuns(messages.AnalyzerServiceListRunsRequest(), timeout=CALL_TIMEOUT_S)
        return [decode(run, Run) for run in answer.runs]

    running = next(filter(is_active_demo, await client.call(newest)), None)
    return (running, True) if running is not None else (await start_run(client, demo_spec(), (), ""), False)


def is_active_demo(run: Run) -> bool:
    """Return whether it is a demo sweep that runs or waits."""
    return run.spec.title == DEMO_TITLE and not run.state.is_final


async def start_again(client: AnalyzerClient, run: Run) -> Run:
    """The run once more, as exactly as its node has kept it. Raises KernalyseError."""
    return await _start_kept(client, run, repetition_spec(await _kept_spec(client, run)))


async def start_rest(client: AnalyzerClient, run: Run, *, retries_failed: bool) -> Run:
    """What is left of a sweep. Raises KernalyseError."""
    spec, stopped = await _kept_spec(client, run), await _stopped_sweep(client, run)
    return await _start_kept(client, run, continuation_spec(spec, stopped, further_budget_ns(run), retries_failed=retries_failed))


async def _start_kept(client: AnalyzerClient, run: Run, spec: RunSpec) -> Run:
    kernels = spec.work.kernels if isinstance(spec.work, KernelSweep) else ()
    for digest in sorted({kernel.bundle_digest for kernel in kernels if kernel.bundle_digest is not None}):
        with suppress(ArtifactNotFoundError):  # the node says so itself when they are nowhere
            await _upload(client, await client.artifact(run.run_id, bundle_artifact_name(digest)), run.node_id)
    return await _start(client, spec, run.node_id, validate_only=False)


async def _stopped_sweep(client: AnalyzerClient, run: Run) -> StoppedSweep:
    pages = {name: await client.table(TableQuery(name, (run.run_id,), columns=columns)) for name, columns in RESUME_COLUMNS.items()}
    return StoppedSweep(run, **{name: page.rows.to_dicts() for name, page in pages.items()})


def further_budget_ns(run: Run) -> int | None:
    """The same once more for a search that has spent its own; None: what is left."""
    sweep = run.spec.work
    return sweep.budget_ns if isinstance(sweep, KernelSweep) and run.state is RunState.SUCCEEDED else None


async def _kept_spec(client: AnalyzerClient, run: Run) -> RunSpec:
    if not isinstance(run.spec.work, KernelSweep):
        return run.spec
    try:
        return decode_json(await client.artifact(run.run_id, SPEC_ARTIFACT), RunSpec)
    except ArtifactNotFoundError:  # it never began, or its artifacts have been deleted
        return run.spec


async def _start(client: AnalyzerClient, spec: RunSpec, node_id: str, *, validate_only: bool) -> Run:
    request = messages.AnalyzerServiceStartRunRequest(node_id=node_id, spec=encode(spec), validate_only=validate_only)

    async def call(stub: Any) -> Run:
        return decode((await stub.StartRun(request, timeout=CALL_TIMEOUT_S)).run, Run)

    with nullcontext() if validate_only else span("start run"):
        return await client.call(call)


def _with_bundle(work: Work, digest: str) -> Work:
    match work:
        case KernelSweep(kernels):
            return replace(work, kernels=tuple(replace(kernel, bundle_digest=digest) for kernel in kernels))
        case CommandProfile() | ModelRun():
            return replace(work, bundle_digest=digest)
        case _:
            return work


async def _upload(client: AnalyzerClient, data: bytes, node_id: str) -> str:
    """The bundle's digest on the node."""

    def requests() -> Iterator[messages.AnalyzerServiceUploadBundleRequest]:
        for start in range(0, len(data), CHUNK_BYTES):
            yield messages.AnalyzerServiceUploadBundleRequest(node_id=node_id, chunk=data[start : start + CHUNK_BYTES])

    async def call(stub: Any) -> str:
        digest: str = (await stub.UploadBundle(requests(), timeout=UPLOAD_TIMEOUT_S)).digest
        return digest

    return await client.call(call)


def _packed(files: Sequence[GivenFile], *, with_directory_list: bool) -> bytes:
    """with_directory_list: they are headers, all in one directory."""
    try:
        for file in files:
            _mark_program(file.path)
        named = {file.name: file.path for file in files}
        if with_directory_list:  # beside the files, whose names are ids
            named[DIRECTORY_LIST] = files[0].path.with_name("directories")
            named[DIRECTORY_LIST].write_text(".\n")
        return pack(named)
    except OSError as error:
        raise _gone(error) from error


def _mark_program(path: Path) -> None:
    """A browser tells no modes: what begins like a program may be executed."""
    with path.open("rb") as opened:
        head = opened.read(4)
    path.chmod(0o700 if head.startswith(b"#!") or head == b"\x7fELF" else 0o600)


def _text(file: GivenFile) -> str:
    if file.size_bytes > MAX_SOURCE_BYTES:
        raise _no_source(file, f"{file.size_bytes} bytes")
    try:
        return file.path.read_text(encoding="utf-8")
    except OSError as error:
        raise _gone(error) from error
    except UnicodeDecodeError as error:
        raise _no_source(file, "a file that is not text") from error


def _no_source(file: GivenFile, found: str) -> InvalidSourceError:
    return InvalidSourceError(f"file {file.name}", found=found, expected=f"CUDA C++ text of at most {MAX_SOURCE_BYTES} bytes")


def _gone(error: OSError) -> NotFoundError:
    return NotFoundError("file that was given", found=error.strerror or "an error", remedy="Give it again.")
