"""NVIDIA's driver library through ctypes, and the translation of CUDA errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from kernalyse.services.core.errors import (
    BackendUnavailableError,
    CompileError,
    InternalError,
    KernalyseError,
    LaunchLimitError,
    MemoryLimitError,
    TimeLimitError,
    WorkerCrashedError,
)
from kernalyse.services.core.model import BackendName, Device, DeviceKind, Dim3
from kernalyse.services.profiler.backends.cuda.compiler import toolkit_version

# ---------------------------------------------------------------- devices
# Devices are listed without PyCUDA, and without opening a context on any of them.

LIBRARY: Final = "libcuda.so.1"
REMEDY: Final = "Install NVIDIA's driver, or use --backend opencl."
NAME_BYTES: Final = 256  # the driver cuts longer ones
PAGE_BYTES: Final = 2 * 2**20  # device memory is handed out in pages of this size: a part of one that is free is of no use

# Of CUdevice_attribute in cuda.h.
MAX_THREADS_PER_BLOCK: Final = 1
MAX_BLOCK: Final = (2, 3, 4)
MAX_GRID: Final = (5, 6, 7)
MAX_SHARED_MEMORY_PER_BLOCK: Final = 8
CLOCK_RATE: Final = 13
MULTIPROCESSOR_COUNT: Final = 16
L2_CACHE_SIZE: Final = 38
COMPUTE_CAPABILITY: Final = (75, 76)
MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: Final = 97


class CudaDriver:
    """The driver's library, initialized.

    Args:
        subject: what needs it, for the error.

    Raises:
        BackendUnavailableError: there is none, or it finds no device that it can use.
    """

    def __init__(self, subject: str, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise BackendUnavailableError(subject, found=f"NVIDIA's driver cannot be loaded: {error}", remedy=REMEDY) from error
        status = self._library.cuInit(0)
        if status != 0:
            raise BackendUnavailableError(subject, found=f"NVIDIA's driver says: {self._message(status)}", remedy=REMEDY)

    def version(self) -> tuple[int, int]:
        """Return the major and minor number of the newest CUDA that the driver knows."""
        version = self._number("cuDriverGetVersion")
        return version // 1000, version % 1000 // 10

    def devices(self, backend: BackendName) -> tuple[Device, ...]:
        """Return devices in the driver's order, which follows CUDA_VISIBLE_DEVICES."""
        return tuple(self._describe(index, backend) for index in range(self._number("cuDeviceGetCount")))

    def _describe(self, index: int, backend: BackendName) -> Device:
        handle = self._number("cuDeviceGet", ctypes.c_int(index))
        major, minor = (self._attribute(handle, number) for number in COMPUTE_CAPABILITY)
        told = ask_nvml(self._text("cuDeviceGetPCIBusId", handle))
        memory = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(memory), ctypes.c_int(handle))
        return Device(
            device_id=f"cuda:{index}",
            name=self._text("cuDeviceGetName", handle),
            kind=DeviceKind.GPU,
            backends=(backend,),
            runtime="CUDA {}.{}".format(*self.version()),
            driver_version=told.driver_version,
            toolkit_version=toolkit_version(),
            uuid=told.uuid,
            settings=told.settings,
            compute_capability=f"{major}.{minor}",
            compute_unit_count=self._attribute(handle, MULTIPROCESSOR_COUNT),
            memory_bytes=memory.value,
            l2_cache_bytes=self._attribute(handle, L2_CACHE_SIZE) or None,
            max_clock_hz=self._attribute(handle, CLOCK_RATE) * 1000 or None,  # the driver reports kHz
            max_threads_per_block=self._attribute(handle, MAX_THREADS_PER_BLOCK),
            max_block=Dim3(*(self._attribute(handle, number) for number in MAX_BLOCK)),
            max_grid=Dim3(*(self._attribute(handle, number) for number in MAX_GRID)),
            max_shared_memory_bytes=self._attribute(handle, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            or self._attribute(handle, MAX_SHARED_MEMORY_PER_BLOCK),
            max_buffer_bytes=memory.value,
        )

    def _attribute(self, handle: int, number: int) -> int:
        return self._number("cuDeviceGetAttribute", ctypes.c_int(number), ctypes.c_int(handle))

    def _number(self, name: str, *arguments: object) -> int:
        number = ctypes.c_int()
        self._call(name, ctypes.byref(number), *arguments)
        return number.value

    def _text(self, name: str, handle: int) -> str:
        text = ctypes.create_string_buffer(NAME_BYTES)
        self._call(name, text, ctypes.c_int(NAME_BYTES), ctypes.c_int(handle))
        return text.value.decode(errors="replace")

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise InternalError("NVIDIA's driver", found=f"{name}: {self._message(status)}", remedy="Check it with nvidia-smi.")

    def _message(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(ctypes.c_int(status), ctypes.byref(text))
        return (text.value or b"unknown error").decode(errors="replace") + f" ({status})"


@dataclass(frozen=True, slots=True)
class DriverAnswers:
    """What NVML tells of a device; None, or missing among the settings: it does not answer.

    Args:
        uuid: "GPU-…", by which telemetry finds it.
        settings: what may differ between devices of one name.
    """

    uuid: str | None = None
    driver_version: str | None = None
    settings: tuple[tuple[str, str], ...] = ()


def ask_nvml(pci_bus_id: str) -> DriverAnswers:
    """Return what NVML tells of a device."""
    import pynvml

    answers = DriverAnswers()
    try:
        pynvml.nvmlInit()
        try:
            answers = DriverAnswers(driver_version=str(pynvml.nvmlSystemGetDriverVersion()))
            device = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
            answers = replace(answers, uuid=str(pynvml.nvmlDeviceGetUUID(device)), settings=device_settings(pynvml, device))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        pass  # not there, or not permitted in this container
    return answers


def device_settings(nvml: Any, device: Any) -> tuple[tuple[str, str], ...]:
    """Return what may differ between devices of one name, each with its unit. What this device does not have is left out.

    Args:
        nvml: the module pynvml.
        device: its handle.
    """

    def on_off(value: int) -> str:
        return "on" if value else "off"

    questions: dict[str, Callable[[], str]] = {
        "power limit": lambda: f"{nvml.nvmlDeviceGetEnforcedPowerLimit(device) / 1000:g} W",
        "ECC": lambda: on_off(nvml.nvmlDeviceGetEccMode(device)[0]),
        "MIG": lambda: on_off(nvml.nvmlDeviceGetMigMode(device)[0]),
        "persistence mode": lambda: on_off(nvml.nvmlDeviceGetPersistenceMode(device)),
        "PCIe": lambda: f"generation {nvml.nvmlDeviceGetMaxPcieLinkGeneration(device)} x{nvml.nvmlDeviceGetCurrPcieLinkWidth(device)}",
        "VBIOS": lambda: str(nvml.nvmlDeviceGetVbiosVersion(device)),
        "clock limits": lambda: " and ".join(
            f"{nvml.nvmlDeviceGetMaxClockInfo(device, kind)} MHz {name}"
            for kind, name in ((nvml.NVML_CLOCK_SM, "SM"), (nvml.NVML_CLOCK_MEM, "memory"))
        ),
    }
    found = []
    for name, ask in questions.items():
        try:
            found.append((name, ask()))
        except nvml.NVMLError:
            continue
    return tuple(found)


# ---------------------------------------------------------------- occupancy and graphs
# PyCUDA 2026.1 has neither occupancy nor graphs, nor the handle of a function, which occupancy needs: they are called in libcuda
# itself. NVIDIA's own cuda-bindings has all of it, but would be 20 MB and a second set of contexts and streams for a dozen calls. All
# calls are for the thread's current context.

LIBRARY_NAME: Final = "libcuda.so.1"

# As cuda.h numbers them.
MAX_DYNAMIC_SHARED_SIZE_BYTES: Final = 8  # CU_FUNC_ATTRIBUTE_…
CAPTURE_MODE_RELAXED: Final = 2  # CU_STREAM_CAPTURE_MODE_…: what Python's garbage collection frees meanwhile does not end the capture
OUT_OF_MEMORY: Final = 2  # CUDA_ERROR_…

HANDLE: Final = ctypes.c_void_p
HANDLE_RESULT: Final = ctypes.POINTER(ctypes.c_void_p)
SIGNATURES: Final = {
    "cuModuleLoadData": (HANDLE_RESULT, ctypes.c_char_p),
    "cuModuleGetFunction": (HANDLE_RESULT, HANDLE, ctypes.c_char_p),
    "cuModuleUnload": (HANDLE,),
    "cuFuncSetAttribute": (HANDLE, ctypes.c_int, ctypes.c_int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (ctypes.POINTER(ctypes.c_int), HANDLE, ctypes.c_int, ctypes.c_size_t),
    "cuStreamBeginCapture_v2": (HANDLE, ctypes.c_int),
    "cuStreamEndCapture": (HANDLE, HANDLE_RESULT),
    "cuGraphInstantiateWithFlags": (HANDLE_RESULT, HANDLE, ctypes.c_ulonglong),
    "cuGraphUpload": (HANDLE, HANDLE),
    "cuGraphLaunch": (HANDLE, HANDLE),
    "cuGraphDestroy": (HANDLE,),
    "cuGraphExecDestroy": (HANDLE,),
}


@dataclass(frozen=True, slots=True)
class ErrorClasses:
    """The exceptions that a failed call raises: PyCUDA's own, so that callers handle both kinds of call alike."""

    any_error: type[Exception]
    out_of_memory: type[Exception]


class CudaLibrary:
    """NVIDIA's driver library, called directly.

    Raises:
        OSError: no driver, or one older than CUDA 11.4, which lacks some of these functions.
    """

    def __init__(self, errors: ErrorClasses) -> None:
        self._library = ctypes.CDLL(LIBRARY_NAME)
        self._errors = errors
        for name, argument_types in SIGNATURES.items():
            try:
                function = getattr(self._library, name)
            except AttributeError as error:
                raise OSError(f"{LIBRARY_NAME} has no {name}") from error
            function.argtypes, function.restype = argument_types, ctypes.c_int

    def active_block_count(self, cubin: bytes, entry: str, thread_count: int, dynamic_shared_memory_bytes: int) -> int:
        """Return the number of blocks of one launch that a multiprocessor holds at once."""
        with self._module(cubin) as module:
            function, count = HANDLE(), ctypes.c_int()
            self._call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
            self._call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_shared_memory_bytes)
            self._call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(count), function, thread_count, dynamic_shared_memory_bytes
            )
            return count.value

    @contextmanager
    def _module(self, cubin: bytes) -> Iterator[ctypes.c_void_p]:
        """Load the cubin a second time and yield the module: PyCUDA does not expose the function handles of its own modules."""
        module = HANDLE()
        self._call("cuModuleLoadData", ctypes.byref(module), cubin)
        try:
            yield module
        finally:
            self._call("cuModuleUnload", module)

    @contextmanager
    def capturing(self, stream: int) -> Iterator[ctypes.c_void_p]:
        """Capture what is enqueued within the context into a graph, which is complete when the context ends."""
        graph = HANDLE()
        self._call("cuStreamBeginCapture_v2", stream, CAPTURE_MODE_RELAXED)
        try:
            yield graph
        finally:
            self._call("cuStreamEndCapture", stream, ctypes.byref(graph))

    def instantiate(self, graph: ctypes.c_void_p) -> ctypes.c_void_p:
        """Return an executable graph; the captured graph is destroyed."""
        instance = HANDLE()
        try:
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(instance), graph, 0)
        finally:
            self._call("cuGraphDestroy", graph)
        return instance

    def upload_graph(self, instance: ctypes.c_void_p, stream: int) -> None:
        """Upload the graph to the device ahead of its first launch."""
        self._call("cuGraphUpload", instance, stream)

    def launch_graph(self, instance: ctypes.c_void_p, stream: int) -> None:
        """Enqueue one launch of the graph on the stream."""
        self._call("cuGraphLaunch", instance, stream)

    def destroy_graph(self, instance: ctypes.c_void_p) -> None:
        """Free the graph."""
        self._call("cuGraphExecDestroy", instance)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            error_class = self._errors.out_of_memory if status == OUT_OF_MEMORY else self._errors.any_error
            raise error_class(f"{name} failed: {self._error_name(status)}")

    def _error_name(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(status, ctypes.byref(text))
        return text.value.decode() if text.value else f"error {status}"


# ---------------------------------------------------------------- errors of PyCUDA
# PyCUDA's errors become errors of this project; some of them destroy the device's context.


class DeviceErrors:
    """The translation of PyCUDA's errors for one device.

    Args:
        driver: the module pycuda.driver.
    """

    def __init__(self, driver: Any, device_name: str) -> None:
        self._driver = driver
        self._device_name = device_name
        self._lost_by: str | None = None  # what the context went with

    @property
    def is_context_lost(self) -> bool:
        """Return whether an error has destroyed the device's context."""
        return self._lost_by is not None

    @contextmanager
    def translate_launch_errors(self, subject: str) -> Iterator[None]:
        """Translate the errors of launches and their ends.

        Raises:
            WorkerCrashedError: a kernel has done what takes the context with it: no call in this process will succeed again.
            MemoryLimitError: no memory for what the launch needs.
            LaunchLimitError: the driver refuses the launch; the context is as it was.
        """
        try:
            yield
        except self._driver.Error as error:
            raise self._context_or_memory_error(subject, error) or LaunchLimitError(
                f"{subject} on {self._device_name}", found=str(error), remedy="Choose a smaller block or grid."
            ) from error

    @contextmanager
    def translate_errors(self, subject: str) -> Iterator[None]:
        """Translate the errors of other calls: copies, memory, graphs.

        Raises as `translate_launch_errors`, but InternalError for what is neither of the first two.
        """
        try:
            yield
        except self._driver.Error as error:
            raise self._context_or_memory_error(subject, error) or InternalError(
                f"{subject} on {self._device_name}", found=str(error), remedy="Run it again; if it stays, run kernalyse doctor."
            ) from error

    def _context_or_memory_error(self, subject: str, error: Exception) -> WorkerCrashedError | MemoryLimitError | None:
        if self._lost_by is not None:
            found = f"no context on the device any more: {self._lost_by} has taken it along"
        elif self._is_context_gone():
            self._lost_by = subject
            found = f"{error}; the device's context is lost with it"
        elif isinstance(error, self._driver.MemoryError):
            return MemoryLimitError(f"{subject} on {self._device_name}", found=str(error), remedy="Choose smaller parameters.")
        else:
            return None
        return WorkerCrashedError(
            f"{subject} on {self._device_name}",
            found=found,
            remedy="Run the kernel under compute-sanitizer. What was measured before is kept; start another run for the rest.",
        )

    def _is_context_gone(self) -> bool:
        """Return whether the context is lost, which shows by a further call that fails too."""
        try:
            self._driver.Context.synchronize()
        except self._driver.Error:
            return True
        return False


# ---------------------------------------------------------------- errors of measuring programs
# A CUDA error is a limit, a fault of the kernel, or something that this machine lacks.

# Numbers as driver_types.h has them; they have not changed since CUDA 11.
OWN_CODE: Final = 0  # of the program, not of CUDA
LAUNCH_TIMEOUT: Final = 702
OLD_DRIVER: Final = frozenset({35, 36})  # older than the toolkit that compiled the program
MISSING: Final = frozenset({3, 34, 46, 100, 101, 802, 803, 804, 999})  # no driver, no device, one that is not ready
LIMITS: Final = frozenset({1, 9, 98, 701, 720, 912})  # a value, a configuration, a function, resources, a cooperative launch, a cluster
OTHER_CODE: Final = frozenset({200, 209, 218, 222})  # compiled for another device
FAULTS: Final = frozenset({700, 710, 713, 714, 715, 716, 717, 718, 719})  # illegal address, assertion, … launch failure

HARMLESS: Final = frozenset({OWN_CODE, OUT_OF_MEMORY, *LIMITS})
"""After any other error the CUDA context is lost, and with it the program."""


def failure(subject: str, code: int, name: str, text: str) -> KernalyseError:
    """Return the error for the status that a measuring program has reported.

    Args:
        subject: what was being done, with the kernel and the device.
        code: CUDA's, or 0 for the program's own.
    """
    found = f"{name}: {text}"
    if code == OUT_OF_MEMORY:
        return MemoryLimitError(subject, found=found, remedy="Choose smaller parameters.")
    if code in LIMITS:
        return LaunchLimitError(subject, found=found, remedy="Choose a smaller block (--block) or smaller parameters.")
    if code == LAUNCH_TIMEOUT:
        return TimeLimitError(
            subject, found=found, remedy="Choose smaller parameters: the driver ends long kernels on a device with a display."
        )
    if code in OTHER_CODE:
        return CompileError(subject, found=found, remedy="Compile for this device: leave out -arch and -gencode, or name its own.")
    if code in OLD_DRIVER:
        return BackendUnavailableError(
            subject, found=found, remedy="Update NVIDIA's driver, or use a toolkit no newer than the CUDA version that nvidia-smi names."
        )
    if code in MISSING:
        return BackendUnavailableError(subject, found=found, remedy="Check NVIDIA's driver: nvidia-smi has to list the device.")
    if code in FAULTS:
        return WorkerCrashedError(
            subject, found=found, expected="a kernel that keeps within its memory", remedy="Run it under compute-sanitizer."
        )
    if code == OWN_CODE:
        return InternalError(subject, found=text, remedy="Run it again; if it stays, use --backend pycuda.")
    return InternalError(subject, found=found, remedy="Look into the kernel's log (dmesg) for what the driver says.")
