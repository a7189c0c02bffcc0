"""A stand-in for pynvml with one device, in processes that find it under that name: its state is a file that all of them share.

NVML_STAND_IN_FILE: gets a line for each call that changes clocks, and the driver's answer to it.
NVML_STAND_IN_REFUSES: set: the process has no right to change clocks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

UUID = "GPU-stand-in"
MAX_MHZ = {1: 1980, 2: 2619}

NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_CLOCK_LIMIT_ID_TDP = 0xFFFFFF01


class NVMLError(Exception):
    pass


class NVMLError_NoPermission(NVMLError):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


def _change(call: str) -> None:
    is_refused = "NVML_STAND_IN_REFUSES" in os.environ
    with Path(os.environ["NVML_STAND_IN_FILE"]).open("a") as file:
        file.write(f"{call}{' refused' if is_refused else ''}\n")
    if is_refused:
        raise NVMLError_NoPermission("Insufficient Permissions")


def nvmlInit() -> None:
    pass


def nvmlShutdown() -> None:
    pass


def nvmlSystemGetDriverVersion() -> str:
    return "99.1"


def nvmlDeviceGetHandleByPciBusId(bus_id: str) -> str:
    return UUID


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:
    return uuid


def nvmlDeviceGetUUID(handle: str) -> str:
    return handle


def nvmlDeviceGetMaxClockInfo(handle: str, kind: int) -> int:
    return MAX_MHZ[kind]


def nvmlDeviceSetGpuLockedClocks(handle: str, low: int, high: int) -> None:
    _change(f"SM {'base' if low == NVML_CLOCK_LIMIT_ID_TDP else low} {handle}")


def nvmlDeviceSetMemoryLockedClocks(handle: str, low: int, high: int) -> None:
    _change(f"memory {low} {handle}")


def nvmlDeviceResetGpuLockedClocks(handle: str) -> None:
    _change(f"SM reset {handle}")


def nvmlDeviceResetMemoryLockedClocks(handle: str) -> None:
    _change(f"memory reset {handle}")


def __getattr__(name: str) -> Any:
    """Return a constant, or a question that this device does not answer."""
    if name.startswith("NVML_"):
        return 0
    if name.startswith("nvml"):
        return _unanswered
    raise AttributeError(name)


def _unanswered(*_: Any) -> Any:
    raise NVMLError_NotSupported("Not Supported")
