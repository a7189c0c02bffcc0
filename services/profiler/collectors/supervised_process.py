"""A tool and the program under it, which end together: when they are told to, and when this process ends."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from services.core.errors import InternalError
from services.profiler import supervisor

NO_LIMIT_S: Final = 10.0**9
NO_LIMIT_BYTES: Final = sys.maxsize
GRACE_S: Final = 5.0  # between TERM and KILL: a tool that has locked clocks or counters wants a moment to give them back


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a process. cause: "exited", or what `end` was given. exit_code: None when a signal ended it."""

    cause: str
    exit_code: int | None

    @property
    def is_success(self) -> bool:
        return self.cause == supervisor.EXITED and self.exit_code == 0


class SupervisedProcess:
    """Starts the command under the supervisor that runs have too: it finds even descendants that have left the tree.

    The run's own limits of time and memory hold for it as for everything else in the run. Use as a context manager.

    Args:
        output_fd: takes what the command prints.
        grace_s: seconds between TERM and KILL.
    """

    def __init__(
        self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str], output_fd: int, grace_s: float = GRACE_S
    ) -> None:
        control_read_fd, self._control_fd = os.pipe()
        self._status_fd, status_write_fd = os.pipe()
        limits = (str(NO_LIMIT_S), str(NO_LIMIT_BYTES), str(grace_s))
        program = (sys.executable, "-I", "-S", supervisor.__file__)
        try:
            self._process = subprocess.Popen(
                [*program, str(status_write_fd), str(control_read_fd), "", *limits, *command],
                stdin=subprocess.DEVNULL,
                stdout=output_fd,
                stderr=output_fd,
                cwd=folder,
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
        """Return whether all of it has ended within the time."""
        try:
            self._process.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, cause: str) -> None:
        """Ask for its end, for a cause of one word: TERM, grace, KILL. Does nothing when it has ended."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._control_fd, f"end {cause}\n".encode())

    def result(self) -> ProcessEnd:
        """Return how it ended, after its end.

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
        status: dict[str, Any] = json.loads(text)
        return ProcessEnd(status["cause"], status["exit_code"])
