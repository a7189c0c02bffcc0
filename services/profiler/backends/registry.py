"""The backends of this machine, and opening one by name. Nothing is imported before it is asked for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.core.errors import BackendUnavailableError, DeviceNotFoundError, KernalyseError
from services.core.model import BackendName, Device

if TYPE_CHECKING:  # it brings NumPy, which the service that asks for devices has no use for
    from services.profiler.backends.base import Backend

CUDA_BACKENDS: Final = (BackendName.PYCUDA, BackendName.NVCC)  # AUTO takes the first: it starts no programs


def open_backend(name: BackendName, cache_folder: Path | None = None) -> Backend:
    """Return the backend of that name; AUTO is PYCUDA or NVCC where an NVIDIA device answers, else OPENCL.

    Args:
        cache_folder: where compiled kernels are kept between processes; None: nowhere.

    Raises:
        BackendUnavailableError: a library or a driver is missing; names it and what brings it.
        InvalidSettingError: the environment's OPENCL names no runtime.
    """
    match name:
        case BackendName.PYCUDA:
            from services.profiler.backends.pycuda import PyCudaBackend

            return PyCudaBackend(cache_folder)
        case BackendName.OPENCL:
            from services.profiler.backends.opencl import OpenCLBackend

            return OpenCLBackend(wanted_runtime())
        case BackendName.NVCC:
            from services.profiler.backends.nvcc import NvccBackend

            return NvccBackend(cache_folder)
        case BackendName.AUTO:
            return _open_cuda_backend(cache_folder) or open_backend(BackendName.OPENCL)


def _open_cuda_backend(cache_folder: Path | None) -> Backend | None:
    """Return the first one for NVIDIA devices that finds one. None: no such device answers."""
    for name in CUDA_BACKENDS:
        try:
            backend = open_backend(name, cache_folder)
            if backend.devices():
                return backend
        except BackendUnavailableError:
            pass  # the next one may do without what is missing
    return None


def open_backend_for(name: BackendName, device_id: str | None, cache_folder: Path | None = None) -> Backend:
    """Open a backend as `open_backend` does, but AUTO follows the device where one is named.

    Raises as `open_backend` does, and DeviceNotFoundError for a device id of no backend.
    """
    if name is not BackendName.AUTO or device_id is None:
        return open_backend(name, cache_folder)
    match device_id.partition(":")[0]:
        case "cuda":
            return _open_cuda_backend(cache_folder) or open_backend(BackendName.PYCUDA, cache_folder)  # which says what is missing
        case "opencl":
            return open_backend(BackendName.OPENCL)
        case _:
            raise DeviceNotFoundError(
                f"device {device_id}",
                found="an id of no backend",
                expected="cuda:0, opencl:intel:0 or the like",
                remedy="List the devices with: kernalyse devices.",
            )


def wanted_runtime() -> str | None:
    """Return the runtime that OPENCL in the environment names, read here alone: "intel", "pocl", or None for every runtime there is."""
    return os.environ.get("OPENCL") or None


def available_devices() -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Return every device of every backend, and one sentence with its remedy for each backend that is missing. Never raises.

    A GPU that PYCUDA and NVCC can drive is one device with both; one that OpenCL sees too is listed again, under its own id.
    """
    devices: dict[str, Device] = {}
    notices: list[str] = []
    for name in (*CUDA_BACKENDS, BackendName.OPENCL):
        try:
            found = open_backend(name).devices()
        except KernalyseError as error:
            notices.append(error.message)
        except Exception as error:  # a driver may fail in ways of its own; the other backend must still be found
            notices.append(f"Backend {name.value}: {type(error).__name__}: {error}.")
        else:
            for device in found:
                known = devices.get(device.device_id, replace(device, backends=()))
                devices[device.device_id] = replace(known, backends=(*known.backends, name))
            if not found:
                notices.append(_nothing_found(name))
    return tuple(devices.values()), tuple(notices)


def _nothing_found(name: BackendName) -> str:
    if name in CUDA_BACKENDS:
        return f"Backend {name.value}: no NVIDIA device. Install a driver if this machine has one."
    return "Backend OPENCL: no device. Install the CPU runtimes: pip install 'kernalyse[opencl]'."
