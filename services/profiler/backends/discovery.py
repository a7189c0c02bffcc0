"""The backends and devices of this machine. Each backend is imported only when it is opened."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernalyse.services.core.errors import BackendUnavailableError, DeviceNotFoundError, InternalError, KernalyseError
from kernalyse.services.core.model import BackendName, Device, DeviceKind, Dim3

if TYPE_CHECKING:
    from kernalyse.services.profiler.backends.base import Backend


# ---------------------------------------------------------------- registry
# A backend is imported only when it is opened.

CUDA_BACKENDS: Final = (BackendName.PYCUDA, BackendName.NVCC)  # AUTO takes the first: it starts no programs


def open_backend(name: BackendName, cache_directory: Path | None = None) -> Backend:
    """Return the backend of that name; AUTO is PYCUDA or NVCC where an NVIDIA device answers, else OPENCL.

    Args:
        cache_directory: where compiled kernels are cached between processes; None: nowhere.

    Raises:
        BackendUnavailableError: a library or a driver is missing; names it and what brings it.
        InvalidSettingError: the environment's OPENCL names no runtime.
    """
    match name:
        case BackendName.PYCUDA:
            from kernalyse.services.profiler.backends.cuda.pycuda_backend import PyCudaBackend

            return PyCudaBackend(cache_directory)
        case BackendName.OPENCL:
            from kernalyse.services.profiler.backends.opencl.backend import OpenCLBackend

            return OpenCLBackend(requested_runtime())
        case BackendName.NVCC:
            from kernalyse.services.profiler.backends.cuda.nvcc_backend import NvccBackend

            return NvccBackend(cache_directory)
        case BackendName.AUTO:
            return _open_cuda_backend(cache_directory) or open_backend(BackendName.OPENCL)


def _open_cuda_backend(cache_directory: Path | None) -> Backend | None:
    """Return the first CUDA backend that finds a device, or None."""
    for name in CUDA_BACKENDS:
        try:
            backend = open_backend(name, cache_directory)
            if backend.devices():
                return backend
        except BackendUnavailableError:
            pass  # the next one may do without what is missing
    return None


def open_backend_for(name: BackendName, device_id: str | None, cache_directory: Path | None = None) -> Backend:
    """Open a backend as `open_backend` does, but AUTO follows the device where one is named.

    Raises as `open_backend` does, and DeviceNotFoundError for a device id of no backend.
    """
    if name is not BackendName.AUTO or device_id is None:
        return open_backend(name, cache_directory)
    match device_id.partition(":")[0]:
        case "cuda":
            return _open_cuda_backend(cache_directory) or open_backend(BackendName.PYCUDA, cache_directory)  # which says what is missing
        case "opencl":
            return open_backend(BackendName.OPENCL)
        case _:
            raise DeviceNotFoundError(
                f"device {device_id}",
                found="an id of no backend",
                expected="cuda:0, opencl:intel:0 or the like",
                remedy="List the devices with: kernalyse devices.",
            )


def requested_runtime() -> str | None:
    """Return the OpenCL runtime that the environment selects: "intel", "pocl", or None for all installed ones."""
    return os.environ.get("OPENCL") or None


def available_devices() -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Return the devices of all backends, and for each missing backend or useless device one sentence with its remedy. Never raises.

    A GPU that PYCUDA and NVCC can drive is one device with both; one that OpenCL sees too is listed again, under its own id.
    """
    devices: dict[str, Device] = {}
    notices: list[str] = []
    for name in (*CUDA_BACKENDS, BackendName.OPENCL):
        try:
            found, problems = _usable_devices(name)
        except KernalyseError as error:
            notices.append(error.message)
        except Exception as error:  # a driver may fail in ways of its own; the other backend must still be found
            notices.append(f"Backend {name.value}: {type(error).__name__}: {error}.")
        else:
            for device in found:
                known = devices.get(device.device_id, replace(device, backends=()))
                devices[device.device_id] = replace(known, backends=(*known.backends, name))
            notices.extend(problems or (() if found else (_nothing_found(name),)))
    return tuple(devices.values()), tuple(notices)


def _usable_devices(name: BackendName) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    if name is not BackendName.OPENCL:
        return open_backend(name).devices(), ()
    from kernalyse.services.profiler.backends.opencl.backend import OpenCLBackend

    return OpenCLBackend(requested_runtime()).usable_devices()


def _nothing_found(name: BackendName) -> str:
    if name in CUDA_BACKENDS:
        return f"Backend {name.value}: no NVIDIA device. Install a driver if this machine has one."
    return "Backend OPENCL: no device. Install the CPU runtimes: pip install 'kernalyse[opencl]'."


# ---------------------------------------------------------------- probe
# `python -m kernalyse.services.profiler.backends.discovery` prints this machine's devices as JSON.
#
# The profiler service runs this in a separate process: a runtime that crashes while it looks for devices does no harm, and none stays
# in the service's memory.


def write_probe(devices: tuple[Device, ...], notices: tuple[str, ...]) -> str:
    """Return one JSON object with both lists."""
    return json.dumps({"devices": [asdict(device) for device in devices], "notices": list(notices)})


def read_probe(text: str) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Read devices and notices of a probe's output. Raises InternalError when it is none."""
    try:
        document = json.loads(text)
        return tuple(_read_device(entry) for entry in document["devices"]), tuple(document["notices"])
    except (ValueError, KeyError, TypeError) as error:
        raise InternalError(
            "the search for devices", found=f"output that is no probe: {text[:200]!r}", remedy="Run kernalyse doctor."
        ) from error


def _read_device(entry: dict[str, Any]) -> Device:
    return Device(
        **{
            **entry,
            "kind": DeviceKind(entry["kind"]),
            "backends": tuple(BackendName(name) for name in entry["backends"]),
            "max_block": Dim3(**entry["max_block"]) if entry["max_block"] else None,
            "max_grid": Dim3(**entry["max_grid"]) if entry["max_grid"] else None,
            "settings": tuple((name, value) for name, value in entry["settings"]),
        }
    )


def main() -> None:
    """Print the devices of this machine as JSON, and nothing else."""
    output = os.dup(1)
    os.dup2(2, 1)  # runtimes print on stdout too; that belongs to the JSON alone

    os.write(output, (write_probe(*available_devices()) + "\n").encode())
    sys.stdout.flush()
    os._exit(0)  # some runtimes crash while they unload; the answer is out already


if __name__ == "__main__":
    main()
