"""Programs that do not do as they should: they die, hang, babble, or write less than they say."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernalyse.services.core.errors import BackendUnavailableError, InternalError, LaunchLimitError, TimeLimitError, WorkerCrashedError
from kernalyse.services.core.model import CacheMode, TimingMethod
from kernalyse.services.profiler.backends.base import Timing
from kernalyse.services.profiler.backends.cuda.nvcc_programs import MeasuringProgram
from kernalyse.services.profiler.processes.children import ProgramProcess

SERVE = """
import os, sys, time
def answer(text):
    os.write(1, text.encode())
for line in sys.stdin:
    words = line.split()
    if words[0] == "open":
        answer("ok 24 1024 16 8 512 2048\\n")
    else:
        {act}
"""
TIMING = Timing(TimingMethod.SINGLE, CacheMode.HOT)

Start = Callable[[str], MeasuringProgram]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program that opens its device as it should, and does something else at the next command."""
    started: list[MeasuringProgram] = []

    def start_one(act: str) -> MeasuringProgram:
        script = SERVE.format(act=act)
        started.append(MeasuringProgram((sys.executable, "-c", script), tmp_path, 0, 2.0, "kernel k on a device"))
        return started[-1]

    yield start_one
    for program in started:
        program.end()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("os._exit(3)", "found the end of the program that runs it: exit code 3"),
        ("os.kill(os.getpid(), 11)", "found the end of the program that runs it: SIGSEGV"),
        ("answer('ok'); os._exit(0)", "exit code 0"),
        ("os.close(1); time.sleep(60)", "found the end of the program that runs it: SIGKILL"),
    ],
    ids=["exits", "crashes", "ends within its answer", "closes its output"],
)
def test_program_that_ends_is_a_crash_with_its_status(start: Start, act: str, words: str) -> None:
    program = start(act)
    with pytest.raises(WorkerCrashedError, match=words):
        program.run()
    assert program.has_ended


def test_program_that_has_ended_before_the_command_is_a_crash_too(start: Start) -> None:
    program = start("answer('ok\\n'); os._exit(7)")
    program.run()
    time.sleep(0.2)
    with pytest.raises(WorkerCrashedError, match="exit code 7"):
        program.run()


def test_program_that_hangs_is_ended(start: Start) -> None:
    program = start("time.sleep(60)")
    begin = time.monotonic()
    with pytest.raises(TimeLimitError, match=r"found no end within 2 s.*configuration_time_limit_s"):
        program.run()
    assert time.monotonic() - begin < 30
    assert program.has_ended


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("answer('hello\\n')", "the answer 'hello' to run"),
        ("answer('ok 1\\n')", "the answer 'ok 1' to run"),
        ("answer('error\\n')", "the answer 'error' to run"),
        ("answer('error many\\n')", "the answer 'error many' to run"),
        ("os.write(1, b'\\xff\\xfe\\n')", "to run"),
        ("answer('x' * 100_000)", "bytes that are no answer"),
    ],
)
def test_program_that_babbles_is_ended(start: Start, act: str, words: str) -> None:
    program = start(act)
    with pytest.raises(InternalError, match=words):
        program.run()
    assert program.has_ended


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("answer('ok 1 32\\n')", "no file of samples: No such file"),
        ("open(words[-1], 'wb').write(bytes(8 * 49)); answer('ok 1 32\\n')", "49 numbers in the file of samples, expected 50"),
        ("open(words[-1], 'wb').write(bytes(8 * 50)); answer('ok 1\\n')", "the answer 'ok 1' to time"),
    ],
    ids=["no file", "a short file", "a short answer"],
)
def test_samples_that_are_not_there_are_missed(start: Start, act: str, words: str) -> None:
    program = start(act)
    with pytest.raises(InternalError, match=words):
        program.time(TIMING, 10, can_block=True)
    assert program.has_ended


def test_samples_without_stamps_have_no_clock(start: Start) -> None:
    samples = start("open(words[-1], 'wb').write(bytes(8 * 50)); answer('ok 0 32\\n')").time(TIMING, 10, can_block=True)
    assert samples.duration_ns.tolist() == [0.0] * 10
    assert samples.sm_clock_hz is None
    assert not samples.is_blocked


def test_refused_launch_leaves_the_program_as_it_is(start: Start) -> None:
    program = start("answer('error 9 cudaErrorInvalidConfiguration invalid configuration argument\\n')")
    for _ in range(2):
        with pytest.raises(LaunchLimitError, match="cudaErrorInvalidConfiguration: invalid configuration argument"):
            program.run()
    assert not program.has_ended


def test_device_that_cannot_be_opened_ends_the_program(tmp_path: Path) -> None:
    script = "input(); print('error 100 cudaErrorNoDevice no CUDA-capable device is detected', flush=True); input()"
    with pytest.raises(BackendUnavailableError, match=r"no CUDA-capable device.*nvidia-smi"):
        MeasuringProgram((sys.executable, "-c", script), tmp_path, 0, 5.0, "kernel k")


def test_program_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    file = tmp_path / "program"
    file.write_text("no program")
    with pytest.raises(InternalError, match=r"cannot be started: Permission denied.*TMPDIR"):
        ProgramProcess((str(file),), tmp_path, 1.0)


def test_program_is_ended_when_nobody_drives_it_any_more(tmp_path: Path) -> None:
    process = ProgramProcess(
        (sys.executable, "-c", "import sys; print(sys.stdin.readline(), end='', flush=True); sys.stdin.read()"), tmp_path, 5
    )
    assert process.ask("echo", "hello there") == "hello there"
    begin = time.monotonic()
    process.end()
    process.end()
    assert process.has_ended
    assert time.monotonic() - begin < 4  # it is not waited for until its time limit
