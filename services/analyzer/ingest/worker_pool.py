"""A pool of processes that read traces within a memory budget, the seam that it fits, and the messages of its tasks."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, Self

from kernalyse.services.analyzer.readers.base import GZIP_MAGIC, ReadResult, TraceFiles
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import InvalidTraceError, KernalyseError, LimitReachedError, error_class
from kernalyse.services.core.model import Run

# ---------------------------------------------------------------- pool

PROGRAM: Final = "kernalyse.services.analyzer.ingest.worker"
MAX_LINE_BYTES: Final = 2**24  # of a result: notes of twenty thousand characters, six bytes each in JSON, with much room to spare
MEMORY_CHECK_INTERVAL_S: Final = 0.1
"""Interval of memory checks. A process takes up to about 1 GB/s of new memory: it is stopped within 0.1 GB above the limit."""

IDLE_S: Final = 20.0
"""How long a process waits for its next task. Starting one takes over a second, so a directory of small files is read by one
process. A longer wait would keep 200 MB after every import for nothing."""

MAX_IDLE_BYTES: Final = 512 * 1024**2
"""Most memory of an idle process that is reused: allocators do not return what a large trace took."""

UNCOMPRESSED_MEMORY_RATIO: Final = 3
"""Most memory of reading, relative to the size of the file: SQLite of 10 M kernels takes 0.5, Kineto JSON of a million events 1.3."""

COMPRESSED_MEMORY_RATIO: Final = 60  # traces unpack to 15 to 40 times their size
ANONYMOUS_MEMORY_PATTERN: Final = re.compile(rb"RssAnon:\s+(\d+) kB")


class WorkerPool:
    """A pool of reading processes. They are started on demand, and ended when no task comes.

    Args:
        max_count: processes that read at once.
        max_memory_bytes: memory of all of them together, except mapped files.
    """

    def __init__(self, max_count: int, max_memory_bytes: int) -> None:
        self._max_count = max_count
        self._max_memory_bytes = max_memory_bytes
        self._changed = asyncio.Condition()
        self._running: list[_ReadingProcess] = []  # in order of their tasks' start
        self._reserved_bytes: list[int] = []  # bytes that the tasks are expected to take
        self._idle: list[_ReadingProcess] = []
        self._preparing: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Start a process in advance, while the files of its task are still arriving."""
        if not self._idle and not self._running and (self._preparing is None or self._preparing.done()):
            self._preparing = asyncio.create_task(self._start_idle())

    async def close(self) -> None:
        """End the processes that wait for a task."""
        if self._preparing is not None:
            await asyncio.wait({self._preparing})  # cancelling it half-way would leave a process that nobody ends
        while self._idle:
            await self._idle.pop().end()

    async def execute(self, task: ReadingTask) -> ReadingResult:
        """Execute a task in a process, and return its result. When this is cancelled, the process has ended before it returns.

        Raises:
            InvalidTraceError: the content is damaged, or makes the reader crash.
            LimitReachedError: reading takes more than max_memory_bytes.
            StorageFullError: there is no room for the rows.
        """
        needed_bytes = min(_estimate_bytes(task), self._max_memory_bytes)
        try:
            return await self._run_task(task, needed_bytes)
        except _MemoryCrowdedError:  # together with others it took too much: once more, alone
            return await self._run_task(task, self._max_memory_bytes)

    async def _run_task(self, task: ReadingTask, needed_bytes: int) -> ReadingResult:
        async with self._reserve(needed_bytes), self._process() as process:
            return ReadingResult.of_line(await self._run_watched(process, task))

    @asynccontextmanager
    async def _reserve(self, needed_bytes: int) -> AsyncIterator[None]:
        """Wait until a process may run and its memory fits the budget, and reserve both."""

        def fits() -> bool:
            is_room = sum(self._reserved_bytes) + needed_bytes <= self._max_memory_bytes
            return not self._reserved_bytes or (len(self._reserved_bytes) < self._max_count and is_room)

        async with self._changed:
            await self._changed.wait_for(fits)
            self._reserved_bytes.append(needed_bytes)
        try:
            yield
        finally:
            self._reserved_bytes.remove(needed_bytes)
            async with self._changed:
                self._changed.notify_all()

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[_ReadingProcess]:
        """Yield a process for one task. It is reused if it has answered, and ended if it has not."""
        if self._preparing is not None:
            await asyncio.wait({self._preparing})
        process = self._idle.pop() if self._idle else await _ReadingProcess.start()
        self._running.append(process)
        try:
            yield process
        finally:
            self._running.remove(process)
            if process.is_ready and not self._idle and process.memory_bytes < MAX_IDLE_BYTES:
                self._keep_idle(process)
            else:
                await process.end()

    async def _start_idle(self) -> None:
        self._keep_idle(await _ReadingProcess.start())

    def _keep_idle(self, process: _ReadingProcess) -> None:
        self._idle.append(process)
        asyncio.get_running_loop().call_later(IDLE_S, self._retire, process, process.task_count)

    def _retire(self, process: _ReadingProcess, task_count: int) -> None:
        if process in self._idle and process.task_count == task_count:
            self._idle.remove(process)
            process.close_input()

    async def _run_watched(self, process: _ReadingProcess, task: ReadingTask) -> str:
        answering = asyncio.create_task(process.answer(task))
        try:
            while not (await asyncio.wait({answering}, timeout=MEMORY_CHECK_INTERVAL_S))[0]:
                self._check_memory(process, task)
            return answering.result()
        finally:
            answering.cancel()

    def _check_memory(self, process: _ReadingProcess, task: ReadingTask) -> None:
        """Raise if this process was the last to start and all of them together exceed the limit."""
        taken_bytes = sum(other.memory_bytes for other in self._running)
        if taken_bytes <= self._max_memory_bytes or process is not self._running[-1]:
            return
        if len(self._running) > 1:
            raise _MemoryCrowdedError(task.file_name)
        raise LimitReachedError(
            task.subject,
            found=f"{taken_bytes} bytes of memory taken by reading it",
            expected=f"at most {self._max_memory_bytes}",
            remedy="Record or export a shorter part, or raise import_memory_bytes of the analyzer.",
        )


class _MemoryCrowdedError(Exception):
    """Several processes together exceed the memory limit."""


@dataclass(slots=True)
class _ReadingProcess:
    """One process of the pool. is_ready: it has answered its last task."""

    process: Process
    task_count: int = 0
    is_ready: bool = field(default=True)  # for another task

    @classmethod
    async def start(cls) -> Self:
        # -P: a directory of the package's name in the working directory must not hide it. A session of its own: Ctrl-C spares it.
        command = [sys.executable, "-P", "-m", PROGRAM]
        return cls(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=MAX_LINE_BYTES, start_new_session=True))

    async def answer(self, task: ReadingTask) -> str:
        """Send a task and return the line that answers it.

        Raises:
            InvalidTraceError: the process ended without an answer.
            LimitReachedError: the system has killed it.
        """
        self.task_count += 1
        self.is_ready = False
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(ConnectionError):  # it has ended: reported below
            self.process.stdin.write(task.line().encode() + b"\n")
            await self.process.stdin.drain()
        line = await self.process.stdout.readline()
        if not line.endswith(b"\n"):
            raise _exit_error(task, await self.process.wait())
        self.is_ready = True
        return line.decode()

    async def end(self) -> None:
        """Kill the process with all processes that it has started: its whole session."""
        with suppress(ProcessLookupError):
            if self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()

    def close_input(self) -> None:
        """Let the process exit, as the end of the analyzer would."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    @property
    def memory_bytes(self) -> int:
        """Resident memory without mapped files, with that of processes that it has started.

        0 where the system does not tell, and when it has ended.
        """
        with suppress(OSError):
            children = [path.read_text().split() for path in Path(f"/proc/{self.process.pid}/task").glob("*/children")]
            return sum(map(_anonymous_bytes, (self.process.pid, *(int(child) for found in children for child in found))))
        return 0


def _anonymous_bytes(process_id: int) -> int:
    with suppress(OSError):
        found = ANONYMOUS_MEMORY_PATTERN.search(Path(f"/proc/{process_id}/status").read_bytes())
        return 0 if found is None else int(found[1]) * 1024
    return 0


def _exit_error(task: ReadingTask, status: int) -> KernalyseError:
    if status == -signal.SIGKILL:
        return LimitReachedError(
            task.subject,
            found="a reader that the system killed: as a rule there was no memory left",
            expected="room in memory for reading it",
            remedy="Set import_memory_bytes of the analyzer to less than the machine has, or import a smaller part.",
        )
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    return InvalidTraceError(
        task.subject,
        found=f"content that ended its reader {how}",
        expected="a complete trace",
        remedy="Write or copy the file again; if it is complete, report this with the analyzer's log.",
    )


def _estimate_bytes(task: ReadingTask) -> int:
    """Return the memory that the task is expected to take: a rough estimate, as memory is watched as well."""
    files = [path for trace in task.traces for path in (trace.path, *trace.companions.values())]
    staged = [Path(entry.path) for directory in task.staged for entry in os.scandir(directory)]
    reading = sum(path.stat().st_size * (COMPRESSED_MEMORY_RATIO if _is_packed(path) else UNCOMPRESSED_MEMORY_RATIO) for path in files)
    return reading + sum(path.stat().st_size for path in staged)


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(GZIP_MAGIC)) == GZIP_MAGIC


# ---------------------------------------------------------------- seam and messages


class TaskExecutor(Protocol):
    """What executes the tasks of an analyzer: processes of this machine, or a cluster."""

    def prepare(self) -> None:
        """Get ready for a task whose files are still arriving."""

    async def execute(self, task: ReadingTask) -> ReadingResult:
        """Execute a task and return its result. Raises KernalyseError, and `task.directory` is not there then, or may be deleted."""
        ...


# Tasks and results are one line of JSON each. Rows travel as Parquet files.


@dataclass(frozen=True, slots=True)
class ReadingTask:
    """A task to read traces into a run, or one trace into staged rows that another task joins.

    traces: the traces to read.
    staged: directories of traces that other tasks have read.
    directory: for the rows; made by the task, and nothing else writes below it.
    run_id: of the run to make; empty: stage the rows of one trace.
    file_name, digest: of the run.
    """

    directory: Path
    traces: tuple[TraceFiles, ...] = ()
    staged: tuple[Path, ...] = ()
    run_id: str = ""
    file_name: str = ""
    digest: str = ""

    @property
    def subject(self) -> str:
        """The file, as errors name it."""
        return f"file {self.file_name}"

    def line(self) -> str:
        """Return the task as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), default=str)

    @classmethod
    def of_line(cls, line: str) -> Self:
        """Return the task of a line."""
        fields = json.loads(line)
        traces = tuple(
            TraceFiles(
                trace["file_name"],
                Path(trace["path"]),
                trace["arrived_unix_ns"],
                {name: Path(path) for name, path in trace["companions"].items()},
                None if trace["op_registry_directory"] is None else Path(trace["op_registry_directory"]),
            )
            for trace in fields["traces"]
        )
        staged = tuple(map(Path, fields["staged"]))
        return cls(Path(fields["directory"]), traces, staged, fields["run_id"], fields["file_name"], fields["digest"])


@dataclass(frozen=True, slots=True)
class ReadingResult:
    """The result of a task. run: None for staged rows. next_event_index: one more than that of the run's last row."""

    run: Run | None = None
    next_event_index: int = 0

    def line(self) -> str:
        """Return the result as one line of JSON."""
        run = None if self.run is None else protobuf.encode_json(self.run).decode()
        return json.dumps({"run": run, "next_event_index": self.next_event_index})

    @classmethod
    def of_line(cls, line: str) -> Self:
        """Return the result of a line. Raises the KernalyseError that the process has answered with."""
        fields = json.loads(line)
        if "reason" in fields:
            raise error_class(fields.pop("reason"))(fields.pop("subject"), **fields)
        run = fields["run"]
        return cls(None if run is None else protobuf.decode_json(run.encode(), Run), fields["next_event_index"])


def error_line(error: KernalyseError) -> str:
    """Return an error as one line of JSON, which `ReadingAnswer.of_line` raises."""
    return json.dumps(
        {
            "reason": error.reason,
            "subject": error.subject,
            "found": error.found,
            "expected": error.expected,
            "remedy": error.remedy,
        }
    )


@dataclass(frozen=True, slots=True)
class StagedTrace:
    """What is known about a staged trace besides its rows."""

    file_name: str
    format: str
    notes: str
    start_time: datetime | None
    end_time: datetime | None

    @classmethod
    def of(cls, file_name: str, reader_format: str, tables: ReadResult) -> Self:
        """Return the description of a trace that was read."""
        return cls(file_name, reader_format, tables.notes, tables.start_time, tables.end_time)

    def line(self) -> str:
        """Return the description as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), default=datetime.isoformat)

    @classmethod
    def of_line(cls, line: str) -> Self:
        """Return the description of a line."""
        fields: dict[str, Any] = json.loads(line)
        for name in ("start_time", "end_time"):
            fields[name] = None if fields[name] is None else datetime.fromisoformat(fields[name])
        return cls(**fields)
