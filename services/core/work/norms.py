"""Normalisations and softmax: flop counted on their definitions, each addition, multiplication, division, root and exponential
as one, comparisons as none. Sums of n numbers take n - 1 additions. Tests carry the definitions out on numbers that count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from services.core.work.kinds import Model, Weight, Work
from services.core.work.operator_call import OperatorCall
from services.core.work.tensors import Tensor, moved_bytes

_STATISTICS_PER_ROW: Final = 2  # its mean and the inverse of its deviation


def normalising_flop(row_count: int, length: int, *, has_scale: bool, has_shift: bool) -> float:
    """(x - mean) / sqrt(variance + epsilon), times a scale, plus a shift, of rows of this length.

    After Ba, Kiros and Hinton, "Layer Normalization", 2016, equations 3 and 4. Of each row: mean n, variance 3n (difference,
    square, sum, with the division), epsilon and the inverse root 2, scaling n; scale and shift n each.
    """
    return float(row_count * (5 * length + 2 + length * (has_scale + has_shift)))


def normalising_backward_flop(row_count: int, length: int, *, has_scale: bool) -> float:
    """(dy - mean(dy) - x^ mean(dy x^)) / deviation, x^ = (x - mean) / deviation, dy = gradient times scale.

    After Ioffe and Szegedy, "Batch Normalization", 2015, section 3.1, simplified. Of each row: x^ 2n, both means 3n with
    their divisions, difference of three terms 3n, by the deviation n; scaling the gradient n.
    """
    return float(row_count * (9 * length + length * has_scale))


def softmax_flop(row_count: int, length: int) -> float:
    """Of each row: n differences from the largest, n exponentials, n - 1 additions, n divisions."""
    return float(row_count * (4 * length - 1))


def _layer_norm(call: OperatorCall) -> Work | None:
    """native_layer_norm(input, normalized_shape, weight, bias, epsilon): statistics are written beside the result."""
    values, scale, shift = call.tensor(0), call.tensor(2), call.tensor(3)
    length = _length(call.integers(1), scale)
    if values is None or length is None or length == 0 or values.count % length:
        return None
    rows = values.count // length
    flop = normalising_flop(rows, length, has_scale=scale is not None, has_shift=shift is not None)
    return _pass(flop, (values, scale, shift, values, _statistics(values, rows)), values)


def _layer_norm_backward(call: OperatorCall) -> Work | None:
    """native_layer_norm_backward(gradient, input, normalized_shape, mean, deviation, weight, bias, wanted)."""
    gradient, values, scale, shift = (call.tensor(index) for index in (0, 1, 5, 6))
    length = _length(call.integers(2), scale)
    if gradient is None or values is None or length is None or length == 0 or values.count % length:
        return None
    rows = values.count // length
    flop = normalising_backward_flop(rows, length, has_scale=scale is not None)
    # Of the scale: products with x^, summed over rows; of the shift: sums over rows.
    flop += length * ((2 * rows - 1) * (scale is not None) + (rows - 1) * (shift is not None))
    return _pass(flop, (gradient, values, _statistics(values, rows), scale, values, scale, shift), values)


def _group_norm(call: OperatorCall) -> Work | None:
    """native_group_norm(input, weight, bias, batch, channels, size, groups, epsilon)."""
    values, scale, shift, groups = call.tensor(0), call.tensor(1), call.tensor(2), call.integer(6)
    if values is None or not groups or len(values.shape) < 2 or values.count % (values.shape[0] * groups or 1):
        return None
    rows = values.shape[0] * groups
    flop = normalising_flop(rows, values.count // rows if rows else 0, has_scale=scale is not None, has_shift=shift is not None)
    return _pass(flop, (values, scale, shift, values, _statistics(values, rows)), values)


def _batch_norm(training: int) -> Model:
    """(input, weight, bias, running mean, running variance, …): a channel is a row. training: place of the flag.

    In training the running statistics are read and written, and those of the batch written; else the former are read, and
    of each channel epsilon and the inverse root remain, of each element a difference and a product.
    """

    def model(call: OperatorCall) -> Work | None:
        values, scale, shift, mean, variance = (call.tensor(index) for index in range(5))
        is_training = call.flag(training)
        if values is None or len(values.shape) < 2 or is_training is None or not values.shape[1]:
            return None
        rows = values.shape[1]
        affine = (scale is not None) + (shift is not None)
        read = (values, scale, shift, mean, variance, values)
        if not is_training:
            return _pass(float(values.count * (2 + affine) + 2 * rows), read, values)
        flop = normalising_flop(rows, values.count // rows, has_scale=scale is not None, has_shift=shift is not None)
        return _pass(flop, (*read, mean, variance, _statistics(values, rows)), values)

    return model


def _batch_norm_backward(places: tuple[int, int, int]) -> Model:
    """places: of gradient, input and weight."""

    def model(call: OperatorCall) -> Work | None:
        gradient, values, scale = (call.tensor(index) for index in places)
        if gradient is None or values is None or len(values.shape) < 2 or not values.shape[1]:
            return None
        rows, length = values.shape[1], values.count // values.shape[1]
        flop = normalising_backward_flop(rows, length, has_scale=scale is not None)
        # Sums that the gradients of scale and shift are made of are there already: of the input's own.
        moved = (gradient, values, _statistics(values, rows), scale, values, scale, scale)
        return _pass(flop, moved, values)

    return model


def rms_norm_flop(row_count: int, length: int, *, has_scale: bool) -> float:
    """x / sqrt(mean(x^2) + epsilon), times a scale: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, equation 4.

    Of each row: squares n, their mean n with the division, epsilon and the inverse root 2, scaling n; scale n.
    """
    return float(row_count * (3 * length + 2 + length * has_scale))


def _rms_norm(places: tuple[int, int]) -> Model:
    """places: of input and weight."""

    def model(call: OperatorCall) -> Work | None:
        values, scale = (call.tensor(index) for index in places)
        if values is None or scale is None or not scale.count or values.count % scale.count:
            return None
        flop = rms_norm_flop(values.count // scale.count, scale.count, has_scale=True)
        return _pass(flop, (values, scale, values), values)

    return model


def _added_rms_norm(call: OperatorCall) -> Work | None:
    """fused_add_rms_norm(input, residual, weight, epsilon) of vLLM: the sum replaces the residual, its norm the input."""
    values, residual, scale = call.tensor(0), call.tensor(1), call.tensor(2)
    if values is None or residual is None or scale is None or not scale.count or values.count % scale.count:
        return None
    flop = values.count + rms_norm_flop(values.count // scale.count, scale.count, has_scale=True)
    return _pass(float(flop), (values, residual, scale, values, residual), values)


def _softmax(call: OperatorCall) -> Work | None:
    """_softmax(input, dimension, …)"""
    values, length = call.tensor(0), _along(call, 0, 1)
    return None if values is None or not length else _pass(softmax_flop(values.count // length, length), (values, values), values)


def _log_softmax(call: OperatorCall) -> Work | None:
    """Of each row: differences n, exponentials n, sum and logarithm n, differences n."""
    values, length = call.tensor(0), _along(call, 0, 1)
    return None if values is None or not length else _pass(4.0 * values.count, (values, values), values)


def _softmax_backward(call: OperatorCall) -> Work | None:
    """_softmax_backward_data(gradient, output, dimension, …) and that of log_softmax: of each row 4n - 1.

    Softmax: y (dy - sum(dy y)); its logarithm: dy - exp(y) sum(dy).
    """
    gradient, result, length = call.tensor(0), call.tensor(1), _along(call, 1, 2)
    if gradient is None or result is None or not length:
        return None
    return _pass(softmax_flop(result.count // length, length), (gradient, result, gradient), result)


def _along(call: OperatorCall, tensor_index: int, dimension_index: int) -> int | None:
    """Size along the dimension; None: not recorded."""
    tensor, dimension = call.tensor(tensor_index), call.integer(dimension_index)
    if tensor is None or dimension is None or not -len(tensor.shape) <= dimension < len(tensor.shape):
        return None
    return tensor.shape[dimension]


def _length(normalized: tuple[int, ...] | None, scale: Tensor | None) -> int | None:
    return math.prod(normalized) if normalized is not None else None if scale is None else scale.count


def _statistics(values: Tensor, row_count: int) -> Tensor:
    """Kept in float32, of float64 in that."""
    dtype = values.dtype if values.dtype in (None, "float64") else "float32"
    return Tensor((_STATISTICS_PER_ROW * row_count,), dtype)


def _pass(flop: float, moved: tuple[Tensor | None, ...], values: Tensor) -> Work | None:
    total = moved_bytes(moved)
    return None if total is None else Work(Weight.PASS, flop, total, values.dtype)


NORMS: Final[Mapping[str, Model]] = {
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::native_group_norm": _group_norm,
    "aten::native_batch_norm": _batch_norm(5),
    "aten::_native_batch_norm_legit": _batch_norm(5),
    "aten::cudnn_batch_norm": _batch_norm(5),
    "aten::miopen_batch_norm": _batch_norm(5),
    "aten::native_batch_norm_backward": _batch_norm_backward((0, 1, 2)),
    "aten::cudnn_batch_norm_backward": _batch_norm_backward((1, 0, 2)),
    "aten::miopen_batch_norm_backward": _batch_norm_backward((1, 0, 2)),
    "aten::rms_norm": _rms_norm((0, 2)),
    "aten::_fused_rms_norm": _rms_norm((0, 2)),
    "_C::rms_norm": _rms_norm((1, 2)),
    "_C::fused_add_rms_norm": _added_rms_norm,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _log_softmax,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
}
