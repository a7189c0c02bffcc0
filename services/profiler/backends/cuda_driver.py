"""NVIDIA's driver, asked for its devices without PyCUDA and without opening a context on any of them."""

from __future__ import annotations

import ctypes
from typing import Final

from services.core.errors import BackendUnavailableError, InternalError
from services.core.model import BackendName, Device, DeviceKind, Dim3
from services.profiler.backends.nvcc_compiler import toolkit_version

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
            raise BackendUnavailableError(subject, found=f"NVIDIA's driver says: {self._words(status)}", remedy=REMEDY)

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
        uuid, driver_version = ask_nvml(self._text("cuDeviceGetPCIBusId", handle))
        memory = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(memory), ctypes.c_int(handle))
        return Device(
            device_id=f"cuda:{index}",
            name=self._text("cuDeviceGetName", handle),
            kind=DeviceKind.GPU,
            backends=(backend,),
            runtime="CUDA {}.{}".format(*self.version()),
            driver_version=driver_version,
            toolkit_version=toolkit_version(),
            uuid=uuid,
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
            raise InternalError("NVIDIA's driver", found=f"{name}: {self._words(status)}", remedy="Check it with nvidia-smi.")

    def _words(self, status: int) -> str:
        words = ctypes.c_char_p()
        self._library.cuGetErrorString(ctypes.c_int(status), ctypes.byref(words))
        return (words.value or b"unknown error").decode(errors="replace") + f" ({status})"


def ask_nvml(pci_bus_id: str) -> tuple[str | None, str | None]:
    """Return the UUID by which telemetry finds the device ("GPU-…"), and the driver's own version; None where NVML does not answer."""
    import pynvml

    uuid = driver_version = None
    try:
        pynvml.nvmlInit()
        try:
            driver_version = str(pynvml.nvmlSystemGetDriverVersion())
            uuid = str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        pass  # not there, or not permitted in this container
    return uuid, driver_version
