"""Which backends this machine has, and opening one by name. Nothing is imported before it is asked for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from services.core.errors import BackendUnavailableError, DeviceNotFoundError, KernalyseError
from services.core.model import BackendName, Device

if TYPE_CHECKING:  # it brings NumPy, which the service that asks for devices has no use for
    from services.profiler.backends.base import Backend


def open_backend(name: BackendName, cache_folder: Path | None = None) -> Backend:
    """The backend of that name; AUTO is PYCUDA where an NVIDIA device answers, else OPENCL.

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
            raise BackendUnavailableError(
                "backend NVCC",
                found="it comes with a later version",
                remedy="Use --backend pycuda or --backend opencl.",
            )
        case BackendName.AUTO:
            try:
                backend = open_backend(BackendName.PYCUDA, cache_folder)
                if backend.devices():
                    return backend
            except BackendUnavailableError:
                pass  # no NVIDIA device that answers: that is what OPENCL is for
            return open_backend(BackendName.OPENCL)


def open_backend_for(name: BackendName, device_id: str | None, cache_folder: Path | None = None) -> Backend:
    """As `open_backend`, but AUTO follows the device where one is named.

    Raises as `open_backend` does, and DeviceNotFoundError for a device id of no backend.
    """
    if name is not BackendName.AUTO or device_id is None:
        return open_backend(name, cache_folder)
    prefixes = {"cuda": BackendName.PYCUDA, "opencl": BackendName.OPENCL}
    prefix = device_id.split(":", maxsplit=1)[0]
    if prefix not in prefixes:
        raise DeviceNotFoundError(
            f"device {device_id}",
            found="an id of no backend",
            expected="cuda:0, opencl:intel:0 or the like",
            remedy="List the devices with: kernalyse devices.",
        )
    return open_backend(prefixes[prefix], cache_folder)


def wanted_runtime() -> str | None:
    """The one place that reads OPENCL from the environment: "intel", "pocl", or None for every runtime there is."""
    return os.environ.get("OPENCL") or None


def available_devices() -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Every device of every backend, and one sentence with its remedy for each backend that is missing. Never raises.

    A GPU that both CUDA and OpenCL see is listed once for each, under its own id.
    """
    devices: list[Device] = []
    notices: list[str] = []
    for name in (BackendName.PYCUDA, BackendName.OPENCL):
        try:
            found = open_backend(name).devices()
        except KernalyseError as error:
            notices.append(error.message)
        except Exception as error:  # a driver may fail in ways of its own; the other backend must still be found
            notices.append(f"Backend {name.value}: {type(error).__name__}: {error}.")
        else:
            devices.extend(replace(device, backends=(name,)) for device in found)
            if not found:
                notices.append(_nothing_found(name))
    return tuple(devices), tuple(notices)


def _nothing_found(name: BackendName) -> str:
    if name is BackendName.PYCUDA:
        return "Backend PYCUDA: no NVIDIA device. Install a driver if this machine has one."
    return "Backend OPENCL: no device. Install the CPU runtimes: pip install 'kernalyse[opencl]'."
