"""An NVIDIA device as PyCUDA, its driver and NVML describe it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from services.core.model import BackendName, Device, DeviceKind, Dim3
from services.profiler.backends.nvcc_compiler import toolkit_version

DRIVER_FILE: Final = Path("/proc/driver/nvidia/version")


def describe_device(driver: Any, index: int) -> Device:
    handle = driver.Device(index)
    attribute, names = handle.get_attribute, driver.device_attribute
    version = driver.get_driver_version()  # of the CUDA that the driver knows, as 1000 * major + 10 * minor
    major, minor = handle.compute_capability()
    uuid, driver_version = _ask_nvml(handle.pci_bus_id())
    return Device(
        device_id=f"cuda:{index}",
        name=handle.name(),
        kind=DeviceKind.GPU,
        backends=(BackendName.PYCUDA,),
        runtime=f"CUDA {version // 1000}.{version % 1000 // 10}",
        driver_version=driver_version or read_driver_version(),
        toolkit_version=toolkit_version(),
        uuid=uuid,
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


def _ask_nvml(pci_bus_id: str) -> tuple[str | None, str | None]:
    """UUID as telemetry finds the device by ("GPU-…"), and the driver's version ("580.82.07"); None where NVML does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None, None
    try:
        driver_version = str(pynvml.nvmlSystemGetDriverVersion())
        try:
            return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id))), driver_version
        except pynvml.NVMLError:  # not permitted in this container
            return None, driver_version
    except pynvml.NVMLError:
        return None, None
    finally:
        pynvml.nvmlShutdown()


def read_driver_version(file: Path = DRIVER_FILE) -> str | None:
    """As the kernel module says it."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)\s", file.read_text())
    except OSError:
        return None
    return found[1] if found else None
