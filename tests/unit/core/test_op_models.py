"""What models say of operators, against counts of others: torch.utils.flop_counter, loops, definitions carried out."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.core.costs.contractions import Geometry, causal_pairs, result_shape
from kernalyse.services.core.costs.operator import CostClass, OperatorCall, OperatorCost, Tensor, broadcast, promoted_dtype
from kernalyse.services.core.costs.registry import MODELS, operator_cost
from tests.unit.counting_numbers import Counter, Number, total

Shapes = Sequence[Any]


def worked(name: str, shapes: Shapes, dtype: str = "float", values: Sequence[str] = (), dtypes: Sequence[str] = ()) -> OperatorCost | None:
    """Inputs with a shape are tensors of the data type, unless dtypes says more."""
    types = [*dtypes, *(dtype if shape else "" for shape in shapes[len(dtypes) :])]
    call = OperatorCall.parsed(name, json.dumps(shapes), json.dumps(types), json.dumps(values))
    assert call is not None
    return operator_cost(call)


def known(name: str, shapes: Shapes, dtype: str = "float", values: Sequence[str] = (), dtypes: Sequence[str] = ()) -> OperatorCost:
    work = worked(name, shapes, dtype, values, dtypes)
    assert work is not None
    return work


# ---------------------------------------------------------------- products

CONVOLUTION = ["", "", "", "[2]", "[1]", "[1]", "False", "[0]", "1"]


# FlopCounterMode of torch 2.13.0 around the call of the same name on tensors of these shapes.
@pytest.mark.parametrize(
    ("name", "shapes", "values", "flop"),
    [
        ("aten::mm", [[3, 5], [5, 7]], (), 210),
        ("aten::addmm", [[7], [3, 5], [5, 7]], (), 210),
        ("aten::bmm", [[2, 3, 5], [2, 5, 7]], (), 420),
        ("aten::baddbmm", [[2, 3, 7], [2, 3, 5], [2, 5, 7]], (), 420),
        ("aten::matmul", [[4, 1, 3, 5], [2, 5, 7]], (), 1680),
        ("aten::linear", [[2, 3, 5], [7, 5], [7]], (), 420),
        ("aten::convolution", [[2, 4, 11], [6, 4, 3], [], [], [], [], [], [], []], CONVOLUTION, 1728),
        (
            "aten::conv2d",
            [[2, 4, 9, 11], [6, 2, 3, 3], [], [], [], [], []],
            ("", "", "", "[2, 1]", "[1, 2]", "[1, 2]", "2"),
            23760,
        ),
        ("aten::conv3d", [[1, 2, 4, 5, 6], [3, 2, 3, 3, 3], [], [], [], [], []], ("", "", "", "[1]", "[1]", "[1]", "1"), 38880),
        (
            "aten::conv_transpose2d",
            [[2, 4, 5, 6], [4, 3, 3, 3], [], [], [], [], [], []],
            ("", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "1", "[1, 1]"),
            12960,
        ),
        (
            "aten::scaled_dot_product_attention",  # sdpa_flop_count: FlopCounterMode leaves the CPU's own operator out
            [[2, 3, 8, 16], [2, 3, 10, 16], [2, 3, 10, 24], [], [], []],
            ("", "", "", "", "0.", "False"),
            38400,
        ),
        (
            "aten::_scaled_dot_product_flash_attention_backward",  # sdpa_backward_flop_count
            [[2, 3, 8, 24], [2, 3, 8, 16], [2, 3, 10, 16], [2, 3, 10, 24], *[[]] * 8],
            (*[""] * 10, "0.", "False"),
            92160,
        ),
    ],
)
def test_products_take_what_torch_counts(name: str, shapes: Shapes, values: Sequence[str], flop: int) -> None:
    work = known(name, shapes, values=values)
    assert (work.flop, work.weight, work.dtype) == (flop, CostClass.PRODUCT, "float32")


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))
def test_a_product_takes_one_multiplication_and_addition_for_each_term(rows: int, inner: int, columns: int, batch: int) -> None:
    terms = sum(1 for _ in itertools.product(range(batch), range(rows), range(inner), range(columns)))
    assert known("aten::bmm", [[batch, rows, inner], [batch, inner, columns]]).flop == 2 * terms
    assert known("aten::addbmm", [[rows, columns], [batch, rows, inner], [batch, inner, columns]]).flop == 2 * terms
    assert known("aten::mv", [[rows, inner], [inner]]).flop == 2 * rows * inner


def test_a_product_reads_its_inputs_and_writes_its_result() -> None:
    assert known("aten::mm", [[3, 5], [5, 7]], "c10::BFloat16").bytes == 2 * (15 + 35 + 21)
    assert known("aten::addmm", [[7], [3, 5], [5, 7]], "double").bytes == 8 * (7 + 15 + 35 + 21)
    assert known("aten::linear", [[2, 3, 5], [7, 5], []], "c10::Half").bytes == 2 * (30 + 35 + 42)
    scaled = known("aten::_scaled_mm", [[3, 5], [5, 7]], "c10::Float8_e4m3fn")
    assert (scaled.bytes, scaled.dtype) == (15 + 35 + 2 * 21, "float8")


def test_without_data_types_flop_are_known_and_bytes_are_not() -> None:
    call = OperatorCall.parsed("aten::addmm", "[[7], [3, 5], [5, 7], [], []]", None, None)
    assert call is not None
    assert operator_cost(call) == OperatorCost(CostClass.PRODUCT, 210.0, None, None)


# ---------------------------------------------------------------- convolutions


def visited(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Places at which a kernel fits into a padded row."""
    reach = dilation * (kernel - 1) + 1
    return sum(1 for first in range(-padding, size + padding - reach + 1) if (first + padding) % stride == 0)


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3))
def test_a_convolution_has_a_result_for_each_place_of_its_kernel(size: int, kernel: int, stride: int, padding: int, dilation: int) -> None:
    geometry = Geometry((stride,), (padding,), (dilation,), (0,), 1, is_transposed=False)
    found = result_shape((2, 3, size), (5, 3, kernel), geometry)
    count = visited(size, kernel, stride, padding, dilation)
    assert found == ((2, 5, count) if count else None)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.integers(1, 6))
def test_gradients_of_a_grouped_convolution_are_one_term_for_each_weight_that_meets_an_element(
    batch: int, channels: int, groups: int, kernel: int, size: int
) -> None:
    inputs, outputs, length = channels * groups, 2 * groups, size + kernel - 1
    terms = sum(
        1
        for _ in itertools.product(range(batch), range(outputs), range(size), range(channels), range(kernel))  # one group's inputs only
    )
    shapes: Shapes = [[batch, outputs, size], [batch, inputs, length], [outputs, channels, kernel], *[[]] * 8]
    values = ("", "", "", "[0]", "[1]", "[0]", "[1]", "False", "[0]", str(groups))

    def flop(mask: str) -> float | None:
        return known("aten::convolution_backward", shapes, values=(*values, mask)).flop

    assert flop("[True, True, False]") == 4 * terms
    assert flop("[False, True, False]") == flop("[True, False, False]") == 2 * terms
    both = known("aten::convolution_backward", shapes, values=(*values, "[True, True, True]"))
    result, source, weight = batch * outputs * size, batch * inputs * length, outputs * channels * kernel
    assert both.bytes == 4 * (result + 2 * source + 2 * weight + outputs)


def test_a_convolution_whose_stride_was_not_recorded_is_not_known() -> None:
    assert worked("aten::cudnn_convolution", [[2, 4, 9, 9], [6, 4, 3, 3], *[[]] * 7]) is None
    assert known("aten::cudnn_convolution_backward_input", [[], [2, 6, 9, 9], [6, 4, 3, 3]]).bytes is None


# ---------------------------------------------------------------- attention


@given(st.integers(1, 9), st.integers(1, 9))
def test_a_causal_mask_leaves_pairs_up_to_the_diagonal(query_count: int, key_count: int) -> None:
    pairs = sum(1 for query, key in itertools.product(range(query_count), range(key_count)) if key <= query)
    assert causal_pairs(query_count, key_count) == pairs
    shapes = [[2, 3, query_count, 4], [2, 3, key_count, 4], [2, 3, key_count, 5], [], []]
    work = known("aten::_scaled_dot_product_flash_attention", shapes, "c10::Half", ("", "", "", "0.", "True"))
    assert work.flop == 2 * 6 * pairs * (4 + 5)
    assert work.bytes == 2 * 6 * (query_count * 4 + key_count * 4 + key_count * 5 + query_count * 5)


def test_attention_of_heads_behind_lengths_is_the_same() -> None:
    values = (*[""] * 8, "False")
    heads_last = known("aten::_flash_attention_forward", [[2, 8, 3, 16], [2, 10, 3, 16], [2, 10, 3, 24], *[[]] * 6], values=values)
    assert heads_last.flop == 38400
    ragged = [[80, 3, 16], [80, 3, 16], [80, 3, 16], [9], [9], *[[]] * 4]
    assert worked("aten::_flash_attention_forward", ragged, values=values) is None


# ---------------------------------------------------------------- norms, on numbers that count


def normalised(row: list[Number], scale: Sequence[Number], shift: Sequence[Number]) -> list[Number]:
    mean = total(row) / len(row)
    differences = [value - mean for value in row]
    variance = total([difference * difference for difference in differences]) / len(row)
    inverse = (variance + 1e-5).applied()
    found = [difference * inverse for difference in differences]
    found = [value * factor for value, factor in zip(found, scale, strict=True)] if scale else found
    return [value + term for value, term in zip(found, shift, strict=True)] if shift else found


def normalised_backward(
    gradient: list[Number], row: list[Number], mean: Number, inverse: Number, scale: Sequence[Number]
) -> tuple[list[Number], list[Number]]:
    """Gradient of the row, and the row as it was normalised."""
    unit = [(value - mean) * inverse for value in row]
    scaled = [value * factor for value, factor in zip(gradient, scale, strict=True)] if scale else gradient
    first = total(scaled) / len(row)
    second = total([value * place for value, place in zip(scaled, unit, strict=True)]) / len(row)
    return [(value - first - place * second) * inverse for value, place in zip(scaled, unit, strict=True)], unit


def rms_normalised(row: list[Number], scale: Sequence[Number]) -> list[Number]:
    inverse = (total([value * value for value in row]) / len(row) + 1e-6).applied()
    return [value * inverse * factor for value, factor in zip(row, scale, strict=True)]


def softmax(row: list[Number]) -> list[Number]:
    powers = [(value - 3.0).applied() for value in row]
    whole = total(powers)
    return [power / whole for power in powers]


def log_softmax(row: list[Number]) -> list[Number]:
    differences = [value - 3.0 for value in row]
    whole = total([difference.applied() for difference in differences]).applied()
    return [difference - whole for difference in differences]


def softmax_backward(gradient: list[Number], result: list[Number]) -> list[Number]:
    whole = total([value * share for value, share in zip(gradient, result, strict=True)])
    return [(value - whole) * share for value, share in zip(gradient, result, strict=True)]


def counted(row_count: int, work: Callable[[Counter], object]) -> int:
    counter = Counter()
    for _ in range(row_count):
        work(counter)
    return counter.flop


ROWS = st.integers(1, 4)
LENGTHS = st.integers(1, 7)


@given(ROWS, LENGTHS)
def test_layer_norm_takes_what_its_definition_takes(rows: int, length: int) -> None:
    def flop(scale: list[int], shift: list[int]) -> float | None:
        return known("aten::native_layer_norm", [[rows, length], [], scale, shift, []], values=("", f"[{length}]")).flop

    assert flop([], []) == counted(rows, lambda at: normalised(at.numbers(length), (), ()))
    assert flop([length], []) == counted(rows, lambda at: normalised(at.numbers(length), at.numbers(length), ()))
    assert flop([length], [length]) == counted(rows, lambda at: normalised(at.numbers(length), at.numbers(length), at.numbers(length)))


@given(ROWS, LENGTHS)
def test_layer_norm_backward_takes_what_its_definition_takes(rows: int, length: int) -> None:
    counter = Counter()
    gradients, units = [], []
    for _ in range(rows):
        gradient = counter.numbers(length)
        mean, inverse = counter.number(), counter.number()
        _, unit = normalised_backward(gradient, counter.numbers(length), mean, inverse, counter.numbers(length))
        gradients.append(gradient)
        units.append(unit)
    for place in range(length):
        total([gradient[place] * unit[place] for gradient, unit in zip(gradients, units, strict=True)])
        total([gradient[place] for gradient in gradients])
    shapes = [[rows, length], [rows, length], [], [rows, 1], [rows, 1], [length], [length], []]
    work = known("aten::native_layer_norm_backward", shapes, values=("", "", f"[{length}]"))
    assert work.flop == counter.flop
    assert work.bytes == 4 * (3 * rows * length + 2 * rows + 3 * length)


@given(ROWS, LENGTHS)
def test_rms_norm_and_softmax_take_what_their_definitions_take(rows: int, length: int) -> None:
    def rms(at: Counter) -> object:
        return rms_normalised(at.numbers(length), at.numbers(length))

    assert known("_C::rms_norm", [[rows, length], [rows, length], [length], []]).flop == counted(rows, rms)
    shapes = [[rows, length], [rows, length], [length], []]
    assert known("_C::fused_add_rms_norm", shapes).flop == counted(rows, rms) + rows * length
    along = ("", "-1", "False")
    assert known("aten::_softmax", [[rows, length], [], []], values=along).flop == counted(rows, lambda at: softmax(at.numbers(length)))
    flop = known("aten::_log_softmax", [[rows, length], [], []], values=along).flop
    assert flop == counted(rows, lambda at: log_softmax(at.numbers(length)))
    flop = known("aten::_softmax_backward_data", [[rows, length], [rows, length], [], []], values=("", "", "1", "6")).flop
    assert flop == counted(rows, lambda at: softmax_backward(at.numbers(length), at.numbers(length)))


def test_batch_norm_normalises_each_channel() -> None:
    shapes = [[2, 3, 4], [3], [3], [3], [3], [], [], []]
    training = known("aten::native_batch_norm", shapes, "c10::Half", ("", "", "", "", "", "True", "0.1", "1e-5"))
    assert training.flop == counted(3, lambda at: normalised(at.numbers(8), at.numbers(8), at.numbers(8)))
    # Input, result, scale, shift, both running statistics read and written; those of the batch in float32.
    assert training.bytes == 2 * (24 + 24 + 3 * 6) + 4 * 6
    inference = known("aten::native_batch_norm", shapes, values=("", "", "", "", "", "False", "0.1", "1e-5"))
    assert inference.flop == 4 * 24 + 2 * 3
    assert worked("aten::native_batch_norm", shapes) is None


# ---------------------------------------------------------------- each element by itself


def test_elementwise_operators_read_inputs_as_they_are_and_write_what_they_broadcast_to() -> None:
    work = known("aten::add", [[4, 1], [3], []], "c10::BFloat16")
    assert (work.flop, work.bytes, work.dtype, work.weight) == (12, 2 * (4 + 3 + 12), "bfloat16", CostClass.PASS)
    assert known("aten::add_", [[4, 3], [3], []]).bytes == 4 * (12 + 3 + 12)
    assert known("aten::mul", [[4, 3], []], dtypes=("float", "double")).bytes == 4 * 24  # a number, not a tensor
    compared = known("aten::gt", [[4, 3], [4, 3]])
    assert (compared.flop, compared.bytes) == (0, 4 * 24 + 12)
    assert known("aten::add", [[4], [4], []], "long int").flop == 0
    assert worked("aten::add", [[4], [3], []]) is None
    chosen = known("aten::where", [[4], [4], [4]], dtypes=("bool", "c10::Half", "c10::Half"))
    assert (chosen.bytes, chosen.dtype) == (4 + 2 * 12, "float16")


def test_gelu_takes_what_its_definition_takes() -> None:
    def gelu(at: Counter) -> object:
        value = at.number()
        return ((value / math.sqrt(2)).applied() + 1) * (value * 0.5)

    assert known("aten::gelu", [[5]]).flop == counted(5, gelu)


# torch.promote_types, and the type of a sum where one of both has no dimensions; torch 2.13.0.
@pytest.mark.parametrize(
    ("left", "right", "both", "with_number"),
    [
        ("float16", "bfloat16", "float32", "float16"),
        ("int64", "float16", "float16", "float16"),
        ("bool", "uint8", "uint8", "uint8"),
        ("float32", "float64", "float64", "float32"),
    ],
)
def test_data_types_are_promoted_as_torch_does(left: str, right: str, both: str, with_number: str) -> None:
    assert promoted_dtype([Tensor((2,), left), Tensor((2,), right)]) == both
    assert promoted_dtype([Tensor((2,), left), Tensor((), right)]) == with_number


def test_shapes_are_broadcast_as_numpy_does() -> None:
    assert broadcast((4, 1, 3), (2, 1)) == (4, 2, 3)
    assert broadcast((0, 3), (1, 3)) == (0, 3)
    assert broadcast((2,), (3,)) is None


# ---------------------------------------------------------------- few of many, and moves


def test_reductions_read_all_and_write_what_is_left() -> None:
    summed = known("aten::sum", [[4, 5, 6], [], [], []], values=("", "[0, -1]", "False", ""))
    assert (summed.flop, summed.bytes) == (120 - 5, 4 * 125)
    assert known("aten::sum", [[4, 5], []], values=("", "")).bytes == 4 * 21
    assert known("aten::mean", [[4, 5], [], [], []], values=("", "[1]", "True", "")).flop == counted(4, lambda at: total(at.numbers(5)) / 5)
    assert known("aten::argmax", [[4, 5], [], []], values=("", "1", "False")).bytes == 80 + 8 * 4
    assert worked("aten::sum", [[4, 5], [], [], []]) is None


def test_pooling_writes_a_result_for_each_window() -> None:
    values = ("", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False")
    pooled = known("aten::max_pool2d_with_indices", [[2, 3, 9, 11], *[[]] * 5], values=values)
    assert (pooled.flop, pooled.bytes) == (0, 4 * 2 * 3 * 99 + 12 * 2 * 3 * 5 * 6)  # torch: [2, 3, 5, 6]
    mean = known("aten::avg_pool2d", [[2, 3, 9, 11], *[[]] * 6], values=("", "[3, 2]", "[]", "[0, 0]", "False", "True", ""))
    assert (mean.flop, mean.bytes) == (6 * 15 * 6, 4 * (2 * 3 * 99 + 6 * 15))  # torch: [2, 3, 3, 5]
    back = known("aten::max_pool2d_with_indices_backward", [[2, 3, 5, 6], [2, 3, 9, 11]])
    assert back.bytes == 12 * 180 + 4 * 594


def test_moves_compute_nothing() -> None:
    copied = known("aten::copy_", [[4, 5], [5], []], dtypes=("float", "c10::Half"))
    assert (copied.flop, copied.bytes, copied.weight) == (0, 4 * 20 + 2 * 5, CostClass.MOVE)
    assert known("aten::fill_", [[4, 5], []]).bytes == 80
    looked_up = known("aten::embedding", [[100, 8], [2, 3]], dtypes=("c10::Half", "long int"))
    assert looked_up.bytes == 2 * 2 * 6 * 8 + 8 * 6
    chosen = known("aten::index_select", [[100, 8], [], [6]], values=("", "0", ""), dtypes=("float", "Scalar", "long int"))
    assert chosen.bytes == 2 * 4 * 48 + 8 * 6
    back = known("aten::embedding_dense_backward", [[6, 8], [6], [], [], []], values=("", "", "100"), dtypes=("float", "long int"))
    assert (back.flop, back.bytes, back.weight) == (48, 4 * 3 * 48 + 48, CostClass.PASS)  # the zeros are of aten::fill_ within it
    few = known("aten::embedding_dense_backward", [[6, 8], [6], [], [], []], values=("", "", "2"), dtypes=("float", "long int"))
    assert few.bytes == 4 * (48 + 2 * 16) + 48


# ---------------------------------------------------------------- what is not known


@given(
    st.sampled_from(sorted(MODELS)),
    st.lists(
        st.one_of(st.lists(st.integers(0, 5), max_size=5), st.lists(st.lists(st.integers(0, 3), max_size=2), max_size=2)), max_size=12
    ),
    st.lists(st.sampled_from(["float", "c10::Half", "long int", "bool", "", "Scalar", "TensorList"]), max_size=12),
    st.lists(st.sampled_from(["", "[1, 1]", "[0]", "[]", "1", "-1", "0", "True", "False", "[True, False, True]", "nan"]), max_size=12),
)
def test_whatever_was_recorded_a_model_answers(name: str, shapes: Shapes, dtypes: list[str], values: list[str]) -> None:
    call = OperatorCall.parsed(name, json.dumps(shapes), json.dumps(dtypes), json.dumps(values))
    assert call is not None
    work = operator_cost(call)
    if work is not None:
        assert work.flop is None or work.flop >= 0
        assert work.bytes is None or work.bytes >= 0


def test_an_operator_without_a_model_is_not_known() -> None:
    assert worked("vllm::moe_forward", [[888, 3072]]) is None
    assert OperatorCall.parsed("aten::mm", "no JSON", None, None) is None
    assert worked("aten::mm", [[3, 5], [5, 7]], "c10::complex<float>") is None
