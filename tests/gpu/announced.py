"""`pytest -p tests.gpu.announced`: an NVIDIA device is announced where there is none, and what opens it hears the backend's own words.

So tests that would be skipped without a device run as far as their fixtures and imports go: one of each function, for its other
parameters have the same.
"""

from __future__ import annotations

from typing import Final

import pytest

from kernalyse.services.core.model import Device, DeviceKind
from kernalyse.services.profiler.backends.discovery import CUDA_BACKENDS
from tests.integration import devices

DEVICE: Final = Device("cuda:0", "announced", DeviceKind.GPU, CUDA_BACKENDS, compute_capability="9.0", uuid="GPU-announced")


def _announced() -> tuple[tuple[Device, ...], tuple[str, ...]]:
    return (DEVICE,), ()


devices.found_devices = _announced  # type: ignore[assignment]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = {item.nodeid.partition("[")[0]: item for item in reversed(items)}.values()
