"""kernalyse.services.analyzer.readers.ncu.run_counters: one kernel under the names that tools give it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.analyzer.readers.ncu.run_counters import KernelNameSpellings, base_name

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, std::array<char*, 3ul> >(int, char*)"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("saxpy(int, const float *)", "saxpy(int, float const*)"),
        ("void saxpy<(int)4, (bool)1>(float*)", "void saxpy<4, true>(float *)"),
        ("(anonymous namespace)::gemm(float *)", "<unnamed>::gemm(float*)"),
        ("(anonymous namespace)::gemm(float *)", "unnamed>::gemm(float *)"),
        ("void f<std::array<char *, (unsigned long)3>>()", "void f<std::array<char*, 3ul> >()"),
        ("f<(Kind)0>(int) [clone .constprop.0]", "void f<0>(int)"),
    ],
)
def test_two_ways_to_write_a_name_are_one_signature(one: str, other: str) -> None:
    assert KernelNameSpellings.of(one).signature == KernelNameSpellings.of(other).signature


@pytest.mark.parametrize(
    ("name", "function"),
    [
        (ELEMENTWISE, "vectorized_elementwise_kernel"),
        ("vectorized_elementwise_kernel", "vectorized_elementwise_kernel"),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4EEEvi", "vectorized_elementwise_kernel"),
        ("_Z5saxpyifPf", "saxpy"),
        ("_ZL5saxpyifPf", "saxpy"),
        ("_ZN12_GLOBAL__N_15saxpyEifPf", "saxpy"),
        ("_Z99broken", "_Z99broken"),
        ("std::enable_if<!(bool)0, void>::type ns::scan<float>(float *)", "scan"),
        ("void outer<ns::call()::{lambda(int)#1}>(ns::call()::{lambda(int)#1})", "outer"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64>(cutlass_80_tensorop_s1688gemm_128x64::Params)", "Kernel2"),
        ("void unnamed>::gemm_tiled_kernel<(int)16>(const float *, int)", "gemm_tiled_kernel"),
        ("", ""),
    ],
)
def test_the_function_is_what_is_left_of_every_form(name: str, function: str) -> None:
    assert KernelNameSpellings.of(name).function == function


def test_an_instance_has_no_parameters_and_keeps_its_template_arguments() -> None:
    assert KernelNameSpellings.of(ELEMENTWISE).instance == KernelNameSpellings.of(ELEMENTWISE.rpartition("(")[0]).signature
    assert KernelNameSpellings.of("void f<4>(int)").instance != KernelNameSpellings.of("void f<8>(int)").instance


def test_a_name_that_is_cut_behind_the_function_still_tells_it() -> None:
    assert base_name("void ns::gemm<float, ns::Tile<1") == "gemm"


WORDS = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(lambda word: word not in ("true", "false", "const", "void"))


@given(function=WORDS, arguments=st.lists(WORDS, min_size=1, max_size=4), parameters=st.lists(WORDS, max_size=4))
def test_blanks_namespaces_and_return_type_change_no_form(function: str, arguments: list[str], parameters: list[str]) -> None:
    loose = f"void (anonymous namespace)::{function}< {' , '.join(arguments)} >({', '.join(parameters)})"
    dense = f"{function}<{','.join(arguments)}>({','.join(parameters)})"
    assert KernelNameSpellings.of(loose) == KernelNameSpellings.of(dense)
    assert KernelNameSpellings.of(dense).function == function


@given(st.text(max_size=200))
def test_any_text_has_forms(name: str) -> None:
    assert all(isinstance(form, str) for form in KernelNameSpellings.of(name).most_specific_first)
