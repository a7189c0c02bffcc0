"""Costs of matrix products, grouped products, convolutions and attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kernalyse.services.core.costs.operator import CostClass, CostModel, OperatorCall, OperatorCost, Shape, Tensor, broadcast, moved_bytes

# ---------------------------------------------------------------- matrix products
# A fused multiply-add counts as two operations, as everywhere. The addition of addmm and its variants happens in the accumulator and
# counts none, as in torch.utils.flop_counter (mm_flop, addmm_flop, bmm_flop, baddbmm_flop) and in what Kineto records. The equation of an
# einsum is not recorded: the products that it calls count instead.


def matrix_product_cost(left: Tensor, right: Tensor, added: Tensor | None = None) -> OperatorCost | None:
    """Return the cost of left [..., m, k] times right [..., k, n]: 2 * batch * m * n * k flop.

    Both operands and the added tensor are read, the result is written. A vector is a matrix of one row or column, as in
    numpy.matmul. The result is None where the shapes do not fit.
    """
    if not left.shape or not right.shape:
        return None
    left_shape = left.shape if len(left.shape) > 1 else (1, *left.shape)
    right_shape = right.shape if len(right.shape) > 1 else (*right.shape, 1)
    batch = broadcast(left_shape[:-2], right_shape[:-2])
    if batch is None or left_shape[-1] != right_shape[-2]:
        return None
    result = (*batch, left_shape[-2], right_shape[-1])
    flop = 2.0 * math.prod(result) * left_shape[-1]
    return OperatorCost(CostClass.PRODUCT, flop, moved_bytes((left, right, added, left.shaped(result))), left.dtype)


def _product_model(left: int, right: int, added: int | None = None) -> CostModel:
    """Return the model of a product whose operands are the inputs with these indices."""

    def model(call: OperatorCall) -> OperatorCost | None:
        first, second = call.tensor(left), call.tensor(right)
        if first is None or second is None:
            return None
        return matrix_product_cost(first, second, None if added is None else call.tensor(added))

    return model


def _scaled_product(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of _scaled_mm on two float8 matrices, whose result has two bytes per element."""
    left, right = call.tensor(0), call.tensor(1)
    found = None if left is None or right is None else matrix_product_cost(left, right)
    if found is None or left is None or right is None:
        return None
    result = Tensor((left.shape[0], right.shape[-1]), "bfloat16")
    return OperatorCost(found.weight, found.flop, moved_bytes((left, right, result)), found.dtype)


def _linear(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of x [..., k] times weight [n, k] transposed, plus bias [n]."""
    values, weight = call.tensor(0), call.tensor(1)
    if values is None or weight is None or len(weight.shape) != 2 or not values.shape:
        return None
    rows = math.prod(values.shape[:-1])
    return matrix_product_cost(values.shaped((rows, values.shape[-1])), weight.shaped((weight.shape[1], weight.shape[0])), call.tensor(2))


def _matrix_times_vector(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of addmv: a vector added to a matrix times a vector."""
    matrix, vector = call.tensor(1), call.tensor(2)
    return None if matrix is None or vector is None else matrix_product_cost(matrix, vector, call.tensor(0))


def _summed_batches(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of addbmm, which sums the products of a batch into one matrix: one product over batch * k."""
    left, right = call.tensor(1), call.tensor(2)
    if left is None or right is None or len(left.shape) != 3 or len(right.shape) != 3 or left.shape[0] != right.shape[0]:
        return None
    batch, rows, inner = left.shape
    return matrix_product_cost(left.shaped((rows, batch * inner)), right.shaped((batch * right.shape[1], right.shape[2])), call.tensor(0))


PRODUCTS: Final[Mapping[str, CostModel]] = {
    "aten::mm": _product_model(0, 1),
    "aten::bmm": _product_model(0, 1),
    "aten::matmul": _product_model(0, 1),
    "aten::mv": _product_model(0, 1),
    "aten::dot": _product_model(0, 1),
    "aten::vdot": _product_model(0, 1),
    "aten::addmm": _product_model(1, 2, 0),
    "aten::addmm_": _product_model(1, 2, 0),
    "aten::_addmm_activation": _product_model(1, 2, 0),
    "aten::baddbmm": _product_model(1, 2, 0),
    "aten::baddbmm_": _product_model(1, 2, 0),
    "aten::addmv": _matrix_times_vector,
    "aten::addmv_": _matrix_times_vector,
    "aten::addbmm": _summed_batches,
    "aten::addbmm_": _summed_batches,
    "aten::linear": _linear,
    "aten::_scaled_mm": _scaled_product,
}


# ---------------------------------------------------------------- grouped products
# Each group of rows has a matrix of its own, as in mixtures of experts. Flop as in matrix products.
#
# How the rows are distributed over the groups is data, which is not recorded, but every row is multiplied once, with whichever matrix.
# At most as many of the matrices are read as there are rows.


def _grouped(call: OperatorCall, *, offsets: int, result_dtype: str | None = None) -> OperatorCost | None:
    """Return the cost of _grouped_mm(left, right, offsets, …); torch.nn.functional.grouped_mm defines which shapes fit.

    Groups divide

    - the rows of left: [m, k] times [groups, k, n];
    - the columns of right: [groups, m, k] times [k, n];
    - the dimension that is summed over: [m, k] times [k, n] gives [groups, m, n];
    - or nothing: [groups, m, k] times [groups, k, n].
    """
    left, right, ends = call.tensor(0), call.tensor(1), call.tensor(offsets)
    if left is None or right is None:
        return None
    ranks = len(left.shape), len(right.shape)
    if ranks == (3, 3):
        return _with_result(matrix_product_cost(left, right), (left, right), left.shaped((*left.shape[:2], right.shape[2])), result_dtype)
    if ends is None or len(ends.shape) != 1:
        return None
    groups = ends.shape[0]
    if ranks == (2, 3) and right.shape[0] == groups:
        read = (left, right.shaped((min(groups, left.shape[0]), *right.shape[1:])))
        cost, result = matrix_product_cost(left, right.shaped(right.shape[1:])), (left.shape[0], right.shape[2])
    elif ranks == (3, 2) and left.shape[0] == groups:
        read = (left.shaped((min(groups, right.shape[1]), *left.shape[1:])), right)
        cost, result = matrix_product_cost(left.shaped(left.shape[1:]), right), (left.shape[1], right.shape[1])
    elif ranks == (2, 2):
        read = (left, right)
        cost = matrix_product_cost(left, right)
        return _with_result(cost, (*read, ends), left.shaped((groups, left.shape[0], right.shape[1])), result_dtype)
    else:
        return None
    return _with_result(cost, (*read, ends), left.shaped(result), result_dtype)


def _with_result(cost: OperatorCost | None, read: tuple[Tensor, ...], result: Tensor, result_dtype: str | None) -> OperatorCost | None:
    """Return the cost with the bytes of these tensors and a result of this type."""
    if cost is None:
        return None
    written = result if result_dtype is None else Tensor(result.shape, result_dtype)
    return OperatorCost(cost.weight, cost.flop, moved_bytes((*read, written)), cost.dtype)


def _fused_experts(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of vLLM's mixture of experts, inplace_fused_experts and outplace_fused_experts.

    Inputs: rows [m, k], w1 [experts, 2 n, k], w2 [experts, k, n], weights of the selected experts [m, few], …
    Each row passes through both matrices of each of its few experts. Packed weights have other shapes, and give no cost.
    """
    rows, first, second, selected = (call.tensor(index) for index in range(4))
    if rows is None or first is None or second is None or selected is None:
        return None
    if not (len(rows.shape) == len(selected.shape) == 2 and len(first.shape) == len(second.shape) == 3):
        return None
    experts, both, inner = first.shape
    if rows.shape[1] != inner or second.shape != (experts, inner, both // 2) or both % 2 or selected.shape[0] != rows.shape[0]:
        return None
    flop = 2.0 * selected.count * (both * inner + inner * (both // 2))
    used = min(experts, selected.count)
    weights = (first.shaped((used, both, inner)), second.shaped((used, inner, both // 2)))
    return OperatorCost(CostClass.PRODUCT, flop, moved_bytes((rows, *weights, selected, rows)), rows.dtype)


GROUPED: Final[Mapping[str, CostModel]] = {
    "aten::_grouped_mm": lambda call: _grouped(call, offsets=2),
    "aten::_scaled_grouped_mm": lambda call: _grouped(call, offsets=4, result_dtype="bfloat16"),
    "vllm::inplace_fused_experts": _fused_experts,
    "vllm::outplace_fused_experts": _fused_experts,
}


# ---------------------------------------------------------------- convolutions
# Convolutions of one to three dimensions and their gradients.
#
# Every element of the result (for a transposed one: of the input) takes a multiply-add for each weight that leads to it, as in
# torch.utils.flop_counter (conv_flop_count, conv_backward_flop; for the gradient of a grouped weight it counts all groups for
# each). Weights that fall on padding count as well, because kernels multiply them too. A bias is added in the accumulator.


@dataclass(frozen=True, slots=True)
class ConvolutionInputs:
    """The indices of an operator's inputs; None: it has no such input."""

    stride: int
    padding: int
    dilation: int | None
    groups: int | None = None
    transposed: int | None = None
    output_padding: int | None = None
    bias: int | None = None
    is_transposed: bool = False
    added: int | None = None


@dataclass(frozen=True, slots=True)
class Geometry:
    """The geometry of one convolution, with one number for each of its dimensions."""

    stride: Shape
    padding: Shape
    dilation: Shape
    output_padding: Shape
    groups: int
    is_transposed: bool


def result_shape(values: Shape, weight: Shape, geometry: Geometry) -> Shape | None:
    """Return the result's shape [batch, channels, *sizes], or None where it would be empty.

    Formulas: PyTorch's documentation of ConvNd and ConvTransposeNd.
    """
    sizes = []
    for size, kernel, stride, padding, dilation, further in zip(
        values[2:], weight[2:], geometry.stride, geometry.padding, geometry.dilation, geometry.output_padding, strict=True
    ):
        reach = dilation * (kernel - 1)
        if geometry.is_transposed:
            sizes.append((size - 1) * stride - 2 * padding + reach + further + 1)
        else:
            sizes.append((size + 2 * padding - reach - 1) // stride + 1 if stride > 0 else 0)
    channels = weight[1] * geometry.groups if geometry.is_transposed else weight[0]
    return None if any(size <= 0 for size in sizes) else (values[0], channels, *sizes)


def multiply_flop(values: Shape, weight: Shape, result: Shape, *, is_transposed: bool) -> float:
    """Return the flop of one convolution, two for each multiply-add.

    The weight is [outputs, inputs / groups, *kernel], of a transposed convolution [inputs, outputs / groups, *kernel].
    """
    return 2.0 * math.prod(values if is_transposed else result) * math.prod(weight[1:])


def _forward(inputs: ConvolutionInputs) -> CostModel:
    def model(call: OperatorCall) -> OperatorCost | None:
        values, weight = call.tensor(0), call.tensor(1)
        if values is None or weight is None or len(weight.shape) < 3:
            return None
        if len(values.shape) == len(weight.shape) - 1:
            values = values.shaped((1, *values.shape))
        geometry = _geometry(call, inputs, len(weight.shape) - 2)
        if geometry is None or len(values.shape) != len(weight.shape):
            return None
        result = result_shape(values.shape, weight.shape, geometry)
        if result is None:
            return None
        further = [call.tensor(index) for index in (inputs.bias, inputs.added) if index is not None]
        return OperatorCost(
            CostClass.PRODUCT,
            multiply_flop(values.shape, weight.shape, result, is_transposed=geometry.is_transposed),
            moved_bytes((values, weight, *further, values.shaped(result))),
            values.dtype,
        )

    return model


def _geometry(call: OperatorCall, inputs: ConvolutionInputs, width: int) -> Geometry | None:
    """Return the geometry, or None where a number that decides is not recorded."""
    is_transposed = inputs.is_transposed if inputs.transposed is None else call.flag(inputs.transposed)
    stride, padding = _per_dimension(call, inputs.stride, width), _per_dimension(call, inputs.padding, width)
    dilation = (1,) * width if inputs.dilation is None else _per_dimension(call, inputs.dilation, width)
    further = _per_dimension(call, inputs.output_padding, width) if is_transposed and inputs.output_padding is not None else (0,) * width
    groups = 1 if inputs.groups is None else call.integer(inputs.groups)
    if stride is None or padding is None or dilation is None or further is None or groups is None or is_transposed is None:
        return None
    return Geometry(stride, padding, dilation, further, groups, is_transposed)


def _per_dimension(call: OperatorCall, index: int, width: int) -> Shape | None:
    """Return one number per dimension; a single recorded number holds for all of them."""
    found = call.integers(index)
    return None if found is None else found * width if len(found) == 1 else found if len(found) == width else None


def _backward(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of convolution_backward: the gradients of input and weight each cost as much as the convolution."""
    gradient, values, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    transposed, requested = call.flag(7), call.flags(10)
    if gradient is None or values is None or weight is None or transposed is None or requested is None or len(requested) != 3:
        return None
    if not len(gradient.shape) == len(values.shape) == len(weight.shape):
        return None
    once = multiply_flop(values.shape, weight.shape, gradient.shape, is_transposed=transposed)
    read = (gradient, values if requested[1] else None, weight if requested[0] else None)
    bias = gradient.shaped(gradient.shape[1:2])
    written = [tensor for tensor, is_requested in zip((values, weight, bias), requested, strict=True) if is_requested]
    return OperatorCost(CostClass.PRODUCT, once * (requested[0] + requested[1]), moved_bytes((*read, *written)), gradient.dtype)


def _input_gradient(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of cudnn_convolution_backward_input (until 2021); the size of its result may not be recorded."""
    gradient, weight = call.tensor(1), call.tensor(2)
    if gradient is None or weight is None or len(gradient.shape) != len(weight.shape):
        return None
    flop = multiply_flop((), weight.shape, gradient.shape, is_transposed=False)
    sizes = call.integers(0)
    result = None if sizes is None else Tensor(sizes, gradient.dtype)
    return OperatorCost(CostClass.PRODUCT, flop, None if result is None else moved_bytes((gradient, weight, result)), gradient.dtype)


_WITH_BIAS: Final = _forward(ConvolutionInputs(bias=2, padding=3, stride=4, dilation=5, groups=6))
_GENERAL: Final = _forward(ConvolutionInputs(bias=2, stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8))
_FIXED_KIND: Final = _forward(ConvolutionInputs(bias=2, stride=3, padding=4, dilation=5, groups=6))
_TRANSPOSED: Final = _forward(ConvolutionInputs(bias=2, stride=3, padding=4, output_padding=5, groups=6, dilation=7, is_transposed=True))
_DEPTHWISE: Final = _forward(ConvolutionInputs(bias=3, stride=4, padding=5, dilation=6))

CONVOLUTIONS: Final[Mapping[str, CostModel]] = {
    "aten::convolution": _GENERAL,
    "aten::_convolution": _GENERAL,
    "aten::convolution_overrideable": _GENERAL,
    **{f"aten::conv{width}d": _FIXED_KIND for width in (1, 2, 3)},
    **{f"aten::conv_transpose{width}d": _TRANSPOSED for width in (1, 2, 3)},
    "aten::cudnn_convolution": _forward(ConvolutionInputs(padding=2, stride=3, dilation=4, groups=5)),
    "aten::cudnn_convolution_transpose": _forward(
        ConvolutionInputs(padding=2, output_padding=3, stride=4, dilation=5, groups=6, is_transposed=True)
    ),
    "aten::cudnn_convolution_relu": _FIXED_KIND,
    "aten::cudnn_convolution_add_relu": _forward(ConvolutionInputs(added=2, bias=4, stride=5, padding=6, dilation=7, groups=8)),
    "aten::miopen_convolution": _WITH_BIAS,
    "aten::miopen_depthwise_convolution": _WITH_BIAS,
    "aten::mkldnn_convolution": _WITH_BIAS,
    "aten::_conv_depthwise2d": _DEPTHWISE,
    "aten::conv_depthwise3d": _DEPTHWISE,
    "aten::convolution_backward": _backward,
    "aten::cudnn_convolution_backward_input": _input_gradient,
}


# ---------------------------------------------------------------- attention
# Scaled dot-product attention, forward and backward, by any kernel.
#
# Two products forward (scores, and scores times values) and five backward (the scores again, then the gradients of scores, values,
# queries and keys): sdpa_flop and sdpa_backward_flop of torch.utils.flop_counter, and Dao, "FlashAttention-2", 2023, section 4.1, which
# also leaves out the softmax. Unlike sdpa_flop, a causal mask counts here: pairs above the diagonal need no work.


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """The indices of an operator's inputs: `query` is the first of query, key and value.

    is_heads_last: the shapes are [batch, length, heads, size].
    """

    query: int
    causal: int
    mask: int | None = None
    gradient: int | None = None
    lengths: int | None = None  # where sequences of several lengths lie behind each other, and shapes do not say which
    is_heads_last: bool = False


LONGEST_LENGTH_OFFSET: Final = 2
"""Offset of the longest query from the lengths of queries, with the lengths of keys between; the longest key follows."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of one attention: batch_heads of the queries; pairs of query and key that may see each other, per head."""

    batch_heads: int
    pairs: int
    key_size: int
    value_size: int


def causal_pairs(query_count: int, key_count: int) -> int:
    """Return the number of pairs in which the key is not after the query, both counted from the first: the mask of PyTorch's is_causal."""
    square = min(query_count, key_count)
    return square * (square + 1) // 2 + (query_count - square) * key_count


def _model(inputs: AttentionInputs) -> CostModel:
    def model(call: OperatorCall) -> OperatorCost | None:
        query, key, value = (call.tensor(inputs.query + offset) for offset in range(3))
        if query is None or key is None or value is None:
            return None
        is_causal = call.flag(inputs.causal)
        lengths = None if inputs.lengths is None else call.tensor(inputs.lengths)
        if lengths is not None:
            count = _sequence_count(call, inputs, lengths.shape, (query.shape, key.shape), is_causal)
            if count is None:
                return None
            query, key, value = (tensor.shaped((count, tensor.shape[0] // count, *tensor.shape[1:])) for tensor in (query, key, value))
        sizes = _sizes(_by_head(query.shape, inputs), _by_head(key.shape, inputs), _by_head(value.shape, inputs), is_causal)
        if sizes is None:
            return None
        mask = None if inputs.mask is None else call.tensor(inputs.mask)
        result = query.shaped((*query.shape[:-1], value.shape[-1]))
        if inputs.gradient is None:
            flop = 2.0 * sizes.batch_heads * sizes.pairs * (sizes.key_size + sizes.value_size)
            moved = moved_bytes((query, key, value, mask, result))
        else:
            flop = 2.0 * sizes.batch_heads * sizes.pairs * (3 * sizes.key_size + 2 * sizes.value_size)
            # The result and its gradient are read, and a gradient written for each of the three.
            moved = moved_bytes((query, key, value, mask, result, result, query, key, value))
        return OperatorCost(CostClass.PRODUCT, flop, moved, query.dtype)

    return model


def _sequence_count(
    call: OperatorCall, inputs: AttentionInputs, lengths: Shape, shapes: tuple[Shape, Shape], is_causal: bool | None
) -> int | None:
    """Return the number of sequences in packed tensors [length, heads, size], or None if they may differ in length.

    `lengths` is the shape of the cumulative lengths, which have one entry more than there are sequences. The longest sequence of
    queries and of keys is recorded: only if that many of this length fill the shape are all equally long. For a causal mask over a
    partly cached sequence, the number of pairs depends on how the ends are aligned, which is not recorded.
    """
    query, key = shapes
    if len(lengths) != 1 or lengths[0] < 2 or len(query) != 3 or len(key) != 3 or (is_causal and query[0] != key[0]):
        return None
    count = lengths[0] - 1
    assert inputs.lengths is not None
    longest = [call.integer(inputs.lengths + LONGEST_LENGTH_OFFSET + operand) for operand in range(2)]
    are_alike = all(length is not None and length * count == shape[0] for length, shape in zip(longest, shapes, strict=True))
    return count if count == 1 or are_alike else None


def _by_head(shape: Shape, inputs: AttentionInputs) -> Shape:
    """Return the shape as [..., heads, length, size]."""
    return (*shape[:-3], shape[-2], shape[-3], shape[-1]) if inputs.is_heads_last and len(shape) == 4 else shape


def _sizes(query: Shape, key: Shape, value: Shape, is_causal: bool | None) -> _Sizes | None:
    """Return the sizes, or None where the shapes do not fit or the record does not say whether the mask is causal."""
    if not len(query) == len(key) == len(value) == 4 or is_causal is None:
        return None
    if query[-1] != key[-1] or key[-2] != value[-2]:
        return None
    pairs = causal_pairs(query[-2], key[-2]) if is_causal else query[-2] * key[-2]
    return _Sizes(query[0] * query[1], pairs, query[-1], value[-1])


ATTENTION: Final[Mapping[str, CostModel]] = {
    "aten::scaled_dot_product_attention": _model(AttentionInputs(query=0, mask=3, causal=5)),
    "aten::_scaled_dot_product_flash_attention": _model(AttentionInputs(query=0, causal=4)),
    "aten::_scaled_dot_product_efficient_attention": _model(AttentionInputs(query=0, mask=3, causal=6)),
    "aten::_scaled_dot_product_cudnn_attention": _model(AttentionInputs(query=0, mask=3, causal=6)),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _model(AttentionInputs(query=0, mask=5, causal=4)),
    "aten::_flash_attention_forward": _model(AttentionInputs(query=0, lengths=3, causal=8, is_heads_last=True)),
    "flash_attn::_flash_attn_varlen_forward": _model(AttentionInputs(query=0, lengths=3, causal=9, is_heads_last=True)),
    "flash_attn::_flash_attn_forward": _model(AttentionInputs(query=0, causal=5, is_heads_last=True)),
    "aten::_scaled_dot_product_flash_attention_backward": _model(AttentionInputs(query=1, causal=11, gradient=0, lengths=6)),
    "aten::_scaled_dot_product_efficient_attention_backward": _model(AttentionInputs(query=1, mask=4, causal=11, gradient=0)),
    "aten::_scaled_dot_product_cudnn_attention_backward": _model(AttentionInputs(query=1, mask=8, causal=14, gradient=0, lengths=9)),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _model(AttentionInputs(query=1, mask=8, causal=7, gradient=0)),
    "aten::_flash_attention_backward": _model(AttentionInputs(query=1, causal=11, gradient=0, lengths=6, is_heads_last=True)),
}
