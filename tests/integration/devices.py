"""The devices that backend tests run on: every one that this machine has."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest

from kernalyse.services.core.model import Device
from kernalyse.services.profiler.backends.discovery import CUDA_BACKENDS, read_probe


@cache
def found_devices() -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Devices and what is missing, asked for in a process of its own as the service does."""
    result = subprocess.run(
        [sys.executable, "-m", "kernalyse.services.profiler.backends.discovery"], capture_output=True, text=True, check=True, timeout=120
    )
    return read_probe(result.stdout)


def device_parameters() -> list[object]:
    """One test parameter per device and backend; a CUDA backend that is missing is a skipped one that says why."""
    devices, notices = found_devices()
    parameters: list[object] = []
    for device in devices:
        for backend in device.backends:
            is_cuda = backend in CUDA_BACKENDS
            name = f"{device.device_id}-{backend.lower()}" if is_cuda else device.device_id
            alone = replace(device, backends=(backend,))
            parameters.append(pytest.param(alone, id=name, marks=[pytest.mark.cuda] if is_cuda else []))
    for backend in CUDA_BACKENDS:
        if not any(backend in device.backends for device in devices):
            reason = next((notice for notice in notices if backend in notice), f"no device for {backend}")
            parameters.append(pytest.param(None, id=f"cuda-{backend.lower()}", marks=[pytest.mark.cuda, pytest.mark.skip(reason=reason)]))
    return parameters
