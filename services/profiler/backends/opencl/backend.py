"""The backend OPENCL: .cu kernels translated to OpenCL, on CPUs through Intel's runtime or PoCL, and on GPUs with a driver."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kernalyse.services.core.errors import (
    BackendUnavailableError,
    CompileError,
    DeviceNotFoundError,
    InternalError,
    LaunchLimitError,
    MemoryLimitError,
)
from kernalyse.services.core.model import BackendName, CacheMode, Device, DeviceKind, Dim3, KernelResources, TimingMethod
from kernalyse.services.profiler.backends.base import (
    Argument,
    Build,
    CompiledKernel,
    DeviceBuffer,
    LaunchConfiguration,
    LaunchPass,
    PreparedLaunch,
    TimedSamples,
    Timing,
    check_arguments,
    check_copied,
    check_kernel_limits,
    check_launch,
)
from kernalyse.services.profiler.backends.opencl.dialect import HARMLESS_HEADERS, Dialect
from kernalyse.services.profiler.backends.opencl.runtimes import POCL, REMEDY, OpenCLDevice, find_devices, load_pyopencl
from kernalyse.services.profiler.backends.opencl.translation import WARP_SIZE, Target, Translation, translate
from kernalyse.services.profiler.kernel_sources.functions import SourceFunction, parse_kernel_source
from kernalyse.services.profiler.kernel_sources.headers import expand_headers

LAUNCHES_IN_FLIGHT: Final = 256  # events kept at once: fewer would let the queue run dry, more only take memory
LOG_NOISE: Final = ("Compilation ", "Linking ", "Device build ", "Options used ", "remark:", "Kernel ", "Done", "Build ", "(options")


@dataclass(slots=True)
class OpenCLBuffer:
    """Device memory of one buffer."""

    handle: Any
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OpenCLKernel:
    """A kernel built by an OpenCL runtime."""

    function_name: str
    compile_ns: int
    compiler_options: str
    compiler_log: str
    listings: Mapping[str, bytes] = field(repr=False)
    signature: SourceFunction = field(repr=False)
    resources: KernelResources
    uses_dynamic_shared_memory: bool = False
    program: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class OpenCLLaunch:
    """A launch prepared for an OpenCL queue."""

    kernel: Any
    configuration: LaunchConfiguration
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]
    buffers: tuple[OpenCLBuffer, ...]  # kept alive as long as the launch


class OpenCLBackend:
    """A backend that translates kernels to OpenCL.

    Args:
        runtime: "intel" or "pocl" to use only that one; None for all installed runtimes.

    Raises:
        BackendUnavailableError: pyopencl is missing.
    """

    name: Final = BackendName.OPENCL

    def __init__(self, runtime: str | None = None) -> None:
        self._runtime = runtime
        self._devices = find_devices(runtime)

    def devices(self) -> tuple[Device, ...]:
        """Return the devices of all loaded runtimes."""
        return tuple(one.device for one in self._devices)

    def usable_devices(self) -> tuple[tuple[Device, ...], tuple[str, ...]]:
        """Return the devices whose compiler works, and one sentence with its remedy for each other one.

        A PoCL whose LLVM is older than the processor compiles nothing at all, and is found all the same.
        """
        cl = load_pyopencl(self._runtime)
        usable: list[Device] = []
        notices: list[str] = []
        for one in self._devices:
            try:
                if one.runtime == POCL:
                    cl.Program(cl.Context([one.handle]), "kernel void nothing() {}").build()
            except cl.Error as error:
                said = next((line.strip() for line in str(error).splitlines() if "error:" in line), str(error).splitlines()[0])
                pocl = f"PoCL {one.device.driver_version} ({one.device.device_id})"
                notices.append(
                    f"Backend OPENCL: {pocl} compiles nothing for this processor ({said}). "
                    "Use Intel's CPU runtime, or a newer PoCL of your system."
                )
            else:
                usable.append(one.device)
        return tuple(usable), tuple(notices)

    def open(self, device_id: str | None = None) -> OpenCLSession:
        """Open `device_id`, or the first device. Raises BackendUnavailableError or DeviceNotFoundError."""
        if not self._devices:
            wanted = f" of the runtime {self._runtime}" if self._runtime else ""
            raise BackendUnavailableError(
                "backend OPENCL",
                found=f"no OpenCL device{wanted}",
                remedy=REMEDY,
            )
        for one in self._devices:
            if device_id in (None, one.device.device_id):
                return OpenCLSession(load_pyopencl(self._runtime), one)
        raise DeviceNotFoundError(
            f"device {device_id}",
            found="no such OpenCL device",
            expected=" or ".join(one.device.device_id for one in self._devices),
            remedy="List the devices with: kernalyse devices.",
        )


class OpenCLSession:
    """An open OpenCL device with its context and queue."""

    def __init__(self, cl: Any, one: OpenCLDevice) -> None:
        self._cl = cl
        self._one = one
        self._context = cl.Context([one.handle])
        self._queue = cl.CommandQueue(self._context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        self._kernels: dict[tuple[Build, bool], OpenCLKernel] = {}
        self._buffers: dict[int, OpenCLBuffer] = {}
        self._flush_buffer: OpenCLBuffer | None = None

    @property
    def device(self) -> Device:
        """Return the device that the session was opened on."""
        return self._one.device

    @property
    def timing_methods(self) -> frozenset[TimingMethod]:
        """Return the methods that `time` knows; OpenCL has no graphs."""
        return frozenset({TimingMethod.SINGLE, TimingMethod.BATCHED})

    @property
    def is_lost(self) -> bool:
        """Return False: a kernel that faults on the host ends the whole process."""
        return False  # a kernel that faults on the host ends the process

    def compile(self, build: Build, block: Dim3) -> CompiledKernel:
        """Translate and compile a build, or return the cached kernel."""
        key = (build, block.x % WARP_SIZE == 0)
        cached = self._kernels.get(key)
        if cached is not None:
            return replace(cached, compile_ns=0)
        start_ns = time.perf_counter_ns()
        parsed = parse_kernel_source(expand_headers(build.source, build.include_directories, HARMLESS_HEADERS))
        target = Target(self._one.dialect, self._one.runtime, self._one.has_warps)
        translation = translate(parsed, build.function_name, block, target)
        wanted = _compiler_options(self._one.dialect, build)
        signature = parsed.kernel(build.function_name)
        program, resources, log = self._build(translation, build, signature.name, wanted)
        kernel = OpenCLKernel(
            function_name=build.function_name,
            compile_ns=time.perf_counter_ns() - start_ns,
            compiler_options=" ".join(wanted),
            compiler_log=log,
            listings={"cl": translation.text.encode()},
            signature=signature,
            uses_dynamic_shared_memory=translation.uses_dynamic_shared_memory,
            program=program,
            resources=resources,
        )
        self._kernels[key] = kernel
        return kernel

    def resources(self, kernel: CompiledKernel, configuration: LaunchConfiguration) -> KernelResources | None:
        """Return the resources that the runtime reported when the kernel was compiled."""
        assert isinstance(kernel, OpenCLKernel)
        return kernel.resources

    def _resources(self, handle: Any) -> KernelResources:
        info = self._cl.kernel_work_group_info
        return KernelResources(
            static_shared_memory_bytes=int(handle.get_work_group_info(info.LOCAL_MEM_SIZE, self._one.handle)),
            local_memory_bytes=int(handle.get_work_group_info(info.PRIVATE_MEM_SIZE, self._one.handle)),
            max_threads_per_block=int(handle.get_work_group_info(info.WORK_GROUP_SIZE, self._one.handle)),
        )

    def _build(self, translation: Translation, build: Build, entry: str, options: list[str]) -> tuple[Any, KernelResources, str]:
        """Build without pyopencl's disk cache, which would falsify compile times and leaves source files in /tmp."""
        cl = self._cl
        program = cl._cl._Program(self._context, translation.text)
        error: Exception | None = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # pyopencl warns of every remark; the log is read below
                program.build(" ".join(options).encode(), [self._one.handle])
            resources = self._resources(cl.Kernel(program, entry))
        except cl.Error as failure:
            error = failure
        log = _readable_log(program.get_build_info(self._one.handle, cl.program_build_info.LOG) or "")
        if error is not None:
            raise CompileError(
                f"kernel {build.function_name} of {build.source.file_name} on {self._one.runtime}",
                found="the compiler says:\n" + (log or str(error)) + "\n",
                remedy="Correct the source (the lines are those of the .cu file and its headers) or the compiler's options.",
            ) from error
        return program, resources, log

    def allocate(self, size_bytes: int) -> DeviceBuffer:
        """Allocate device memory. Raises MemoryLimitError."""
        available = self._available_bytes()
        limit = min(available, self.device.max_buffer_bytes or available)
        if not 0 < size_bytes <= limit:
            raise self._memory_error(size_bytes, limit)
        cl = self._cl
        try:
            buffer = OpenCLBuffer(cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size_bytes), size_bytes)
        except (cl.Error, MemoryError) as error:
            raise self._memory_error(size_bytes, limit) from error
        self._buffers[id(buffer)] = buffer
        return buffer

    def _available_bytes(self) -> int:
        """Return the device's memory less what this session has allocated; on a CPU at most the machine's free memory."""
        allocated_bytes = sum(buffer.size_bytes for buffer in self._buffers.values())
        stated = (self.device.memory_bytes or 0) - allocated_bytes
        if self.device.kind is DeviceKind.CPU:
            import psutil

            return min(stated, int(psutil.virtual_memory().available))
        return stated

    def _memory_error(self, size_bytes: int, limit: int) -> MemoryLimitError:
        return MemoryLimitError(
            f"a buffer on {self.device.name}",
            found=f"{size_bytes} bytes asked for",
            expected=f"1 to {limit} bytes",
            remedy="Choose smaller parameters.",
        )

    def release(self, buffer: DeviceBuffer) -> None:
        """Free a buffer; a buffer that was freed before is ignored."""
        assert isinstance(buffer, OpenCLBuffer)
        if self._buffers.pop(id(buffer), None) is not None:
            buffer.handle.release()

    def host_array(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return host memory, shape (size_bytes,): the runtime pins what it needs to."""
        return np.empty(size_bytes, np.uint8)

    def upload(self, buffer: DeviceBuffer, values: npt.NDArray[np.generic]) -> None:
        """Copy a C-contiguous array into the buffer, and wait."""
        assert isinstance(buffer, OpenCLBuffer)
        check_copied(values, buffer.size_bytes)
        self._cl.enqueue_copy(self._queue, buffer.handle, values, is_blocking=True)

    def download(self, buffer: DeviceBuffer, values: npt.NDArray[np.generic]) -> None:
        """Copy the buffer into a C-contiguous array, and wait."""
        assert isinstance(buffer, OpenCLBuffer)
        check_copied(values, buffer.size_bytes)
        self._cl.enqueue_copy(self._queue, values, buffer.handle, is_blocking=True)

    def prepare(self, kernel: CompiledKernel, arguments: Sequence[Argument], configuration: LaunchConfiguration) -> PreparedLaunch:
        """Check the launch and bind its arguments. Raises LaunchLimitError or InvalidParameterError."""
        assert isinstance(kernel, OpenCLKernel)
        check_launch(self.device, kernel.function_name, configuration)
        check_arguments(kernel.signature, arguments)
        check_kernel_limits(
            self.device,
            kernel.function_name,
            configuration,
            thread_limit=kernel.resources.max_threads_per_block,
            static_shared_bytes=kernel.resources.static_shared_memory_bytes,
        )
        handle = self._cl.Kernel(kernel.program, kernel.signature.name)  # its own, so that launches keep their own arguments
        buffers = tuple(argument for argument in arguments if isinstance(argument, OpenCLBuffer))
        values = [argument.handle if isinstance(argument, OpenCLBuffer) else argument for argument in arguments]
        if kernel.uses_dynamic_shared_memory:
            values.append(self._cl.LocalMemory(max(configuration.dynamic_shared_memory_bytes, 16)))  # 0 bytes are not allowed
        for index, value in enumerate(values):
            handle.set_arg(index, value)
        block, grid = configuration.block, configuration.grid
        return OpenCLLaunch(
            kernel=handle,
            configuration=configuration,
            global_size=(block.x * grid.x, block.y * grid.y, block.z * grid.z),
            local_size=(block.x, block.y, block.z),
            buffers=buffers,
        )

    def run(self, launch: PreparedLaunch) -> None:
        """Launch once, and wait for the end."""
        assert isinstance(launch, OpenCLLaunch)
        self._enqueue(launch)
        self._finish(launch)

    def time(self, launch: PreparedLaunch, timing: Timing, count: int) -> TimedSamples:
        """Take `count` samples by the runtime's profiling events."""
        assert isinstance(launch, OpenCLLaunch)
        durations_ns = np.empty(count, dtype=np.float64)
        samples_in_flight = max(1, LAUNCHES_IN_FLIGHT // timing.launches_per_sample)
        for first in range(0, count, samples_in_flight):
            samples = [self._enqueue_sample(launch, timing) for _ in range(first, min(first + samples_in_flight, count))]
            self._finish(launch)
            spans_ns = [last.profile.end - start.profile.start for start, last in samples]
            durations_ns[first : first + len(samples)] = np.array(spans_ns) / timing.launches_per_sample
        return TimedSamples(durations_ns)

    # ------------------------------------------------------------ passes

    def run_pass(self, whole: LaunchPass) -> None:
        """Run one pass, and wait for its end."""
        for launch in self._launches(whole):
            self._enqueue(launch)
        self._finish(self._launches(whole)[-1])

    def time_passes(self, whole: LaunchPass, cache_mode: CacheMode, count: int) -> TimedSamples:
        """Return the device time of `count` passes."""
        spans_ns = [events[-1].profile.end - events[0].profile.start for events in self._passes(whole, cache_mode, count)]
        return TimedSamples(np.array(spans_ns, np.float64))

    def time_steps(self, whole: LaunchPass, cache_mode: CacheMode, count: int) -> npt.NDArray[np.float64]:
        """Return the device time of each launch in ns, shape (count, steps)."""
        spans_ns = [[event.profile.end - event.profile.start for event in events] for events in self._passes(whole, cache_mode, count)]
        return np.array(spans_ns, np.float64)

    def _passes(self, whole: LaunchPass, cache_mode: CacheMode, count: int) -> Iterator[list[Any]]:
        """Run `count` passes; yield the events of each after its end."""
        launches = self._launches(whole)
        passes_in_flight = max(1, LAUNCHES_IN_FLIGHT // len(launches))
        for first in range(0, count, passes_in_flight):
            passes = []
            for _ in range(first, min(first + passes_in_flight, count)):
                if cache_mode is CacheMode.COLD:
                    self._flush_cache()
                passes.append([self._enqueue(launch) for launch in launches])
            self._finish(launches[-1])
            yield from passes

    def _launches(self, whole: LaunchPass) -> list[OpenCLLaunch]:
        return [step.launch for step in whole.steps if isinstance(step.launch, OpenCLLaunch)]

    # ------------------------------------------------------------ launches

    def _enqueue_sample(self, launch: OpenCLLaunch, timing: Timing) -> tuple[Any, Any]:
        """Enqueue a sample; return the events of its first and its last launch."""
        if timing.cache_mode is CacheMode.COLD:
            self._flush_cache()
        first = last = self._enqueue(launch)
        for _ in range(timing.launches_per_sample - 1):
            last = self._enqueue(launch)
        return first, last

    def _enqueue(self, launch: OpenCLLaunch) -> Any:
        try:
            return self._cl.enqueue_nd_range_kernel(self._queue, launch.kernel, launch.global_size, launch.local_size)
        except self._cl.Error as error:
            raise self._launch_error(launch, error) from error

    def _finish(self, launch: OpenCLLaunch) -> None:
        try:
            self._queue.finish()
        except self._cl.Error as error:
            raise self._launch_error(launch, error) from error

    def _launch_error(self, launch: OpenCLLaunch, error: Exception) -> LaunchLimitError | MemoryLimitError | InternalError:
        configuration, text = launch.configuration, str(error)
        subject = f"launch with block {configuration.block} and grid {configuration.grid} on {self.device.name}"
        if "WORK_GROUP_SIZE" in text or "WORK_ITEM_SIZE" in text or "GLOBAL_WORK_SIZE" in text:
            return LaunchLimitError(subject, found=text, remedy="Choose a smaller block or grid.")
        if "MEM_OBJECT_ALLOCATION" in text or "OUT_OF_RESOURCES" in text or "OUT_OF_HOST_MEMORY" in text:
            return MemoryLimitError(subject, found=text, remedy="Choose smaller parameters.")
        return InternalError(subject, found=text, remedy="Run it again; if it stays, try another runtime.")

    def _flush_cache(self) -> None:
        """Overwrite the last-level cache, on the same queue: it ends before the next launch begins."""
        if self._flush_buffer is None:
            buffer = self.allocate(max(self.device.l2_cache_bytes or 0, 2**20))
            assert isinstance(buffer, OpenCLBuffer)
            self._flush_buffer = buffer
        self._cl.enqueue_fill_buffer(self._queue, self._flush_buffer.handle, np.uint32(0), 0, self._flush_buffer.size_bytes & ~3)

    def close(self) -> None:
        """Wait for the queue, and free the buffers and kernels."""
        self._queue.finish()
        for buffer in tuple(self._buffers.values()):
            self.release(buffer)
        self._flush_buffer = None
        self._kernels.clear()


def _compiler_options(dialect: Dialect, build: Build) -> list[str]:
    names = {"--use_fast_math": "-cl-fast-relaxed-math", "-use_fast_math": "-cl-fast-relaxed-math"}
    language = ["-cl-std=CLC++2021"] if dialect is Dialect.CPLUSPLUS else ["-cl-std=CL1.2"]
    macros = [f"-D{macro.name}={macro.value}" for macro in build.macros]
    return language + macros + [names.get(option, option) for option in build.options]


def _readable_log(log: str) -> str:
    """Return the compiler's messages without its progress reports."""
    return "\n".join(line for line in log.replace("\0", "").split("\n") if line.strip() and not line.strip().startswith(LOG_NOISE))
