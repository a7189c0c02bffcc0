"""Traces that have arrived, read into rows of one run by processes of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from services.analyzer.import_progress import ImportUnderWay
from services.analyzer.readers.trace import TraceFiles
from services.analyzer.reading_processes import ReadingProcesses
from services.analyzer.reading_tasks import ReadingAnswer, ReadingTask
from services.analyzer.trace_arrival import ArrivedTrace
from services.core.model import ImportStage


class ArrivedReading:
    """op_registry_folder: of TraceFiles."""

    def __init__(self, processes: ReadingProcesses, op_registry_folder: Path | None = None) -> None:
        self._processes = processes
        self._op_registry_folder = op_registry_folder

    async def carried_out(
        self, task: ReadingTask, traces: Sequence[ArrivedTrace], folder: Path, under_way: ImportUnderWay
    ) -> ReadingAnswer:
        """The task with these traces: one as it is, several read each by a process and joined.

        Args:
            folder: for rows on their way; somebody else's to delete.

        Raises what ReadingProcesses raises.
        """
        if len(traces) == 1:
            return await self._processes.carried_out(replace(task, traces=(self._files(traces[0]),)))
        staged = await self._staged(traces, folder, under_way)
        under_way.tell(ImportStage.STORING, len(traces))
        return await self._processes.carried_out(replace(task, staged=staged))

    async def _staged(self, traces: Sequence[ArrivedTrace], folder: Path, under_way: ImportUnderWay) -> tuple[Path, ...]:
        """Folders with the rows of each trace, in their order; all end when one fails."""

        async def staged(number: int, trace: ArrivedTrace) -> Path:
            task = ReadingTask(folder / str(number), (self._files(trace, has_folders=True),), file_name=trace.files[0].file_name)
            await self._processes.carried_out(task)
            under_way.tell_read()
            return task.folder

        tasks = [asyncio.create_task(staged(number, trace)) for number, trace in enumerate(traces)]
        try:
            return tuple(await asyncio.gather(*tasks))
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
