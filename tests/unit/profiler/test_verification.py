"""kernalyse.services.profiler.measuring.verification and inputs: what counts as a right result, and what a kernel is given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kernalyse.services.core.errors import InvalidParameterError, MemoryLimitError
from kernalyse.services.core.model import BufferDefinition, BufferRole, DataType, Device, DeviceKind, InputDistribution, VerificationState
from kernalyse.services.profiler.kernel_sources.functions import SourceParameter
from kernalyse.services.profiler.measuring.buffers import (
    Array,
    BufferPlan,
    array_type,
    bind_arguments,
    check_fits,
    convert_scalar,
    input_values,
    plan_buffer,
    poison_values,
)
from kernalyse.services.profiler.measuring.verification import ReferenceResults, compare

REFERENCE = np.array([[1.0, -4.0], [2.0, 3.0]], np.float32)


def buffer_plan(name: str = "a", shape: tuple[int, ...] = (8, 8), dtype: DataType = DataType.FLOAT32) -> BufferPlan:
    return BufferPlan(name, shape, dtype, BufferRole.INPUT)


# ---------------------------------------------------------------- comparing


def test_equal_outputs_pass_with_zero_error() -> None:
    verification = compare({"c": REFERENCE.copy()}, {"c": REFERENCE}, 1e-5)
    assert verification.state is VerificationState.PASSED
    assert (verification.max_absolute_error, verification.max_relative_error) == (0.0, 0.0)
    assert verification.message == ""


def test_error_is_relative_to_the_largest_magnitude_of_the_reference() -> None:
    output = REFERENCE.copy()
    output[0, 0] += 0.5
    verification = compare({"c": output}, {"c": REFERENCE}, 0.2)
    assert verification.max_relative_error == pytest.approx(0.5 / 4)
    assert verification.state is VerificationState.PASSED


def test_failure_names_buffer_element_found_and_expected() -> None:
    output = REFERENCE.copy()
    output[1, 0] = 2.5
    verification = compare({"c": output}, {"c": REFERENCE}, 1e-5)
    assert verification.state is VerificationState.FAILED
    assert verification.buffer_name == "c"
    assert "c[1, 0]: found 2.5, expected 2;" in verification.message
    assert "tolerance 1e-05" in verification.message


def test_poisoned_element_fails_however_large_the_tolerance() -> None:
    output = REFERENCE.copy()
    output[1, 1] = np.nan
    verification = compare({"c": output}, {"c": REFERENCE}, 1e30)
    assert verification.state is VerificationState.FAILED
    assert verification.max_relative_error is None
    assert "c[1, 1]: found nan, expected 3" in verification.message


def test_nan_and_infinity_pass_where_the_reference_has_them() -> None:
    reference = np.array([np.nan, np.inf, -np.inf, 2.0], np.float32)
    assert compare({"c": reference.copy()}, {"c": reference}, 1e-6).state is VerificationState.PASSED
    assert compare({"c": reference * np.float32(-1)}, {"c": reference}, 1e-6).state is VerificationState.FAILED


def test_zero_reference_accepts_only_zero() -> None:
    zeros = np.zeros(4, np.float32)
    assert compare({"c": zeros.copy()}, {"c": zeros}, 1e-5).state is VerificationState.PASSED
    assert compare({"c": zeros + np.float32(1e-20)}, {"c": zeros}, 1e-5).state is VerificationState.FAILED


def test_worst_of_several_outputs_is_named() -> None:
    wrong = REFERENCE * np.float32(1.5)
    verification = compare({"a": REFERENCE, "b": wrong}, {"a": REFERENCE, "b": REFERENCE}, 1e-5)
    assert (verification.state, verification.buffer_name) == (VerificationState.FAILED, "b")


def test_integers_are_compared_without_wrapping_around() -> None:
    found, expected = np.array([0], np.uint32), np.array([1], np.uint32)
    assert compare({"c": found}, {"c": expected}, 0.5).max_absolute_error == 1.0


@pytest.mark.parametrize("outputs", [{}, {"d": REFERENCE}, {"c": REFERENCE[:1]}])
def test_reference_for_other_outputs_than_the_kernels_is_refused(outputs: dict[str, np.ndarray]) -> None:
    with pytest.raises(InvalidParameterError, match="output c of the reference"):
        compare(outputs, {"c": REFERENCE}, 1e-5)


@given(arrays(np.float64, (5,), elements=st.floats(-1e6, 1e6)), st.floats(1e-9, 1e-3))
def test_deviation_within_the_tolerance_passes_and_beyond_it_fails(reference: np.ndarray, tolerance: float) -> None:
    scale = float(np.abs(reference).max())
    if scale < 1e-3:
        return
    within, beyond = reference.copy(), reference.copy()
    within[2] += 0.5 * tolerance * scale
    beyond[2] += 2 * tolerance * scale
    assert compare({"c": within}, {"c": reference}, tolerance).state is VerificationState.PASSED
    assert compare({"c": beyond}, {"c": reference}, tolerance).state is VerificationState.FAILED


def test_reference_is_computed_once_for_equal_keys_and_the_oldest_dropped() -> None:
    computed: list[str] = []

    def compute(name: str) -> dict[str, np.ndarray]:
        computed.append(name)
        return {name: np.zeros(100)}

    results = ReferenceResults(max_cached_bytes=2_000)
    for name in ("a", "b", "a", "c", "a", "b"):
        results.get(name, lambda name=name: compute(name))  # type: ignore[misc]
    assert computed == ["a", "b", "c", "b"]


# ---------------------------------------------------------------- inputs


BUFFER_TYPES = [dtype for dtype in DataType if dtype not in (DataType.TFLOAT32, DataType.FLOAT8)]


def uniform(plan: BufferPlan, seed: int) -> Array:
    return input_values(plan, seed, InputDistribution.UNIFORM)


def test_inputs_are_the_same_for_the_same_seed_and_differ_otherwise() -> None:
    values = uniform(buffer_plan(), 1)
    assert np.array_equal(values, uniform(buffer_plan(), 1))
    for other in (
        uniform(buffer_plan(), 2),
        uniform(buffer_plan(name="b"), 1),
        uniform(buffer_plan(shape=(4, 16)), 1).reshape(8, 8),
    ):
        assert not np.array_equal(values, other)


@pytest.mark.parametrize("dtype", BUFFER_TYPES)
def test_inputs_have_the_type_asked_for_and_lie_in_their_range(dtype: DataType) -> None:
    values = uniform(buffer_plan(dtype=dtype), 3)
    assert values.dtype == array_type(dtype)
    assert values.min() >= 0
    assert values.max() <= (1 if values.dtype.kind == "f" else 99)


@pytest.mark.parametrize("dtype", BUFFER_TYPES)
def test_poison_never_passes_as_a_result(dtype: DataType) -> None:
    plan = buffer_plan(dtype=dtype)
    verification = compare({"a": poison_values(plan)}, {"a": uniform(plan, 3)}, 0.1)
    assert verification.state is VerificationState.FAILED


def test_shape_below_one_is_refused() -> None:
    definition = BufferDefinition("a", ("N // 2", "4"), DataType.FLOAT32, BufferRole.INPUT)
    assert plan_buffer(definition, {"N": 6}).shape == (3, 4)
    with pytest.raises(InvalidParameterError, match=r"buffer a: found \(0, 4\) with N=1"):
        plan_buffer(definition, {"N": 1})


def test_buffers_over_the_device_are_refused_before_allocation() -> None:
    device = Device("opencl:pocl:0", "CPU", DeviceKind.CPU, (), max_buffer_bytes=1_000, memory_bytes=1_500)
    check_fits((buffer_plan(shape=(250,)),), device)
    with pytest.raises(MemoryLimitError, match="1004 bytes; expected at most 1000"):
        check_fits((buffer_plan(shape=(251,)),), device)
    with pytest.raises(MemoryLimitError, match="1600 bytes together"):
        check_fits((buffer_plan(shape=(200,)), buffer_plan(name="b", shape=(200,))), device)


# ---------------------------------------------------------------- arguments


def source_parameter(type_name: str, dtype: DataType | None, *, is_pointer: bool = False, name: str = "n") -> SourceParameter:
    return SourceParameter(name, type_name, is_pointer, is_const=False, dtype=dtype, component_count=1, line=7)


class Memory:
    size_bytes = 4


def test_arguments_follow_the_order_of_the_source() -> None:
    memory = Memory()
    signature = [
        source_parameter("int", DataType.INT32, name="count"),
        source_parameter("float", DataType.FLOAT32, is_pointer=True, name="data"),
        source_parameter("float", DataType.FLOAT32, name="alpha"),
    ]
    assert bind_arguments("k", signature, {"data": memory}, {"alpha": 2.5, "count": 3}) == [np.int32(3), memory, np.float32(2.5)]


@pytest.mark.parametrize("dtype", BUFFER_TYPES)
def test_scalars_take_the_type_of_the_source(dtype: DataType) -> None:
    assert convert_scalar("k", source_parameter("…", dtype), 3).dtype == np.dtype(dtype.value)


@pytest.mark.parametrize(
    ("dtype", "value"), [(DataType.INT32, 2**31), (DataType.UINT32, -1), (DataType.INT32, 0.5), (DataType.FLOAT32, 1e39)]
)
def test_value_that_the_type_cannot_hold_is_refused(dtype: DataType, value: float) -> None:
    with pytest.raises(InvalidParameterError, match="argument n of kernel k"):
        convert_scalar("k", source_parameter("T", dtype), value)


@pytest.mark.parametrize("is_pointer", [True, False])
def test_argument_without_definition_is_named_with_its_line(is_pointer: bool) -> None:
    with pytest.raises(InvalidParameterError, match=r"argument n of kernel k.*line 7"):
        bind_arguments("k", [source_parameter("float", DataType.FLOAT32, is_pointer=is_pointer)], {}, {})
