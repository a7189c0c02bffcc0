"""A run in several processes, one after the other: this process starts them and ends as the first one that fails.

Each is a worker of its own with a device of its own opening, so that what drifts between processes shows. They write to
the same event pipe; this process writes nothing while one of them lives, for two writers could cut each other's frames.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Final

TERMINATED_EXIT_CODE: Final = 128 + signal.SIGTERM


class ProcessSeries:
    """Args: commands: of the processes, in their order."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self._child: subprocess.Popen[bytes] | None = None
        self._is_ended = False

    def run(self) -> int:
        """Return the exit status: 0 when all have ended so, else that of the first that has not. Passes SIGTERM on."""
        signal.signal(signal.SIGTERM, self._end)
        for command in self._commands:
            # Not close_fds: the event pipe, and the lock by which the service knows that a process of the run still lives.
            self._child = subprocess.Popen(command, close_fds=False)
            if self._is_ended:  # told while it was being started
                self._child.terminate()
            exit_code = self._child.wait()
            if exit_code < 0:
                _die_of(-exit_code)
            if exit_code != 0 or self._is_ended:
                return exit_code or TERMINATED_EXIT_CODE
        return 0

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._is_ended = True
        if self._child is not None:
            with suppress(ProcessLookupError):
                self._child.terminate()


def _die_of(number: int) -> None:
    """End by the signal that has ended the child, so that whoever waits for this process learns of the crash."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left its own
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
