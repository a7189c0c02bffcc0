"""Which kernel a name means, and the program that is written for it."""

from __future__ import annotations

import pytest

from services.core.errors import UnknownKernelError, UnsupportedConstructError
from services.core.model import DataType, KernelSource
from services.profiler.backends.kernel_instance import find_instance, split_template_arguments
from services.profiler.backends.kernel_source import parse_kernel_source
from services.profiler.backends.nvcc_program import write_program
from services.profiler.catalog import load_catalog

SOURCE = KernelSource(
    "folder/kernels.cu",
    """
extern "C" __global__ void plain(int n) {}
namespace math { namespace inner {
template <typename T, int N = 4, class U = float>
__global__ void scale(T* y, const T a, U b, unsigned n) {}
} }
namespace math::flat { __global__ void nested(double* y) {} }
namespace { __global__ void hidden(float* y) {} }
template <typename T> __global__ void once(T value) {}
template __global__ void once<double>(double);
template <typename T> __global__ void twice(T value) {}
template __global__ void twice<double>(double);
template __global__ void twice<float>(float);
template <typename T> __global__ void takes(T value) {}
""",
)


@pytest.mark.parametrize(
    ("asked", "qualified"),
    [
        ("plain", "::plain"),
        ("scale<float, 8>", "::math::inner::scale<float, 8>"),
        ("scale<Pair<int, 2>,(3 > 2),double>", "::math::inner::scale<Pair<int, 2>, (3 > 2), double>"),
        ("math::inner::scale<float>", "::math::inner::scale<float>"),
        ("nested", "::math::flat::nested"),
        ("hidden", "::hidden"),
        ("once", "::once<double>"),
    ],
)
def test_kernel_has_the_name_that_cpp_finds_it_by(asked: str, qualified: str) -> None:
    assert find_instance(parse_kernel_source(SOURCE), asked).qualified_name == qualified


def test_template_arguments_fill_the_signature() -> None:
    signature = find_instance(parse_kernel_source(SOURCE), "scale<double, 8>").signature
    assert [(one.name, one.type_name, one.dtype, one.is_pointer) for one in signature.parameters] == [
        ("y", "double", DataType.FLOAT64, True),
        ("a", "double", DataType.FLOAT64, False),
        ("b", "float", DataType.FLOAT32, False),
        ("n", "unsigned", DataType.UINT32, False),
    ]


@pytest.mark.parametrize(
    ("argument", "dtype", "is_pointer"),
    [("__half", DataType.FLOAT16, False), ("const float*", DataType.FLOAT32, True), ("Point", None, False)],
)
def test_an_argument_may_be_a_pointer_or_a_type_of_the_source(argument: str, dtype: DataType | None, is_pointer: bool) -> None:
    (parameter,) = find_instance(parse_kernel_source(SOURCE), f"takes<{argument}>").signature.parameters
    assert (parameter.dtype, parameter.is_pointer) == (dtype, is_pointer)


@pytest.mark.parametrize(("name", "found"), [("twice", "with 2 instances"), ("takes", "without an instance")])
def test_template_without_arguments_is_refused(name: str, found: str) -> None:
    with pytest.raises(UnsupportedConstructError, match=rf"folder/kernels.cu, line \d+: found .*{found}.*for example {name}<float>"):
        find_instance(parse_kernel_source(SOURCE), name)


def test_unknown_kernel_names_those_of_the_file() -> None:
    with pytest.raises(UnknownKernelError, match="the kernels plain, scale"):
        find_instance(parse_kernel_source(SOURCE), "skale<float>")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("k", ("k", ())),
        ("a::k<float>", ("a::k", ("float",))),
        ("k<A<B<int>>, f(1, 2), {3, 4}>", ("k", ("A<B<int>>", "f(1, 2)", "{3, 4}"))),
    ],
)
def test_template_arguments_are_split_outside_brackets(text: str, parts: tuple[str, tuple[str, ...]]) -> None:
    assert split_template_arguments(text) == parts


# ---------------------------------------------------------------- the program's text


@pytest.mark.parametrize("kernel_name", load_catalog().kernel_names)
def test_every_catalogue_kernel_becomes_a_program(kernel_name: str) -> None:
    definition, source = load_catalog().definition(kernel_name), load_catalog().source(kernel_name)
    program = write_program(source, definition.function)
    assert f'#include "{definition.source_file_name}"' in program.main_text
    assert f"kernalyse_entry_of(&::{definition.function})" in program.main_text
    assert program.signature.name == definition.function


def test_program_includes_the_source_under_its_own_name() -> None:
    program = write_program(SOURCE, "once")
    assert program.source_file_name == "kernels.cu"
    assert '#include "kernels.cu"' in program.main_text
    assert "kernalyse_entry_of(&::once<double>)" in program.main_text


@pytest.mark.parametrize("name", ['od"d.cu', "back\\slash.cu", "", "kernalyse_program.cu"])
def test_a_name_that_cannot_be_included_is_replaced(name: str) -> None:
    assert write_program(KernelSource(name, SOURCE.text), "plain").source_file_name == "kernel.cu"


def test_macros_of_the_source_cannot_meet_names_of_the_program() -> None:
    """Whatever follows the source is C++ itself, or a name that begins with kernalyse_."""
    text = write_program(SOURCE, "plain").main_text.partition("#undef main\n")[2]
    code = "\n".join(line.partition("//")[0] for line in text.splitlines())
    words = {
        word for word in "".join(letter if letter.isalnum() or letter == "_" else " " for letter in code).split() if not word.isdigit()
    }
    language = {"struct", "const", "void", "unsigned", "long", "extern", "C", "template", "typename", "return", "static", "sizeof"}
    preprocessor = {"ifndef", "define", "endif", "KERNALYSE_KERNEL_ENTRY"}
    assert {word for word in words if not word.startswith("kernalyse_")} == language | preprocessor | {"reinterpret_cast", "plain"}
