"""Errors of CUDA as the user sees them: a limit, a fault of the kernel, or something that this machine lacks."""

from __future__ import annotations

from typing import Final

from services.core.errors import (
    BackendUnavailableError,
    CompileError,
    InternalError,
    KernalyseError,
    LaunchLimitError,
    MemoryLimitError,
    TimeLimitError,
    WorkerCrashedError,
)

# Numbers as driver_types.h has them; they have not changed since CUDA 11.
OWN_CODE: Final = 0  # of the program, not of CUDA
OUT_OF_MEMORY: Final = 2
LAUNCH_TIMEOUT: Final = 702
OLD_DRIVER: Final = frozenset({35, 36})  # older than the toolkit that compiled the program
MISSING: Final = frozenset({3, 34, 46, 100, 101, 802, 803, 804, 999})  # no driver, no device, one that is not ready
LIMITS: Final = frozenset({1, 9, 98, 701, 720, 912})  # a value, a configuration, a function, resources, a cooperative launch, a cluster
OTHER_CODE: Final = frozenset({200, 209, 218, 222})  # compiled for another device
FAULTS: Final = frozenset({700, 710, 713, 714, 715, 716, 717, 718, 719})  # illegal address, assertion, … launch failure

HARMLESS: Final = frozenset({OWN_CODE, OUT_OF_MEMORY, *LIMITS})
"""After any other error the CUDA context is lost, and with it the program."""


def failure(subject: str, code: int, name: str, text: str) -> KernalyseError:
    """Return the error that a program's answer stands for.

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
