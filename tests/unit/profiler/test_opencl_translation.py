"""The text that an OpenCL runtime is given: the user's lines keep their numbers, and only what must change does."""

from __future__ import annotations

import pytest

from kernalyse.services.core.model import Dim3, KernelSource
from kernalyse.services.profiler.backends.opencl.dialect import Dialect
from kernalyse.services.profiler.backends.opencl.translation import Target, Translation, translate
from kernalyse.services.profiler.kernel_sources.functions import parse_kernel_source

TEXT = """#include <cuda_runtime.h>
__device__ float at(const float* p,
                    int j) {
  return p[j];
}
__global__ void other(float** y) { y[0][0] = 1; }
__global__ void k(const float* x, float* y, int n) {
  extern __shared__ float s[];
  for (int j = 0; j < n; ++j) {
    __shared__ float t[4];
    t[threadIdx.x] = at(x, j);
    y[j] = at(t, 0);
  }
  y[0] = s[0];
}
int main() {
  k<<<1, 4>>>(0, 0, 0);
}
"""


def _translate(text: str, dialect: Dialect, function_name: str = "k") -> Translation:
    return translate(parse_kernel_source(KernelSource("a.cu", text)), function_name, Dim3(32), Target(dialect, "a runtime", has_warps=True))


def _user_lines(translation: Translation) -> dict[int, list[str]]:
    """Non-empty lines of the user's part by the number that a compiler reports, following #line."""
    lines: dict[int, list[str]] = {}
    number, file_name = 0, ""
    for line in translation.text.split("\n"):
        if line.startswith("#line"):
            _, start, file_name = line.split(maxsplit=2)
            number = int(start)
            continue
        if file_name == '"a.cu"' and line.strip():
            lines.setdefault(number, []).append(line.strip())
        number += 1
    return lines


@pytest.mark.parametrize("dialect", Dialect)
def test_every_line_keeps_its_number(dialect: Dialect) -> None:
    lines = _user_lines(_translate(TEXT, dialect))
    assert all("return p[j];" in line for line in lines[4])
    assert "for (int j = 0; j < n; ++j) {" in lines[9][0]
    assert lines[12] == [line for line in lines[12] if line.startswith("y[j] = at(t_")]
    assert lines[14] == ["y[0] = s[0];"]


@pytest.mark.parametrize("dialect", Dialect)
def test_host_code_and_other_kernels_are_left_out(dialect: Dialect) -> None:
    text = _translate(TEXT, dialect).text
    assert "main" not in text
    assert "other" not in text
    assert "#include" not in text


def test_c_gets_one_overload_per_memory_that_a_helper_is_called_with() -> None:
    lines = _user_lines(_translate(TEXT, Dialect.C))
    assert [line.split("(")[1].split(" ")[0] for line in lines[2]] == ["__global", "__local"]
    assert len(_user_lines(_translate(TEXT, Dialect.CPLUSPLUS))[2]) == 1


def test_dynamic_shared_memory_becomes_one_more_argument() -> None:
    translation = _translate(TEXT, Dialect.CPLUSPLUS)
    assert translation.uses_dynamic_shared_memory
    assert "int n, __local char* kernalyse_dynamic_shared) {" in translation.text
    assert not _translate("__global__ void k(float* y) {}", Dialect.CPLUSPLUS).uses_dynamic_shared_memory


@pytest.mark.parametrize(
    ("statement", "read_as"),
    [
        ("int i = blockIdx.x * 4 + n;", "int"),
        ("n = blockIdx.x;", "int"),
        ("n += blockIdx.x;", "int"),
        ("unsigned i = blockIdx.x;", "uint"),
        ("auto i = blockIdx.x;", "uint"),
        ("int i = blockIdx.x - 1;", "uint"),
        ("int i = blockIdx.x / 2;", "uint"),
        ("if (blockIdx.x < n) n = 0;", "uint"),
        ("y[blockIdx.x] = 0;", "int"),
        ("y[blockIdx.x * 4 + n] = 0;", "long"),
        ("y[0] = blockIdx.x;", "uint"),
        ("y[0] = fmaxf(blockIdx.x, 1.0f);", "uint"),
    ],
)
def test_index_is_signed_only_where_its_value_cannot_differ(statement: str, read_as: str) -> None:
    text = _translate(f"__global__ void k(float* y, int n) {{ {statement} }}", Dialect.CPLUSPLUS).text
    assert f"(({read_as})get_group_id(0))" in text


def test_kernel_with_shuffles_asks_for_sub_groups_of_a_warp() -> None:
    translation = _translate("__global__ void k(float* y) { y[0] = __shfl_sync(~0u, y[0], 0); }", Dialect.CPLUSPLUS)
    assert translation.uses_warps
    assert "__attribute__((intel_reqd_sub_group_size(32))) __global__ void k" in translation.text
