"""Cubins that nvcc makes of kernels, for devices that need not be there, and what is kept of them between processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from kernalyse.services.core.errors import (
    BackendUnavailableError,
    CompileError,
    InvalidSourceError,
    UnknownKernelError,
    UnsupportedConstructError,
)
from kernalyse.services.core.external_programs import find_nvcc
from kernalyse.services.core.model import Dim3, KernelSource, ParameterValue
from kernalyse.services.profiler.backends.base import Build
from kernalyse.services.profiler.backends.cuda import compiler as nvcc_compiler
from kernalyse.services.profiler.backends.cuda import compiler as nvcc_process
from kernalyse.services.profiler.backends.cuda.compiler import (
    CodeCache,
    CompiledCode,
    NvccCompiler,
    compiler_version,
    find_disassembler,
    read_report,
)
from kernalyse.services.profiler.backends.cuda.modules import NO_REQUIREMENTS, LaunchRequirements, find_entry, read_requirements
from kernalyse.services.profiler.backends.cuda.timing import FUNCTION_NAMES, timing_build
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.kernel_sources.functions import parse_kernel_source
from tests.integration.nvcc_stand_in import kept_code, needs_nvcc

pytestmark = needs_nvcc

SM_90: Final = "sm_90"
ARCHITECTURES: Final = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
EM_CUDA_ARCHITECTURE_BYTES: Final = slice(48, 52)  # e_flags of an ELF file; which of them is the architecture differs by toolkit

SCALE: Final = KernelSource(
    "scale.cu",
    """#include "factor.h"
extern "C" __global__ void scale(float *y) { y[threadIdx.x] *= FACTOR; }
""",
)
TEMPLATES: Final = KernelSource(
    "templates.cu",
    """#include <cuda_fp16.h>
typedef float number;
template <typename T, int N> __global__ void scale(T *y) { y[threadIdx.x] = y[threadIdx.x] * T(N); }
template <typename T = double, int N = 2> __global__ void filled(T *y) { y[threadIdx.x] = T(N); }
template <bool IsFast> __global__ void chosen(float *y) { y[0] = IsFast ? 1 : 2; }
namespace inner { namespace deep { template <typename T> __global__ void zero(T *y) { *y = T(0); } } }
__global__ void plain(float *y) { y[0] = 1; }
""",
)


def compile_alone(build: Build, architecture: str = SM_90) -> CompiledCode:
    return NvccCompiler(kept_code()).compile(build, architecture)


def directory_with(directory: Path, **texts: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / f"{name}.h").write_text(text, encoding="utf-8")
    return directory


WAITING: Final = KernelSource(
    "waiting.cu",
    """#include <cooperative_groups.h>
namespace groups = cooperative_groups;
extern "C" __global__ void plain(float *y) { groups::this_thread_block().sync(); y[threadIdx.x] = 1; }
extern "C" __global__ void ranks(float *y) { y[groups::this_grid().thread_rank()] = 1; }
extern "C" __global__ void grid_sync(float *y) { y[0] = 1; groups::this_grid().sync(); y[1] = y[0]; }
extern "C" __global__ void __cluster_dims__(2, 4) sized(float *y) { groups::this_cluster().sync(); y[0] = 1; }
extern "C" __global__ void unsized(float *y) { groups::this_cluster().sync(); y[0] = 1; }
""",
)


@pytest.fixture
def factor(tmp_path: Path) -> Path:
    return directory_with(tmp_path / "headers", factor="#define FACTOR 3.0f\n")


# ---------------------------------------------------------------- what is compiled


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_device_code_of_timing_compiles_for_every_device(architecture: str) -> None:
    build = timing_build()
    compiled = compile_alone(build, architecture)
    assert compiled.log == ""
    for name in FUNCTION_NAMES:
        assert find_entry(compiled.code, parse_kernel_source(build.source).kernel(name), build.source.file_name) == name


def test_what_a_launch_needs_is_told_by_the_ptx_of_its_kernel() -> None:
    ptx = compile_alone(Build(WAITING, "plain")).listings["ptx"].decode()
    assert {name: read_requirements(ptx, name) for name in ("plain", "ranks", "grid_sync", "sized", "unsized")} == {
        "plain": NO_REQUIREMENTS,
        "ranks": NO_REQUIREMENTS,
        "grid_sync": LaunchRequirements(is_cooperative=True),
        "sized": LaunchRequirements(uses_clusters=True, cluster=Dim3(2, 4)),
        "unsized": LaunchRequirements(uses_clusters=True),
    }
    assert read_requirements(ptx, None) == NO_REQUIREMENTS


@pytest.mark.parametrize("kernel_name", load_catalog().kernel_names)
def test_catalogue_kernel_has_an_entry_and_a_report(kernel_name: str) -> None:
    definition, source = load_catalog().definition(kernel_name), load_catalog().source(kernel_name)
    compiled = compile_alone(Build(source, definition.function))
    entry = compiled.entry or find_entry(compiled.code, parse_kernel_source(source).kernel(definition.function), source.file_name)
    usage = read_report(compiled.listings["ptxas.txt"].decode())[entry]
    assert usage.register_count is not None
    assert 0 < usage.register_count <= 255
    assert usage.spill_store_bytes == 0
    assert f".entry {entry}(".encode() in compiled.listings["ptx"]


def test_macros_reach_the_code() -> None:
    source = KernelSource(
        "tile.cu", 'extern "C" __global__ void k(float *y) { __shared__ float s[TILE * sizeof(KIND)]; y[0] = s[threadIdx.x]; }'
    )
    for tile in (16, 32):
        build = Build(source, "k", macros=(ParameterValue("TILE", tile),), options=("-DKIND=double",))
        usage = read_report(compile_alone(build).listings["ptxas.txt"].decode())["k"]
        assert usage.shared_memory_bytes == 4 * 8 * tile


def test_headers_are_found_in_their_directories_and_beside_the_source(factor: Path, tmp_path: Path) -> None:
    directory_with(tmp_path / "headers" / "kernels", near="#define NEAR 1\n")
    source = KernelSource("kernels/scale.cu", '#include "near.h"\n' + SCALE.text)
    assert b"0f40400000" in compile_alone(Build(source, "scale", include_directories=(factor,))).listings["ptx"]


@pytest.mark.parametrize("option", ["-arch=sm_80", "--gpu-architecture=sm_80", "-gencode=arch=compute_80,code=sm_80"])
def test_the_architecture_of_the_request_counts(option: str) -> None:
    build = Build(TEMPLATES, "plain", options=(option,))
    cubins = {
        name: compile_alone(one, architecture).code
        for name, one, architecture in (
            ("asked for", build, SM_90),
            ("sm_80", Build(TEMPLATES, "plain"), "sm_80"),
            ("sm_90", Build(TEMPLATES, "plain"), SM_90),
        )
    }
    flags = {name: cubin[EM_CUDA_ARCHITECTURE_BYTES] for name, cubin in cubins.items()}
    assert flags["asked for"] == flags["sm_80"] != flags["sm_90"]


@pytest.mark.parametrize(
    ("function_name", "entry"),
    [
        ("scale<float, 4>", "_Z5scaleIfLi4EEvPT_"),
        ("scale<number,2*2>", "_Z5scaleIfLi4EEvPT_"),
        ("scale<__half, 16>", "_Z5scaleI6__halfLi16EEvPT_"),
        ("filled<>", "_Z6filledIdLi2EEvPT_"),
        ("filled<float>", "_Z6filledIfLi2EEvPT_"),
        ("chosen<(3 > 2)>", "_Z6chosenILb1EEvPf"),
        ("inner::deep::zero<int>", "_ZN5inner4deep4zeroIiEEvPT_"),
        ("zero<unsigned char>", "_ZN5inner4deep4zeroIhEEvPT_"),
    ],
)
def test_template_instance_is_made_and_found(function_name: str, entry: str) -> None:
    compiled = compile_alone(Build(TEMPLATES, function_name))
    assert compiled.entry == entry
    assert entry in read_report(compiled.listings["ptxas.txt"].decode())
    assert f".text.{entry}".encode() in compiled.code


def test_nothing_is_left_of_what_found_the_instance() -> None:
    """The variable that names the instance is in no listing, and takes no memory of the device."""
    compiled = compile_alone(Build(TEMPLATES, "scale<float, 4>"))
    assert b"kernalyse_instance" not in compiled.code
    assert all(b"kernalyse_instance" not in listing for listing in compiled.listings.values())


def test_listings_are_ptx_report_and_machine_code_where_the_toolkit_has_a_disassembler() -> None:
    nvcc = find_nvcc()
    assert nvcc is not None
    listings = compile_alone(Build(TEMPLATES, "plain")).listings
    has_disassembler = any(find_disassembler(name, Path(nvcc).parent) for name in ("cuobjdump", "nvdisasm"))
    assert set(listings) == {"ptx", "ptxas.txt", *(["sass"] if has_disassembler else [])}
    assert b".target sm_90" in listings["ptx"]
    assert b"Compiling entry function '_Z5plainPf' for 'sm_90'" in listings["ptxas.txt"]
    assert b".loc" in listings["ptx"], "line numbers are needed to show a counter beside its line"


def test_a_kernel_that_spills_says_how_much() -> None:
    text = """extern "C" __global__ void __launch_bounds__(1024) hungry(float *y) {
  float v[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) v[i] = y[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) y[i * 1024 + threadIdx.x] = v[95 - i] * v[(i * 7) % 96];
}"""
    usage = read_report(compile_alone(Build(KernelSource("hungry.cu", text), "hungry")).listings["ptxas.txt"].decode())["hungry"]
    assert usage.register_count == 65536 // 1024
    assert usage.spill_store_bytes is not None
    assert usage.spill_store_bytes > 0
    assert usage.spill_load_bytes is not None
    assert usage.spill_load_bytes > 0
    assert usage.stack_bytes is not None
    assert usage.stack_bytes > 0


# ---------------------------------------------------------------- what is wrong


def test_wrong_line_is_shown_in_the_compilers_words_with_the_configuration() -> None:
    source = KernelSource("directory/wrong.cu", "__global__ void k(float *y) {\n  y[0] = beta + TILE;\n}\n")
    with pytest.raises(CompileError) as error:
        compile_alone(Build(source, "k", macros=(ParameterValue("TILE", 16),)))
    assert error.value.subject == "kernel k TILE=16 of directory/wrong.cu for sm_90"
    assert 'wrong.cu(2): error: identifier "beta" is undefined' in (error.value.found or "")


def test_ptxas_has_its_own_words_too() -> None:
    source = KernelSource("shared.cu", "__global__ void k(float *y) { __shared__ float s[100000]; s[threadIdx.x] = y[0]; y[1] = s[5]; }")
    with pytest.raises(CompileError, match="uses too much shared data"):
        compile_alone(Build(source, "k"))


@pytest.mark.parametrize(
    ("function_name", "error_class", "words"),
    [
        ("scale<float>", UnknownKernelError, "1 template argument"),
        ("plain<float>", UnknownKernelError, "no template"),
        ("missing<float>", UnknownKernelError, "the kernels scale"),
        ("scale<Unknown, 4>", CompileError, r'"Unknown" is undefined'),
    ],
)
def test_instance_that_cannot_be_is_refused(function_name: str, error_class: type[Exception], words: str) -> None:
    with pytest.raises(error_class, match=words):
        compile_alone(Build(TEMPLATES, function_name))


def test_template_without_arguments_is_refused_by_its_name() -> None:
    compiled = compile_alone(Build(TEMPLATES, "scale"))
    with pytest.raises(UnsupportedConstructError, match=r"scale<typename T, int N> without an instance"):
        find_entry(compiled.code, parse_kernel_source(TEMPLATES).kernel("scale"), TEMPLATES.file_name)


def test_text_that_is_no_source_is_refused_before_nvcc() -> None:
    with pytest.raises(InvalidSourceError):
        parse_kernel_source(KernelSource("k.cu", "__global__ void k(float *y) {\0}")).kernel("k")


def test_missing_nvcc_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc_compiler, "find_nvcc", lambda: None)
    with pytest.raises(BackendUnavailableError, match=r"no nvcc.*CUDA_HOME"):
        compile_alone(Build(TEMPLATES, "plain"))


def test_compiler_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc_process, "COMPILE_LIMIT_S", 0.05)
    with pytest.raises(CompileError, match=r"no end of nvcc within"):
        NvccCompiler().compile(Build(TEMPLATES, "plain"), SM_90)


# ---------------------------------------------------------------- what is kept


class Counting(NvccCompiler):
    """Says whether a build came from the cache: its compilation took no time."""

    def is_kept(self, build: Build, architecture: str = SM_90) -> bool:
        return self.compile(build, architecture).compile_ns == 0


@pytest.fixture
def compiler(tmp_path: Path) -> Counting:
    return Counting(CodeCache(tmp_path / "cache"))


def test_second_build_is_the_first_one_and_takes_no_time(compiler: Counting) -> None:
    build = Build(TEMPLATES, "scale<float, 4>")
    first, second = (compiler.compile(build, SM_90) for _ in range(2))
    assert first.compile_ns > 0
    assert second.compile_ns == 0
    assert (first.code, first.entry, first.log, first.listings) == (second.code, second.entry, second.log, second.listings)


@pytest.mark.slow
def test_build_is_kept_by_what_it_is_made_of(compiler: Counting, factor: Path, tmp_path: Path) -> None:
    """Each change costs a compilation, and the way back none. A directory of the same headers is the same, wherever it lies."""
    build = Build(SCALE, "scale", include_directories=(factor,))
    assert not compiler.is_kept(build)
    assert not compiler.is_kept(Build(SCALE, "scale", options=("-O1",), include_directories=(factor,)))
    assert not compiler.is_kept(Build(SCALE, "scale", macros=(ParameterValue("UNUSED", 1),), include_directories=(factor,)))
    assert not compiler.is_kept(build, "sm_80")
    (factor / "factor.h").write_text("#define FACTOR 4.0f\n")
    changed = compiler.compile(build, SM_90)
    assert changed.compile_ns > 0
    assert b"0f40800000" in changed.listings["ptx"]
    copied = directory_with(tmp_path / "elsewhere", factor="#define FACTOR 3.0f\n")
    assert compiler.is_kept(Build(SCALE, "scale", include_directories=(copied,)))
    (factor / "factor.h").write_text("#define FACTOR 3.0f\n")
    assert compiler.is_kept(build)


def test_another_toolkit_compiles_anew(compiler: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Build(TEMPLATES, "plain")
    assert not compiler.is_kept(build)
    version = compiler_version(find_nvcc() or "")
    monkeypatch.setattr(nvcc_compiler, "compiler_version", lambda nvcc: version.replace("release 1", "release 2"))
    assert not compiler.is_kept(build)


def test_options_that_nvcc_takes_from_the_environment_count(compiler: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Build(TEMPLATES, "plain")
    assert not compiler.is_kept(build)
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DLATE=1")
    assert not compiler.is_kept(build)


def test_options_in_a_file_are_never_kept(compiler: Counting, tmp_path: Path) -> None:
    (tmp_path / "options").write_text("-DHIDDEN=1")
    build = Build(TEMPLATES, "plain", options=(f"--options-file={tmp_path / 'options'}",))
    assert not compiler.is_kept(build)
    assert not compiler.is_kept(build)


def test_damaged_entry_is_made_anew(compiler: Counting, tmp_path: Path) -> None:
    build = Build(TEMPLATES, "plain")
    assert not compiler.is_kept(build)
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(kept.read_bytes()[:500])
    assert not compiler.is_kept(build)
    assert compiler.is_kept(build)


COMPILES: Final = """
import sys
from pathlib import Path
from kernalyse.services.core.model import KernelSource
from kernalyse.services.profiler.backends.base import Build
from kernalyse.services.profiler.backends.cuda.compiler import CodeCache
from kernalyse.services.profiler.backends.cuda.compiler import NvccCompiler
build = Build(KernelSource("k.cu", "__global__ void k(float *y) { y[0] = 1; }"), "k")
print(len(NvccCompiler(CodeCache(Path(sys.argv[1]))).compile(build, "sm_90").code))
"""


def test_processes_that_compile_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMPILES, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    sizes_bytes = {process.communicate(timeout=120)[0] for process in processes}
    assert len(sizes_bytes) == 1
    assert int(sizes_bytes.pop()) > 0
    assert [path.suffix for path in tmp_path.iterdir()] == [".zip"]
    assert Counting(CodeCache(tmp_path)).is_kept(Build(KernelSource("k.cu", "__global__ void k(float *y) { y[0] = 1; }"), "k"))
