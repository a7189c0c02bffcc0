"""Fetches and reads the traces that runs left on their nodes.

Traces are fetched when their run has ended, read, and added to the run's tables, independently of collecting. The database
records which traces are still to be read in the same commit as their event, so they are resumed with the next connection to
the node, whatever has died meanwhile. An interrupted transfer resumes where it stopped, even after a restart.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from kernalyse.services.analyzer.collect.node_client import NodeClient
from kernalyse.services.analyzer.collect.node_feed import NodeSubscriptions
from kernalyse.services.analyzer.collect.run_feed import RunSubscriptions
from kernalyse.services.analyzer.ingest.imports import ImportJob, UploadReader
from kernalyse.services.analyzer.ingest.uploads import UploadedTrace, UploadMessage, UploadSession
from kernalyse.services.analyzer.ingest.worker_pool import ReadingTask
from kernalyse.services.analyzer.store.parquet import row_count
from kernalyse.services.analyzer.store.repositories import RemoteTrace
from kernalyse.services.analyzer.store.store import READING_TRACE_MESSAGE, Store
from kernalyse.services.analyzer.tables.runs import ARTIFACTS, CONFIGURATIONS, MEASUREMENTS
from kernalyse.services.analyzer.tables.traces import KERNEL_LAUNCHES, TRACE_NAMES
from kernalyse.services.core.errors import (
    ClusterMismatchError,
    ClusterUnavailableError,
    InvalidTraceError,
    KernalyseError,
    LimitReachedError,
    ObjectsUnavailableError,
    StorageFullError,
    UnavailableError,
)
from kernalyse.services.core.model import LogLevel
from kernalyse.services.core.rpc import cancel_and_wait

MAX_FETCH_COUNT: Final = 2
"""Fetches in progress at once, of all nodes. With one, a node behind a slow line would hold up the others; many would only share
the same line and disk."""

RETRY_S: Final = 30.0
"""Pause until the next attempt when the disk is full, or the Dask cluster cannot read. Somebody has to see to it; no trace is given up
because of it."""

RESULT_TABLE_NAMES: Final = {CONFIGURATIONS.table_name, MEASUREMENTS.table_name}

logger = logging.getLogger(__name__)


# ---------------------------------------------------------------- transfer


@dataclass(frozen=True, slots=True)
class RequestedFile:
    """An artifact to fetch, as the run's journal describes it. is_trace: the first file of a trace, which the next ones belong to."""

    artifact_name: str
    digest: str
    size_bytes: int
    is_trace: bool


class ArtifactFetch:
    """The transfer of one run's files from its node.

    The bytes on the disk are all that is remembered of it: whoever continues, even another process, counts them, computes their
    digest and asks for the rest.

    Args:
        directory: of this run; may hold what an earlier fetch left. It stays until `discard`.
    """

    def __init__(self, files: Sequence[RequestedFile], directory: Path, max_bytes: int) -> None:
        directory.mkdir(exist_ok=True, mode=0o700)
        self.is_continued = any(directory.iterdir())
        self._files = files
        self._upload = UploadSession(directory, max_bytes)

    async def resume(self, client: NodeClient, run_id: str) -> None:
        """Fetch what is still missing.

        Raises:
            InvalidTraceError: the bytes do not have the digest in the journal, perhaps because of what an earlier fetch left.
            LimitReachedError: they are more than the upload accepts.
            NodeUnreachableError: the node is gone or stalls.
            RunNotFoundError: the node does not know the run.
            ArtifactNotFoundError: the run left no such file.
            OSError: there is no room.
        """
        try:
            await asyncio.to_thread(self._adopt_files)
            extent = self._upload.extent
            offset_bytes = extent.offset_bytes
            for number, file in enumerate(self._files[extent.whole_file_count :], extent.whole_file_count):
                self._upload.take(self._beginning(number, "", offset_bytes))
                async for chunk in client.artifact_chunks(run_id, file.artifact_name, offset_bytes):
                    self._upload.take(UploadMessage("", chunk, ""))
                self._upload.take(UploadMessage("", b"", file.digest))
                offset_bytes = 0
        finally:
            self._upload.pause()

    def _adopt_files(self) -> None:
        for number, file in enumerate(self._files):
            if not self._upload.adopt(self._beginning(number, file.digest), file.size_bytes):
                return

    def _beginning(self, number: int, digest: str, offset_bytes: int = 0) -> UploadMessage:
        file = self._files[number]
        return UploadMessage(file.artifact_name, b"", digest, offset_bytes=offset_bytes, is_further_trace=file.is_trace and number > 0)

    def traces(self) -> tuple[UploadedTrace, ...]:
        """Return all traces, once everything has been fetched."""
        return self._upload.traces()

    def discard(self) -> None:
        """Delete the files."""
        self._upload.discard()


# ---------------------------------------------------------------- fetcher


class TraceFetcher:
    """The fetcher for all nodes of one analyzer.

    Args:
        max_bytes: of one run's traces, as of one import.
    """

    def __init__(
        self,
        store: Store,
        reading: UploadReader,
        max_bytes: int,
        run_subscriptions: RunSubscriptions,
        node_subscriptions: NodeSubscriptions,
    ) -> None:
        self._store = store
        self._reading = reading
        self._max_bytes = max_bytes
        self._run_subscriptions = run_subscriptions
        self._node_subscriptions = node_subscriptions
        self._fetching = asyncio.Semaphore(MAX_FETCH_COUNT)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._clients: dict[str, NodeClient] = {}  # the newest, by node_id

    async def begin(self, client: NodeClient, node_id: str) -> None:
        """Start fetching the traces that wait on the node, except those in progress."""
        self._clients[node_id] = client
        for run_id in await asyncio.to_thread(self._store.traces.waiting_run_ids, node_id):
            if run_id not in self._tasks:
                task = asyncio.create_task(self._complete(node_id, run_id), name=f"traces of {run_id}")
                self._tasks[run_id] = task
                task.add_done_callback(partial(self._end, run_id))

    def _end(self, run_id: str, _: asyncio.Task[None]) -> None:
        self._tasks.pop(run_id, None)

    async def close(self) -> None:
        """Stop. The next process resumes what has not been read by now."""
        await cancel_and_wait(*self._tasks.values())

    async def _complete(self, node_id: str, run_id: str) -> None:
        """Fetch and read the traces of a run, or write to its log why they are missing; return early when its node is gone."""
        try:
            while True:
                client = self._clients[node_id]
                await self._set_activity(run_id, READING_TRACE_MESSAGE)
                try:
                    await self._read(client, run_id)
                    return
                except StorageFullError as error:
                    self._forget(run_id)
                    logger.warning("Traces of run %s wait: %s", run_id, error.message)
                    await self._set_activity(run_id, "its trace waits for room on the analyzer's disk")
                    await asyncio.sleep(RETRY_S)
                except (ClusterUnavailableError, ClusterMismatchError) as error:
                    logger.warning("Traces of run %s wait: %s", run_id, error.message)
                    await self._set_activity(run_id, "its trace waits for the Dask cluster that reads it")
                    await asyncio.sleep(RETRY_S)
                except ObjectsUnavailableError as error:
                    logger.info("Traces of run %s wait: %s", run_id, error.message)
                    await self._set_activity(run_id, "its trace waits for the object storage that takes its rows")
                    await asyncio.sleep(RETRY_S)
                except UnavailableError as error:
                    if self._clients[node_id] is client:
                        logger.info("Traces of run %s are taken up when its node is back: %s", run_id, error.message)
                        await self._set_activity(run_id, "its trace waits for the node")
                        return
        except KernalyseError as error:  # gone, damaged, too large: asking again would get the same answer for ever
            await self._publish_failure(run_id, error.message)
        except Exception as error:
            logger.exception("Traces of run %s cannot be read", run_id)
            await self._publish_failure(run_id, f"{type(error).__name__}: {error}")

    async def _read(self, client: NodeClient, run_id: str) -> None:
        left = await asyncio.to_thread(self._store.traces.of, run_id)
        traces = await self._fetch(client, run_id, left)
        async with self._reading.staging(self._store.uploads_directory, ImportJob()) as staging:
            task = ReadingTask(self._store.reserve_trace(run_id), run_id=run_id, file_name=traces[0].file_name)
            skipped: list[InvalidTraceError] = []
            result = await self._reading.execute(task, traces, staging, skipped)
            assert result.run is not None
            collectors = " and ".join(dict.fromkeys(trace.collector for trace in left))
            found = {path.stem for path in task.directory.iterdir()}
            if found & RESULT_TABLE_NAMES or TRACE_NAMES.table_name not in found:
                shutil.rmtree(task.directory)
            if found & RESULT_TABLE_NAMES:
                raise InvalidTraceError(
                    f"file {traces[0].file_name}", found="results of another tool", expected=f"a trace of {collectors}", remedy="Import it."
                )
            if TRACE_NAMES.table_name not in found:
                await self._publish(run_id, None, f"Trace of {collectors} read: nothing was recorded.\n{result.run.notes}".rstrip())
                return
            launch_count = await asyncio.to_thread(row_count, task.directory, KERNEL_LAUNCHES)
            part = f", without {len(skipped)} of {len(traces)} files" if skipped else ""
            summary = f"Trace of {collectors} read{part}: {launch_count:,} launches of kernels."
            lines = (summary, *(error.message for error in skipped), result.run.notes)
            level = LogLevel.WARNING if skipped else LogLevel.INFO
            await self._publish(run_id, task.directory, "\n".join(filter(None, lines)), level)

    async def _set_activity(self, run_id: str, activity: str) -> None:
        run = await asyncio.to_thread(self._store.runs.update_activity, run_id, activity)
        if run is not None:
            await self._run_subscriptions.publish_run(run)
            self._node_subscriptions.publish(runs=[run])

    async def _publish_failure(self, run_id: str, reason: str) -> None:
        await self._publish(run_id, None, f"The trace could not be read: {' '.join(reason.split())}", LogLevel.WARNING)

    async def _publish(self, run_id: str, directory: Path | None, notes: str, level: LogLevel = LogLevel.INFO) -> None:
        """Publish the rows, and complete the run. This is not interrupted: the rows must stay while the store takes them over."""
        storing = asyncio.create_task(asyncio.to_thread(self._store.complete_traces, run_id, directory, notes, level=level))
        try:
            commit = await asyncio.shield(storing)
        except asyncio.CancelledError:
            await asyncio.wait({storing})
            raise
        self._forget(run_id)
        if commit is not None and commit.run is not None:
            await self._run_subscriptions.publish([commit])
            self._node_subscriptions.publish(runs=[commit.run])

    # ------------------------------------------------------------ from the node

    async def _fetch(self, client: NodeClient, run_id: str, left: Sequence[RemoteTrace]) -> tuple[UploadedTrace, ...]:
        """Return the files of all traces of the run, which are there until it is complete.

        Raises:
            InvalidTraceError: an artifact is missing, or its bytes do not have the digest of the journal.
            LimitReachedError: more than max_bytes.
            StorageFullError: there is no room.
            UnavailableError: the node went away; the next attempt resumes after the bytes that it has sent.
        """
        while True:
            fetch = await self._start_fetch(run_id, left)
            try:
                async with self._fetching:
                    await fetch.resume(client, run_id)
                return fetch.traces()
            except InvalidTraceError:
                fetch.discard()
                if not fetch.is_continued:
                    raise
                logger.info("Traces of run %s are fetched anew: what was there of them is damaged", run_id)
            except OSError as error:
                raise StorageFullError(
                    f"directory of fetched traces {self._store.fetched_directory}",
                    found=str(error),
                    expected="room to write",
                    remedy="Free space on that disk.",
                ) from error

    def _forget(self, run_id: str) -> None:
        shutil.rmtree(self._store.fetched_directory / run_id, ignore_errors=True)

    async def _start_fetch(self, run_id: str, left: Sequence[RemoteTrace]) -> ArtifactFetch:
        artifacts = (await asyncio.to_thread(lambda: self._store.read(ARTIFACTS, [run_id]).collect())).rows(named=True)
        known = {row["artifact_name"]: row for row in artifacts}
        files = []
        for trace in left:
            for position, name in enumerate(trace.artifact_names):
                if name not in known:
                    raise InvalidTraceError(
                        f"artifact {name} of run {run_id}", found="no such file of the run", expected="a file that it has stored before"
                    )
                files.append(RequestedFile(name, known[name]["digest"], known[name]["size_bytes"], is_trace=position == 0))
        if not files:
            raise InvalidTraceError(f"trace of run {run_id}", found="no file", expected="at least one")
        size_bytes = sum(file.size_bytes for file in files)
        if size_bytes > self._max_bytes:
            raise LimitReachedError(
                f"trace of run {run_id}",
                found=f"{size_bytes} bytes",
                expected=f"at most {self._max_bytes}",
                remedy="Record a shorter part, or raise import_max_bytes of the analyzer; the node keeps the files as artifacts.",
            )
        return ArtifactFetch(files, self._store.fetched_directory / run_id, self._max_bytes)
