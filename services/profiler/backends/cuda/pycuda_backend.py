"""The backend PYCUDA: kernels in the worker process, CUDA graphs and NVTX ranges."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from kernalyse.services.core.errors import BackendUnavailableError, DeviceNotFoundError, MemoryLimitError
from kernalyse.services.core.external_programs import find_nvcc
from kernalyse.services.core.model import BackendName, CacheMode, Device, Dim3, KernelResources, TimingMethod
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
    check_launch,
)
from kernalyse.services.profiler.backends.cuda.compiler import CodeCache, NvccCompiler
from kernalyse.services.profiler.backends.cuda.driver import PAGE_BYTES, CudaDriver, CudaLibrary, DeviceErrors, ErrorClasses
from kernalyse.services.profiler.backends.cuda.modules import (
    CudaKernel,
    allow_shared_memory,
    check_limits,
    check_requirements,
    kernel_resources,
    load_kernel,
)
from kernalyse.services.profiler.backends.cuda.timing import SampleTimer, SampleWork, launcher, open_timer, pack_arguments

# ---------------------------------------------------------------- sessions
# Kernels are compiled by nvcc and launched through CUDA's driver API. pycuda is imported only when a backend is created.

EXTRA: Final = "Install the extra: pip install 'kernalyse[cuda]'. It is built on the spot and needs the CUDA toolkit."
DRIVER: Final = "Install NVIDIA's driver, or use --backend opencl."

MIN_FLUSH_BYTES: Final = 2**20  # for a device that does not report the size of its L2 cache


@dataclass(slots=True)
class CudaBuffer:
    """Device memory of one buffer."""

    handle: Any
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """A launch prepared for the driver."""

    kernel: CudaKernel
    configuration: LaunchConfiguration
    arguments: bytes  # as the driver takes them
    buffers: tuple[CudaBuffer, ...]  # kept alive as long as the launch


class PyCudaBackend:
    """A backend that launches kernels in this process through PyCUDA.

    Args:
        cache_directory: where cubins are stored between processes; None: nowhere.

    Raises:
        BackendUnavailableError: pycuda or the driver is missing.
    """

    name: Final = BackendName.PYCUDA

    def __init__(self, cache_directory: Path | None = None) -> None:
        self._driver = _load_driver()
        self._compiler = NvccCompiler(None if cache_directory is None else CodeCache(cache_directory))

    def devices(self) -> tuple[Device, ...]:
        """Return the NVIDIA devices that the driver lists, in its order."""
        return CudaDriver("backend PYCUDA").devices(self.name)

    def open(self, device_id: str | None = None) -> CudaSession:
        """Open `device_id`, or the first device. Raises BackendUnavailableError or DeviceNotFoundError."""
        devices = self.devices()
        if not devices:
            raise BackendUnavailableError("backend PYCUDA", found="no NVIDIA device", remedy=DRIVER)
        for index, device in enumerate(devices):
            if device_id in (None, device.device_id):
                return CudaSession(self._driver, index, device, self._compiler)
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


class CudaSession:
    """An open context on one NVIDIA device.

    After a kernel that destroys the context (an illegal address, say) every call raises WorkerCrashedError.
    """

    def __init__(self, driver: Any, index: int, device: Device, compiler: NvccCompiler) -> None:
        self._driver = driver
        self._device = device
        self._compiler = compiler
        self._handle = driver.Device(index)
        self._context = self._handle.make_context(driver.ctx_flags.MAP_HOST)  # the flags that release a blocked stream lie in host memory
        self._pop_at_exit = atexit.register(partial(_pop, driver, self._context))  # PyCUDA aborts a process that ends with it
        self._stream = driver.Stream()
        self._errors = DeviceErrors(driver, device.name)
        self._library = _open_library(driver)
        self._kernels: dict[Build, CudaKernel] = {}
        self._buffers: dict[int, CudaBuffer] = {}
        self._flush_buffer: CudaBuffer | None = None
        self._timer: SampleTimer | None = None
        self._ranges = open_ranges(os.environ)
        self._graph: tuple[CudaLaunch, LaunchGraph] | None = None
        self._warm_functions: set[int] = set()  # by id, for they live as long as the session: those that have run

    @property
    def device(self) -> Device:
        """Return the device that the session was opened on."""
        return self._device

    @property
    def timing_methods(self) -> frozenset[TimingMethod]:
        """Return the methods that `time` knows; GRAPH needs the driver's graph functions."""
        graphs = {TimingMethod.GRAPH} if self._library is not None else set()
        return frozenset({TimingMethod.SINGLE, TimingMethod.BATCHED, *graphs})

    @property
    def is_lost(self) -> bool:
        """Return whether an error has destroyed the device's context."""
        return self._errors.is_context_lost

    def compile(self, build: Build, block: Dim3) -> CompiledKernel:
        """Compile a build and load it into the context, or return the cached kernel."""
        if build in self._kernels:
            return replace(self._kernels[build], compile_ns=0)
        with self._errors.translate_errors(f"compiling {build.function_name}"):
            kernel = load_kernel(self._driver, self._compiler, build, self._device)
        self._kernels[build] = kernel
        return kernel

    def resources(self, kernel: CompiledKernel, configuration: LaunchConfiguration) -> KernelResources | None:
        """Return registers, memory and occupancy of a launch."""
        assert isinstance(kernel, CudaKernel)
        with self._errors.translate_errors(f"resources of {kernel.function_name}"):
            return kernel_resources(self._driver, self._library, kernel, configuration, self._handle)

    # ------------------------------------------------------------ memory

    def allocate(self, size_bytes: int) -> DeviceBuffer:
        """Allocate device memory. Raises MemoryLimitError."""
        largest_bytes = self._largest_buffer_bytes()
        if not 0 < size_bytes <= largest_bytes:
            raise self._memory_error(size_bytes, largest_bytes)
        with self._errors.translate_errors("an allocation"):
            try:
                buffer = CudaBuffer(self._driver.mem_alloc(size_bytes), size_bytes)
            except self._driver.MemoryError as error:  # another process was faster
                raise self._memory_error(size_bytes, self._largest_buffer_bytes()) from error
        self._buffers[id(buffer)] = buffer
        return buffer

    def _largest_buffer_bytes(self) -> int:
        with self._errors.translate_errors("a look at the free memory"):
            free_bytes, _ = self._driver.mem_get_info()
        return int(free_bytes) // PAGE_BYTES * PAGE_BYTES

    def _memory_error(self, size_bytes: int, largest_bytes: int) -> MemoryLimitError:
        return MemoryLimitError(
            f"a buffer on {self._device.name}",
            found=f"{size_bytes} bytes asked for",
            expected=f"1 to {largest_bytes} bytes, the largest that fits now",
            remedy="Choose smaller parameters.",
        )

    def release(self, buffer: DeviceBuffer) -> None:
        """Free a buffer; a buffer that was freed before is ignored."""
        assert isinstance(buffer, CudaBuffer)
        if self._errors.is_context_lost:
            return  # its memory went with the context; PyCUDA would print a warning for each
        if self._buffers.pop(id(buffer), None) is not None:
            buffer.handle.free()

    def host_array(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return page-locked host memory, shape (size_bytes,). Raises MemoryLimitError."""
        with self._errors.translate_errors("page-locked host memory"):
            found: npt.NDArray[np.uint8] = self._driver.pagelocked_empty(size_bytes, np.uint8)
            return found

    def upload(self, buffer: DeviceBuffer, values: npt.NDArray[np.generic]) -> None:
        """Copy a C-contiguous array into the buffer, and wait."""
        assert isinstance(buffer, CudaBuffer)
        check_copied(values, buffer.size_bytes)
        with self._errors.translate_errors("an upload"):
            self._driver.memcpy_htod(buffer.handle, values)

    def download(self, buffer: DeviceBuffer, values: npt.NDArray[np.generic]) -> None:
        """Copy the buffer into a C-contiguous array, and wait."""
        assert isinstance(buffer, CudaBuffer)
        check_copied(values, buffer.size_bytes)
        with self._errors.translate_errors("a download"):
            self._driver.memcpy_dtoh(values, buffer.handle)

    # ------------------------------------------------------------ launches

    def prepare(self, kernel: CompiledKernel, arguments: Sequence[Argument], configuration: LaunchConfiguration) -> PreparedLaunch:
        """Check the launch and bind its arguments. Raises LaunchLimitError or InvalidParameterError."""
        assert isinstance(kernel, CudaKernel)
        check_launch(self._device, kernel.function_name, configuration)
        check_requirements(kernel.needs, kernel.function_name, configuration, is_cooperation_possible=False)
        check_arguments(kernel.signature, arguments)
        with self._errors.translate_launch_errors(f"launch of {kernel.function_name}"):
            check_limits(self._driver, kernel, configuration, self._device)
            allow_shared_memory(self._driver, kernel, configuration.dynamic_shared_memory_bytes)
        packed = pack_arguments([_packed(argument) for argument in arguments])
        return CudaLaunch(kernel, configuration, packed, tuple(argument for argument in arguments if isinstance(argument, CudaBuffer)))

    def run(self, launch: PreparedLaunch) -> None:
        """Launch once, and wait for the end."""
        assert isinstance(launch, CudaLaunch)
        with self._errors.translate_launch_errors(f"kernel {launch.kernel.function_name}"):
            self._launcher(launch)()
            self._stream.synchronize()
        self._warm_functions.add(id(launch.kernel.function))

    def time(self, launch: PreparedLaunch, timing: Timing, count: int) -> TimedSamples:
        """Take `count` samples on the session's stream."""
        assert isinstance(launch, CudaLaunch)
        timer = self._open_timer()
        with self._errors.translate_launch_errors(f"kernel {launch.kernel.function_name}"):
            samples = timer.take(self._work(launch, timing), count)
        self._warm_functions.add(id(launch.kernel.function))
        return samples

    # ------------------------------------------------------------ passes

    def run_pass(self, whole: LaunchPass) -> None:
        """Run one pass, and wait for its end."""
        with self._errors.translate_launch_errors(f"a pass of {whole.range_name}"):
            self._enqueue_pass(whole)
            self._stream.synchronize()
        self._warm_functions.update(id(launch.kernel.function) for _, launch in self._steps(whole))

    def time_passes(self, whole: LaunchPass, cache_mode: CacheMode, count: int) -> TimedSamples:
        """Return the device time of `count` passes."""
        launches = [launch for _, launch in self._steps(whole)]
        is_warm = all(id(launch.kernel.function) in self._warm_functions for launch in launches)
        work = SampleWork(lambda: self._enqueue_pass(whole), len(launches), cache_mode is CacheMode.COLD, is_warm)
        timer = self._open_timer()
        with self._errors.translate_launch_errors(f"a pass of {whole.range_name}"):
            samples = timer.take(work, count)
        return replace(samples, duration_ns=samples.duration_ns * len(launches))  # of the pass, not of a launch in it

    def time_steps(self, whole: LaunchPass, cache_mode: CacheMode, count: int) -> npt.NDArray[np.float64]:
        """Return the device time of each launch in ns, shape (count, steps)."""
        timer = self._open_timer()
        steps = [partial(self._enqueue_step, name, launch) for name, launch in self._steps(whole)]
        with self._errors.translate_launch_errors(f"a pass of {whole.range_name}"):
            return timer.take_steps(steps, count, is_cold=cache_mode is CacheMode.COLD)

    def _enqueue_pass(self, whole: LaunchPass) -> None:
        with self._ranges.around(whole.range_name):
            for name, launch in self._steps(whole):
                self._enqueue_step(name, launch)

    def _enqueue_step(self, range_name: str, launch: CudaLaunch) -> None:
        with self._ranges.around(range_name):
            self._launcher(launch)()

    def _steps(self, whole: LaunchPass) -> list[tuple[str, CudaLaunch]]:
        return [(step.range_name, step.launch) for step in whole.steps if isinstance(step.launch, CudaLaunch)]

    # ------------------------------------------------------------ how launches get to the stream

    def _open_timer(self) -> SampleTimer:
        if self._timer is None:
            with self._errors.translate_errors("preparing to time"):
                self._timer = open_timer(self._driver, self._compiler, self._device, self._stream, self._flush_cache)
        return self._timer

    def _work(self, launch: CudaLaunch, timing: Timing) -> SampleWork:
        is_cold, launch_count = timing.cache_mode is CacheMode.COLD, timing.launches_per_sample
        if timing.method is TimingMethod.GRAPH:
            graph = self._graph_of(launch, launch_count)
            return SampleWork(graph.enqueue, launch_count, is_cold, is_warm=graph.was_launched)
        enqueue_one = self._launcher(launch)

        def enqueue() -> None:
            for _ in range(launch_count):
                enqueue_one()

        return SampleWork(enqueue, launch_count, is_cold, is_warm=id(launch.kernel.function) in self._warm_functions)

    def _graph_of(self, launch: CudaLaunch, launch_count: int) -> LaunchGraph:
        """Return the latest graph if it is of this launch, else a new one: batches of one configuration follow each other."""
        assert self._library is not None
        if self._graph is not None:
            captured_launch, graph = self._graph
            if captured_launch is launch and graph.launch_count == launch_count:
                return graph
            self._graph = None
            graph.close()
        graph = LaunchGraph(self._library, self._stream.handle, self._launcher(launch), launch_count)
        self._graph = (launch, graph)
        return graph

    def _launcher(self, launch: CudaLaunch) -> Callable[[], None]:
        return launcher(launch.kernel.function, launch.configuration, launch.arguments, self._stream)

    def _flush_cache(self) -> None:
        """Overwrite the whole L2 cache, on the same stream: it ends before the next launch begins."""
        if self._flush_buffer is None:
            buffer = self.allocate(max(self._device.l2_cache_bytes or 0, MIN_FLUSH_BYTES))
            assert isinstance(buffer, CudaBuffer)
            self._flush_buffer = buffer
        self._driver.memset_d32_async(self._flush_buffer.handle, 0, self._flush_buffer.size_bytes // 4, self._stream)

    def close(self) -> None:
        """Free buffers, modules and graphs, and leave the context. A lost context is only left."""
        atexit.unregister(self._pop_at_exit)
        if self._errors.is_context_lost:
            _pop(self._driver, self._context)
            return
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        if self._graph is not None:
            self._graph[1].close()
            self._graph = None
        for buffer in tuple(self._buffers.values()):
            self.release(buffer)
        self._flush_buffer = None
        self._kernels.clear()
        self._context.pop()
        self._context.detach()


def _pop(driver: Any, context: Any) -> None:
    """Pop the context, lost or not, off the thread's context stack."""
    with contextlib.suppress(driver.Error):
        context.pop()


def _open_library(driver: Any) -> CudaLibrary | None:
    """Open the driver's library; None for an old driver, which then has neither graphs nor occupancy."""
    try:
        return CudaLibrary(ErrorClasses(any_error=driver.Error, out_of_memory=driver.MemoryError))
    except OSError:
        return None


def _packed(argument: Argument) -> int | np.generic:
    if isinstance(argument, np.generic):
        return argument
    assert isinstance(argument, CudaBuffer)
    return int(argument.handle)


# ---------------------------------------------------------------- graphs
# Launches of one kernel as a CUDA graph: one call starts them all, and the device runs them without the host.


class LaunchGraph:
    """A CUDA graph of `launch_count` successive launches of one kernel.

    Args:
        stream: handle of the stream on which `enqueue` puts one launch.
    """

    def __init__(self, library: CudaLibrary, stream: int, enqueue: Callable[[], None], launch_count: int) -> None:
        self._library = library
        self._stream = stream
        self.launch_count = launch_count
        self.was_launched = False
        with library.capturing(stream) as graph:
            for _ in range(launch_count):
                enqueue()
        self._instance = library.instantiate(graph)
        library.upload_graph(self._instance, stream)  # else the first launch would

    def enqueue(self) -> None:
        """Enqueue the graph's launches on the stream."""
        self._library.launch_graph(self._instance, self._stream)
        self.was_launched = True

    def close(self) -> None:
        """Free the graph."""
        self._library.destroy_graph(self._instance)


# ---------------------------------------------------------------- NVTX ranges
# The C interface is used because Python's nvtx package (0.2.14 to 0.2.17) writes events that Nsight Systems up to 2023.4 does not record.

logger = logging.getLogger(__name__)  # of the worker's run: its warnings go to stderr, and so into the run's log

LISTENER: Final = "NVTX_INJECTION64_PATH"  # the library that a tool wants its ranges sent to; without one nobody listens
SOURCE_FILE: Final = Path(__file__).parent / "device_code" / "ranges.c"
COMPILE_LIMIT_S: Final = 60.0


class Ranges(Protocol):
    """The interface to named ranges of launches, which a tool around the process records."""

    def around(self, name: str) -> AbstractContextManager[None]:
        """Return a context whose launches belong to the range."""
        ...


class NoRanges:
    """Ranges without effect, where no tool records them."""

    def around(self, name: str) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()


class NvtxRanges:
    """NVTX ranges.

    Args:
        push: begins a range, with its name as bytes.
        pop: ends the range begun last.
    """

    def __init__(self, push: Callable[[bytes], object], pop: Callable[[], object]) -> None:
        self._push = push
        self._pop = pop

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Put what this thread launches inside into an NVTX range."""
        self._push(name.encode())
        try:
            yield
        finally:
            self._pop()


def open_ranges(environment: Mapping[str, str], toolkit: Path | None = None) -> Ranges:
    """Return NVTX ranges under a tool that records them, else ranges without effect. Never raises.

    Args:
        toolkit: directory of the CUDA toolkit with include/nvtx3; None: that of nvcc.
    """
    if not environment.get(LISTENER):
        return NoRanges()
    try:
        library = _build(toolkit or _toolkit())
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("No NVTX ranges: %s. The toolkit's headers (nvtx3) and a C compiler bring them.", error)
        return NoRanges()
    return NvtxRanges(library.kernalyse_push_range, library.kernalyse_pop_range)


def _toolkit() -> Path:
    nvcc = find_nvcc()
    if nvcc is None:
        raise FileNotFoundError("no CUDA toolkit")
    return Path(nvcc).resolve().parents[1]


def _build(toolkit: Path) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="kernalyse-nvtx-") as directory:
        file = Path(directory) / "ranges.so"
        command = ["cc", "-shared", "-fPIC", "-O1", f"-I{toolkit / 'include'}", str(SOURCE_FILE), "-o", str(file), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False)
        if done.returncode != 0:
            raise OSError(f"cc says {done.stderr.strip().splitlines()[0] if done.stderr.strip() else done.returncode}")
        library = ctypes.CDLL(str(file))  # stays loaded when the file has gone
    library.kernalyse_push_range.argtypes, library.kernalyse_push_range.restype = [ctypes.c_char_p], None
    library.kernalyse_pop_range.argtypes, library.kernalyse_pop_range.restype = [], None
    return library
