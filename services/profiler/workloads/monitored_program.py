"""A program under a collector: its start, its output, and an order of ending that lets the collector finish."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from kernalyse.services.core.model import LogLevel, LogLines
from kernalyse.services.profiler.collectors.base import PROGRAM_MARK, Collector, CollectorContext, ToolExit
from kernalyse.services.profiler.processes import supervisor
from kernalyse.services.profiler.processes.children import OutputLines, SupervisedProcess
from kernalyse.services.profiler.workloads.events import EventSink

POLL_S: Final = 0.1
READ_BYTES: Final = 65_536

FINISHING_FRACTION: Final = 0.35
MAX_FINISHING_S: Final = 300.0
"""Of the run's time limit, kept for reports: of what is left out at the end something is known, of a run that is killed nothing."""

CLOSING_FRACTION: Final = 0.1
MAX_CLOSING_S: Final = 10.0  # of that, to end a tool that hangs and to keep what it has left

CANCELLING_FRACTION: Final = 0.75  # of the grace of a cancelled run, for its collector; the rest is for keeping what it has left

MAX_GRACE_S: Final = 5.0  # between TERM and KILL
GRACE_FRACTION: Final = 0.05  # of the time limit, where that is less

SILENCE_LIMIT_S: Final = 300.0
"""For a tool whose files no longer change while no program runs. An importer of gigabytes writes now and then; one that
hangs would hold the device until the run's time limit."""


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """Deadlines on the monotonic clock. program_end: of the program. tool_end: of the tools."""

    program_end: float
    tool_end: float
    grace_s: float

    @classmethod
    def of(cls, time_limit_s: float, now: float) -> TimeBudget:
        """Return the moments within a time limit that starts `now`."""
        end = now + time_limit_s
        return cls(
            program_end=end - min(FINISHING_FRACTION * time_limit_s, MAX_FINISHING_S),
            tool_end=end - min(CLOSING_FRACTION * time_limit_s, MAX_CLOSING_S),
            grace_s=min(GRACE_FRACTION * time_limit_s, MAX_GRACE_S),
        )


class EndCause(StrEnum):
    """Why the program has been ended."""

    ITSELF = "itself"
    DURATION = "duration"  # the profile's max_duration_ns
    TIME_LIMIT = "time limit"  # of the run, less what reports take
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How the program, and the tool around it, have ended."""

    cause: EndCause
    tool: ToolExit


@dataclass(slots=True)
class Cancellation:
    """The state of a cancellation, and the short time that tools have left after it."""

    is_requested: Callable[[], bool]
    grace_s: float
    _tool_end: float | None = None

    def limit(self, tool_end: float, now: float) -> float:
        """Return the deadline of the tools."""
        if self._tool_end is None and self.is_requested():
            self._tool_end = now + CANCELLING_FRACTION * self.grace_s
        return tool_end if self._tool_end is None else min(tool_end, self._tool_end)


class ToolSupervisor:
    """The supervisor of a command's tools, which run one after the other.

    Args:
        report_activity: gets a status message at intervals.
    """

    def __init__(
        self,
        context: CollectorContext,
        budget: TimeBudget,
        sink: EventSink,
        report_activity: Callable[[str], None],
        cancelling: Cancellation,
    ) -> None:
        self._context = context
        self._budget = budget
        self._cancelling = cancelling
        self._sink = sink
        self._report_activity = report_activity

    def run(self, command: Sequence[str], activity: str) -> ToolExit:
        """Run a tool alone, on what was collected."""
        with self._started(command, {}) as (process, output):
            silence = _Silence(self._context)
            while not process.wait(POLL_S):
                self._report_activity(activity)
                if self._is_over(time.monotonic()) or silence.is_over():
                    return self._ended(process, output, is_over_time=True)
            return self._ended(process, output)

    def run_program(self, collector: Collector, target: Sequence[str], label: str, max_duration_s: float | None) -> ProgramEnd:
        """Run the program under its collector, until both have ended."""
        with self._started(collector.command(target), collector.environment()) as (process, output):
            program = _Program(process.supervisor_id)
            cause = EndCause.ITSELF
            silence: _Silence | None = None
            while not process.wait(POLL_S):
                now = time.monotonic()
                is_running = program.is_running()
                if cause is EndCause.ITSELF and is_running:
                    cause = self._cause(now, program.age_s(now), max_duration_s)
                    if cause is not EndCause.ITSELF:
                        program.end(now + self._budget.grace_s)
                program.keep_ending(now, collector.is_finishing())
                # Not only after the program: a tool can hang before it, and a short program begins and ends between two looks.
                silence = None if is_running else silence or _Silence(self._context)
                self._report_activity(_activity(collector.name, label, program.age_s(now), is_running, cause))
                if self._is_over(now) or (silence is not None and silence.is_over()):
                    return ProgramEnd(cause, self._ended(process, output, is_over_time=True))
            if self._cancelling.is_requested():
                cause = EndCause.CANCELLED
            return ProgramEnd(cause, self._ended(process, output))

    def _is_over(self, now: float) -> bool:
        return now > self._cancelling.limit(self._budget.tool_end, now)

    def _cause(self, now: float, age_s: float | None, max_duration_s: float | None) -> EndCause:
        """Return why a running program has to end now; ITSELF where it has not."""
        if self._cancelling.is_requested():
            return EndCause.CANCELLED
        if max_duration_s is not None and age_s is not None and age_s > max_duration_s:
            return EndCause.DURATION
        return EndCause.TIME_LIMIT if now > self._budget.program_end else EndCause.ITSELF

    @contextmanager
    def _started(self, command: Sequence[str], variables: Mapping[str, str]) -> Iterator[tuple[SupervisedProcess, _Listener]]:
        read_fd, write_fd = os.pipe()
        listener = _Listener(read_fd, self._sink)
        try:
            process = SupervisedProcess(
                command,
                directory=self._context.program,
                environment={**self._context.environment, **variables},
                output_fd=write_fd,
                grace_s=self._budget.grace_s,
            )
        finally:
            os.close(write_fd)
            listener.start()
        with process:
            yield process, listener
        listener.join()

    def _ended(self, process: SupervisedProcess, output: _Listener, *, is_over_time: bool = False) -> ToolExit:
        if is_over_time:
            process.end("over_time")
        end = process.result()
        output.join()
        return ToolExit(end.exit_code, "\n".join(output.tail), is_over_time)


def _activity(collector: str, label: str, age_s: float | None, is_running: bool, cause: EndCause) -> str:
    if age_s is None:
        return f"starting {collector}"
    if not is_running:
        return f"{collector} finishes its report"
    return f"running {label} for {age_s:.0f} s" if cause is EndCause.ITSELF else f"ending {label}"


class _Listener(threading.Thread):
    """A reader of a command's output. It reads on when nothing more is passed on, so that the command never blocks."""

    def __init__(self, read_fd: int, sink: EventSink) -> None:
        super().__init__(name="output", daemon=True)
        self._read_fd = read_fd
        self._sink = sink
        self._lines = OutputLines()

    @property
    def tail(self) -> tuple[str, ...]:
        return self._lines.tail

    def run(self) -> None:
        with suppress(BrokenPipeError):  # the service is gone
            while data := os.read(self._read_fd, READ_BYTES):
                self._report(self._lines.take(data))
            self._report(self._lines.end())
        os.close(self._read_fd)

    def _report(self, lines: tuple[str, ...]) -> None:
        if lines:
            self._sink.write(LogLines(LogLevel.INFO, "program", lines))


class _Program:
    """The processes below a supervisor that have PROGRAM_MARK. A process that hides its environment is not among them."""

    def __init__(self, supervisor_id: int) -> None:
        self._supervisor_id = supervisor_id
        self._kill_time: float | None = None
        self._first_seen: float | None = None

    def is_running(self) -> bool:
        is_running = any(True for _ in self._process_ids())
        if is_running and self._first_seen is None:
            self._first_seen = time.monotonic()
        return is_running

    def age_s(self, now: float) -> float | None:
        """Return the age of the program; None before it has started."""
        return None if self._first_seen is None else max(0.0, now - self._first_seen)

    def end(self, kill_time: float) -> None:
        self._kill_time = kill_time
        self._signal(signal.SIGTERM)

    def keep_ending(self, now: float, is_finishing: bool) -> None:
        """Kill processes that TERM has not ended in time, unless they are writing their trace."""
        if self._kill_time is not None and now > self._kill_time and not is_finishing:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for process_id in self._process_ids():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process_id, number)

    def _process_ids(self) -> Iterator[int]:
        mark = f"{PROGRAM_MARK}=".encode()
        for process_id in supervisor.descendants(self._supervisor_id):
            with suppress(OSError):  # it has ended
                if any(variable.startswith(mark) for variable in Path(f"/proc/{process_id}/environ").read_bytes().split(b"\0")):
                    yield process_id


class _Silence:
    """The timer of a tool whose files have not changed for too long."""

    def __init__(self, context: CollectorContext) -> None:
        self._directories = (context.collected, context.temporary)
        self._state: object = None
        self._change_time = self._look_time = time.monotonic()

    def is_over(self) -> bool:
        now = time.monotonic()
        if now - self._look_time > 1.0:
            self._look_time = now
            state = self._sizes()
            if state != self._state:
                self._state, self._change_time = state, now
        return now - self._change_time > SILENCE_LIMIT_S

    def _sizes(self) -> list[tuple[str, int]]:
        sizes = list[tuple[str, int]]()
        for directory in self._directories:
            for path in directory.rglob("*"):
                with suppress(OSError):
                    sizes.append((str(path), path.stat().st_size))
        return sizes
