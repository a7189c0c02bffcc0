"""A program that is driven by lines: one command goes in, one answer comes out, within a limit of time."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.core.errors import InternalError, TimeLimitError, WorkerCrashedError

SILENCE_LIMIT_VARIABLE: Final = "KERNALYSE_SILENCE_LIMIT_S"  # after which the service ends a worker that says nothing
DEFAULT_SILENCE_LIMIT_S: Final = 60.0
COMMAND_SHARE: Final = 0.5  # of it, for one command: a program that hangs has to be ended well before the worker is

END_LIMIT_S: Final = 2.0  # for a program that is asked to end, before it is killed: a few CUDA runtimes take a second
KILL_LIMIT_S: Final = 10.0  # a driver that is still tearing down a kernel holds a killed process for so long at most
MAX_ANSWER_BYTES: Final = 65_536  # answers have a few numbers; whatever is longer is none


def command_limit_s(environment: Mapping[str, str]) -> float:
    """Return the seconds that one command of a program may take, so that its end is told before the worker counts as hung."""
    return COMMAND_SHARE * float(environment.get(SILENCE_LIMIT_VARIABLE, DEFAULT_SILENCE_LIMIT_S))


class ProgramProcess:
    """A program that is driven by lines on its standard input and output.

    Args:
        limit_s: seconds that one command may take.

    Raises:
        InternalError: the system does not start it.
    """

    def __init__(self, command: Sequence[str], folder: Path, limit_s: float) -> None:
        self._limit_s = limit_s
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=folder)
        except OSError as error:
            raise InternalError(
                f"program {command[0]}",
                found=f"it cannot be started: {error.strerror}",
                remedy="Set TMPDIR to a folder from which programs may be started.",
            ) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._has_ended = False

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def ask(self, subject: str, command: str) -> str:
        """Return the line that it answers. Whatever else it does ends it.

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
        """End the program, whatever it is at. More than once does no harm."""
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
