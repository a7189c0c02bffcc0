"""A kernel outside the catalog gets a definition, and every assumption in it is said."""

from __future__ import annotations

import pytest

from kernalyse.services.core.errors import InvalidCatalogError, InvalidParameterError, UnknownParameterError, UnsupportedConstructError
from kernalyse.services.core.expressions import parse_expression
from kernalyse.services.core.model import BufferRole, KernelSource
from kernalyse.services.profiler.kernel_sources.catalog import derive_definition

MATMUL = KernelSource("mm.cu", "__global__ void mm(const float* a, const float* b, float* c, int M, int N, int K) {}")
AXPY = KernelSource("axpy.cu", "__global__ void axpy(float alpha, const float* x, float* y, int n) {}")


def test_size_is_the_product_of_the_two_largest_parameters_in_every_configuration() -> None:
    definition, notices = derive_definition(MATMUL, "mm")
    (size,) = definition.buffers[0].shape
    for m, n, k in ((2, 3, 5), (7, 3, 5), (4, 4, 4), (9, 1, 8)):
        largest, second = sorted((m, n, k))[:0:-1]
        assert parse_expression(size).evaluate_integer({"M": m, "N": n, "K": k}) == largest * second
    assert any("a, b, c: taken to have the product of the two largest of M, N, K elements" in notice for notice in notices)


def test_const_pointers_are_read_and_others_read_and_written() -> None:
    definition, _ = derive_definition(MATMUL, "mm")
    assert [buffer.role for buffer in definition.buffers] == [BufferRole.INPUT, BufferRole.INPUT, BufferRole.INPUT_OUTPUT]


def test_grid_covers_rows_along_y_and_columns_along_x() -> None:
    assert derive_definition(MATMUL, "mm")[0].launch.grid == ("ceil_div(N, block_x)", "ceil_div(M, block_y)")
    assert derive_definition(AXPY, "axpy")[0].launch.grid == ("ceil_div(n, block_x)",)
    assert derive_definition(AXPY, "axpy")[0].launch.block == ("256",)


@pytest.mark.parametrize(("names", "x", "y"), [("rows, cols", "cols", "rows"), ("N, K", "N", "K"), ("K, M", "K", "M"), ("N, M", "N", "M")])
def test_grid_follows_names_before_order(names: str, x: str, y: str) -> None:
    text = "__global__ void k(float* a, " + ", ".join(f"int {name}" for name in names.split(", ")) + ") {}"
    assert derive_definition(KernelSource("k.cu", text), "k")[0].launch.grid == (f"ceil_div({x}, block_x)", f"ceil_div({y}, block_y)")


def test_what_the_user_says_replaces_assumptions() -> None:
    definition, notices = derive_definition(
        AXPY, "axpy", values={"n": (8, 16)}, buffers={"x": "n", "y": "2*n"}, arguments={"alpha": "3.0"}, flop="2*n", bytes="12*n"
    )
    assert [buffer.shape for buffer in definition.buffers] == [("n",), ("2*n",)]
    assert definition.parameters[0].default_values == (8, 16)
    assert definition.arguments[0].expression == "3.0"
    assert (definition.flop, definition.bytes) == ("2*n", "12*n")
    assert len(notices) == 1
    assert "grid" in notices[0]


def test_assumed_scalar_and_missing_formulas_are_said() -> None:
    _, notices = derive_definition(AXPY, "axpy")
    assert any(notice.startswith("alpha: taken to be 1.0") for notice in notices)
    assert any("Without --flop and --bytes" in notice for notice in notices)


def test_integer_given_as_argument_is_no_parameter() -> None:
    definition, _ = derive_definition(MATMUL, "mm", arguments={"K": "64"})
    assert [parameter.name for parameter in definition.parameters] == ["M", "N"]
    assert definition.arguments[0].expression == "64"


@pytest.mark.parametrize("given", [{"buffers": {"z": "n"}}, {"arguments": {"beta": "1"}}, {"values": {"m": (1,)}}])
def test_unknown_names_are_refused(given: dict[str, dict[str, str]]) -> None:
    with pytest.raises(UnknownParameterError, match="no such name in kernel axpy"):
        derive_definition(AXPY, "axpy", **given)  # type: ignore[arg-type]


def test_wrong_expression_is_refused() -> None:
    with pytest.raises(InvalidCatalogError, match=r"buffers\.x\.shape"):
        derive_definition(AXPY, "axpy", buffers={"x": "m"})


def test_pointer_without_any_size_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="--buffer y=1024"):
        derive_definition(KernelSource("k.cu", "__global__ void k(float* y) {}"), "k")


def test_type_that_cannot_be_passed_is_refused_with_its_line() -> None:
    with pytest.raises(UnsupportedConstructError, match=r"k\.cu, line 2: found the parameter p of type Point"):
        derive_definition(KernelSource("k.cu", "struct Point { int x; };\n__global__ void k(Point p) {}"), "k")


def test_vector_pointer_counts_its_components() -> None:
    definition, _ = derive_definition(KernelSource("k.cu", "__global__ void k(float4* y, int n) {}"), "k")
    assert definition.buffers[0].shape == ("n", "4")


@pytest.mark.parametrize(
    ("parameters", "example"), [("typename T, int B", "scale<float, 16>"), ("class T", "scale<float>"), ("int B = 4", "scale<16>")]
)
def test_template_without_its_arguments_is_refused_with_an_instance_that_could_be_meant(parameters: str, example: str) -> None:
    source = KernelSource("t.cu", f"template <{parameters}> __global__ void scale(float* x, int N) {{}}")
    with pytest.raises(UnsupportedConstructError, match=f"scale<{parameters}> without its arguments.*for example {example}"):
        derive_definition(source, "scale")
    assert derive_definition(source, example)[0].kernel_name == example
