"""Operators of ONNX, and of ONNX Runtime's own domain, that are products: of matrices, convolutions, attention.

As in products, convolutions and attention: a fused multiply-add counts two, what is added or applied to the result rides in
the accumulator and counts none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from services.core.work.convolutions import multiply_flop
from services.core.work.kinds import Weight, Work
from services.core.work.onnx_call import OnnxCall
from services.core.work.tensors import Tensor, moved_bytes

OnnxModel = Callable[[OnnxCall], Work | None]
"""None: the shapes do not say what has to be done."""


def product_work(flop: float, moved: tuple[Tensor | None, ...], values: Tensor) -> Work:
    return Work(Weight.PRODUCT, flop, moved_bytes(moved), values.dtype)


def _matmul(call: OnnxCall) -> Work | None:
    """MatMul(a [..., m, k], b [..., k, n]); b may have been packed, which is done to matrices alone."""
    left, result = call.first, call.result
    if left is None or result is None or not left.shape:
        return None
    if len(call.inputs) > 1 and len(call.inputs[1].shape) == 1:  # a vector, which counts as a matrix of one column
        return product_work(2.0 * result.count * left.shape[-1], (*call.inputs, *call.outputs), left)
    return _product(call, left, result, left.shape[-1])


def _transposing(call: OnnxCall) -> Work | None:
    """FusedMatMul and Gemm: either factor may be transposed, which is not recorded, so k is what the left one has beside m."""
    left, result = call.first, call.result
    if left is None or result is None or len(left.shape) < 2 or len(result.shape) < 2 or not result.shape[-2]:
        return None
    inner, rest = divmod(left.shape[-1] * left.shape[-2], result.shape[-2])
    return None if rest else _product(call, left, result, inner)


def _product(call: OnnxCall, left: Tensor, result: Tensor, inner: int) -> Work | None:
    """2 k flop for each element of the result."""
    flop = 2.0 * result.count * inner
    columns = result.shape[-1] if result.shape else 1
    is_packed = not any(_is_matrix(tensor, inner, columns) for tensor in call.inputs[1:])
    packed = left.shaped((inner, columns)) if is_packed else None
    return product_work(flop, (*call.inputs, packed, *call.outputs), left)


def _is_matrix(tensor: Tensor, rows: int, columns: int) -> bool:
    """Or a stack of them, or transposed."""
    return len(tensor.shape) > 1 and tensor.shape[-2:] in ((rows, columns), (columns, rows))


def _quantized(call: OnnxCall) -> Work | None:
    """MatMulNBits(a [..., k], b packed in blocks, scales, …) and DynamicQuantizeMatMul: weights as wide as they are stored."""
    left, result = call.first, call.result
    if left is None or result is None or not left.shape:
        return None
    return product_work(2.0 * result.count * left.shape[-1], (*call.inputs, *call.outputs), left)


def _convolution(call: OnnxCall, *, is_transposed: bool) -> Work | None:
    """Conv(x [batch, inputs, *sizes], weight [outputs, inputs / groups, *kernel], …), FusedConv and ConvTranspose."""
    values, result = call.first, call.result
    weight = call.inputs[1] if len(call.inputs) > 1 else None
    if values is None or weight is None or result is None or not len(values.shape) == len(weight.shape) == len(result.shape) > 2:
        return None
    flop = multiply_flop(values.shape, weight.shape, result.shape, is_transposed=is_transposed)
    return product_work(flop, (*call.inputs, *call.outputs), values)


def _attention(call: OnnxCall) -> Work | None:
    """Attention of ONNX itself is one of MultiHeadAttention's kind; that of ONNX Runtime projects its input first.

    Attention(input [batch, length, inputs], weight [inputs, 3 * width], bias [3 * width], mask, past, …): with a past, present
    [2, batch, heads, all lengths, head width] is the second output. Whether a mask is causal is not recorded: all pairs count.
    """
    values, result = call.first, call.result
    if values is None or result is None:
        return None
    if len(call.inputs) > 1 and len(call.inputs[1].shape) > 2:
        return _heads_attention(call)
    biases = call.inputs_of(1)
    if len(values.shape) != 3 or len(result.shape) != 3 or not biases:
        return None
    batch, length, inputs = values.shape
    projected = biases[0].count
    present = next((tensor.shape for tensor in call.outputs[1:] if len(tensor.shape) == 5), None)
    key_length = length if present is None else present[3]
    key_width = (projected - result.shape[-1]) // 2
    flop = 2.0 * batch * length * inputs * projected + _pairs_flop(batch * length * key_length, key_width, result.shape[-1])
    is_packed = not any(_is_matrix(tensor, inputs, projected) for tensor in call.inputs[1:])
    weight = values.shaped((inputs, projected)) if is_packed else None
    return product_work(flop, (*call.inputs, weight, *call.outputs), values)


def _heads_attention(call: OnnxCall) -> Work | None:
    """MultiHeadAttention(query [batch, length, width], key and value [batch, keys, width] or [batch, heads, keys, head width])."""
    result = call.result
    if len(call.inputs) < 3 or result is None:
        return None
    query, key, value = call.inputs[:3]
    ranks = {len(tensor.shape) for tensor in (key, value)}
    if len(query.shape) not in (3, 4) or not ranks <= {3, 4} or len(result.shape) != len(query.shape):
        return None
    head_count = math.prod(query.shape[:-2]) if len(query.shape) == 4 else query.shape[0]
    pairs = head_count * query.shape[-2] * key.shape[-2]
    return product_work(_pairs_flop(pairs, query.shape[-1], result.shape[-1]), (*call.inputs, *call.outputs), query)


def _grouped_query_attention(call: OnnxCall) -> Work | None:
    """GroupQueryAttention(query, key, value, past key, past value, …) of ONNX Runtime, always causal (docs/ContribOperators.md).

    Query, or query, key and value packed, [batch, length, …]; past and present [batch, key heads, all lengths, head width]: each
    query sees what is past and up to its own place. Where past and present share a buffer, how much of it is filled is a value;
    a local window is an attribute: neither is recorded, and without a window all pairs count.
    """
    query, result = call.first, call.result
    present, past = (next((tensor.shape for tensor in tensors if len(tensor.shape) == 4), None) for tensors in (call.outputs, call.inputs))
    if query is None or result is None or present is None or len(query.shape) != 3 or len(result.shape) != 3:
        return None
    batch, length, width = result.shape
    past_length = 0 if past is None else past[2]
    if past_length + length != present[2]:
        return None
    pairs = length * past_length + length * (length + 1) // 2
    return product_work(_pairs_flop(batch * pairs, width, width), (*call.inputs, *call.outputs), query)


def _einsum(call: OnnxCall) -> Work | None:
    """The equation is an attribute, which is not recorded: what it takes is unknown, what it moves is not."""
    if call.first is None or call.result is None:
        return None
    return Work(Weight.PRODUCT, None, moved_bytes((*call.inputs, *call.outputs)), call.first.dtype)


def _pairs_flop(pair_count: int, key_width: int, value_width: int) -> float:
    """Scores, and scores times values, over all heads together."""
    return 2.0 * pair_count * (key_width + value_width)


MATRICES: Final[Mapping[str, OnnxModel]] = {
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "Gemm": _transposing,
    "FusedGemm": _transposing,
    "FusedMatMul": _transposing,
    "FusedMatMulActivation": _transposing,
    "TransposeMatMul": _transposing,
    "MatMulNBits": _quantized,
    "DynamicQuantizeMatMul": _quantized,
    "Einsum": _einsum,
}
CONVOLUTIONS: Final[Mapping[str, OnnxModel]] = {
    **dict.fromkeys(("Conv", "FusedConv"), lambda call: _convolution(call, is_transposed=False)),
    "ConvTranspose": lambda call: _convolution(call, is_transposed=True),
}
ATTENTION: Final[Mapping[str, OnnxModel]] = {
    "Attention": _attention,
    "MultiHeadAttention": _heads_attention,
    "GroupQueryAttention": _grouped_query_attention,
}
