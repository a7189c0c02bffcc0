"""Traces from elsewhere, taken in as runs of their own: received, read by processes of their own, stored whole or not at all."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from services.analyzer.arrivals import Arrivals, cancelled, private_folder
from services.analyzer.arrived_reading import ArrivedReading, ended
from services.analyzer.import_progress import ImportsUnderWay, ImportUnderWay
from services.analyzer.readers.op_registry import FILE_NAME as REGISTRY_NAME
from services.analyzer.readers.registry import reader_of_head
from services.analyzer.reading_processes import ReadingProcesses
from services.analyzer.reading_tasks import ReadingTask
from services.analyzer.store import Store
from services.analyzer.trace_arrival import ArrivedTrace, Extent, TracePart
from services.core.errors import InvalidTraceError
from services.core.model import ImportProgress, ImportStage, Run

IDENTITY_LENGTH: Final = 20
"""Hexadecimal digits of the identity in a run_id: 80 bits, which no two files of a store share by chance."""


@dataclass(frozen=True, slots=True)
class TakenIn:
    """is_known: the run was there before, from the same files."""

    run: Run
    is_known: bool


class Importing:
    """max_bytes: of one run's traces with all that belongs to them. op_registry_folder: of TraceFiles."""

    def __init__(self, store: Store, max_bytes: int, processes: ReadingProcesses, op_registry_folder: Path | None = None) -> None:
        self._store = store
        self._reading = ArrivedReading(processes, op_registry_folder)
        self._op_registry_folder = op_registry_folder
        self._arrivals = Arrivals(store.arrivals_folder, max_bytes, reader_of_head)
        self._processes = processes
        self._under_way = ImportsUnderWay()

    async def receive(self, parts: AsyncIterable[TracePart]) -> TakenIn:
        """Stores a stream's traces as a run; the same files once more answer with the run that they have become.

        Of what changes, a later state takes the earlier one's place in its run.

        Raises:
            InvalidTraceError: damaged on the way, or no reader takes it, which shows before the rest has arrived.
            LimitReachedError: it is over a limit; names the limit.
            StorageFullError: there is no room for it.
            CancelledError: somebody has cancelled it.
        """
        stream = aiter(parts)
        first = await anext(stream, None)
        upload_id = "" if first is None else first.upload_id
        under_way = await self._under_way.begin(upload_id)
        source_id = "" if first is None else first.source_id
        work = asyncio.create_task(self._take_in(_with_first(first, stream), under_way, source_id))
        cancellation = asyncio.create_task(under_way.is_cancelled.wait())
        try:
            await asyncio.wait({work, cancellation}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
        finally:
            await ended(work, cancellation)
            self._under_way.end(upload_id, under_way)
        raise cancelled(upload_id)

    def resumed(self, upload_id: str) -> Extent:
        """How far a stream of that upload came which broke off."""
        return self._arrivals.resumed(upload_id)

    def progress(self, upload_id: str) -> AsyncIterator[ImportProgress]:
        """How far an import is, until it is over."""
        return self._under_way.watch(upload_id)

    def cancel(self, upload_id: str) -> None:
        """Also one that begins only now, or whose sender hangs up meanwhile."""
        self._under_way.cancel(upload_id)
        self._arrivals.forget(upload_id)

    async def _take_in(self, parts: AsyncIterable[TracePart], under_way: ImportUnderWay, source_id: str) -> TakenIn:
        self._processes.prepare()
        async with self._arrivals.received(parts) as traces:
            identity = _identity(traces)
            if source_id:
                identity = await asyncio.to_thread(self._with_registry, identity)
            named = hashlib.sha256(f"source {source_id}".encode()).hexdigest() if source_id else identity
            run_id = f"imported-{named[:IDENTITY_LENGTH]}"
            if not await asyncio.to_thread(self._store.has_imported, run_id, f"sha256:{identity}" if source_id else ""):
                under_way.tell(ImportStage.READING, len(traces))
                rows = self._store.reserve_rows(run_id)
                async with private_folder(self._store.arrivals_folder) as folder:
                    task = ReadingTask(rows, run_id=run_id, file_name=traces[0].file_name, digest=f"sha256:{identity}")
                    if len(traces) == 1 and not source_id:
                        task = replace(task, digest=traces[0].digest)
                    answer = await self._reading.carried_out(task, traces, folder, under_way)
                    assert answer.run is not None
                    is_new = await self._added(answer.run, rows, answer.next_event_index)
                    return TakenIn((await asyncio.to_thread(self._store.runs.get, run_id)).run, is_known=not is_new)
            return TakenIn((await asyncio.to_thread(self._store.runs.get, run_id)).run, is_known=True)

    def _with_registry(self, identity: str) -> str:
        """That of the traces together with the registry of operations that they are read by: another one reads other rows."""
        path = None if self._op_registry_folder is None else self._op_registry_folder / REGISTRY_NAME
        content = path.read_bytes() if path is not None and path.is_file() else b""
        return hashlib.sha256(identity.encode() + content).hexdigest()

    async def _added(self, run: Run, folder: Path, next_event_index: int) -> bool:
        """Whether the run was new. Once begun this is carried through: the rows must not go while the store takes them over."""
        adding = asyncio.create_task(asyncio.to_thread(self._store.add_imported, run, folder, next_event_index))
        try:
            return await asyncio.shield(adding)
        except asyncio.CancelledError:
            await asyncio.wait({adding})
            raise


def _identity(traces: Sequence[ArrivedTrace]) -> str:
    """64 hexadecimal digits that stand for the traces, in whatever order they came. Raises InvalidTraceError for a repeated one."""
    identities: dict[str, ArrivedTrace] = {}
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


async def _with_first(first: TracePart | None, stream: AsyncIterator[TracePart]) -> AsyncIterator[TracePart]:
    if first is not None:
        yield first
    async for part in stream:
        yield part
