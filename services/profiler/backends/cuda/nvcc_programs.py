"""The measuring programs of the backend NVCC: how they are built and driven."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from kernalyse.services.core.errors import BackendUnavailableError, CompileError, InternalError, KernalyseError, UnknownKernelError
from kernalyse.services.core.external_programs import find_nvcc
from kernalyse.services.core.model import CacheMode, KernelSource
from kernalyse.services.profiler.backends.base import Build, LaunchConfiguration, TimedSamples, Timing
from kernalyse.services.profiler.backends.cuda.compiler import (
    REPORT,
    TOOLKIT,
    CodeCache,
    CompiledCode,
    build_key,
    build_options,
    build_subject,
    cache_key,
    compiler_version,
    disassemble,
    header_directories,
    read_headers,
    reads_hidden_files,
    run_nvcc,
    split_report,
)
from kernalyse.services.profiler.backends.cuda.driver import HARMLESS, failure
from kernalyse.services.profiler.backends.cuda.timing import sample_clocks
from kernalyse.services.profiler.kernel_sources.functions import SourceFunction, compiled_name, parse_kernel_source, without_arguments
from kernalyse.services.profiler.processes.children import ProgramProcess

# ---------------------------------------------------------------- building
# nvcc compiles the measuring part once for an architecture, then one small file for each kernel.

MEASURING_FILE: Final = "measuring_program.cu"
MEASURING_OBJECT: Final = "measuring_program.o"
MEASURING_OPTIONS: Final = ("-O2", "-std=c++17")
PROGRAM_FILE: Final = "program"
HEADERS_FILE: Final = "headers.d"
AMBIGUOUS: Final = '"kernalyse_entry_of" matches'  # nvcc's message when no instance matches because the name has several overloads


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """An executable, and how nvcc made it."""

    executable: Path
    options: str  # of the kernel's own file, as nvcc got them
    log: str  # the compiler's remarks; empty when it had nothing to say
    listings: Mapping[str, bytes] = field(repr=False)  # "ptx", "ptxas.txt", "sass"
    compile_ns: int  # wall-clock time of the compiler; 0: from the cache


class ProgramBuilder:
    """The build of measuring programs for one architecture.

    Args:
        architecture: e.g. "sm_90".
        cache: where programs, and their measuring part, are cached between processes; None: nowhere.
    """

    def __init__(self, architecture: str, cache: CodeCache | None = None) -> None:
        self._architecture = architecture
        self._cache = cache
        self._measuring_object: bytes | None = None

    def build(self, program: KernelProgram, build: Build, directory: Path) -> BuiltProgram:
        """Return the executable for a kernel, in a directory that nothing else uses.

        Raises:
            BackendUnavailableError: there is no nvcc.
            CompileError: with nvcc's own lines; they name the .cu file.
            UnknownKernelError: the name has several overloads.
        """
        nvcc = find_nvcc()
        if nvcc is None:
            raise BackendUnavailableError("nvcc", found="no nvcc to compile with", remedy=TOOLKIT)
        cache = None if reads_hidden_files(build) else self._cache
        key = build_key(build, self._architecture, self._measuring_key(nvcc), program.main_text)
        made = None if cache is None else cache.find(key, header_directories(build))
        if made is None:
            made, headers = self._compile(nvcc, program, build)
            if cache is not None:
                cache.store(key, made, headers, header_directories(build))
        directory.mkdir(parents=True)
        executable = directory / PROGRAM_FILE
        executable.write_bytes(made.code)
        executable.chmod(0o700)
        options = shlex.join(build_options(build, self._architecture))
        return BuiltProgram(executable, options, made.log, made.listings, made.compile_ns)

    def _compile(self, nvcc: str, program: KernelProgram, build: Build) -> tuple[CompiledCode, list[Path]]:
        """Return the program with the listings of its kernel, and the headers that were read for it.

        An executable takes the place of the cubin that is in it.
        """
        measuring_part = self._measuring_part(nvcc)
        options = build_options(build, self._architecture)
        files = ("-MD", "-MF", HEADERS_FILE, "--keep", "-o", PROGRAM_FILE, MAIN_FILE, MEASURING_OBJECT)
        with tempfile.TemporaryDirectory(prefix="kernalyse-nvcc-") as name:
            directory = Path(name)
            start_ns = time.perf_counter_ns()
            (directory / program.source_file_name).write_text(program.source.text, encoding="utf-8")
            (directory / MAIN_FILE).write_text(program.main_text, encoding="utf-8")
            (directory / MEASURING_OBJECT).write_bytes(measuring_part)
            try:
                output = run_nvcc(nvcc, (*options, *REPORT, *files), directory, build_subject(build, self._architecture))
            except CompileError as error:
                if AMBIGUOUS not in error.found or "<" in build.function_name:
                    raise
                raise UnknownKernelError(
                    f"kernel {program.signature.name} of {program.source.file_name}",
                    found="several functions of that name",
                    expected=f"exactly one {program.signature.name}",
                    remedy="Give its overloads names of their own.",
                ) from error
            compile_ns = time.perf_counter_ns() - start_ns
            report, remarks = split_report(output)
            made = CompiledCode(
                code=(directory / PROGRAM_FILE).read_bytes(),
                entry=None,
                log=remarks,
                listings=_listings(directory, report, Path(nvcc).parent),
                compile_ns=compile_ns,
            )
            return made, read_headers(directory / HEADERS_FILE, directory)

    def _measuring_part(self, nvcc: str) -> bytes:
        """Return the object file that all programs share; it is compiled once and cached."""
        if self._measuring_object is None:
            key = self._measuring_key(nvcc)
            made = None if self._cache is None else self._cache.find(key, ())
            if made is None:
                made = CompiledCode(self._compile_measuring_part(nvcc), entry=None, log="", listings={})
                if self._cache is not None:
                    self._cache.store(key, made, (), ())
            self._measuring_object = made.code
        return self._measuring_object

    def _measuring_key(self, nvcc: str) -> str:
        texts = [path.read_text(encoding="utf-8") for path in sorted(MEASURING_DIRECTORY.iterdir())]
        return cache_key("measuring part", compiler_version(nvcc), self._architecture, *MEASURING_OPTIONS, *texts)

    def _compile_measuring_part(self, nvcc: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="kernalyse-nvcc-") as name:
            directory = Path(name)
            source = str(MEASURING_DIRECTORY / MEASURING_FILE)
            options = ("-c", f"-arch={self._architecture}", *MEASURING_OPTIONS, "-o", MEASURING_OBJECT, source)
            try:
                run_nvcc(nvcc, options, directory, MEASURING_FILE)
            except CompileError as error:
                raise BackendUnavailableError(
                    f"backend NVCC for {self._architecture}",
                    found=error.found,
                    expected="CUDA 11.4 or later with a C++17 host compiler, which know this device",
                    remedy="Update the CUDA toolkit, or use --backend pycuda.",
                ) from error
            return (directory / MEASURING_OBJECT).read_bytes()


def _listings(directory: Path, report: str, toolkit_directory: Path) -> dict[str, bytes]:
    """Return PTX, SASS and ptxas report of the kernel's own file, by suffix, as far as nvcc has left them in the directory."""
    stem = MAIN_FILE.partition(".")[0]
    ptx = next((path.read_bytes() for path in sorted(directory.glob(f"{stem}*.ptx"))), None)
    cubin = next(iter(sorted(directory.glob(f"{stem}*.cubin"))), None)
    found = {
        "ptx": ptx,
        "ptxas.txt": report.encode(),
        "sass": None if cubin is None else disassemble(cubin, toolkit_directory),
    }
    return {suffix: listing for suffix, listing in found.items() if listing}


# ---------------------------------------------------------------- program text
# The kernel's file is included unchanged, so that the compiler's line numbers are its own. The text after it gives the measuring part,
# which is compiled separately, the kernel's address and parameters; so macros of the kernel's file never meet other code. Device code
# may print without a header, but a complete program needs one, which comes first.

MAIN_FILE: Final = "kernalyse_program.cu"
DEFAULT_FILE: Final = "kernel.cu"
MEASURING_DIRECTORY: Final = Path(__file__).parent / "device_code" / "measuring_program"
ENTRY_FILE: Final = "kernel_entry.h"

TEMPLATE: Final = """\
#include <cstdio>
#define main kernalyse_main_of_the_source
#include "{file_name}"
#undef main

{entry}
extern "C" const kernalyse_kernel_entry* kernalyse_find_kernel() {{ return kernalyse_entry_of(&{kernel}); }}
"""


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """A kernel as a program: its source files by name, all in one directory, and the kernel's signature."""

    main_text: str
    source_file_name: str
    source: KernelSource = field(repr=False)
    signature: SourceFunction = field(repr=False)


def write_program(source: KernelSource, function_name: str) -> KernelProgram:
    """Return the program for a kernel, or for an instance of a template ("scale<float, 4>").

    Raises:
        InvalidSourceError, UnknownKernelError: no such kernel in the file.
        UnsupportedConstructError: a template of which no instance is named.
    """
    kernel = parse_kernel_source(source).kernel(function_name)
    if kernel.is_template:
        raise without_arguments(kernel, source.file_name)
    file_name = _includable_name(source.file_name)
    return KernelProgram(
        main_text=TEMPLATE.format(file_name=file_name, entry=_entry_text(), kernel=f"::{compiled_name(kernel)}"),
        source_file_name=file_name,
        source=source,
        signature=kernel,
    )


def _includable_name(file_name: str) -> str:
    name = Path(file_name).name
    return name if name and name != MAIN_FILE and not set(name) & set('"\\\n') else DEFAULT_FILE


@lru_cache(maxsize=1)
def _entry_text() -> str:
    return (MEASURING_DIRECTORY / ENTRY_FILE).read_text(encoding="utf-8")


# ---------------------------------------------------------------- driving
# The commands are those of device_code/measuring_program/measuring_program.cu.

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

    def __init__(self, command: Sequence[str], directory: Path, device_index: int, limit_s: float, subject: str) -> None:
        self._subject = subject
        self._directory = directory
        self._process = ProgramProcess(command, directory, limit_s)
        try:
            self.attributes = KernelAttributes(*self._ask(f"open {device_index}", 6))
        except KernalyseError:
            self.end()
            raise
        self.bound: object = None  # what `bind` was last called for

    @property
    def has_ended(self) -> bool:
        """Return whether the program has ended."""
        return self._process.has_ended

    def free_bytes(self) -> int:
        """Return the free device memory for this program."""
        return self._ask("memory", 2)[0]

    def allocate(self, number: int, size_bytes: int) -> None:
        """Allocate device memory for a buffer. Raises MemoryLimitError."""
        self._ask(f"allocate {number} {size_bytes}", 0)

    def release(self, number: int) -> None:
        """Free the device memory of a buffer."""
        self.bound = None  # its arguments may have been this buffer
        self._ask(f"release {number}", 0)

    def load(self, number: int, size_bytes: int, path: str) -> None:
        """Copy the first bytes of the file at `path` into a buffer."""
        self._ask(f"load {number} {size_bytes} {path}", 0)

    def store(self, number: int, size_bytes: int, path: str) -> None:
        """Copy the first bytes of a buffer into the file at `path`."""
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
        """Launch the bound kernel once, and wait for the end."""
        self._ask("run", 0)

    def time(self, timing: Timing, count: int, *, can_block: bool) -> TimedSamples:
        """Take `count` samples. can_block: block the stream while they are enqueued, if that many fit."""
        file = self._directory / SAMPLES_FILE
        cache = "cold" if timing.cache_mode is CacheMode.COLD else "hot"
        words = ("time", timing.method.lower(), cache, timing.launches_per_sample, count, int(can_block), file)
        is_blocked, timer_step_ns = self._ask(" ".join(map(str, words)), 2)
        try:
            samples = np.fromfile(file, np.float64)
            file.unlink()
        except OSError as error:
            raise self._broken(f"no file of samples: {error.strerror}") from error
        if samples.size != count * NUMBERS_PER_SAMPLE:
            raise self._broken(f"{samples.size} numbers in the file of samples, expected {count * NUMBERS_PER_SAMPLE}")
        clocks_hz = sample_clocks(samples[count:].view(np.uint64).reshape(count, 2, 2), timer_step_ns)
        return TimedSamples(samples[:count], clocks_hz if np.isfinite(clocks_hz).any() else None, bool(is_blocked))

    def occupancy(self, configuration: LaunchConfiguration) -> int:
        """Return the number of blocks that one multiprocessor holds at once."""
        return self._ask(f"occupancy {configuration.block.count} {configuration.dynamic_shared_memory_bytes}", 1)[0]

    def entry(self) -> str | None:
        """Return the kernel's mangled name; None for CUDA runtimes before 12.3, which do not report it."""
        words = self._response("entry")
        return words[0] if words else None

    def end(self) -> None:
        """End the program."""
        self._process.end()

    def _ask(self, command: str, count: int) -> tuple[int, ...]:
        """Send a command and return the `count` numbers of the response."""
        words = self._response(command)
        if len(words) != count or not all(word.isdigit() for word in words):
            raise self._broken(f"the answer {' '.join(('ok', *words))[:200]!r} to {command.partition(' ')[0]}")
        return tuple(map(int, words))

    def _response(self, command: str) -> list[str]:
        """Send a command and return the fields of the response. A program with a fault is ended, because its context is lost."""
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
        """End a program whose response cannot be parsed, and return the error."""
        self.end()
        return InternalError(self._subject, found=found, expected="what a measuring program answers", remedy="Run it again.")
