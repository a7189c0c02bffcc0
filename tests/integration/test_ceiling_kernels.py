"""The kernels behind ceilings, as planned for GPUs that need not be there, compiled by nvcc without a spilled register."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

from services.core.model import BackendName, Device, DeviceKind
from services.profiler.measuring.ceiling_bench import Form
from services.profiler.measuring.ceilings import plan_ceilings
from services.profiler.workloads.ceilings import load_sources
from tests.integration.nvcc_stand_in import kept_of_nvcc, needs_nvcc

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
        for form in (form for plan in plan_ceilings(device(capability)) for form in plan.forms):
            build = builds[form.file_name, _macros(form)]
            build["architectures"].add(_architecture(form, capability))
            build["kernels"].add(form.function_name)
    return builds


def _macros(form: Form) -> tuple[str, ...]:
    return tuple(option for option in form.options if option.startswith("-D"))


def _architecture(form: Form, capability: str) -> str:
    own = [option.removeprefix("-arch=sm_") for option in form.options if option.startswith("-arch=")]
    return own[0] if own else capability.replace(".", "")


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
