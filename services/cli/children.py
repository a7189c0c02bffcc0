"""Services as child processes: started, watched, and ended with their parent whatever ends that."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from services.core.discovery import Announcement, find_service
from services.core.errors import UnavailableError

PARENT_VARIABLE: Final = "KERNALYSE_PARENT_PROCESS_ID"
PR_SET_PDEATHSIG: Final = 1
LOG_TAIL_LINES: Final = 15
POLL_S: Final = 0.05


def end_with_parent() -> None:
    """Ask the kernel, in a service that `Child` started, for a SIGTERM when the parent ends, by SIGKILL too."""
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before the request was in place
        sys.exit(1)


class Child:
    """One service in a process of its own.

    It gets its own process group, so that Ctrl-C reaches the parent alone, which then ends the services in order.
    """

    def __init__(self, service: str, arguments: Sequence[str], *, log_path: Path, announcement_path: Path) -> None:
        self.service = service
        self.log_path = log_path
        self.arguments = tuple(arguments)  # a later flag wins: what is added counts from the next start
        self._announcement_path = announcement_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the service; its output goes to the log."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # -P: a folder named `services` where the user stands must not hide the package.
        command = [sys.executable, "-P", "-m", "services.cli.main", self.service, *self.arguments]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,
            )

    @property
    def process_id(self) -> int | None:
        """Return the id of the process, or None before its start."""
        return None if self._process is None else self._process.pid

    def exit_status(self) -> int | None:
        """Return None while it runs, and a negative number for the signal that ended it."""
        return None if self._process is None else self._process.poll()

    def announcement(self) -> Announcement | None:
        """Return where it serves, once it does."""
        found = find_service(self._announcement_path)
        return found if found is not None and found.process_id == self.process_id else None

    def wait_until_serving(self, timeout_s: float) -> Announcement:
        """Return where it serves. Raise UnavailableError with the end of its log when it ends, or does not serve in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = self.announcement()
            if found is not None:
                return found
            status = self.exit_status()
            if status is not None:
                raise UnavailableError(f"service {self.service}", found=f"it {describe_exit(status)}\n{self.log_tail()}\n")
            time.sleep(POLL_S)
        raise UnavailableError(
            f"service {self.service}",
            found=f"no answer within {timeout_s:.0f} s\n{self.log_tail()}\n",
            expected="its announcement",
            remedy=f"See {self.log_path}.",
        )

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def log_tail(self) -> str:
        """Return the last lines of the log, or nothing where it cannot be read."""
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-LOG_TAIL_LINES:])


def stop_children(children: Sequence[Child], *, grace_s: float) -> None:
    """Send TERM to all, KILL to those that still run after the grace, and return when none is left."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(_is_running(child) for child in children):
        time.sleep(POLL_S)
    for child in children:
        child.kill()
    while any(_is_running(child) for child in children):
        time.sleep(POLL_S)


def _is_running(child: Child) -> bool:
    return child.process_id is not None and child.exit_status() is None


def describe_exit(status: int) -> str:
    """Return "ended with status 1", or "was ended by SIGKILL"."""
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
