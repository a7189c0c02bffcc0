"""Which ceilings a device can have, by its kind and its compute capability."""

from __future__ import annotations

import pytest

from kernalyse.services.core.model import BackendName, Device, DeviceKind
from kernalyse.services.profiler.measuring.ceilings import plan_ceilings

MEMORY = ["dram copy", "l2 copy", "l1 copy", "shared copy"]
FMA = ["float32 fma", "float64 fma", "float16 fma"]
OLD_TENSOR = ["float16 tensor", "float16_accumulate16 tensor", "int8 tensor"]
AMPERE_TENSOR = ["float16 tensor", "float16_accumulate16 tensor", "bfloat16 tensor", "tfloat32 tensor", "int8 tensor"]
ADA_TENSOR = [*AMPERE_TENSOR[:4], "float8 tensor", "int8 tensor"]


def gpu(compute_capability: str | None, *backends: BackendName) -> Device:
    return Device(
        "cuda:0", "a GPU", DeviceKind.GPU, backends, compute_capability=compute_capability, compute_unit_count=8, l2_cache_bytes=2**22
    )


def names(device: Device) -> list[str]:
    return [f"{plan.ceiling_name} {plan.path}" for plan in plan_ceilings(device)]


@pytest.mark.parametrize(
    ("compute_capability", "tensor"),
    [
        ("7.0", []),
        ("7.5", OLD_TENSOR),
        ("8.0", [*AMPERE_TENSOR, "float64 tensor"]),
        ("8.6", AMPERE_TENSOR),
        ("8.9", ADA_TENSOR),
        ("9.0", [*ADA_TENSOR, "float64 tensor"]),
        ("10.0", ["float64 tensor"]),  # the rest is reached by tcgen05 alone
        ("12.0", ADA_TENSOR),
    ],
)
def test_a_gpu_gets_what_its_generation_has(compute_capability: str, tensor: list[str]) -> None:
    assert names(gpu(compute_capability, BackendName.NVCC)) == [*MEMORY, *FMA, *tensor]


def test_hopper_multiplies_by_wgmma_and_has_no_float8_by_mma() -> None:
    variants = {
        plan.ceiling_name: [variant.variant_name for variant in plan.variants] for plan in plan_ceilings(gpu("9.0", BackendName.PYCUDA))
    }
    assert variants["bfloat16"] == ["mma", "wgmma"]
    assert variants["float8"] == ["wgmma"]
    wgmma = [
        variant for plan in plan_ceilings(gpu("9.0", BackendName.PYCUDA)) for variant in plan.variants if variant.variant_name == "wgmma"
    ]
    assert {variant.options[-1] for variant in wgmma} == {"-arch=sm_90a"}


def test_off_cuda_there_are_only_plain_kernels() -> None:
    assert names(gpu("9.0", BackendName.OPENCL)) == [*MEMORY, "float32 fma", "float64 fma"]
    files = {variant.file_name for plan in plan_ceilings(gpu(None, BackendName.OPENCL)) for variant in plan.variants}
    assert files == {"memory.cu", "cache.cu", "fma.cu"}


def test_a_cache_that_is_not_known_is_not_measured() -> None:
    device = Device("opencl:0", "a CPU", DeviceKind.CPU, (BackendName.OPENCL,), compute_unit_count=2)
    assert names(device) == ["dram copy", "l1 copy", "float32 fma", "float64 fma"]
