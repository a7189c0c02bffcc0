"""The backend NVCC: kernels in compiled measuring programs, and buffers shared between these."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from kernalyse.services.core.errors import BackendUnavailableError, DeviceNotFoundError, InternalError, MemoryLimitError
from kernalyse.services.core.external_programs import find_nvcc
from kernalyse.services.core.model import BackendName, Device, Dim3, KernelResources, TimingMethod
from kernalyse.services.profiler.backends.base import (
    Argument,
    Build,
    CompiledKernel,
    DeviceBuffer,
    LaunchConfiguration,
    PreparedLaunch,
    TimedSamples,
    Timing,
    can_block_streams,
    check_arguments,
    check_copied,
    check_kernel_limits,
    check_launch,
)
from kernalyse.services.profiler.backends.cuda.compiler import NOTHING, TOOLKIT, CodeCache, KernelUsage, read_report, toolkit_version
from kernalyse.services.profiler.backends.cuda.driver import PAGE_BYTES, REMEDY, CudaDriver
from kernalyse.services.profiler.backends.cuda.modules import LaunchRequirements, check_requirements, read_requirements
from kernalyse.services.profiler.backends.cuda.nvcc_programs import (
    BuiltProgram,
    KernelAttributes,
    KernelProgram,
    MeasuringProgram,
    ProgramBuilder,
    write_program,
)
from kernalyse.services.profiler.kernel_sources.functions import SourceFunction
from kernalyse.services.profiler.processes.children import command_limit_s

# ---------------------------------------------------------------- sessions
# Every kernel becomes a C++ program of its own, compiled by nvcc and driven from here, without PyCUDA. A fault of a kernel ends only
# its program: the next configuration gets a fresh one.

MAX_PROGRAM_COUNT: Final = 4
"""Programs at once, each with a CUDA context of some 0.5 GB. Two take turns in a paired comparison; fewer than the kernels of
a shuffled sweep cost each configuration the start of a program, about half a second."""

WARP_SIZE: Final = 32


@dataclass(frozen=True, slots=True)
class NvccKernel:
    """A kernel compiled into a program of its own."""

    function_name: str
    compile_ns: int
    compiler_options: str
    compiler_log: str
    listings: Mapping[str, bytes] = field(repr=False)
    signature: SourceFunction = field(repr=False)
    executable: Path = field(repr=False)

    def usage(self, entry: str | None) -> KernelUsage:
        """Return the registers and memory that ptxas reports for an entry.

        entry: its name in machine code; None: the runtime does not tell it, and then only a kernel alone in its file is known.
        """
        usages = read_report(self.listings.get("ptxas.txt", b"").decode(errors="replace"))
        if entry is None:
            return next(iter(usages.values())) if len(usages) == 1 else NOTHING
        return usages.get(entry, NOTHING)

    def needs(self, entry: str | None) -> LaunchRequirements:
        """Return the launch requirements in the PTX. entry: as in `usage`."""
        return read_requirements(self.listings.get("ptx", b"").decode(errors="replace"), entry)


@dataclass(frozen=True, slots=True, eq=False)
class NvccLaunch:
    """A launch prepared for a kernel's program."""

    kernel: NvccKernel
    configuration: LaunchConfiguration
    arguments: tuple[Argument, ...]


class Builder(Protocol):
    """A compiler of executables from a program's text: nvcc, or a stand-in for tests."""

    def build(self, program: KernelProgram, build: Build, directory: Path) -> BuiltProgram:
        """Compile and link the program in `directory`, and return the executable. Raises CompileError."""
        ...


class NvccBackend:
    """A backend that compiles each kernel into a program of its own.

    Args:
        cache_directory: where programs are stored between processes; None: nowhere.

    Raises:
        BackendUnavailableError: nvcc or the driver is missing, or the driver is older than the toolkit.
    """

    name: Final = BackendName.NVCC

    def __init__(self, cache_directory: Path | None = None) -> None:
        if find_nvcc() is None:
            raise BackendUnavailableError("backend NVCC", found="no nvcc to compile with", remedy=TOOLKIT)
        self._driver = CudaDriver("backend NVCC")
        check_versions(self._driver.version(), toolkit_version())
        self._cache = None if cache_directory is None else CodeCache(cache_directory)
        self._builders: dict[str, ProgramBuilder] = {}

    def devices(self) -> tuple[Device, ...]:
        """Return the NVIDIA devices that the driver lists, in its order."""
        return self._driver.devices(self.name)

    def open(self, device_id: str | None = None) -> NvccSession:
        """Open `device_id`, or the first device. Raises BackendUnavailableError or DeviceNotFoundError."""
        devices = self.devices()
        if not devices:
            raise BackendUnavailableError("backend NVCC", found="no NVIDIA device", remedy=REMEDY)
        for index, device in enumerate(devices):
            if device_id in (None, device.device_id):
                return NvccSession(device, index, self._builder(device))
        raise DeviceNotFoundError(
            f"device {device_id}",
            found="no such CUDA device",
            expected=" or ".join(device.device_id for device in devices),
            remedy="List the devices with: kernalyse devices.",
        )

    def _builder(self, device: Device) -> ProgramBuilder:
        architecture = "sm_" + (device.compute_capability or "").replace(".", "")
        return self._builders.setdefault(architecture, ProgramBuilder(architecture, self._cache))


def check_versions(driver: tuple[int, int], toolkit: str | None) -> None:
    """Raise BackendUnavailableError unless the driver's CUDA has the toolkit's major version or a later one."""
    if toolkit is not None and driver[0] < int(toolkit.partition(".")[0]):
        raise BackendUnavailableError(
            "backend NVCC",
            found=f"a driver for CUDA {driver[0]}.{driver[1]} and the toolkit {toolkit}",
            expected="a driver at least as new as the toolkit",
            remedy="Update the driver, or set CUDA_HOME to an older toolkit.",
        )


class NvccSession:
    """An open device whose kernels run in programs that nvcc compiles.

    Args:
        index: of the device, as CUDA counts.
        environment: where limits, and tools that must not be disturbed, are looked for; the process's own if not given.
    """

    def __init__(self, device: Device, index: int, builder: Builder, environment: Mapping[str, str] = os.environ) -> None:
        self._device = device
        self._index = index
        self._builder = builder
        self._can_block = can_block_streams(environment)
        self._limit_s = command_limit_s(environment)
        self._directory = Path(tempfile.mkdtemp(prefix="kernalyse-nvcc-"))
        self._kernels: dict[Build, NvccKernel] = {}
        self._attributes: dict[Path, KernelAttributes] = {}
        self._needs: dict[Path, LaunchRequirements] = {}
        self._programs: dict[Path, MeasuringProgram] = {}  # by executable, the one used last at the end
        self._buffers: dict[int, ProgramBuffer] = {}
        self._buffer_count = 0  # ever made

    @property
    def device(self) -> Device:
        """Return the device that the session was opened on."""
        return self._device

    @property
    def timing_methods(self) -> frozenset[TimingMethod]:
        """Return the methods that `time` knows."""
        return frozenset({TimingMethod.SINGLE, TimingMethod.BATCHED, TimingMethod.GRAPH})

    @property
    def is_lost(self) -> bool:
        """Return False: a fault ends only the kernel's own program."""
        return False  # a fault ends the kernel's program, and the next launch starts another

    def compile(self, build: Build, block: Dim3) -> CompiledKernel:
        """Compile a build into a program of its own, or return the cached one."""
        if build in self._kernels:
            return replace(self._kernels[build], compile_ns=0)
        program = write_program(build.source, build.function_name)
        directory = Path(tempfile.mkdtemp(dir=self._directory)) / "program"
        built = self._builder.build(program, build, directory)
        kernel = NvccKernel(
            function_name=build.function_name,
            compile_ns=built.compile_ns,
            compiler_options=built.options,
            compiler_log=built.log,
            listings=built.listings,
            signature=program.signature,
            executable=built.executable,
        )
        self._kernels[build] = kernel
        return kernel

    def resources(self, kernel: CompiledKernel, configuration: LaunchConfiguration) -> KernelResources | None:
        """Return registers, memory and occupancy of a launch, from the program's attributes and the ptxas report."""
        assert isinstance(kernel, NvccKernel)
        attributes = self._attributes_of(kernel)
        with self._running(kernel) as program:
            block_count = program.occupancy(configuration)
            usage = kernel.usage(program.entry())
        warp_count = block_count * -(-configuration.block.count // WARP_SIZE)
        return KernelResources(
            register_count=attributes.register_count,
            static_shared_memory_bytes=attributes.static_shared_memory_bytes,
            local_memory_bytes=attributes.local_memory_bytes,
            spill_store_bytes=usage.spill_store_bytes,
            spill_load_bytes=usage.spill_load_bytes,
            constant_memory_bytes=attributes.constant_memory_bytes,
            max_threads_per_block=attributes.max_threads_per_block,
            active_block_count=block_count,
            theoretical_occupancy_ratio=warp_count * WARP_SIZE / attributes.multiprocessor_thread_count,
        )

    def allocate(self, size_bytes: int) -> DeviceBuffer:
        """Return a buffer; its device memory is allocated when a program first uses it. Raises MemoryLimitError."""
        allocated_bytes = sum(buffer.size_bytes for buffer in self._buffers.values())
        left_bytes = (self._device.memory_bytes or 0) - allocated_bytes
        if not 0 < size_bytes <= left_bytes:
            raise MemoryLimitError(
                f"a buffer on {self._device.name}",
                found=f"{size_bytes} bytes asked for",
                expected=f"1 to {left_bytes} bytes, the largest that fits",
                remedy="Choose smaller parameters.",
            )
        self._buffer_count += 1
        buffer = ProgramBuffer(self._buffer_count, size_bytes)
        self._buffers[buffer.number] = buffer
        return buffer

    def release(self, buffer: DeviceBuffer) -> None:
        """Free a buffer; a buffer that was freed before is ignored."""
        assert isinstance(buffer, ProgramBuffer)
        if self._buffers.pop(buffer.number, None) is not None:
            with self._dropping_ended_programs():
                buffer.release()

    def upload(self, buffer: DeviceBuffer, values: npt.NDArray[np.generic]) -> None:
        """Store new contents for the buffer; the program that uses it next copies them to the device."""
        assert isinstance(buffer, ProgramBuffer)
        buffer.fill(values)

    def download(self, buffer: DeviceBuffer, values: npt.NDArray[np.generic]) -> None:
        """Read the contents of the buffer into the array."""
        assert isinstance(buffer, ProgramBuffer)
        with self._dropping_ended_programs():
            buffer.read(values)

    def prepare(self, kernel: CompiledKernel, arguments: Sequence[Argument], configuration: LaunchConfiguration) -> PreparedLaunch:
        """Check the launch and bind its arguments. Raises LaunchLimitError or InvalidParameterError."""
        assert isinstance(kernel, NvccKernel)
        check_launch(self._device, kernel.function_name, configuration)
        check_arguments(kernel.signature, arguments)
        self._check_kernel_limits(kernel, configuration)
        check_requirements(self._needs_of(kernel), kernel.function_name, configuration, is_cooperation_possible=True)
        return NvccLaunch(kernel, configuration, tuple(arguments))

    def _check_kernel_limits(self, kernel: NvccKernel, configuration: LaunchConfiguration) -> None:
        attributes = self._attributes_of(kernel)
        check_kernel_limits(
            self._device,
            kernel.function_name,
            configuration,
            thread_limit=attributes.max_threads_per_block,
            static_shared_bytes=attributes.static_shared_memory_bytes,
        )

    def run(self, launch: PreparedLaunch) -> None:
        """Launch once, and wait for the end."""
        assert isinstance(launch, NvccLaunch)
        with self._bound(launch) as program:
            program.run()

    def time(self, launch: PreparedLaunch, timing: Timing, count: int) -> TimedSamples:
        """Take `count` samples in the kernel's program."""
        assert isinstance(launch, NvccLaunch)
        with self._bound(launch) as program:
            return program.time(timing, count, can_block=self._can_block)

    def close(self) -> None:
        """End all programs, and free the buffers and the transfer file."""
        for program in self._programs.values():
            program.end()
        self._programs.clear()
        for buffer in self._buffers.values():
            buffer.invalidate()
            buffer.release()
        self._buffers.clear()
        self._kernels.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    # ------------------------------------------------------------ programs

    def _attributes_of(self, kernel: NvccKernel) -> KernelAttributes:
        """Return the kernel's attributes. They are cached, so that an ended program need not be started again for them."""
        if kernel.executable not in self._attributes:
            with self._running(kernel) as program:
                self._attributes[kernel.executable] = program.attributes
        return self._attributes[kernel.executable]

    def _needs_of(self, kernel: NvccKernel) -> LaunchRequirements:
        if kernel.executable not in self._needs:
            with self._running(kernel) as program:
                self._needs[kernel.executable] = kernel.needs(program.entry())
        return self._needs[kernel.executable]

    @contextmanager
    def _bound(self, launch: NvccLaunch) -> Iterator[MeasuringProgram]:
        """Yield the launch's program, with its buffers in it and its arguments bound."""
        with self._running(launch.kernel) as program:
            try:
                self._bind(launch, program)
            except MemoryLimitError:
                if len(self._programs) == 1:
                    raise
                self._end_programs(tuple(self._programs)[:-1])  # their contexts take memory too
                self._bind(launch, program)
            yield program

    def _bind(self, launch: NvccLaunch, program: MeasuringProgram) -> None:
        for argument in launch.arguments:
            if isinstance(argument, ProgramBuffer):
                argument.move_to(program)
        if program.bound is not launch:
            values = [_value(argument) for argument in launch.arguments]
            program.bind(launch.configuration, values, is_cooperative=self._needs_of(launch.kernel).is_cooperative)
            program.bound = launch

    @contextmanager
    def _running(self, kernel: NvccKernel) -> Iterator[MeasuringProgram]:
        """Yield the kernel's program, started if need be."""
        with self._dropping_ended_programs():
            program = self._programs.pop(kernel.executable, None) or self._start(kernel)
            self._programs[kernel.executable] = program
            yield program

    def _start(self, kernel: NvccKernel) -> MeasuringProgram:
        subject = f"kernel {kernel.function_name} on {self._device.name}"
        self._end_programs(tuple(self._programs)[: max(0, len(self._programs) - MAX_PROGRAM_COUNT + 1)])
        try:
            return MeasuringProgram((str(kernel.executable),), kernel.executable.parent, self._index, self._limit_s, subject)
        except MemoryLimitError:
            if not self._programs:
                raise
            self._end_programs(tuple(self._programs))
            return MeasuringProgram((str(kernel.executable),), kernel.executable.parent, self._index, self._limit_s, subject)

    def _end_programs(self, executables: Sequence[Path]) -> None:
        """End programs; the contents of their buffers are saved for the next program."""
        for executable in executables:
            program = self._programs[executable]
            for buffer in self._buffers.values():
                if buffer.home is program:
                    buffer.recall()
            del self._programs[executable]
            program.end()

    @contextmanager
    def _dropping_ended_programs(self) -> Iterator[None]:
        """Drop programs that end within the context, and the contents of their buffers, however the context ends."""
        try:
            yield
        finally:
            for executable in [executable for executable, program in self._programs.items() if program.has_ended]:
                program = self._programs.pop(executable)
                for buffer in self._buffers.values():
                    if buffer.home is program:
                        buffer.invalidate()


def _value(argument: Argument) -> int | np.generic:
    """Return a buffer's number, or the scalar itself."""
    if isinstance(argument, np.generic):
        return argument
    assert isinstance(argument, ProgramBuffer)
    return argument.number


# ---------------------------------------------------------------- buffers
# A buffer's device memory is in one program at a time; its contents move from one program to the next.


@dataclass(slots=True, eq=False)
class ProgramBuffer:
    """Device memory of `size_bytes` that moves between the programs of a session; one of them has it at a time.

    home: the program that has the buffer on the device. waiting: contents that are newer than those in `home`, for its first
    `waiting_bytes` bytes.
    """

    number: int
    size_bytes: int
    home: MeasuringProgram | None = field(default=None, repr=False)
    waiting: TransferFile | None = field(default=None, repr=False)
    waiting_bytes: int = 0
    is_lost: bool = False  # its contents went with the program that had them

    def fill(self, values: npt.NDArray[np.generic]) -> None:
        """Set new contents, which the next program that uses the buffer loads."""
        check_copied(values, self.size_bytes)
        if self.waiting is None:
            self.waiting = TransferFile()
        self.waiting.write(values)
        self.waiting_bytes = max(self.waiting_bytes, values.nbytes)
        self.is_lost = False

    def read(self, values: npt.NDArray[np.generic]) -> None:
        """Read the first bytes of the contents; zeros where nothing was ever written."""
        check_copied(values, self.size_bytes)
        self._check_not_lost()
        if self.home is not None and self.waiting_bytes < values.nbytes:
            contents = self._stored(self.home, values.nbytes)
            contents.read(values)
            contents.close()
            return
        if self.waiting is None:
            self.waiting = TransferFile()
        self.waiting.resize(self.size_bytes)
        self.waiting.read(values)

    def move_to(self, program: MeasuringProgram) -> None:
        """Put the buffer with its newest contents into `program`. Raises MemoryLimitError: the device has no room for it."""
        self._check_not_lost()
        if self.home is not program:
            self.recall()
            try:
                program.allocate(self.number, self.size_bytes)
            except MemoryLimitError as error:
                largest_bytes = program.free_bytes() // PAGE_BYTES * PAGE_BYTES
                raise MemoryLimitError(
                    error.subject,
                    found=f"{self.size_bytes} bytes asked for",
                    expected=f"1 to {largest_bytes} bytes, the largest that fits now",
                    remedy=error.remedy,
                ) from error
            self.home = program
        if self.waiting is not None:
            program.load(self.number, min(self.waiting_bytes, self.size_bytes), self.waiting.path)
            self._forget_waiting()

    def recall(self) -> None:
        """Take the buffer out of its program, and save the contents for another."""
        if self.home is None:
            return
        home, self.home = self.home, None
        if self.waiting_bytes < self.size_bytes:
            self.is_lost = True  # should the program be at its end
            self.waiting, self.waiting_bytes = self._stored(home, self.size_bytes), self.size_bytes
            self.is_lost = False
        home.release(self.number)

    def invalidate(self) -> None:
        """Forget the contents, which ended with the buffer's program."""
        self.home = None
        self.is_lost = self.waiting_bytes < self.size_bytes

    def release(self) -> None:
        """Free the buffer's device memory and its waiting contents."""
        home, self.home = self.home, None
        self._forget_waiting()
        if home is not None:
            home.release(self.number)

    def _stored(self, program: MeasuringProgram, size_bytes: int) -> TransferFile:
        """Return the first bytes of the buffer, which is in `program`."""
        if self.waiting is not None:
            program.load(self.number, self.waiting_bytes, self.waiting.path)
            self._forget_waiting()
        contents = TransferFile()
        program.store(self.number, size_bytes, contents.path)
        return contents

    def _forget_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.close()
        self.waiting, self.waiting_bytes = None, 0

    def _check_not_lost(self) -> None:
        if self.is_lost:
            raise InternalError("a buffer", found="contents that are gone with the program that had them", remedy="Upload it again.")


# ---------------------------------------------------------------- transfer file


class TransferFile:
    """An anonymous file in memory that a program of the same user opens through this process's descriptor.

    No directory has to have room for it, and nothing is left of it once both processes are gone, however they end.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("kernalyse-transfer", os.MFD_CLOEXEC)

    @property
    def path(self) -> str:
        """Return the path by which another process of the same user can open the file."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def write(self, values: npt.NDArray[np.generic]) -> None:
        """Write the first bytes. Raises MemoryError: this machine has no room for them."""
        data, written = _bytes_of(values), 0
        try:
            while written < len(data):  # one call writes 2 GiB at most
                written += os.pwrite(self._file, data[written:], written)
        except OSError as error:
            raise MemoryError(str(error)) from error

    def resize(self, size_bytes: int) -> None:
        """Resize the file. Added bytes read as zeros."""
        os.ftruncate(self._file, size_bytes)

    def read(self, values: npt.NDArray[np.generic]) -> None:
        """Fill the array with the file's first bytes. Raises EOFError when there are too few."""
        data, filled = _bytes_of(values), 0
        while filled < len(data):
            count = os.preadv(self._file, [data[filled:]], filled)
            if count == 0:
                raise EOFError(f"{filled} bytes, expected {len(data)}")
            filled += count

    def close(self) -> None:
        """Close the file, which frees its memory."""
        os.close(self._file)


def _bytes_of(values: npt.NDArray[np.generic]) -> memoryview:
    return values.reshape(-1).view(np.uint8).data  # not that of the array itself: bfloat16 knows no buffer protocol
