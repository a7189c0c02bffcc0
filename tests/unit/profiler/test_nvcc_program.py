"""The program that is written for a kernel: which kernel a name means, and the text around it."""

from __future__ import annotations

import pytest

from kernalyse.services.core.errors import UnsupportedConstructError
from kernalyse.services.core.model import KernelSource
from kernalyse.services.profiler.backends.cuda.nvcc_programs import write_program
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog

SOURCE = KernelSource(
    "directory/kernels.cu",
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
template <typename T> __global__ void special(T value) {}
template <> __global__ void special<int>(int value) {}
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
        ("once<double>", "::once<double>"),
        ("once", "::once<double>"),
        ("special<int>", "::special<int>"),
    ],
)
def test_kernel_has_the_name_that_cpp_finds_it_by(asked: str, qualified: str) -> None:
    assert f"kernalyse_entry_of(&{qualified})" in write_program(SOURCE, asked).main_text


@pytest.mark.parametrize("name", ["scale", "twice", "special"])
def test_a_template_with_a_choice_of_instances_needs_its_arguments(name: str) -> None:
    words = rf"kernels.cu, line \d+: found the template kernel {name}<.*without its arguments.*for example {name}<float[,>]"
    with pytest.raises(UnsupportedConstructError, match=words):
        write_program(SOURCE, name)


# ---------------------------------------------------------------- the program's text


@pytest.mark.parametrize("kernel_name", load_catalog().kernel_names)
def test_every_catalogue_kernel_becomes_a_program(kernel_name: str) -> None:
    definition, source = load_catalog().definition(kernel_name), load_catalog().source(kernel_name)
    program = write_program(source, definition.function)
    assert f'#include "{definition.source_file_name}"' in program.main_text
    assert f"kernalyse_entry_of(&::{definition.function})" in program.main_text
    assert program.signature.name == definition.function


def test_program_includes_the_source_under_its_own_name() -> None:
    program = write_program(SOURCE, "once<double>")
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
