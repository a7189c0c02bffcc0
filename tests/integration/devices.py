"""The devices that backend tests run on: every one that this machine has."""

from __future__ import annotations

import subprocess
import sys

import pytest

from services.core.model import BackendName, Device
from services.profiler.backends.probe import read_probe


def found_devices() -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Devices and what is missing, asked for in a process of its own as the service does."""
    result = subprocess.run(
        [sys.executable, "-m", "services.profiler.backends.probe"], capture_output=True, text=True, check=True, timeout=120
    )
    return read_probe(result.stdout)


def device_parameters() -> list[object]:
    """One test parameter per device; a CUDA device that is missing is a skipped one that says why."""
    devices, notices = found_devices()
    parameters: list[object] = [
        pytest.param(device, id=device.device_id, marks=[pytest.mark.cuda] if BackendName.PYCUDA in device.backends else [])
        for device in devices
    ]
    if not any(BackendName.PYCUDA in device.backends for device in devices):
        reason = next((notice for notice in notices if "PYCUDA" in notice), "no CUDA device")
        parameters.append(pytest.param(None, id="cuda", marks=[pytest.mark.cuda, pytest.mark.skip(reason=reason)]))
    return parameters
