"""The kernels behind ceilings, as planned for GPUs that need not be there, compiled by nvcc without a spilled register."""

from __future__ import annotations

import re
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

import pytest

from kernalyse.services.core.external_programs import find_nvcc
from kernalyse.services.core.model import BackendName, Device, DeviceKind
from kernalyse.services.profiler.backends.cuda.compiler import find_disassembler
from kernalyse.services.profiler.kernel_sources.catalog import catalog_directory
from kernalyse.services.profiler.measuring.ceiling_bench import KernelVariant
from kernalyse.services.profiler.measuring.ceilings import plan_ceilings
from kernalyse.services.profiler.workloads.ceilings import CEILINGS_DIRECTORY, load_sources
from tests.integration.nvcc_stand_in import kept_of_nvcc, needs_nvcc
from tests.kept import kept_package

pytestmark = needs_nvcc

CAPABILITIES: Final = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


def device(compute_capability: str) -> Device:
    return Device(
        "cuda:0",
        "a GPU",
        DeviceKind.GPU,
        (BackendName.PYCUDA,),
        compute_capability=compute_capability,
        compute_unit_count=132,
        memory_bytes=141 * 10**9,
        l2_cache_bytes=50 * 2**20,
    )


def planned_builds() -> dict[tuple[str, tuple[str, ...]], dict[str, set[str]]]:
    """Architectures and kernels by file and options: nvcc compiles each text once, for all of its architectures."""
    builds: dict[tuple[str, tuple[str, ...]], dict[str, set[str]]] = defaultdict(lambda: {"architectures": set(), "kernels": set()})
    for capability in CAPABILITIES:
        for variant in (variant for plan in plan_ceilings(device(capability)) for variant in plan.variants):
            build = builds[variant.file_name, _macros(variant)]
            build["architectures"].add(_architecture(variant, capability))
            build["kernels"].add(variant.function_name)
    return builds


def _macros(variant: KernelVariant) -> tuple[str, ...]:
    return tuple(option for option in variant.options if option.startswith("-D"))


def _architecture(variant: KernelVariant, capability: str) -> str:
    own = [option.removeprefix("-arch=sm_") for option in variant.options if option.startswith("-arch=")]
    return own[0] if own else capability.replace(".", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file_name", "macros"), sorted(planned_builds()), ids=lambda part: " ".join(part) if isinstance(part, tuple) else part
)
def test_every_planned_kernel_compiles_and_stays_in_registers(file_name: str, macros: tuple[str, ...], tmp_path: Path) -> None:
    build = planned_builds()[file_name, macros]
    source = tmp_path / file_name
    source.write_text(load_sources()[file_name].text)
    targets = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in sorted(build["architectures"])]
    told = kept_of_nvcc(file_name, source, "-fatbin", "-Xptxas", "-v", *targets, *macros).with_name("told").read_text()
    compiled = re.findall(r"Compiling entry function '(\w+)' for 'sm_(\w+)'", told)
    for kernel in build["kernels"]:
        assert {architecture for name, architecture in compiled if kernel in name} == build["architectures"]
    assert set(re.findall(r"(\d+) bytes spill", told)) == {"0"}
    assert "warning" not in told  # ptxas says so when it has to wait for every single wgmma


@pytest.fixture(scope="module")
def nvdisasm() -> str:
    """The toolkit's, or else NVIDIA's package of it."""
    nvcc = find_nvcc()
    assert nvcc is not None
    if found := find_disassembler("nvdisasm", Path(nvcc).parent):
        return found
    try:
        (program,) = kept_package("nvidia-cuda-nvdisasm==13.*").rglob("bin/nvdisasm")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs nvdisasm: {error.stderr.decode().strip()}")
    program.chmod(0o700)
    return str(program)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_half_precision_goes_through_both_pipes_where_there_are_two(architecture: str, nvdisasm: str) -> None:
    source = catalog_directory() / CEILINGS_DIRECTORY / "fma.cu"
    cubin = kept_of_nvcc("fma.cubin", source, "-cubin", f"-arch={architecture}")
    text = subprocess.run([nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    (kernel,) = re.findall(r"^\.text\.\w*ceiling_half2_float16\w*:$(.*?)(?=^\.text\.|\Z)", text, re.MULTILINE | re.DOTALL)
    counts = Counter(re.findall(r"\bHFMA2\S*", kernel))
    assert set(counts) == {"HFMA2", "HFMA2.MMA"}
    assert counts["HFMA2"] == pytest.approx(counts["HFMA2.MMA"], abs=2)
