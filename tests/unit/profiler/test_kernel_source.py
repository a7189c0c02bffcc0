"""What the parser sees in a .cu text."""

from __future__ import annotations

import pytest

from kernalyse.services.core.errors import InvalidSourceError, UnknownKernelError
from kernalyse.services.core.model import DataType, KernelSource
from kernalyse.services.profiler.kernel_sources.functions import ParsedSource, parse_kernel_source
from kernalyse.services.profiler.kernel_sources.syntax import fixed_line, has_includes, is_mentioned

TEXT = """#include <cuda_runtime.h>
// __global__ void commented(float* y) {}
__device__ float twice(float v) { return 2 * v; }
template <typename T, int B>
__global__ void generic(T* y) { y[0] = B; }
extern "C" __global__ void __launch_bounds__(256) saxpy(
    int n, const float alpha, const float* __restrict__ x, float *y,
    unsigned long long count, size_t pitch, const float4* v, double d[], Thing t) {
  extern __shared__ __align__(16) unsigned char raw[];
  y[0] = twice(alpha);
}
int main() { saxpy<<<1, 2>>>(); return 0; }
"""


def _parse(text: str) -> ParsedSource:
    return parse_kernel_source(KernelSource("a.cu", text))


def test_kernels_and_helpers_are_found_with_their_lines() -> None:
    parsed = _parse(TEXT)
    assert [(kernel.name, kernel.line) for kernel in parsed.kernels] == [("generic", 5), ("saxpy", 6)]
    assert [helper.name for helper in parsed.device_functions] == ["twice"]
    assert parsed.problems == ()


def test_attributes_that_the_grammar_lacks_hide_nothing() -> None:
    parsed = _parse("""#define WARPS 8
extern "C" __global__ void __cluster_dims__(2, (1), 1) __launch_bounds__(32 * WARPS) k(int *y) { y[0] = 1; }
__global__ void __maxnreg__(64) second(float *x) { x[0] = 1; }
""")
    assert [(kernel.name, kernel.line) for kernel in parsed.kernels] == [("k", 2), ("second", 3)]
    assert parsed.problems == ()


def test_parameters_carry_type_pointer_const_and_line() -> None:
    parameters = _parse(TEXT).kernel("saxpy").parameters
    assert [(one.name, one.type_name, one.is_pointer, one.is_const, one.dtype, one.component_count, one.line) for one in parameters] == [
        ("n", "int", False, False, DataType.INT32, 1, 7),
        ("alpha", "float", False, True, DataType.FLOAT32, 1, 7),
        ("x", "float", True, True, DataType.FLOAT32, 1, 7),
        ("y", "float", True, False, DataType.FLOAT32, 1, 7),
        ("count", "unsigned long long", False, False, DataType.UINT64, 1, 8),
        ("pitch", "size_t", False, False, DataType.UINT64, 1, 8),
        ("v", "float4", True, True, DataType.FLOAT32, 4, 8),
        ("d", "double", True, False, DataType.FLOAT64, 1, 8),
        ("t", "Thing", False, False, None, 1, 8),
    ]


def test_template_parameters_and_dynamic_shared_memory_are_noted() -> None:
    parsed = _parse(TEXT)
    assert parsed.kernel("generic").template_parameters == ("typename T", "int B")
    assert parsed.kernel("generic").is_template
    assert parsed.kernel("saxpy").uses_dynamic_shared_memory
    assert not parsed.kernel("generic").uses_dynamic_shared_memory


def test_unknown_kernel_names_those_there_are() -> None:
    with pytest.raises(UnknownKernelError, match="found the kernels generic, saxpy"):
        _parse(TEXT).kernel("sapxy")


def test_text_without_kernels_says_so() -> None:
    with pytest.raises(UnknownKernelError, match="no __global__ function"):
        _parse("int main() { return 0; }").kernel("k")


def test_kernel_lost_in_unreadable_text_is_a_source_error_with_its_line() -> None:
    with pytest.raises(InvalidSourceError, match=r"a\.cu, line 2"):
        _parse("int a;\n__global__ void k(float* y { y[0] = ; }").kernel("k")


def test_broken_body_leaves_the_kernel_to_the_compiler() -> None:
    assert _parse("__global__ void k(float *y) { y[0]=1 }").kernel("k").parameters[0].name == "y"


@pytest.mark.parametrize("text", ["", "  \n", "__global__ \0 void k() {}"])
def test_text_that_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(InvalidSourceError):
        _parse(text)


def test_deeply_nested_text_does_not_exhaust_the_stack() -> None:
    depth = 3000
    parsed = _parse("__global__ void k(float* y) { y[0] = " + "(" * depth + "1" + ")" * depth + "; }")
    assert parsed.kernel("k").name == "k"


def test_constants_that_leave_room_for_another_value_are_told_from_those_that_do_not() -> None:
    text = "\n".join(
        [
            "#ifndef TILE  // of a block",
            "#define TILE 0x10  // threads",
            "#define DEPTH 4",
            "#endif",
            "#ifdef FAST",
            "#define WIDTH 4",
            "#endif",
            "#define EDGE (TILE / 4)",
            "#ifndef HALF",
            "#define HALF (TILE / 2)",
            "#endif",
            "__global__ void k(float* y) { y[0] = WIDTH; }",
        ]
    )
    parsed = _parse(text)
    assert parsed.constants == {"TILE": 16}
    root = parsed.tree.root_node
    assert {name: fixed_line(root, name) for name in ("TILE", "DEPTH", "WIDTH", "EDGE", "HALF", "y")} == {
        **dict.fromkeys(("TILE", "DEPTH", "WIDTH", "HALF", "y")),
        "EDGE": 8,
    }
    assert [name for name in ("TILE", "WIDTH", "FAST", "threads", "WID") if is_mentioned(root, name)] == ["TILE", "WIDTH", "FAST"]
    assert (has_includes(root), has_includes(_parse(TEXT).tree.root_node)) == (False, True)
