"""Traces that have arrived, read into rows of one run by processes of their own."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from services.analyzer.import_progress import ImportUnderWay
from services.analyzer.readers.trace import TraceFiles
from services.analyzer.reading_processes import ReadingProcesses
from services.analyzer.reading_tasks import ReadingAnswer, ReadingTask
from services.analyzer.trace_arrival import ArrivedTrace
from services.core.errors import InvalidTraceError
from services.core.model import ImportStage


class ArrivedReading:
    """op_registry_folder: of TraceFiles."""

    def __init__(self, processes: ReadingProcesses, op_registry_folder: Path | None = None) -> None:
        self._processes = processes
        self._op_registry_folder = op_registry_folder

    async def carried_out(
        self,
        task: ReadingTask,
        traces: Sequence[ArrivedTrace],
        folder: Path,
        under_way: ImportUnderWay,
        left_out: list[InvalidTraceError] | None = None,
    ) -> ReadingAnswer:
        """The task with these traces: one as it is, several read each by a process and joined.

        Args:
            folder: for rows on their way; somebody else's to delete.
            left_out: takes what is wrong with those of several traces that cannot be read, as long as one can; None: each has to be.

        Raises what ReadingProcesses raises; the task's own folder is gone then.
        """
        try:
            return await self._read(task, traces, folder, under_way, left_out)
        except BaseException:
            shutil.rmtree(task.folder, ignore_errors=True)
            raise

    async def _read(
        self,
        task: ReadingTask,
        traces: Sequence[ArrivedTrace],
        folder: Path,
        under_way: ImportUnderWay,
        left_out: list[InvalidTraceError] | None,
    ) -> ReadingAnswer:
        if len(traces) == 1:
            return await self._processes.carried_out(replace(task, traces=(self._files(traces[0]),)))
        staged = await self._staged(traces, folder, under_way, left_out)
        if not staged and left_out:
            raise left_out[0]
        under_way.tell(ImportStage.STORING, len(traces))
        return await self._processes.carried_out(replace(task, staged=staged))

    async def _staged(
        self, traces: Sequence[ArrivedTrace], folder: Path, under_way: ImportUnderWay, left_out: list[InvalidTraceError] | None
    ) -> tuple[Path, ...]:
        """Folders with the rows of each trace, in their order; all end when one fails that may not be left out."""

        async def staged(number: int, trace: ArrivedTrace) -> Path | None:
            task = ReadingTask(folder / str(number), (self._files(trace, has_folders=True),), file_name=trace.files[0].file_name)
            try:
                await self._processes.carried_out(task)
            except InvalidTraceError as error:
                if left_out is None:
                    raise
                left_out.append(error)
                return None
            under_way.tell_read()
            return task.folder

        tasks = [asyncio.create_task(staged(number, trace)) for number, trace in enumerate(traces)]
        try:
            return tuple(found for found in await asyncio.gather(*tasks) if found is not None)
        finally:
            await ended(*tasks)

    def _files(self, trace: ArrivedTrace, *, has_folders: bool = False) -> TraceFiles:
        """has_folders: in its name, which ranks often differ in alone."""
        first, *others = trace.files
        name = first.file_name if has_folders else trace.file_name
        companions = {file.file_name: file.path for file in others}
        return TraceFiles(name, first.path, time.time_ns(), companions, self._op_registry_folder)


async def ended(*tasks: asyncio.Task[object]) -> None:
    """Cancelled, and over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
