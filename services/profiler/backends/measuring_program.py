"""The commands of a measuring program, as device_code/measuring_program/measuring_program.cu serves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from services.core.errors import InternalError, KernalyseError
from services.core.model import CacheMode
from services.profiler.backends.base import LaunchConfiguration, TimedSamples, Timing
from services.profiler.backends.clock_stamps import sample_clocks
from services.profiler.backends.nvcc_failures import HARMLESS, failure
from services.profiler.backends.program_process import ProgramProcess

SAMPLES_FILE: Final = "samples.bin"
NUMBERS_PER_SAMPLE: Final = 5  # of 8 bytes: its duration, and two stamps of two


@dataclass(frozen=True, slots=True)
class KernelAttributes:
    """Attributes of a compiled kernel, and of the device under it, by the CUDA runtime."""

    register_count: int  # per thread
    static_shared_memory_bytes: int
    local_memory_bytes: int  # per thread
    constant_memory_bytes: int
    max_threads_per_block: int  # of this kernel
    multiprocessor_thread_count: int  # that one multiprocessor of the device holds


class MeasuringProgram:
    """A kernel's program, with the device open.

    Args:
        subject: the kernel and the device, for errors.

    Raises:
        BackendUnavailableError, CompileError: the device cannot be opened, or the kernel is not compiled for it.
    """

    def __init__(self, command: Sequence[str], folder: Path, device_index: int, limit_s: float, subject: str) -> None:
        self._subject = subject
        self._folder = folder
        self._process = ProgramProcess(command, folder, limit_s)
        try:
            self.attributes = KernelAttributes(*self._ask(f"open {device_index}", 6))
        except KernalyseError:
            self.end()
            raise
        self.bound: object = None  # what `bind` was last called for

    @property
    def has_ended(self) -> bool:
        return self._process.has_ended

    def free_bytes(self) -> int:
        """Return the free device memory for this program."""
        return self._ask("memory", 2)[0]

    def allocate(self, number: int, size_bytes: int) -> None:
        self._ask(f"allocate {number} {size_bytes}", 0)

    def release(self, number: int) -> None:
        self.bound = None  # its arguments may have been this buffer
        self._ask(f"release {number}", 0)

    def load(self, number: int, size_bytes: int, path: str) -> None:
        self._ask(f"load {number} {size_bytes} {path}", 0)

    def store(self, number: int, size_bytes: int, path: str) -> None:
        self._ask(f"store {number} {size_bytes} {path}", 0)

    def bind(self, configuration: LaunchConfiguration, arguments: Sequence[int | np.generic], *, is_cooperative: bool) -> None:
        """Bind the arguments of all launches from now on.

        Args:
            arguments: a buffer's number for a pointer, else the value itself.
            is_cooperative: whether all blocks have to be there at once.
        """
        extents = [extent for one in (configuration.grid, configuration.block) for extent in (one.x, one.y, one.z)]
        words = [f"b{argument}" if isinstance(argument, int) else f"v{argument.tobytes().hex()}" for argument in arguments]
        self._ask(" ".join(map(str, ("bind", *extents, configuration.dynamic_shared_memory_bytes, int(is_cooperative), *words))), 0)

    def run(self) -> None:
        self._ask("run", 0)

    def time(self, timing: Timing, count: int, *, may_hold: bool) -> TimedSamples:
        """Take samples, behind a held stream where that may be and fits."""
        file = self._folder / SAMPLES_FILE
        cache = "cold" if timing.cache_mode is CacheMode.COLD else "hot"
        words = ("time", timing.method.lower(), cache, timing.launches_per_sample, count, int(may_hold), file)
        is_held, timer_step_ns = self._ask(" ".join(map(str, words)), 2)
        try:
            samples = np.fromfile(file, np.float64)
            file.unlink()
        except OSError as error:
            raise self._broken(f"no file of samples: {error.strerror}") from error
        if samples.size != count * NUMBERS_PER_SAMPLE:
            raise self._broken(f"{samples.size} numbers in the file of samples, expected {count * NUMBERS_PER_SAMPLE}")
        clocks_hz = sample_clocks(samples[count:].view(np.uint64).reshape(count, 2, 2), timer_step_ns)
        return TimedSamples(samples[:count], clocks_hz if np.isfinite(clocks_hz).any() else None, bool(is_held))

    def occupancy(self, configuration: LaunchConfiguration) -> int:
        """Return the number of blocks that one multiprocessor holds at once."""
        return self._ask(f"occupancy {configuration.block.count} {configuration.dynamic_shared_memory_bytes}", 1)[0]

    def entry(self) -> str | None:
        """Return the kernel's name in machine code; None: a CUDA runtime before 12.3, which does not tell it."""
        words = self._answer("entry")
        return words[0] if words else None

    def end(self) -> None:
        self._process.end()

    def _ask(self, command: str, count: int) -> tuple[int, ...]:
        """Return the `count` numbers of the answer."""
        words = self._answer(command)
        if len(words) != count or not all(word.isdigit() for word in words):
            raise self._broken(f"the answer {' '.join(('ok', *words))[:200]!r} to {command.partition(' ')[0]}")
        return tuple(map(int, words))

    def _answer(self, command: str) -> list[str]:
        """Return the words of the answer. After a fault the program is ended: its context is lost."""
        answer = self._process.ask(self._subject, command)
        kind, *words = answer.split(" ")
        if kind == "error" and len(words) >= 3 and words[0].isdigit():
            code = int(words[0])
            if code not in HARMLESS:
                self.end()
            raise failure(self._subject, code, words[1], " ".join(words[2:]))
        if kind != "ok":
            raise self._broken(f"the answer {answer[:200]!r} to {command.partition(' ')[0]}")
        return words

    def _broken(self, found: str) -> KernalyseError:
        """End a program whose answer cannot be understood; return the error."""
        self.end()
        return InternalError(self._subject, found=found, expected="what a measuring program answers", remedy="Run it again.")
