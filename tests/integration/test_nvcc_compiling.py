"""Programs of the NVCC backend, compiled by nvcc for a device that need not be there."""

from __future__ import annotations

import ctypes.util
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from kernalyse.services.core.errors import BackendUnavailableError, CompileError, UnknownKernelError
from kernalyse.services.core.model import KernelSource, ParameterValue
from kernalyse.services.profiler.backends.base import Build
from kernalyse.services.profiler.backends.cuda import nvcc_programs
from kernalyse.services.profiler.backends.cuda.compiler import CodeCache, read_report
from kernalyse.services.profiler.backends.cuda.nvcc_programs import BuiltProgram, ProgramBuilder, write_program
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from tests.integration.nvcc_stand_in import ARCHITECTURE, needs_nvcc, real_builder

pytestmark = needs_nvcc

NO_DEVICE: Final = ("error 35 cudaErrorInsufficientDriver", "error 100 cudaErrorNoDevice", "error 34 cudaErrorStubLibrary")
has_driver = ctypes.util.find_library("cuda") is not None


def _build(build: Build, directory: Path, cache: CodeCache | None = None) -> BuiltProgram:
    """cache: another one than that of all tests."""
    builder = real_builder() if cache is None else ProgramBuilder(ARCHITECTURE, cache)
    return builder.build(write_program(build.source, build.function_name), build, directory / "program")


def _ask(built: BuiltProgram, commands: str) -> list[str]:
    """What the program answers to commands that are piped in; it has to end by itself, and well."""
    result = subprocess.run([built.executable], input=commands, capture_output=True, text=True, timeout=60, check=True)
    assert result.stderr == ""
    return result.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(has_driver, reason="this machine has a CUDA driver: the program would find a device")
@pytest.mark.parametrize("kernel_name", ["matmul_tiled", "layernorm"])
def test_catalogue_kernel_compiles_and_says_that_there_is_no_device(kernel_name: str, tmp_path: Path) -> None:
    definition, source = load_catalog().definition(kernel_name), load_catalog().source(kernel_name)
    built = _build(Build(source, definition.function), tmp_path)
    assert built.log == ""
    assert built.options == "-arch=sm_90 -lineinfo"
    answers = _ask(built, "open 0\nmemory\n")
    assert answers[0].startswith(NO_DEVICE)
    assert answers[1] == "error 0 program no device is open"


TWISTED: Final = KernelSource(
    "inner/twisted kernel.cu",
    """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>
#include "amount.h"
#include <shared/factor.h>
#define count 7
#define check(x) broken x
#define memory "memory"
typedef unsigned uint;
namespace outer { namespace {
template <typename T, int N, class Rest = long>
__global__ void __launch_bounds__(128)
twisted(const T* __restrict__ x, T* y, T scale, char c, signed char sc, unsigned char uc, int8_t i8, uint8_t u8, int i,
        unsigned u, uint ui, int32_t i32, uint32_t u32, long l, unsigned long ul, long long ll, unsigned long long ull,
        int64_t i64, uint64_t u64, size_t size, float f, double d, __half h, __nv_bfloat16 b, const float* const* rows) {
    extern __shared__ float shared[];
    shared[threadIdx.x] = FACTOR + AMOUNT + TILE;
    y[0] = x[0];
    printf("%d", count);
}
} }
int main(int argc, char** argv) { return argc + (argv != nullptr); }
""",
)


def test_what_sources_may_have_compiles_at_once(tmp_path: Path) -> None:
    """Every scalar type, a template in namespaces, macros, headers beside it and in directories, a main of its own."""
    for name, text in (("inner/amount.h", "#define AMOUNT 2"), ("shared/factor.h", "#define FACTOR 3")):
        (tmp_path / "bundle" / name).parent.mkdir(parents=True)
        (tmp_path / "bundle" / name).write_text(text)
    build = Build(
        TWISTED,
        "twisted<float, (3 > 2)>",
        macros=(ParameterValue("TILE", 16),),
        options=("-std=c++17", "-arch=sm_80", "--use_fast_math"),
        include_directories=(tmp_path / "bundle",),
    )
    built = _build(build, tmp_path)
    assert built.executable.is_file()
    assert built.options.startswith("-lineinfo -DTILE=16 -std=c++17 -arch=sm_80 --use_fast_math")


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("__global__ void k(float* y) {\n  y[0] = beta;\n}\n", "k", r'wrong\.cu\(2\): error: identifier "beta" is undefined'),
        ("__global__ void k(float* y) {\n  y[0] = 1\n}\n", "k", r"wrong\.cu\(3\): error: expected a"),
        ("template <class T> __global__ void k(float* y) {}\n", "k<Missing>", 'identifier "Missing" is undefined'),
    ],
    ids=["unknown name", "missing semicolon", "other template argument"],
)
def test_wrong_source_shows_the_compilers_own_lines(text: str, name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=words) as error:
        _build(Build(KernelSource("wrong.cu", text), name), tmp_path)
    assert error.value.subject == f"kernel {name} of wrong.cu for sm_90"


def test_overloaded_kernel_is_refused(tmp_path: Path) -> None:
    text = "__global__ void k(float* y) {}\n__global__ void k(int* y) {}\n"
    with pytest.raises(UnknownKernelError, match=r"kernel k of k\.cu: found several functions of that name"):
        _build(Build(KernelSource("k.cu", text), "k"), tmp_path)


def test_remarks_of_the_compiler_are_kept(tmp_path: Path) -> None:
    built = _build(Build(KernelSource("k.cu", "__global__ void k(float* y) { int unused; }\n"), "k"), tmp_path)
    assert 'k.cu(1): warning #177-D: variable "unused" was declared but never referenced' in built.log


def test_missing_nvcc_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc_programs, "find_nvcc", lambda: None)
    with pytest.raises(BackendUnavailableError, match=r"no nvcc to compile with.*CUDA toolkit.*CUDA_HOME"):
        _build(Build(KernelSource("k.cu", "__global__ void k() {}\n"), "k"), tmp_path)


def test_device_that_the_toolkit_does_not_know_is_said_to_be_so(tmp_path: Path) -> None:
    builder = ProgramBuilder("sm_999")
    build = Build(KernelSource("k.cu", "__global__ void k() {}\n"), "k")
    with pytest.raises(BackendUnavailableError, match=r"sm_999: found nvcc says:\n.*sm_999.*\n; .*Update the CUDA toolkit"):
        builder.build(write_program(build.source, "k"), build, tmp_path / "program")


@pytest.mark.slow
def test_programs_are_kept_for_the_next_process_until_a_header_changes(tmp_path: Path) -> None:
    header = tmp_path / "directory" / "factor.h"
    header.parent.mkdir()
    header.write_text("#define FACTOR 2\n")
    text = '#include "factor.h"\n__global__ void k(float* y) { int unused; y[0] = FACTOR; }\n'
    build = Build(KernelSource("k.cu", text), "k", include_directories=(header.parent,))
    cache = CodeCache(tmp_path / "cache")
    first, second = _build(build, tmp_path / "first", cache), _build(build, tmp_path / "second", cache)
    assert first.compile_ns > 0
    assert second.compile_ns == 0
    assert second.executable.read_bytes() == first.executable.read_bytes()
    assert (second.log, second.listings, second.options) == (first.log, first.listings, first.options)
    assert _ask(second, "memory\n") == ["error 0 program no device is open"]
    header.write_text("#define FACTOR 3\n")
    assert _build(build, tmp_path / "third", cache).compile_ns > 0
    assert _build(replace(build, macros=(ParameterValue("OTHER", 1),)), tmp_path / "fourth", cache).compile_ns > 0


def test_listings_are_those_of_the_kernels_own_file(tmp_path: Path) -> None:
    text = "namespace lib { template <class T> __global__ void k(T* y) { y[0] = 1; } }\n__global__ void other(int* y) { y[0] = 2; }\n"
    listings = _build(Build(KernelSource("k.cu", text), "k<float>"), tmp_path).listings
    entry = "_ZN3lib1kIfEEvPT_"
    assert f".visible .entry {entry}(".encode() in listings["ptx"]
    usages = read_report(listings["ptxas.txt"].decode())
    assert set(usages) == {entry, "_Z5otherPi"}
    assert usages[entry].spill_store_bytes == 0
