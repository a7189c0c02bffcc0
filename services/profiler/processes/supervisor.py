"""The parent of one run's processes, which alone reaps and kills them and enforces the limits.

Started by the service as a script of its own (`python -I -S supervisor.py …`, standard library only, so that it starts in
milliseconds and holds little memory). It makes itself child subreaper, starts the worker in a session of its own, and
from then on every descendant, daemonized ones included, ends up as its child: when waiting says there is no child left,
the tree is gone.

It ends the tree (TERM to all, grace, KILL to all) when the worker has exited, when a limit is reached, when the service
asks for it with a line `end CAUSE` on the control pipe, and when that pipe closes, because then the service is dead. With
`end CAUSE SECONDS` the worker alone gets TERM, and these seconds to end by itself what it has started. After the tree's end it
runs the last command, if there is one. What happened the supervisor says in one line of JSON on the status pipe.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36

POLL_INTERVAL_S: Final = 0.25
"""Between looks at memory. Slower lets a run overshoot its limit by more; faster takes time from what is measured."""

KILL_INTERVAL_S: Final = 0.01
"""Between rounds of KILL: a process that forks while it is being killed is caught by the next round."""

LAST_COMMAND_LIMIT_S: Final = 30.0
"""For what undoes the run's settings of a device. Shorter ends it on a loaded host, longer holds the device's queue when a driver hangs."""

STUCK_S: Final = 30.0
"""After which a process that KILL has not ended is told of: a driver holds it. Shorter, and one that frees much memory is told of too."""

EXEC_FAILED_EXIT_CODE: Final = 127
SHELL_SIGNAL: Final = 128
"""Added to the number of the signal that has ended a program, by what tells it as an exit status."""

EXITED: Final = "exited"
TIME_LIMIT: Final = "time_limit"
MEMORY_LIMIT: Final = "memory_limit"
SERVER_GONE: Final = "server_gone"

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_HAS_CHILDREN_FILES: Final = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110 - pathlib starts slowly


class Supervisor:
    """One command under limits.

    Args:
        command: program and arguments.
        control_fd: read for `end CAUSE` and `end CAUSE SECONDS` lines; end of file means that the service is gone.
        time_limit_s: wall clock, seconds.
        memory_limit_bytes: resident bytes of all processes of the tree together.
        grace_s: seconds between TERM and KILL.
        last_command: program and arguments, run when nothing is left of the run, however it has ended. Empty: none.
        is_sandboxed: the command is bubblewrap's: two processes of its own, then the worker, whose end by a signal is told as shells do.
        report: gets the status, and before it another one with the processes that do not end, where there are such.
    """

    def __init__(
        self,
        command: list[str],
        *,
        is_sandboxed: bool,
        control_fd: int,
        time_limit_s: float,
        memory_limit_bytes: int,
        grace_s: float,
        last_command: list[str],
        report: Callable[[dict[str, object]], None],
    ) -> None:
        self._command = command
        self._report = report
        self._cause = EXITED
        self._is_sandboxed = is_sandboxed
        self._last_command = last_command
        self._control_fd = control_fd
        self._deadline = time.monotonic() + time_limit_s
        self._memory_limit_bytes = memory_limit_bytes
        self._grace_s = grace_s
        self._control_text = b""
        self._worker_id = 0
        self._worker_status: int | None = None
        self._peak_resident_bytes = 0
        self._wakeup_fd = -1
        self._worker_grace_s = 0.0

    def run(self, worker_fds: list[int]) -> None:
        """Run the worker with `worker_fds` open, and report the status once no process is left."""
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        # Whether the run ends is the service's decision; a Ctrl-C in its terminal must not cost the run its drain time.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._wakeup_fd, wakeup_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._worker_id = self._start_worker(worker_fds)
        try:
            self._cause = self._wait_for_cause()
            self._await_worker()
        finally:  # whatever goes wrong here, nothing is left to run for ever
            self._end_tree()
            self._run_last_command()
        self._report(self._status())

    def _start_worker(self, worker_fds: list[int]) -> int:
        own_id = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the worker hears it: as a copy of this process it would not
        worker_id = os.fork()
        if worker_id:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            for fd in worker_fds:
                os.close(fd)  # or the service would never see the worker's end of file
            return worker_id
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should the supervisor itself be killed
            if os.getppid() != own_id:
                os._exit(EXEC_FAILED_EXIT_CODE)
            for fd in worker_fds:
                os.set_inheritable(fd, True)
            os.execvp(self._command[0], self._command)
        except OSError as error:
            os.write(2, f"cannot start {self._command[0]}: {error.strerror}\n".encode())
        os._exit(EXEC_FAILED_EXIT_CODE)

    def _wait_for_cause(self) -> str:
        """Block until there is a reason to end the tree, and return its name."""
        poll = select.poll()
        poll.register(self._control_fd, select.POLLIN | select.POLLHUP)
        poll.register(self._wakeup_fd, select.POLLIN)
        next_look = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= self._deadline:
                return TIME_LIMIT
            if now >= next_look:
                next_look = now + POLL_INTERVAL_S
                if self._is_over_memory_limit():
                    return MEMORY_LIMIT
            ready = {fd for fd, _ in poll.poll(max(0.0, min(next_look, self._deadline) - now) * 1000)}
            if self._wakeup_fd in ready:
                _drain(self._wakeup_fd)
                self._reap()
                if self._worker_status is not None:
                    return EXITED
            if self._control_fd in ready and (cause := self._read_control()) is not None:
                return cause

    def _read_control(self) -> str | None:
        data = os.read(self._control_fd, 4096)
        if not data:
            return SERVER_GONE
        self._control_text += data
        line, newline, _ = self._control_text.partition(b"\n")
        if not newline:
            return None
        _, cause, *seconds = line.decode().split()
        self._worker_grace_s = float(seconds[0]) if seconds else 0.0
        return str(cause)

    def _is_over_memory_limit(self) -> bool:
        tree = descendants(os.getpid())
        resident_bytes = sum(map(_resident_bytes, tree))
        self._peak_resident_bytes = max(self._peak_resident_bytes, resident_bytes)
        # Resident size counts shared pages once a process; the exact value costs milliseconds, so only when it matters.
        return resident_bytes > self._memory_limit_bytes and sum(map(_proportional_bytes, tree)) > self._memory_limit_bytes

    def _await_worker(self) -> None:
        """Send TERM to the worker alone, and wait for as long as the service gives it."""
        end_time = time.monotonic() + self._worker_grace_s
        if self._worker_grace_s > 0 and self._worker_status is None:
            for process_id in _children(self._sandbox()[-1]) if self._is_sandboxed else [self._worker_id]:
                os.kill(process_id, signal.SIGTERM)
        while self._worker_status is None and (left_s := end_time - time.monotonic()) > 0:
            select.select([self._wakeup_fd], [], [], min(left_s, POLL_INTERVAL_S))
            _drain(self._wakeup_fd)
            self._reap()

    def _sandbox(self) -> list[int]:
        """Return bubblewrap's own processes. They are not told to end: what is within would be killed with them at once."""
        return [self._worker_id, *_children(self._worker_id)[:1]] if self._is_sandboxed else []

    def _end_tree(self) -> None:
        _signal_all(signal.SIGTERM, self._sandbox())
        kill_time = time.monotonic() + self._grace_s
        self._await_children(kill_time)

    def _run_last_command(self) -> None:
        if self._last_command:
            os.posix_spawn(self._last_command[0], self._last_command, os.environ)
            self._await_children(time.monotonic() + LAST_COMMAND_LIMIT_S)

    def _await_children(self, kill_time: float) -> None:
        """Wait until no child is left, and from `kill_time` on kill them."""
        while self._reap() and (left_s := kill_time - time.monotonic()) > 0:
            select.select([self._wakeup_fd], [], [], min(left_s, POLL_INTERVAL_S))
            _drain(self._wakeup_fd)
        told_time = kill_time + STUCK_S
        while self._reap():
            _signal_all(signal.SIGKILL)
            if time.monotonic() > told_time:
                told_time = float("inf")
                self._report({**self._status(), "stuck": descendants(os.getpid())})
            select.select([self._wakeup_fd], [], [], KILL_INTERVAL_S)
            _drain(self._wakeup_fd)

    def _reap(self) -> bool:
        """Collect the dead; return whether any child is left."""
        while True:
            try:
                process_id, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if process_id == 0:
                return True
            if process_id == self._worker_id:
                self._worker_status = status
                self._peak_resident_bytes = max(self._peak_resident_bytes, usage.ru_maxrss * 1024)

    def _status(self) -> dict[str, object]:
        exit_code = None if self._worker_status is None else os.waitstatus_to_exitcode(self._worker_status)
        if self._is_sandboxed and exit_code is not None and exit_code > SHELL_SIGNAL:
            exit_code = SHELL_SIGNAL - exit_code
        is_signal = exit_code is not None and exit_code < 0
        return {
            "cause": self._cause,
            "exit_code": None if is_signal else exit_code,
            "signal": -exit_code if exit_code is not None and is_signal else None,
            "peak_resident_bytes": self._peak_resident_bytes,
        }


def descendants(root_id: int) -> list[int]:
    """Return the ids of all processes below `root_id`. A process that ends meanwhile may be missing."""
    children_of = _children_from_files if _HAS_CHILDREN_FILES else _children_from_scan()
    found: list[int] = []
    pending = [root_id]
    while pending:
        children = children_of(pending.pop())
        found += children
        pending += children
    return found


def _children(process_id: int) -> list[int]:
    """Return the processes that one has started."""
    return (_children_from_files if _HAS_CHILDREN_FILES else _children_from_scan())(process_id)


def _children_from_files(process_id: int) -> list[int]:
    children: list[int] = []
    try:
        for thread_id in os.listdir(f"/proc/{process_id}/task"):  # noqa: PTH208
            children += map(int, _read(f"/proc/{process_id}/task/{thread_id}/children").split())
    except OSError:
        pass  # it has ended
    return children


def _children_from_scan() -> Callable[[int], list[int]]:
    """Return a function that finds children on kernels without CONFIG_PROC_CHILDREN."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            stat = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if stat:
                children.setdefault(int(stat[1]), []).append(int(name))
    return lambda process_id: children.get(process_id, [])


def _resident_bytes(process_id: int) -> int:
    fields = _read(f"/proc/{process_id}/statm").split()
    return int(fields[1]) * _PAGE_BYTES if fields else 0


def _proportional_bytes(process_id: int) -> int:
    for line in _read(f"/proc/{process_id}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return _resident_bytes(process_id)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def _signal_all(number: int, spared: Collection[int] = ()) -> None:
    for process_id in descendants(os.getpid()):
        if process_id in spared:
            continue
        try:
            os.kill(process_id, number)
        except ProcessLookupError:
            pass  # ended meanwhile
        except PermissionError:
            pass  # changed its user; its parent's end re-parents it to here all the same


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def main(arguments: list[str]) -> None:
    """Run STATUS_FD CONTROL_FD WORKER_FDS TIME_LIMIT_S MEMORY_LIMIT_BYTES GRACE_S LAST_COMMAND SANDBOXED COMMAND….

    WORKER_FDS: joined by commas, or empty; LAST_COMMAND: list of JSON; SANDBOXED: 0 or 1.
    """
    status_fd, control_fd = int(arguments[0]), int(arguments[1])
    for fd in (status_fd, control_fd):
        os.set_inheritable(fd, False)

    def report(status: dict[str, object]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the service is gone, so there is nobody to report to
            os.write(status_fd, json.dumps(status).encode() + b"\n")

    supervisor = Supervisor(
        arguments[8:],
        is_sandboxed=arguments[7] == "1",
        control_fd=control_fd,
        time_limit_s=float(arguments[3]),
        memory_limit_bytes=int(arguments[4]),
        grace_s=float(arguments[5]),
        last_command=json.loads(arguments[6]),
        report=report,
    )
    supervisor.run([int(fd) for fd in arguments[2].split(",") if fd])


if __name__ == "__main__":
    main(sys.argv[1:])
