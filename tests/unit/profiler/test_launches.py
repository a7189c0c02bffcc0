"""kernalyse.services.profiler.workloads.sweeps.launches: what would fit where a configuration does not."""

from __future__ import annotations

import pytest

from kernalyse.services.core.errors import MemoryLimitError
from kernalyse.services.core.model import Axis, BackendName, Device, DeviceKind, KernelSelection, KernelSweep, Tie
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.workloads.sweeps.launches import check_device_memory, largest_fitting_values
from kernalyse.services.profiler.workloads.sweeps.plan import PlannedConfiguration, plan_sweep

MEMORY_BYTES = 1_000_000
DEVICE = Device("d", "small", DeviceKind.GPU, (BackendName.PYCUDA,), memory_bytes=MEMORY_BYTES, max_buffer_bytes=MEMORY_BYTES)


def planned(kernel_name: str, *ties: Tie, **values: int) -> PlannedConfiguration:
    axes = tuple(Axis(name, (value,)) for name, value in values.items())
    return next(plan_sweep(KernelSweep((KernelSelection(kernel_name),), axes, ties), load_catalog(), 10).configurations())


def test_what_fits_passes() -> None:
    check_device_memory(planned("saxpy", N=MEMORY_BYTES // 8), DEVICE)


def test_the_largest_size_that_fits_is_named_and_really_is_the_largest() -> None:
    configuration = planned("saxpy", N=10**9)
    assert largest_fitting_values(configuration, DEVICE) == {"N": MEMORY_BYTES // 8}  # two arrays of float
    with pytest.raises(MemoryLimitError, match=f"N up to {MEMORY_BYTES // 8}"):
        check_device_memory(configuration, DEVICE)
    check_device_memory(planned("saxpy", N=MEMORY_BYTES // 8), DEVICE)
    with pytest.raises(MemoryLimitError):
        check_device_memory(planned("saxpy", N=MEMORY_BYTES // 8 + 1), DEVICE)


def test_tied_parameters_shrink_together() -> None:
    configuration = planned("matmul_naive", Tie("M", "N"), Tie("K", "M"), N=4096)
    (fitting,) = largest_fitting_values(configuration, DEVICE).items()
    assert fitting == ("M=N=K", 288)  # 3 * 4 * 288**2 <= 10**6 < 3 * 4 * 289**2


def test_each_parameter_is_tried_with_the_others_as_they_are_and_those_that_do_not_help_are_left_out() -> None:
    configuration = planned("matmul_naive", M=1000, N=1000, K=10)
    assert largest_fitting_values(configuration, DEVICE) == {
        "M": (MEMORY_BYTES // 4 - 10 * 1000) // 1010,
        "N": (MEMORY_BYTES // 4 - 10 * 1000) // 1010,
    }
    with pytest.raises(MemoryLimitError, match=r"with the rest as it is: M up to 237 or N up to 237"):
        check_device_memory(configuration, DEVICE)
    huge = planned("matmul_naive", M=10**6, N=10**6, K=10**6)
    with pytest.raises(MemoryLimitError, match="Choose smaller parameters"):
        check_device_memory(huge, DEVICE)
