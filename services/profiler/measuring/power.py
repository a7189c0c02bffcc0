"""The power that an NVIDIA device draws. Without NumPy: the service reads it too."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def read_power_watts(nvml: Any, handle: Any) -> float | None:
    """Return what the device draws now, or where it does not tell that, NVML's own figure. None: neither.

    NVML's own figure is the mean of a second on GPUs since Ampere: a kernel of some milliseconds is lost in it.

    Args:
        nvml: the module pynvml. handle: of the device.
    """
    with suppress(nvml.NVMLError):  # a driver without field values
        (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
        if field.nvmlReturn == nvml.NVML_SUCCESS and field.value.uiVal:
            return float(field.value.uiVal / 1000)  # it comes in milliwatts
    with suppress(nvml.NVMLError):  # not supported on this device, or not permitted in this container
        return float(nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
    return None
