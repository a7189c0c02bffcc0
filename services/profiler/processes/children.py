"""Child processes: supervised ones, ones with a line protocol, and the splitting of output into lines."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kernalyse.services.core.errors import InternalError, TimeLimitError, WorkerCrashedError
from kernalyse.services.profiler.processes import supervisor

# ---------------------------------------------------------------- supervised process
# A tool and the program under it end together: on request, and when this process ends.

NO_LIMIT_S: Final = 10.0**9
NO_LIMIT_BYTES: Final = sys.maxsize
GRACE_S: Final = 5.0  # between TERM and KILL: a tool that has locked clocks or counters wants a moment to give them back


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process has ended. cause: "exited", or the argument of `end`. exit_code: None when a signal ended it."""

    cause: str
    exit_code: int | None

    @property
    def is_success(self) -> bool:
        """Return whether the process has exited by itself with status 0."""
        return self.cause == supervisor.EXITED and self.exit_code == 0


class SupervisedProcess:
    """A command under its own supervisor, which finds even descendants that have left the process tree.

    The run's own limits of time and memory hold for it as for everything else in the run. Use as a context manager.

    Args:
        output_fd: takes what the command prints.
        grace_s: seconds between TERM and KILL.
    """

    def __init__(
        self, command: Sequence[str], *, directory: Path, environment: Mapping[str, str], output_fd: int, grace_s: float = GRACE_S
    ) -> None:
        control_read_fd, self._control_fd = os.pipe()
        self._status_fd, status_write_fd = os.pipe()
        limits = (str(NO_LIMIT_S), str(NO_LIMIT_BYTES), str(grace_s))
        program = (sys.executable, "-I", "-S", supervisor.__file__)
        try:
            self._process = subprocess.Popen(
                [*program, str(status_write_fd), str(control_read_fd), "", *limits, "[]", "0", *command],
                stdin=subprocess.DEVNULL,
                stdout=output_fd,
                stderr=output_fd,
                cwd=directory,
                env=dict(environment),
                pass_fds=(control_read_fd, status_write_fd),
            )
        except BaseException:
            os.close(self._control_fd)
            os.close(self._status_fd)
            raise
        finally:
            os.close(control_read_fd)
            os.close(status_write_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end("abandoned")
        self._process.wait()
        os.close(self._control_fd)
        os.close(self._status_fd)

    @property
    def supervisor_id(self) -> int:
        """Return the process id of the supervisor, below which all of it is."""
        return self._process.pid

    def wait(self, time_limit_s: float) -> bool:
        """Wait; return whether all processes have ended within the time."""
        try:
            self._process.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, cause: str) -> None:
        """Ask the supervisor to end the command: TERM, grace, KILL. cause: one word. Does nothing when it has ended."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._control_fd, f"end {cause}\n".encode())

    def result(self) -> ProcessEnd:
        """Return how the command has ended, after its end.

        Raises:
            InternalError: the supervisor was killed. What was below it has then to be ended with the whole run: nobody knows it any more,
                and as long as it holds the command's output that has no end.
        """
        self._process.wait()
        text = os.read(self._status_fd, 65_536)
        if not text:
            raise InternalError(
                "supervisor of the command",
                found=f"it ended with status {self._process.returncode} and without a word",
                expected="how the command has ended",
                remedy="Something has killed it, as the kernel does where memory is short: look at the machine's log, and run it again.",
            )
        status: dict[str, Any] = json.loads(text.splitlines()[-1])
        return ProcessEnd(status["cause"], status["exit_code"])


# ---------------------------------------------------------------- program process
# The protocol is line by line: one command in, one response out, within a time limit.

SILENCE_LIMIT_VARIABLE: Final = "KERNALYSE_SILENCE_LIMIT_S"  # after which the service ends a worker that says nothing
DEFAULT_SILENCE_LIMIT_S: Final = 60.0
COMMAND_FRACTION: Final = 0.5  # of it, for one command: a program that hangs has to be ended well before the worker is

END_LIMIT_S: Final = 2.0  # for a program that is asked to end, before it is killed: a few CUDA runtimes take a second
KILL_LIMIT_S: Final = 10.0  # a driver that is still tearing down a kernel holds a killed process for so long at most
MAX_ANSWER_BYTES: Final = 65_536  # answers have a few numbers; whatever is longer is none


def command_limit_s(environment: Mapping[str, str]) -> float:
    """Return the time limit in seconds for one command of a program, short enough to report it before the worker counts as hung."""
    return COMMAND_FRACTION * float(environment.get(SILENCE_LIMIT_VARIABLE, DEFAULT_SILENCE_LIMIT_S))


class ProgramProcess:
    """A program that takes commands and returns responses line by line on its standard input and output.

    Args:
        limit_s: seconds that one command may take.

    Raises:
        InternalError: the system does not start it.
    """

    def __init__(self, command: Sequence[str], directory: Path, limit_s: float) -> None:
        self._limit_s = limit_s
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=directory)
        except OSError as error:
            raise InternalError(
                f"program {command[0]}",
                found=f"it cannot be started: {error.strerror}",
                remedy="Set TMPDIR to a directory from which programs may be started.",
            ) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._has_ended = False

    @property
    def has_ended(self) -> bool:
        """Return whether the program has ended."""
        return self._has_ended

    def ask(self, subject: str, command: str) -> str:
        """Send a command and return the response line. A program that does anything else is ended.

        Raises:
            TimeLimitError: no answer in time.
            WorkerCrashedError: it has ended by itself.
            InternalError: an answer without an end.
        """
        try:
            self._input.write(f"{command}\n".encode())
        except BrokenPipeError:
            raise self._crashed(subject) from None
        deadline, answer = time.monotonic() + self._limit_s, b""
        while not answer.endswith(b"\n"):
            if not self._await_output(deadline):
                self._process.kill()
                self.end()
                raise TimeLimitError(
                    subject,
                    found=f"no end within {self._limit_s:g} s",
                    expected="a launch that ends",
                    remedy="Look for an endless loop in the kernel; for a slow one raise the node's configuration_time_limit_s.",
                )
            data = os.read(self._output.fileno(), MAX_ANSWER_BYTES)
            if not data:
                raise self._crashed(subject)
            answer += data
            if len(answer) > MAX_ANSWER_BYTES:
                self.end()
                raise InternalError(subject, found=f"{len(answer)} bytes that are no answer", remedy="Run it again.")
        return answer.decode(errors="replace").rstrip("\n")

    def end(self) -> None:
        """End the program. Further calls do nothing."""
        if self._has_ended:
            return
        self._has_ended = True
        self._input.close()
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # the driver lets go of it later; nobody waits for more from it
                self._process.wait(KILL_LIMIT_S)
        self._output.close()

    def _await_output(self, deadline: float) -> bool:
        poll = select.poll()
        poll.register(self._output, select.POLLIN | select.POLLHUP)
        return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))

    def _crashed(self, subject: str) -> WorkerCrashedError:
        self.end()
        status = self._process.returncode
        ending = _signal_name(-status) if status is not None and status < 0 else f"exit code {status}"
        return WorkerCrashedError(
            subject,
            found=f"the end of the program that runs it: {ending}",
            expected="an answer",
            remedy="The run's log has what it said.",
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# ---------------------------------------------------------------- output lines

MAX_LINE_BYTES: Final = 4096
MAX_LOG_BYTES: Final = 8 * 1024 * 1024
"""Of a run's output. A program that prints without end must not push other runs out of the journal."""

TAIL_LINE_COUNT: Final = 20
TAIL_BYTES: Final = 64 * 1024  # in which these are looked for


class OutputLines:
    """The lines of one output stream, limited in number, with the last ones cached.

    A carriage return takes back what stands before it, as on a terminal: of a progress bar the last state is shown.
    """

    def __init__(self) -> None:
        self._tail: deque[str] = deque(maxlen=TAIL_LINE_COUNT)
        self._rest = b""
        self._bytes_left = MAX_LOG_BYTES

    @property
    def tail(self) -> tuple[str, ...]:
        """Return the last lines so far, whether they were within the limit or not."""
        return tuple(self._tail)

    def take(self, data: bytes) -> tuple[str, ...]:
        """Return the lines that `data` completes, up to the limit."""
        if self._bytes_left <= 0:  # a gigabyte more costs next to nothing: only its end will be looked at
            self._rest = (self._rest + data)[-TAIL_BYTES:]
            return ()
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            whole, self._rest = [*whole, self._rest], b""
        lines = self._within_limit(whole)
        self._bytes_left -= sum(map(len, whole)) + len(whole)  # with their ends: empty lines have a limit too
        return (*lines, f"Further output is left out: it has written {MAX_LOG_BYTES} bytes.") if self._bytes_left <= 0 else lines

    def end(self) -> tuple[str, ...]:
        """Return the unterminated last line and, where lines were skipped, the last ones of them."""
        lines = self._within_limit(self._rest.removesuffix(b"\n").split(b"\n") if self._rest else [])
        self._rest = b""
        return ("It ended with:", *self.tail) if self._bytes_left <= 0 else lines

    def _within_limit(self, raw_lines: list[bytes]) -> tuple[str, ...]:
        lines = tuple(map(_text, raw_lines))
        self._tail.extend(lines)
        return lines


def _text(raw_line: bytes) -> str:
    return raw_line.rstrip(b"\r").rpartition(b"\r")[2][:MAX_LINE_BYTES].decode(errors="replace")
