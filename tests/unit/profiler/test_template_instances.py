"""One instance of a template kernel: how it is named, what it binds, and how its text reads without the template."""

from __future__ import annotations

import pytest

from kernalyse.services.core.errors import UnknownKernelError, UnsupportedConstructError
from kernalyse.services.core.model import DataType, Dim3, KernelSource
from kernalyse.services.profiler.backends.opencl.dialect import Dialect
from kernalyse.services.profiler.backends.opencl.translation import Target, translate
from kernalyse.services.profiler.kernel_sources.functions import InstanceName, SourceFunction, parse_instance_name, parse_kernel_source

TEXT = """namespace lib { template <typename T> struct Box { T N; }; }
template <typename T, int N = 4, class U = T>
__global__ void scale(const T* __restrict__ a, U* b, T factor, int n) {
  T sum = T(); // T and N stay in comments
  lib::Box<T> box; box.N = T(a[0]);
#pragma unroll N
  for (int j = 0; j < N; ++j) sum += lib::N * factor;
  b[0] = sum;
}
template <> __global__ void scale<double>(const double* a, double* b, double factor, int n) { b[0] = a[0]; }
template __global__ void scale<float, 8>(const float*, float*, float, int);
template <typename... Ts> __global__ void pack(Ts... values) {}
__global__ void plain(float* y) { y[0] = 1; }
namespace deep { namespace er { template <class T> __global__ void inner(T* y) { y[0] = 1; } } }
"""


def kernel(function_name: str, text: str = TEXT) -> SourceFunction:
    return parse_kernel_source(KernelSource("a.cu", text)).kernel(function_name)


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("k", "k", None),
        ("k<>", "k", ()),
        ("k<float,16>", "k", ("float", "16")),
        (" ns :: k < unsigned  int , 4 > ", "ns::k", ("unsigned int", "4")),
        ("k<a::b<c, d>, (1, 2)>", "k", ("a::b<c, d>", "(1, 2)")),
        ("k<(4 > 2), T>", "k", ("(4 > 2)", "T")),
    ],
)
def test_a_name_is_split_into_function_and_arguments(text: str, name: str, arguments: tuple[str, ...] | None) -> None:
    assert parse_instance_name(text) == InstanceName(name, arguments)


@pytest.mark.parametrize("text", ["k<float", "k<float>x", "k<float,>", "k<,4>", "k<(4>", "k<a<b>"])
def test_a_name_with_open_brackets_is_refused(text: str) -> None:
    with pytest.raises(UnknownKernelError, match="cannot be read"):
        parse_instance_name(text)


def test_an_instance_has_the_types_of_its_arguments_and_the_templates_defaults() -> None:
    found = kernel("scale<unsigned int, 16>")
    assert found.template_arguments == (("T", "unsigned int"), ("N", "16"), ("U", "unsigned int"))
    assert not found.is_template
    assert [(one.name, one.type_name, one.dtype, one.is_pointer, one.is_const, one.line) for one in found.parameters] == [
        ("a", "unsigned int", DataType.UINT32, True, True, 3),
        ("b", "unsigned int", DataType.UINT32, True, False, 3),
        ("factor", "unsigned int", DataType.UINT32, False, False, 3),
        ("n", "int", DataType.INT32, False, False, 3),
    ]
    assert kernel("scale<float, 2, double>").parameters[1].dtype is DataType.FLOAT64


def test_a_macro_may_be_an_argument() -> None:
    assert kernel("scale<float, TILE>").template_arguments[1] == ("N", "TILE")


def test_a_specialization_is_found_by_its_name_and_the_plain_name_is_still_the_template() -> None:
    assert (kernel("scale<double>").line, kernel("scale<double>").template_parameters) == (10, ())
    assert kernel("scale").is_template


@pytest.mark.parametrize(
    ("instances", "arguments"),
    [
        (("template __global__ void k<float, 8>(float*);",), (("T", "float"), ("N", "8"))),
        (("template __global__ void lib::k<float>(float*);",), (("T", "float"), ("N", "4"))),
        (("template __global__ void k<int>(int*);", "template __global__ void k< int >(int*);"), (("T", "int"), ("N", "4"))),
        (("template __global__ void k<int>(int*);", "template __global__ void k<float>(float*);"), ()),
        (("template __global__ void k<int>(int*);", "template <> __global__ void k<float>(float* y) {}"), ()),
        (("template __global__ void k(int*);",), ()),
        (("template __global__ void other<int>(int*);",), ()),
    ],
)
def test_a_templates_name_means_the_only_explicit_instance(instances: tuple[str, ...], arguments: tuple[tuple[str, str], ...]) -> None:
    found = kernel("k", "template <typename T, int N = 4> __global__ void k(T* y) {}\n" + "\n".join(instances))
    assert found.template_arguments == arguments
    assert found.is_template is not bool(arguments)


def test_a_kernel_in_a_namespace_goes_by_both_names() -> None:
    assert kernel("deep::er::inner<float>").qualified_name == "deep::er::inner"
    assert kernel("inner<float>").parameters[0].dtype is DataType.FLOAT32


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scale<>", r"kernel scale<> of a\.cu: found 0 template arguments; expected 1 to 3: typename T, int N = 4, class U = T"),
        ("scale<float, 1, float, 2>", "found 4 template arguments; expected 1 to 3"),
        ("inner<float, 4>", r"kernel deep::er::inner<float, 4> .*found 2 template arguments; expected 1: class T"),
        ("scale<16, float>", "found 16 for typename T; expected a type"),
        ("scale<float, int>", "found int for int N = 4; expected a value"),
        ("plain<float>", "template arguments for plain, which is no template; expected plain"),
        ("missing<float>", "found the kernels scale, scale<double>, pack, plain, deep::er::inner; expected a __global__ function missing"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(UnknownKernelError, match=message):
        kernel(name)


def test_a_parameter_pack_is_refused_by_name_and_line() -> None:
    with pytest.raises(UnsupportedConstructError, match=r"a\.cu, line 12: found the template parameter typename\.\.\. Ts"):
        kernel("pack<float>")


def translated(function_name: str, text: str = TEXT) -> str:
    target = Target(Dialect.CPLUSPLUS, "a runtime", has_warps=True)
    return translate(parse_kernel_source(KernelSource("a.cu", text)), function_name, Dim3(32), target).text.partition('#line 1 "a.cu"\n')[2]


def test_the_text_of_an_instance_has_its_arguments_on_the_lines_of_the_template() -> None:
    lines = translated("scale<unsigned int, 2*TILE>").split("\n")
    assert lines[1].strip() == ""
    assert lines[2].lstrip().startswith("__global__ void scale(__global const unsigned int* __restrict__ a, __global unsigned int* b,")
    assert lines[3] == "  unsigned int sum = ((unsigned int)0); // T and N stay in comments"
    assert lines[4] == "  lib::Box<unsigned int> box; box.N = (unsigned int)(a[0]);"
    assert lines[5] == "#pragma unroll (2*TILE)"
    assert lines[6] == "  for (int j = 0; j < (2*TILE); ++j) sum += lib::N * factor;"
    assert "double" not in "\n".join(lines)
    assert "scale<" not in "\n".join(lines)


@pytest.mark.parametrize(
    ("macro", "message"),
    [
        ("#define LOAD(p) (T)(p)", "line 1: found the macro LOAD, with the template parameter T in its text of k"),
        ("#define LOAD(p) CAST(p)\n#define CAST(p) ((T)p)", "line 2: found the macro CAST, with the template parameter T"),
        ("#define T double\n#define LOAD(p) p", "line 1: found the macro T, with the name of a template parameter of k"),
    ],
)
def test_a_macro_that_means_the_templates_parameters_is_refused_by_name(macro: str, message: str) -> None:
    text = f"{macro}\ntemplate <typename T> __global__ void k(T* y) {{ T v = LOAD(y[0]); y[0] = v; }}"
    with pytest.raises(UnsupportedConstructError, match=message):
        translated("k<float>", text)


def test_the_only_explicit_instance_is_translated_under_the_templates_name() -> None:
    text = "template <typename T> __global__ void k(T* y) { y[0] = 1; }\ntemplate __global__ void k<float>(float*);\n"
    assert translated("k", text).strip() == "__global__ void k(__global float* y) { y[0] = 1; }"


def test_a_macro_with_a_parameter_of_that_name_is_no_collision() -> None:
    text = "#define LOAD(T) (T)\n#define UNUSED (T)0\ntemplate <typename T> __global__ void k(T* y) { y[0] = LOAD(y[1]); }"
    assert "void k(__global float* y)" in translated("k<float>", text)
