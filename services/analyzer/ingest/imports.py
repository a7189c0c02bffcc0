"""Import of uploaded traces as runs, with progress and cancellation."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from kernalyse.services.analyzer.ingest.uploads import (
    UploadedTrace,
    UploadMessage,
    UploadPosition,
    UploadSessions,
    import_cancelled,
)
from kernalyse.services.analyzer.ingest.worker_pool import ReadingResult, ReadingTask, TaskExecutor
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.readers.operation_list import REGISTRY_FILE_NAME as REGISTRY_NAME
from kernalyse.services.analyzer.readers.registry import select_reader_by_head
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.core.access import caller
from kernalyse.services.core.errors import InvalidTraceError, KernalyseError
from kernalyse.services.core.model import ImportProgress, ImportStage, Run
from kernalyse.services.core.rpc import cancel_and_wait

# ---------------------------------------------------------------- importer

IDENTITY_LENGTH: Final = 20
"""Hexadecimal digits of the identity in a run_id: with 80 bits no two files of a store collide by chance."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of an import. is_known: the run was there before, from the same files."""

    run: Run
    is_known: bool


class TraceImporter:
    """The importer of uploaded traces: it receives them, has them read, and stores the run completely or not at all.

    Args:
        max_bytes: of one run's traces with all files that belong to them.
        op_registry_directory: directory of the registry of operations, for `TraceFiles`.
    """

    def __init__(self, store: Store, max_bytes: int, executor: TaskExecutor, op_registry_directory: Path | None = None) -> None:
        self._store = store
        self._reading = UploadReader(executor, op_registry_directory)
        self._op_registry_directory = op_registry_directory
        self._uploads = UploadSessions(store.uploads_directory, max_bytes, select_reader_by_head)
        self._executor = executor
        self._jobs = ImportJobs()

    async def receive(self, parts: AsyncIterable[UploadMessage]) -> ImportResult:
        """Store the traces of a stream as a run, and return it; the same files once more return the run that is there.

        A stream with a source_id holds a state of something that changes: it replaces the run of an earlier state.

        Raises:
            InvalidTraceError: the files are damaged, or no reader accepts them; the latter shows before everything has arrived.
            LimitReachedError: a limit is exceeded, which the error names.
            StorageFullError: there is no room.
            CancelledError: the import was cancelled.
        """
        stream = aiter(parts)
        first = await anext(stream, None)
        upload_id = "" if first is None else first.upload_id
        job = await self._jobs.begin(upload_id)
        source_id = "" if first is None else first.source_id
        ingestion = asyncio.create_task(self._ingest(_with_first(first, stream), job, source_id))
        cancellation = asyncio.create_task(job.is_cancelled.wait())
        try:
            await asyncio.wait({ingestion, cancellation}, return_when=asyncio.FIRST_COMPLETED)
            if ingestion.done():
                return ingestion.result()
        finally:
            await cancel_and_wait(ingestion, cancellation)
            self._jobs.end(upload_id, job)
        raise import_cancelled(upload_id)

    def resume_position(self, upload_id: str) -> UploadPosition:
        """Return where an interrupted upload has to continue."""
        return self._uploads.resume_position(upload_id)

    def progress(self, upload_id: str) -> AsyncIterator[ImportProgress]:
        """Yield the progress of an import until it is over."""
        return self._jobs.watch(upload_id)

    def cancel(self, upload_id: str) -> None:
        """Cancel an import, even one that begins only later or whose sender has disconnected."""
        self._jobs.cancel(upload_id)
        self._uploads.forget(upload_id)

    async def _ingest(self, parts: AsyncIterable[UploadMessage], job: ImportJob, source_id: str) -> ImportResult:
        self._executor.prepare()
        async with (
            self._reading.staging(self._store.uploads_directory, job, is_of_upload=True) as staging,
            self._uploads.receive(parts, staging.begin) as traces,
        ):
            identity = _identity(traces)
            if source_id:
                identity = await asyncio.to_thread(self._with_registry, identity)
            id_source = hashlib.sha256(f"source {source_id}".encode()).hexdigest() if source_id else identity
            run_id = f"imported-{id_source[:IDENTITY_LENGTH]}"
            if not await asyncio.to_thread(self._store.has_imported, run_id, f"sha256:{identity}" if source_id else ""):
                job.report(ImportStage.READING, len(traces))
                rows = self._store.reserve_rows(run_id)
                task = ReadingTask(rows, run_id=run_id, file_name=traces[0].file_name, digest=f"sha256:{identity}")
                if len(traces) == 1 and not source_id:
                    task = replace(task, digest=traces[0].digest)
                result = await self._reading.execute(task, traces, staging)
                assert result.run is not None
                is_new = await self._add(replace(result.run, owner=caller().name), rows, result.next_event_index)
                return ImportResult((await asyncio.to_thread(self._store.runs.get, run_id)).run, is_known=not is_new)
            return ImportResult((await asyncio.to_thread(self._store.runs.get, run_id)).run, is_known=True)

    def _with_registry(self, identity: str) -> str:
        """Return an identity that includes the registry of operations: with another registry the same traces give other rows."""
        path = None if self._op_registry_directory is None else self._op_registry_directory / REGISTRY_NAME
        content = path.read_bytes() if path is not None and path.is_file() else b""
        return hashlib.sha256(identity.encode() + content).hexdigest()

    async def _add(self, run: Run, directory: Path, next_event_index: int) -> bool:
        """Store the run and return whether it was new. This is not interrupted: the rows must stay while the store takes them over."""
        adding = asyncio.create_task(asyncio.to_thread(self._store.add_imported, run, directory, next_event_index))
        try:
            return await asyncio.shield(adding)
        except asyncio.CancelledError:
            await asyncio.wait({adding})
            raise


def _identity(traces: Sequence[UploadedTrace]) -> str:
    """Return 64 hexadecimal digits that identify the traces in any order. Raises InvalidTraceError for a repeated one."""
    identities: dict[str, UploadedTrace] = {}
    for trace in traces:
        if trace.identity in identities:
            raise InvalidTraceError(
                f"file {trace.files[0].file_name}",
                found=f"the same content as {identities[trace.identity].files[0].file_name} has",
                expected="the trace of another process",
                remedy="Leave one of them out.",
            )
        identities[trace.identity] = trace
    if len(traces) == 1:
        return traces[0].identity
    return hashlib.sha256("\n".join(sorted(identities)).encode()).hexdigest()


async def _with_first(first: UploadMessage | None, stream: AsyncIterator[UploadMessage]) -> AsyncIterator[UploadMessage]:
    if first is not None:
        yield first
    async for part in stream:
        yield part


# ---------------------------------------------------------------- progress and cancellation

BEGIN_TIMEOUT_S: Final = 10.0
"""Longest wait of WatchImport for its import to begin: two calls of one client may overtake each other."""


@dataclass(slots=True)
class ImportJob:
    """An import in progress. version: counts changes of its progress."""

    progress: ImportProgress = field(default_factory=ImportProgress)
    version: int = 0
    is_over: bool = False
    is_cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def report(self, stage: ImportStage, trace_count: int) -> None:
        """Set the stage."""
        self._set(replace(self.progress, stage=stage, trace_count=trace_count))

    def count_read_trace(self) -> None:
        """Count one more trace that has been read."""
        self._set(replace(self.progress, read_trace_count=self.progress.read_trace_count + 1))

    def end(self) -> None:
        """Mark the import as over."""
        self.is_over = True
        self._set(self.progress)

    def _set(self, progress: ImportProgress) -> None:
        self.progress = progress
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()


class ImportJobs:
    """The imports in progress by upload_id, for those who watch or cancel them."""

    def __init__(self) -> None:
        self._imports: dict[str, ImportJob] = {}
        self._begun = asyncio.Condition()

    async def begin(self, upload_id: str) -> ImportJob:
        """Return a new import in progress. Without an upload_id nobody can watch it."""
        found = ImportJob()
        if upload_id:
            async with self._begun:
                self._imports[upload_id] = found
                self._begun.notify_all()
        return found

    def end(self, upload_id: str, job: ImportJob) -> None:
        """Remove an import that is over."""
        job.end()
        if self._imports.get(upload_id) is job:  # not when another stream continues the upload by now
            del self._imports[upload_id]

    def cancel(self, upload_id: str) -> None:
        """Cancel an import; does nothing when there is none."""
        if upload_id in self._imports:
            self._imports[upload_id].is_cancelled.set()

    async def watch(self, upload_id: str) -> AsyncIterator[ImportProgress]:
        """Yield the progress now and after each change, until the import is over. Yields nothing if it does not begin in time."""
        try:
            async with asyncio.timeout(BEGIN_TIMEOUT_S), self._begun:
                await self._begun.wait_for(lambda: upload_id in self._imports)
        except TimeoutError:
            return
        job = self._imports.get(upload_id)
        version = None
        while job is not None and not job.is_over:
            changed = job.changed
            if job.version != version:
                version = job.version
                yield job.progress
            else:
                await changed.wait()


# ---------------------------------------------------------------- reading of uploaded traces


ROWS_SUFFIX: Final = ".rows"
"""Of a directory of rows beside the first of the files that they were read from."""

ResultT = TypeVar("ResultT")


class UploadReader:
    """The reading of uploaded traces into the rows of one run.

    Args:
        op_registry_directory: directory of the registry of operations, for `TraceFiles`.
    """

    def __init__(self, executor: TaskExecutor, op_registry_directory: Path | None = None) -> None:
        self._executor = executor
        self._op_registry_directory = op_registry_directory

    def staging(self, parent: Path, job: ImportJob, *, is_of_upload: bool = False) -> Staging:
        """Return the staging of one import, see Staging."""
        return Staging(self._executor, partial(self._files, keeps_directories=True), parent, job, is_of_upload=is_of_upload)

    async def execute(
        self, task: ReadingTask, traces: Sequence[UploadedTrace], staging: Staging, skipped: list[InvalidTraceError] | None = None
    ) -> ReadingResult:
        """Execute the task with these traces: one is read as it is, several are each read and then joined.

        Args:
            staging: of this import.
            skipped: filled with the errors of those of several traces that cannot be read, as long as one can; None: all have to be
                readable.

        Raises:
            InvalidTraceError: a trace, or each of them, cannot be read. As after any error the task's own directory is gone.
            LimitReachedError: reading takes too much memory.
            StorageFullError: there is no room for the rows.
        """
        try:
            if len(traces) == 1:
                return await self._executor.execute(replace(task, traces=(self._files(traces[0]),)))
            staged = await staging.directories(traces, skipped)
            if not staged and skipped:
                raise skipped[0]
            staging.job.report(ImportStage.STORING, len(traces))
            return await self._executor.execute(replace(task, staged=staged))
        except BaseException:
            shutil.rmtree(task.directory, ignore_errors=True)
            raise

    def _files(self, trace: UploadedTrace, *, keeps_directories: bool = False) -> TraceFiles:
        """Return a trace as readers take it. keeps_directories: in its name, which is often all that ranks differ in."""
        first, *others = trace.files
        name = first.file_name if keeps_directories else trace.file_name
        companions = {file.file_name: file.path for file in others}
        return TraceFiles(name, first.path, time.time_ns(), companions, self._op_registry_directory)


class Staging:
    """The reading of the traces of one import into staged rows, a task each, which may begin while other traces are still arriving.

    What is still being read at the end of the block is cancelled, and all staged rows are deleted but those of an upload.

    Args:
        files: gives a trace as readers take it.
        parent: of the directory of the rows, which is made when it is needed.
        is_of_upload: rows take the place of the files that they were read from, and go when the upload goes: traces of many ranks are
            hundreds of gigabytes, their rows a tenth, and a stream that continues an interrupted one goes on with them.
    """

    def __init__(
        self,
        executor: TaskExecutor,
        files: Callable[[UploadedTrace], TraceFiles],
        parent: Path,
        job: ImportJob,
        *,
        is_of_upload: bool,
    ) -> None:
        self.job = job
        self._executor = executor
        self._files = files
        self._parent = parent
        self._is_of_upload = is_of_upload
        self._directory: Path | None = None
        self._tasks: dict[UploadedTrace, asyncio.Task[Path]] = {}

    async def __aenter__(self) -> Self:
        """Begin nothing yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel what is being read, and delete the rows."""
        try:
            await cancel_and_wait(*self._tasks.values())
        finally:
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def directory(self) -> Path:
        """Directory for rows that go with the block."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(dir=self._parent))
        return self._directory

    def begin(self, traces: Iterable[UploadedTrace]) -> None:
        """Begin to read those of the traces that are not being read yet."""
        for trace in traces:
            if trace not in self._tasks:
                self._tasks[trace] = asyncio.create_task(self._stage(trace, self.directory / str(len(self._tasks))))

    async def directories(self, traces: Sequence[UploadedTrace], skipped: list[InvalidTraceError] | None) -> tuple[Path, ...]:
        """Return directories with the rows of each trace, in their order; all tasks end when one fails that may not be skipped."""

        async def staged(trace: UploadedTrace) -> Path | None:
            try:
                return await self._tasks[trace]
            except InvalidTraceError as error:
                if skipped is None:
                    raise
                skipped.append(error)
                return None

        self.begin(traces)
        return tuple(found for found in await _all_results(map(staged, traces)) if found is not None)

    async def _stage(self, trace: UploadedTrace, directory: Path) -> Path:
        kept = trace.files[0].path.with_suffix(ROWS_SUFFIX)
        if not kept.exists():
            try:
                await self._executor.execute(ReadingTask(directory, (self._files(trace),), file_name=trace.files[0].file_name))
            except (KernalyseError, OSError):
                if not kept.exists():  # else the stream that this one continues was reading it too, and has finished
                    raise
            if not self._is_of_upload:
                kept = directory
            elif not kept.exists():
                directory.rename(kept)
                await asyncio.to_thread(_delete, trace)
        self.job.count_read_trace()
        return kept


def _delete(trace: UploadedTrace) -> None:
    """Delete the files of a trace, which takes a second for ten gigabytes."""
    for file in trace.files:
        file.path.unlink(missing_ok=True)


async def _all_results(work: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """Return the results of all, which run at once; when one fails, the others are cancelled."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(*tasks)
