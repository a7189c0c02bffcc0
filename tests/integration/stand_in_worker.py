"""A worker that does wrong on demand: what, its run's title says. It speaks the worker's protocol and nothing more."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kernalyse.services.core import protobuf
from kernalyse.services.core.model import (
    ArtifactStored,
    BackendName,
    Configuration,
    DataType,
    Device,
    DeviceKind,
    Dim3,
    KernelSweep,
    Progress,
    RunError,
    RunSpec,
    RunState,
    SampleBatch,
    StateChanged,
)
from kernalyse.services.profiler.processes.clock_locks import lock_clocks
from kernalyse.services.profiler.processes.event_pipe import EventWriter

SAMPLE_COUNT = 500
DEVICE = Device("cuda:0", "a stand-in", DeviceKind.GPU, (BackendName.PYCUDA,), uuid="GPU-stand-in")  # whose clocks it locks when asked to


class StandIn:
    def __init__(self, writer: EventWriter, events_fd: int, directory: Path, argument: str) -> None:
        self._writer = writer
        self._events_fd = events_fd
        self._directory = directory
        self._argument = argument

    def begin(self) -> None:
        self._writer.write(Progress(0, 0, 1, "measuring saxpy N=1024", configuration_index=0))
        block = Dim3(1)
        self._writer.write(Configuration(0, "saxpy", (), block, block, 0, "elementwise", DataType.FLOAT32, None, None))
        self.write_samples(0)

    def write_samples(self, place: int) -> None:
        self._writer.write(SampleBatch(0, place * SAMPLE_COUNT, (1000.0,) * SAMPLE_COUNT, time.time_ns()))

    def succeed(self) -> None:
        for place in range(1, int(self._argument or 3)):
            self.write_samples(place)
        self._writer.write(Progress(1, 0, 1, ""))

    def paced(self) -> None:
        for place in range(1, int(self._argument)):
            time.sleep(0.05)
            self.write_samples(place)
        self._writer.write(Progress(1, 0, 1, ""))

    def stream(self) -> None:
        place = 1
        while True:
            self.write_samples(place)
            place += 1
            time.sleep(float(self._argument or 0.005))

    def segfault(self) -> None:
        sys.stderr.write("about to write out of bounds\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)

    def endless(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (self._directory / "artifacts" / "id").write_text(str(os.getpid()))
        while True:
            time.sleep(0.05)
            self._writer.write(Progress(0, 0, 1, "measuring saxpy N=1024"))

    def hang(self) -> None:
        time.sleep(600)

    def eat(self) -> None:
        memory = [bytearray(b"x" * 10_000_000) for _ in range(40)]
        time.sleep(600)
        del memory

    def garble(self) -> None:
        os.write(self._events_fd, b"Segmentation fault\n")
        time.sleep(600)

    def fail(self) -> None:
        self._writer.write(StateChanged(RunState.FAILED, RunError("FAILED_PRECONDITION", "COMPILE_FAILED", "line 3: no")))
        sys.exit(1)

    def talk(self) -> None:
        sys.stdout.write("first\nsecond\nwithout end")
        sys.stderr.write("warned\n")
        (self._directory / "artifacts" / "report.txt").write_bytes(b"0123456789" * 300_000)
        (self._directory / "scratch").write_text("left behind")
        self._writer.write(ArtifactStored("report.txt", "sha256:0", 3_000_000, "text/plain"))

    def print_log(self) -> None:
        """As many bytes as the title says, in lines."""
        block = b"".join(b"%07d " % number + b"x" * 91 + b"\n" for number in range(10_000))
        for _ in range(int(self._argument) // len(block)):
            os.write(1, block)  # the pipe blocks: no part of it is left
        os.write(1, b"the last line\n")

    def leave_file(self) -> None:
        """An artifact of as many bytes as the title says; all of it is a hole."""
        with (self._directory / "artifacts" / "large.bin").open("wb") as file:
            file.truncate(int(self._argument))
        self._writer.write(ArtifactStored("large.bin", "sha256:0", int(self._argument), "application/octet-stream"))

    def leave_daemon(self) -> None:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                (self._directory / "artifacts" / "id").write_text(str(os.getpid()))
                time.sleep(600)
            os._exit(0)
        os.wait()
        while not (self._directory / "artifacts" / "id").exists():
            time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spec", type=Path)
    parser.add_argument("--events-fd", type=int)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--clock-lock-file", type=Path)
    arguments = parser.parse_args()
    spec = protobuf.decode_bytes(arguments.spec.read_bytes(), RunSpec)
    title, _, argument = spec.title.partition(":")
    if isinstance(spec.work, KernelSweep):
        lock_clocks(spec.work.clock_mode, DEVICE, arguments.clock_lock_file)
    stand_in = StandIn(EventWriter(arguments.events_fd), arguments.events_fd, arguments.directory, argument)
    stand_in.begin()
    behaviour: Callable[[], None] | None = getattr(stand_in, title, None) if title.isidentifier() and not title.startswith("_") else None
    if behaviour is None:
        sys.exit("a title that says nothing")
    behaviour()


main()
