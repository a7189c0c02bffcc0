"""The supervisor with real processes: limits, endings, and that nothing survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.profiler.processes import supervisor
from tests.integration.profiler_node import is_alive

GRACE_S = 0.3
SLACK_S = 30.0  # of a loaded machine; whoever were not ended would go on for minutes

STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"

# A daemon as nsys's agent is one: forked twice, in a session of its own, deaf to TERM.
DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.closerange(0, 64)
        with open(sys.argv[1], "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
while not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])):
    time.sleep(0.01)
"""


class Supervised:
    """A supervisor, and the pipes to it."""

    def __init__(
        self,
        code: str,
        *arguments: str,
        program: str = sys.executable,
        time_limit_s: float = 30.0,
        memory_limit_bytes: int = 2**30,
        last_command: Sequence[str] = (),
    ) -> None:
        status_fd, supervisor_status_fd = os.pipe()
        supervisor_control_fd, self.control_fd = os.pipe()
        self.worker_read_fd, worker_fd = os.pipe()
        given = (supervisor_status_fd, supervisor_control_fd, worker_fd)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", supervisor.__file__),
                *(str(supervisor_status_fd), str(supervisor_control_fd), str(worker_fd)),
                *(str(time_limit_s), str(memory_limit_bytes), str(GRACE_S), json.dumps(last_command), "0"),
                *(program, "-c", code, *arguments),
            ],
            pass_fds=given,
            stdout=subprocess.PIPE,
            text=True,
        )
        for fd in given:
            os.close(fd)
        self._status = os.fdopen(status_fd)

    def status(self) -> dict[str, Any]:
        """Waits for the end."""
        line = self._status.read()
        assert self.process.wait(60) == 0
        return dict(json.loads(line))

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._status.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self.worker_read_fd)
        if self.control_fd >= 0:
            os.close(self.control_fd)


@pytest.fixture
def supervised() -> Iterator[Any]:
    started: list[Supervised] = []

    def start(code: str, *arguments: str, **limits: Any) -> Supervised:
        started.append(Supervised(code, *arguments, **limits))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize(
    ("code", "exit_code", "signal_number"),
    [("", 0, None), ("raise SystemExit(7)", 7, None), ("import os; os.kill(os.getpid(), 11)", None, signal.SIGSEGV)],
    ids=["success", "failure", "crash"],
)
def test_the_workers_end_is_reported(supervised: Any, code: str, exit_code: int | None, signal_number: int | None) -> None:
    status = supervised(code).status()
    assert (status["cause"], status["exit_code"], status["signal"]) == ("exited", exit_code, signal_number)
    assert 2**20 < status["peak_resident_bytes"] < 2**28


def test_a_command_that_cannot_be_started_is_reported(supervised: Any) -> None:
    status = supervised("", program="/nowhere/worker").status()
    assert (status["cause"], status["exit_code"]) == ("exited", supervisor.EXEC_FAILED_EXIT_CODE)


def test_the_worker_leads_a_session_of_its_own(supervised: Any) -> None:
    started = supervised("import os; print(os.getsid(0) == os.getpid(), os.getppid(), flush=True)")
    assert started.line() == f"True {started.process.pid}"


def test_a_request_ends_the_run_with_its_cause(supervised: Any) -> None:
    started = supervised("import time; print('up', flush=True); time.sleep(600)")
    started.line()
    os.write(started.control_fd, b"end cancelled\n")
    status = started.status()
    assert (status["cause"], status["signal"]) == ("cancelled", signal.SIGTERM)


def test_a_request_that_comes_before_the_worker_has_started_is_heard_by_it(supervised: Any) -> None:
    for _ in range(10):  # the worker is a copy of the supervisor, which ignores the signal, for an instant
        started = supervised("import time; time.sleep(600)")
        os.write(started.control_fd, b"end cancelled\n")
        assert started.status()["signal"] == signal.SIGTERM


def test_a_worker_deaf_to_term_is_killed_after_the_grace(supervised: Any) -> None:
    started = supervised(STUBBORN + "print('up', flush=True); time.sleep(600)")
    started.line()
    began = time.monotonic()
    os.write(started.control_fd, b"end cancelled\n")
    assert started.status()["signal"] == signal.SIGKILL
    assert GRACE_S <= time.monotonic() - began < GRACE_S + SLACK_S


def test_a_worker_that_is_given_time_ends_by_itself_what_it_has_started(supervised: Any) -> None:
    code = (
        "import signal, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"  # it waits for the next look, whenever it comes
        "print('up', flush=True)\n"
        "signal.sigwait({signal.SIGTERM})\n"
        "child.communicate(b'done')\n"
        "sys.exit(child.returncode + 5)"
    )
    started = supervised(code)
    started.line()
    os.write(started.control_fd, b"end cancelled 10\n")
    status = started.status()
    assert (status["cause"], status["exit_code"]) == ("cancelled", 5), "the child had no TERM"


def test_the_time_limit_ends_an_endless_worker(supervised: Any) -> None:
    began = time.monotonic()
    status = supervised("while True: pass", time_limit_s=0.5).status()
    assert status["cause"] == "time_limit"
    assert 0.5 <= time.monotonic() - began < 0.5 + GRACE_S + SLACK_S


def test_the_memory_limit_counts_the_whole_tree(supervised: Any) -> None:
    code = (
        "import subprocess, sys, time\n"
        "children = [subprocess.Popen([sys.executable, '-c', 'x = bytearray(60_000_000); input()'], stdin=-1) for _ in range(3)]\n"
        "time.sleep(600)"
    )
    status = supervised(code, memory_limit_bytes=150_000_000).status()
    assert status["cause"] == "memory_limit"
    assert status["peak_resident_bytes"] > 150_000_000


def test_a_daemon_deaf_to_term_is_gone_when_the_worker_has_ended(supervised: Any, tmp_path: Path) -> None:
    status = supervised(DAEMON, str(tmp_path / "id")).status()
    assert (status["cause"], status["exit_code"]) == ("exited", 0)
    assert not is_alive(int((tmp_path / "id").read_text()))


def test_nothing_is_left_when_the_service_is_gone(supervised: Any, tmp_path: Path) -> None:
    started = supervised(DAEMON + STUBBORN + "print(os.getpid(), flush=True); time.sleep(600)", str(tmp_path / "id"))
    worker_id, daemon_id = int(started.line()), int((tmp_path / "id").read_text())
    assert is_alive(worker_id)
    assert is_alive(daemon_id)
    os.close(started.control_fd)
    started.control_fd = -1
    began = time.monotonic()
    assert started.status()["cause"] == "server_gone"
    assert time.monotonic() - began < GRACE_S + SLACK_S
    assert not is_alive(worker_id)
    assert not is_alive(daemon_id)


def test_the_last_command_runs_when_nothing_of_the_run_is_left(supervised: Any, tmp_path: Path) -> None:
    looks = f"import os; print(os.path.exists('/proc/' + open({str(tmp_path / 'id')!r}).read()), flush=True)"
    started = supervised(DAEMON, str(tmp_path / "id"), last_command=(sys.executable, "-c", looks))
    assert started.line() == "False"
    assert (started.status()["cause"], started.process.returncode) == ("exited", 0)


def test_the_worker_dies_with_a_killed_supervisor(supervised: Any) -> None:
    started = supervised(STUBBORN + "import os; print(os.getpid(), flush=True); time.sleep(600)")
    worker_id = int(started.line())
    started.process.kill()
    deadline = time.monotonic() + SLACK_S
    while is_alive(worker_id) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(worker_id)


def test_a_keyboard_interrupt_does_not_end_the_run(supervised: Any) -> None:
    started = supervised("import time; print('up', flush=True); time.sleep(0.3); print('end', flush=True)")
    started.line()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        started.process.send_signal(number)
    assert started.line() == "end"
    assert started.status()["exit_code"] == 0


def test_both_ways_to_find_descendants_agree() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"], stdin=-1)
    try:
        deadline = time.monotonic() + SLACK_S
        while len(supervisor.descendants(child.pid)) < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        scanned = supervisor._children_from_scan()
        (grandchild,) = supervisor.descendants(child.pid)
        assert scanned(child.pid) == [grandchild]
        if supervisor._HAS_CHILDREN_FILES:
            assert supervisor._children_from_files(child.pid) == [grandchild]
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
