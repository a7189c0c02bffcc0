"""Fetch and read the traces that runs left on nodes."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import polars as pl

from kernalyse.services.analyzer.collect.node_client import NodeLink
from kernalyse.services.analyzer.collect.node_feed import NodeWatching
from kernalyse.services.analyzer.collect.run_feed import RunWatching
from kernalyse.services.analyzer.ingest.imports import ArrivedReading, ImportUnderWay, ended
from kernalyse.services.analyzer.ingest.uploads import Arrival, ArrivedTrace, TracePart, private_folder
from kernalyse.services.analyzer.ingest.worker_pool import ReadingTask
from kernalyse.services.analyzer.store.repositories import LeftTrace
from kernalyse.services.analyzer.store.store import READING_ACTIVITY, Store
from kernalyse.services.analyzer.tables.runs import ARTIFACTS, CONFIGURATIONS, MEASUREMENTS
from kernalyse.services.analyzer.tables.traces import KERNEL_LAUNCHES, TRACE_NAMES
from kernalyse.services.core.errors import InvalidTraceError, KernalyseError, LimitReachedError, StorageFullError, UnavailableError
from kernalyse.services.core.model import LogLevel

# ---------------------------------------------------------------- left traces
# Traces that runs leave on their nodes: fetched when a run has ended, read, and added to its tables, beside the collecting.
#
# Which are still to be read stands in the catalogue since the commit that brought the event: whatever dies in between, they are taken
# up again with the next connection to their node. A transfer that breaks off goes on where it broke, after a restart too.

MAX_FETCH_COUNT: Final = 2
"""At once, of all nodes. One alone would let a node behind a slow line hold up the others; many share the same line and disk."""

FULL_RETRY_S: Final = 30.0
"""Until room is looked for again. Somebody has to make it by hand; a trace is not given up for it."""

RESULTS: Final = {CONFIGURATIONS.table_name, MEASUREMENTS.table_name}

logger = logging.getLogger(__name__)


class LeftTraces:
    """Of all nodes of one analyzer. max_bytes: of one run's traces, as of one import."""

    def __init__(
        self, store: Store, reading: ArrivedReading, max_bytes: int, run_watching: RunWatching, node_watching: NodeWatching
    ) -> None:
        self._store = store
        self._reading = reading
        self._max_bytes = max_bytes
        self._run_watching = run_watching
        self._node_watching = node_watching
        self._fetching = asyncio.Semaphore(MAX_FETCH_COUNT)
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._links: dict[str, NodeLink] = {}  # the newest, by node_id

    async def begin(self, link: NodeLink, node_id: str) -> None:
        """Takes up what waits on the node, as far as it is not under way."""
        self._links[node_id] = link
        for run_id in await asyncio.to_thread(self._store.traces.waiting_run_ids, node_id):
            if run_id not in self._under_way:
                task = asyncio.create_task(self._settle(node_id, run_id), name=f"traces of {run_id}")
                self._under_way[run_id] = task
                task.add_done_callback(partial(self._end, run_id))

    def _end(self, run_id: str, _: asyncio.Task[None]) -> None:
        self._under_way.pop(run_id, None)

    async def close(self) -> None:
        """What is not read by now is taken up by the next analyzer."""
        await ended(*self._under_way.values())

    async def _settle(self, node_id: str, run_id: str) -> None:
        """Ends with the traces in the run's tables, or with the reason for their absence in its log; unless its node is gone."""
        try:
            while True:
                link = self._links[node_id]
                await self._tell(run_id, READING_ACTIVITY)
                try:
                    await self._read(link, run_id)
                    return
                except StorageFullError as error:
                    self._forget(run_id)
                    logger.warning("Traces of run %s wait: %s", run_id, error.message)
                    await self._tell(run_id, "its trace waits for room on the analyzer's disk")
                    await asyncio.sleep(FULL_RETRY_S)
                except UnavailableError as error:
                    if self._links[node_id] is link:
                        logger.info("Traces of run %s are taken up when its node is back: %s", run_id, error.message)
                        await self._tell(run_id, "its trace waits for the node")
                        return
        except KernalyseError as error:  # gone, damaged, too large: asking again would get the same answer for ever
            await self._refuse(run_id, error.message)
        except Exception as error:
            logger.exception("Traces of run %s cannot be read", run_id)
            await self._refuse(run_id, f"{type(error).__name__}: {error}")

    async def _read(self, link: NodeLink, run_id: str) -> None:
        left = await asyncio.to_thread(self._store.traces.of, run_id)
        traces = await self._fetched(link, run_id, left)
        async with private_folder(self._store.arrivals_folder) as folder:
            task = ReadingTask(self._store.reserve_trace(run_id), run_id=run_id, file_name=traces[0].file_name)
            left_out: list[InvalidTraceError] = []
            answer = await self._reading.carried_out(task, traces, folder, ImportUnderWay(), left_out)
            assert answer.run is not None
            collectors = " and ".join(dict.fromkeys(trace.collector for trace in left))
            found = {path.stem for path in task.folder.iterdir()}
            if found & RESULTS or TRACE_NAMES.table_name not in found:
                shutil.rmtree(task.folder)
            if found & RESULTS:
                raise InvalidTraceError(
                    f"file {traces[0].file_name}", found="results of another tool", expected=f"a trace of {collectors}", remedy="Import it."
                )
            if TRACE_NAMES.table_name not in found:
                await self._publish(run_id, None, f"Trace of {collectors} read: nothing was recorded.\n{answer.run.notes}".rstrip())
                return
            launch_count = await asyncio.to_thread(_row_count, task.folder / f"{KERNEL_LAUNCHES.table_name}.parquet")
            part = f", without {len(left_out)} of {len(traces)} files" if left_out else ""
            said = f"Trace of {collectors} read{part}: {launch_count:,} launches of kernels."
            lines = (said, *(error.message for error in left_out), answer.run.notes)
            level = LogLevel.WARNING if left_out else LogLevel.INFO
            await self._publish(run_id, task.folder, "\n".join(filter(None, lines)), level)

    async def _tell(self, run_id: str, activity: str) -> None:
        run = await asyncio.to_thread(self._store.runs.tell_activity, run_id, activity)
        if run is not None:
            await self._run_watching.publish_run(run)
            self._node_watching.publish(runs=[run])

    async def _refuse(self, run_id: str, reason: str) -> None:
        await self._publish(run_id, None, f"The trace could not be read: {' '.join(reason.split())}", LogLevel.WARNING)

    async def _publish(self, run_id: str, folder: Path | None, notes: str, level: LogLevel = LogLevel.INFO) -> None:
        """Settles the run. Carried through once begun: the rows must not go while the store takes them over."""
        storing = asyncio.create_task(asyncio.to_thread(self._store.settle_traces, run_id, folder, notes, level=level))
        try:
            commit = await asyncio.shield(storing)
        except asyncio.CancelledError:
            await asyncio.wait({storing})
            raise
        self._forget(run_id)
        if commit is not None and commit.run is not None:
            await self._run_watching.publish([commit])
            self._node_watching.publish(runs=[commit.run])

    # ------------------------------------------------------------ from the node

    async def _fetched(self, link: NodeLink, run_id: str, left: Sequence[LeftTrace]) -> tuple[ArrivedTrace, ...]:
        """The files of all traces of the run, which are there until it is settled.

        Raises:
            InvalidTraceError: an artifact is missing, or its bytes do not have the digest of the journal.
            LimitReachedError: more than max_bytes.
            StorageFullError: there is no room.
            UnavailableError: the node went away; what it has sent is kept for the next attempt.
        """
        while True:
            fetch = await self._begun(run_id, left)
            try:
                async with self._fetching:
                    await fetch.go_on(link, run_id)
                return fetch.whole()
            except InvalidTraceError:
                fetch.discard()
                if not fetch.is_continued:
                    raise
                logger.info("Traces of run %s are fetched anew: what was there of them is damaged", run_id)
            except OSError as error:
                raise StorageFullError(
                    f"folder of fetched traces {self._store.fetched_folder}",
                    found=str(error),
                    expected="room to write",
                    remedy="Free space on that disk.",
                ) from error

    def _forget(self, run_id: str) -> None:
        shutil.rmtree(self._store.fetched_folder / run_id, ignore_errors=True)

    async def _begun(self, run_id: str, left: Sequence[LeftTrace]) -> ArtifactFetch:
        artifacts = (await asyncio.to_thread(lambda: self._store.read(ARTIFACTS, [run_id]).collect())).rows(named=True)
        known = {row["artifact_name"]: row for row in artifacts}
        files = []
        for trace in left:
            for place, name in enumerate(trace.artifact_names):
                if name not in known:
                    raise InvalidTraceError(
                        f"artifact {name} of run {run_id}", found="no such file of the run", expected="a file that it has stored before"
                    )
                files.append(WantedFile(name, known[name]["digest"], known[name]["size_bytes"], is_trace=place == 0))
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
        return ArtifactFetch(files, self._store.fetched_folder / run_id, self._max_bytes)


def _row_count(path: Path) -> int:
    return int(pl.scan_parquet(path).select(pl.len()).collect().item()) if path.exists() else 0


# ---------------------------------------------------------------- artifact fetch
# Files that a run left on its node, on their way into private files here; a transfer that breaks off goes on where it broke.
#
# Their bytes are what is remembered of it: whoever comes next, another process too, counts them and their digest, and asks for the
# rest.


@dataclass(frozen=True, slots=True)
class WantedFile:
    """An artifact as its run has announced it. is_trace: the first of its trace; those after it belong to it."""

    artifact_name: str
    digest: str
    size_bytes: int
    is_trace: bool


class ArtifactFetch:
    """Of one run. What has come stays in the folder until `discard`.

    Args:
        folder: of this run; may hold what an earlier one of its fetches has left.
    """

    def __init__(self, files: Sequence[WantedFile], folder: Path, max_bytes: int) -> None:
        folder.mkdir(exist_ok=True, mode=0o700)
        self.is_continued = any(folder.iterdir())
        self._files = files
        self._arrival = Arrival(folder, max_bytes)

    async def go_on(self, link: NodeLink, run_id: str) -> None:
        """Fetches what is still missing.

        Raises:
            InvalidTraceError: the bytes do not have the digest that the run announced. Those that were there before may be why.
            LimitReachedError: they are more than the arrival takes.
            NodeUnreachableError, RunNotFoundError, ArtifactNotFoundError: as the node answers.
            OSError: there is no room.
        """
        try:
            await asyncio.to_thread(self._take_up)
            extent = self._arrival.extent
            offset_bytes = extent.offset_bytes
            for number, file in enumerate(self._files[extent.whole_file_count :], extent.whole_file_count):
                self._arrival.take(self._beginning(number, "", offset_bytes))
                async for chunk in link.artifact_chunks(run_id, file.artifact_name, offset_bytes):
                    self._arrival.take(TracePart("", chunk, ""))
                self._arrival.take(TracePart("", b"", file.digest))
                offset_bytes = 0
        finally:
            self._arrival.pause()

    def _take_up(self) -> None:
        for number, file in enumerate(self._files):
            if not self._arrival.take_up(self._beginning(number, file.digest), file.size_bytes):
                return

    def _beginning(self, number: int, digest: str, offset_bytes: int = 0) -> TracePart:
        file = self._files[number]
        return TracePart(file.artifact_name, b"", digest, offset_bytes=offset_bytes, is_further_trace=file.is_trace and number > 0)

    def whole(self) -> tuple[ArrivedTrace, ...]:
        return self._arrival.whole()

    def discard(self) -> None:
        self._arrival.discard()
