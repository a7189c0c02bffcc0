"""Backend PYCUDA: kernels compiled by nvcc and launched through CUDA's driver API.

Imports pycuda only when a backend is created, and names what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.core.errors import (
    BackendUnavailableError,
    DeviceNotFoundError,
    InternalError,
    InvalidParameterError,
    LaunchLimitError,
    MemoryLimitError,
)
from services.core.model import BackendName, CacheMode, Device, DeviceKind, Dim3, KernelResources, TimingMethod
from services.profiler.backends.arguments import check_arguments
from services.profiler.backends.base import (
    Argument,
    Build,
    CompiledKernel,
    DeviceBuffer,
    LaunchConfiguration,
    PreparedLaunch,
    TimedSamples,
    Timing,
    check_launch,
)
from services.profiler.backends.kernel_source import SourceFunction, parse_kernel_source
from services.profiler.backends.mangled_names import find_entry
from services.profiler.backends.nvcc_compiler import compile_cubin, toolkit_version

EXTRA: Final = "Install the extra: pip install 'kernalyse[cuda]'. It is built on the spot and needs the CUDA toolkit."
DRIVER: Final = "Install NVIDIA's driver, or use --backend opencl."

LAUNCHES_IN_FLIGHT: Final = 256  # pairs of events kept at once: fewer would let the stream run dry, more only take memory
DEFAULT_SHARED_BYTES: Final = 48 * 1024  # above, a kernel has to opt in


@dataclass(slots=True)
class CudaBuffer:
    handle: Any
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CudaKernel:
    function_name: str
    compile_ns: int
    compiler_options: str
    compiler_log: str
    listings: Mapping[str, bytes] = field(repr=False)
    signature: SourceFunction = field(repr=False)
    function: Any = field(repr=False)
    module: Any = field(repr=False)  # unloaded with its last reference


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    kernel: CudaKernel
    configuration: LaunchConfiguration
    arguments: tuple[Any, ...]
    buffers: tuple[CudaBuffer, ...]  # kept alive as long as the launch


class PyCudaBackend:
    """Raises BackendUnavailableError: pycuda or the driver is missing."""

    name: Final = BackendName.PYCUDA

    def __init__(self) -> None:
        self._driver = _load_driver()

    def devices(self) -> tuple[Device, ...]:
        return tuple(_describe(self._driver, index) for index in range(self._driver.Device.count()))

    def open(self, device_id: str | None = None) -> CudaSession:
        devices = self.devices()
        if not devices:
            raise BackendUnavailableError("backend PYCUDA", found="no NVIDIA device", remedy=DRIVER)
        for index, device in enumerate(devices):
            if device_id in (None, device.device_id):
                return CudaSession(self._driver, index, device)
        raise DeviceNotFoundError(
            f"device {device_id}",
            found="no such CUDA device",
            expected=" or ".join(device.device_id for device in devices),
            remedy="List the devices with: kernalyse devices.",
        )


def _load_driver() -> Any:
    try:
        from pycuda import driver
    except ModuleNotFoundError as error:
        raise BackendUnavailableError("backend PYCUDA", found=f"the Python package {error.name} is missing", remedy=EXTRA) from error
    except ImportError as error:  # built against another driver, or none here
        raise BackendUnavailableError("backend PYCUDA", found=f"pycuda cannot be loaded: {error}", remedy=DRIVER) from error
    try:
        driver.init()
    except driver.Error as error:
        raise BackendUnavailableError("backend PYCUDA", found=f"NVIDIA's driver says: {error}", remedy=DRIVER) from error
    return driver


def _describe(driver: Any, index: int) -> Device:
    handle = driver.Device(index)
    attribute, names = handle.get_attribute, driver.device_attribute
    version = driver.get_driver_version()
    major, minor = handle.compute_capability()
    return Device(
        device_id=f"cuda:{index}",
        name=handle.name(),
        kind=DeviceKind.GPU,
        backends=(BackendName.PYCUDA,),
        runtime="CUDA",
        driver_version=f"{version // 1000}.{version % 1000 // 10}",
        toolkit_version=toolkit_version(),
        uuid=_uuid(handle),
        compute_capability=f"{major}.{minor}",
        compute_unit_count=attribute(names.MULTIPROCESSOR_COUNT),
        memory_bytes=handle.total_memory(),
        l2_cache_bytes=attribute(names.L2_CACHE_SIZE) or None,
        max_clock_hz=attribute(names.CLOCK_RATE) * 1000 or None,  # the driver reports kHz
        max_threads_per_block=attribute(names.MAX_THREADS_PER_BLOCK),
        max_block=Dim3(attribute(names.MAX_BLOCK_DIM_X), attribute(names.MAX_BLOCK_DIM_Y), attribute(names.MAX_BLOCK_DIM_Z)),
        max_grid=Dim3(attribute(names.MAX_GRID_DIM_X), attribute(names.MAX_GRID_DIM_Y), attribute(names.MAX_GRID_DIM_Z)),
        max_shared_memory_bytes=attribute(names.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) or attribute(names.MAX_SHARED_MEMORY_PER_BLOCK),
        max_buffer_bytes=handle.total_memory(),
    )


def _uuid(handle: Any) -> str | None:
    """As NVML writes it ("GPU-…"), so that telemetry finds the device. None where NVML does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(handle.pci_bus_id())))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


class CudaSession:
    def __init__(self, driver: Any, index: int, device: Device) -> None:
        self._driver = driver
        self._device = device
        self._handle = driver.Device(index)
        self._context = self._handle.make_context()
        self._stream = driver.Stream()
        self._kernels: dict[Build, CudaKernel] = {}
        self._buffers: dict[int, CudaBuffer] = {}
        self._flush_buffer: CudaBuffer | None = None

    @property
    def device(self) -> Device:
        return self._device

    @property
    def timing_methods(self) -> frozenset[TimingMethod]:
        return frozenset({TimingMethod.SINGLE, TimingMethod.BATCHED})

    def compile(self, build: Build, block: Dim3) -> CompiledKernel:
        if build in self._kernels:
            return replace(self._kernels[build], compile_ns=0)
        start_ns = time.perf_counter_ns()
        signature = parse_kernel_source(build.source).kernel(build.function_name)
        architecture = "sm_" + (self._device.compute_capability or "").replace(".", "")
        options = [*(f"-D{macro.name}={macro.value}" for macro in build.macros), *build.options]
        cubin, log = compile_cubin(build.source, architecture, options)
        module = self._driver.module_from_buffer(cubin)
        kernel = CudaKernel(
            function_name=build.function_name,
            compile_ns=time.perf_counter_ns() - start_ns,
            compiler_options=" ".join(("--cubin", f"-arch={architecture}", "-lineinfo", *options)),
            compiler_log=log,
            listings={},
            signature=signature,
            function=module.get_function(find_entry(cubin, signature, build.source.file_name)),
            module=module,
        )
        self._kernels[build] = kernel
        return kernel

    def resources(self, kernel: CompiledKernel, configuration: LaunchConfiguration) -> KernelResources | None:
        return None

    def allocate(self, size_bytes: int) -> DeviceBuffer:
        free_bytes, _ = self._driver.mem_get_info()
        if not 0 < size_bytes <= free_bytes:
            raise self._memory_error(size_bytes, free_bytes)
        try:
            buffer = CudaBuffer(self._driver.mem_alloc(size_bytes), size_bytes)
        except self._driver.MemoryError as error:
            raise self._memory_error(size_bytes, free_bytes) from error
        self._buffers[id(buffer)] = buffer
        return buffer

    def _memory_error(self, size_bytes: int, free_bytes: int) -> MemoryLimitError:
        return MemoryLimitError(
            f"a buffer on {self._device.name}",
            found=f"{size_bytes} bytes asked for",
            expected=f"1 to {free_bytes} bytes, which are free",
            remedy="Choose smaller parameters.",
        )

    def release(self, buffer: DeviceBuffer) -> None:
        assert isinstance(buffer, CudaBuffer)
        if self._buffers.pop(id(buffer), None) is not None:
            buffer.handle.free()

    def upload(self, buffer: DeviceBuffer, values: npt.NDArray[np.generic]) -> None:
        assert isinstance(buffer, CudaBuffer)
        _check_size(buffer, values)
        with self._device_errors("an upload"):
            self._driver.memcpy_htod(buffer.handle, values)

    def download(self, buffer: DeviceBuffer, values: npt.NDArray[np.generic]) -> None:
        assert isinstance(buffer, CudaBuffer)
        _check_size(buffer, values)
        with self._device_errors("a download"):
            self._driver.memcpy_dtoh(values, buffer.handle)

    def prepare(self, kernel: CompiledKernel, arguments: Sequence[Argument], configuration: LaunchConfiguration) -> PreparedLaunch:
        assert isinstance(kernel, CudaKernel)
        check_launch(self._device, kernel.function_name, configuration)
        check_arguments(kernel.signature, arguments)
        self._check_kernel_limits(kernel, configuration)
        if configuration.dynamic_shared_memory_bytes > DEFAULT_SHARED_BYTES:
            attribute = self._driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            kernel.function.set_attribute(attribute, configuration.dynamic_shared_memory_bytes)
        return CudaLaunch(
            kernel=kernel,
            configuration=configuration,
            arguments=tuple(argument.handle if isinstance(argument, CudaBuffer) else argument for argument in arguments),
            buffers=tuple(argument for argument in arguments if isinstance(argument, CudaBuffer)),
        )

    def _check_kernel_limits(self, kernel: CudaKernel, configuration: LaunchConfiguration) -> None:
        attributes = self._driver.function_attribute
        shared_bytes = kernel.function.get_attribute(attributes.SHARED_SIZE_BYTES) + configuration.dynamic_shared_memory_bytes
        for what, found, limit in (
            ("threads per block", configuration.block.count, kernel.function.get_attribute(attributes.MAX_THREADS_PER_BLOCK)),
            ("bytes of shared memory, static and dynamic", shared_bytes, self._device.max_shared_memory_bytes),
        ):
            if limit is not None and found > limit:
                raise LaunchLimitError(
                    f"launch of {kernel.function_name} with block {configuration.block}",
                    found=f"{found} {what}",
                    expected=f"at most {limit} for this kernel on {self._device.name}",
                    remedy="Choose a smaller block (--block) or smaller parameters.",
                )

    def run(self, launch: PreparedLaunch) -> None:
        assert isinstance(launch, CudaLaunch)
        with self._device_errors(f"kernel {launch.kernel.function_name}"):
            self._enqueue(launch)
            self._stream.synchronize()

    def time(self, launch: PreparedLaunch, timing: Timing, count: int) -> TimedSamples:
        assert isinstance(launch, CudaLaunch)
        durations_ns = np.empty(count, dtype=np.float64)
        events = [(self._driver.Event(), self._driver.Event()) for _ in range(min(count, LAUNCHES_IN_FLIGHT))]
        with self._device_errors(f"kernel {launch.kernel.function_name}"):
            for first in range(0, count, LAUNCHES_IN_FLIGHT):
                batch = events[: count - first]
                for start, end in batch:
                    if timing.cache_mode is CacheMode.COLD:
                        self._flush_cache()
                    start.record(self._stream)
                    for _ in range(timing.launches_per_sample):
                        self._enqueue(launch)
                    end.record(self._stream)
                self._stream.synchronize()
                spans_ns = np.array([start.time_till(end) * 1e6 for start, end in batch])  # from ms
                durations_ns[first : first + len(batch)] = spans_ns / timing.launches_per_sample
        return TimedSamples(durations_ns)

    def _enqueue(self, launch: CudaLaunch) -> None:
        block, grid = launch.configuration.block, launch.configuration.grid
        launch.kernel.function(
            *launch.arguments,
            block=(block.x, block.y, block.z),
            grid=(grid.x, grid.y, grid.z),
            shared=launch.configuration.dynamic_shared_memory_bytes,
            stream=self._stream,
        )

    def _flush_cache(self) -> None:
        """Overwrites the whole L2 cache, on the same stream: it ends before the next launch begins."""
        if self._flush_buffer is None:
            buffer = self.allocate(max(self._device.l2_cache_bytes or 0, 2**20))
            assert isinstance(buffer, CudaBuffer)
            self._flush_buffer = buffer
        self._driver.memset_d32_async(self._flush_buffer.handle, 0, self._flush_buffer.size_bytes // 4, self._stream)

    @contextmanager
    def _device_errors(self, subject: str) -> Iterator[None]:
        try:
            yield
        except self._driver.MemoryError as error:
            raise MemoryLimitError(f"{subject} on {self._device.name}", found=str(error), remedy="Choose smaller parameters.") from error
        except self._driver.Error as error:  # after an illegal access the context is lost, and with it this worker
            raise InternalError(
                f"{subject} on {self._device.name}", found=str(error), remedy="Check the kernel with compute-sanitizer."
            ) from error

    def close(self) -> None:
        for buffer in tuple(self._buffers.values()):
            self.release(buffer)
        self._flush_buffer = None
        self._kernels.clear()
        self._context.pop()
        self._context.detach()


def _check_size(buffer: CudaBuffer, values: npt.NDArray[np.generic]) -> None:
    if values.nbytes > buffer.size_bytes or not values.flags.c_contiguous:
        raise InvalidParameterError(
            "an array to copy",
            found=f"{values.nbytes} bytes" + ("" if values.flags.c_contiguous else ", not contiguous"),
            expected=f"at most {buffer.size_bytes} contiguous bytes",
        )
