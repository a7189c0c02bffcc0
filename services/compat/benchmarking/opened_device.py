"""The device that kernels are to run on, opened in this process, and what differs from what was asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from services.core.errors import BackendUnavailableError, DeviceNotFoundError, InvalidParameterError
from services.core.model import BackendName, Device
from services.profiler.backends.base import Backend, DeviceSession
from services.profiler.backends.registry import open_backend

PREFERRED: Final = {
    True: (BackendName.PYCUDA, BackendName.NVCC, BackendName.OPENCL),
    False: (BackendName.NVCC, BackendName.OPENCL),
}
"""By use_pycuda: the backends in the order in which they are tried."""

SHOWN: Final = {
    BackendName.PYCUDA: "PyCUDA",
    BackendName.NVCC: "programs that nvcc compiles",
    BackendName.OPENCL: "OpenCL",
}
ARCHITECTURE: Final = re.compile(r"sm_(\d+)(\d)[a-z]?")


@dataclass(frozen=True, slots=True)
class OpenedDevice:
    backend: BackendName
    session: DeviceSession
    notices: tuple[str, ...]


def open_device(use_pycuda: bool, compute_capability: str) -> OpenedDevice:
    """The first device of the first backend that has one.

    Raises:
        BackendUnavailableError: there is none; says of each backend why.
        InvalidParameterError: compute_capability is no architecture of NVIDIA's.
    """
    if not ARCHITECTURE.fullmatch(compute_capability):
        raise InvalidParameterError(
            "compute_capability", found=compute_capability, expected="an architecture such as sm_86", remedy="Correct it."
        )
    backend, problems = _first_with_device(PREFERRED[use_pycuda])
    session = backend.open()
    notices = [*_backend_notice(backend.name, session.device, use_pycuda, problems)]
    notices += _architecture_notice(backend.name, session.device, compute_capability)
    return OpenedDevice(backend.name, session, tuple(notices))


def _first_with_device(names: tuple[BackendName, ...]) -> tuple[Backend, list[str]]:
    problems: list[str] = []
    for name in names:
        try:
            backend = open_backend(name)
            if backend.devices():
                return backend, problems
        except (BackendUnavailableError, DeviceNotFoundError) as error:
            problems.append(error.message)
        else:
            problems.append(f"Backend {name.value}: no device.")
    raise BackendUnavailableError(
        "this machine", found="no device that kernels can run on", remedy=" ".join(problems) or "`kernalyse doctor` says what it needs."
    )


def _backend_notice(backend: BackendName, device: Device, use_pycuda: bool, problems: list[str]) -> list[str]:
    """Empty where it is the backend that was asked for."""
    wanted = PREFERRED[use_pycuda][0]
    if backend is wanted:
        return []
    return [f"use_pycuda={use_pycuda}: kernels run through {SHOWN[backend]} on {device.name}, because: {' '.join(problems)}"]


def _architecture_notice(backend: BackendName, device: Device, compute_capability: str) -> list[str]:
    """Kernels are always compiled for the device they run on; this says so where something else was asked for."""
    if device.compute_capability is None:
        own = f"{device.name} by its {SHOWN[backend]} runtime"
    elif compute_capability == architecture_of(device.compute_capability):
        return []
    else:
        own = f"{architecture_of(device.compute_capability)}, the architecture of {device.name}"
    return [f"compute_capability={compute_capability}: kernels are compiled for {own}."]


def architecture_of(compute_capability: str) -> str:
    """ "9.0" → "sm_90"."""
    return f"sm_{compute_capability.replace('.', '')}"
