"""Costs of reductions, pooling, norms and softmax; a sum of n numbers takes n - 1 additions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from kernalyse.services.core.costs.contractions import Geometry, result_shape
from kernalyse.services.core.costs.operator import CostClass, CostModel, OperatorCall, OperatorCost, Shape, Tensor, moved_bytes

INDEX_DTYPE: Final = "int64"


def _reduction(flop_per_input: int, flop_per_result: int, *, dimensions: int | None = 1, result_dtype: str | None = None) -> CostModel:
    """Return the model of a reduction; `dimensions` is the index of the input that lists the reduced dimensions.

    Without that input, or with an empty one, all dimensions are reduced.
    """

    def model(call: OperatorCall) -> OperatorCost | None:
        values = call.tensor(0)
        count = None if values is None else _result_count(values.shape, call, dimensions)
        if values is None or count is None:
            return None
        dtype = values.dtype
        flop = float(values.count * flop_per_input + count * flop_per_result) if dtype is not None and "float" in dtype else 0.0
        moved = moved_bytes((values, Tensor((count,), result_dtype or dtype)))
        return None if moved is None else OperatorCost(CostClass.PASS, max(flop, 0.0), moved, dtype)

    return model


def _result_count(shape: Shape, call: OperatorCall, dimensions: int | None) -> int | None:
    """Return the number of results, or None where the record does not say which dimensions are reduced."""
    if dimensions is None or (len(call.shapes) <= dimensions + 1 and not call.text(dimensions).strip("[]")):
        return 1
    if call.tensor(dimensions) is not None:
        return None
    reduced = call.integers(dimensions)
    if reduced is None:
        return 1 if call.text(dimensions) == "[]" else None
    if any(not -len(shape) <= dimension < len(shape) for dimension in reduced):
        return None
    remaining = set(range(len(shape))) - {dimension % len(shape) for dimension in reduced}
    return math.prod(shape[dimension] for dimension in remaining)


def _cumulative(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of cumsum(input, dimension): n - 1 additions per row."""
    values, dimension = call.tensor(0), call.integer(1)
    if values is None or dimension is None or not -len(values.shape) <= dimension < len(values.shape) or not values.count:
        return None
    flop = values.count - values.count // values.shape[dimension] if "float" in (values.dtype or "") else 0
    return _pass(float(flop), (values, values), values)


def _pooling(*, is_mean: bool) -> CostModel:
    """Return the model of a pooling (input, kernel, stride, padding, …).

    max_poolNd has a dilation, and also writes the indices of the maxima. A mean of n takes n - 1 additions and a division; windows at
    the border count in full.
    """

    def model(call: OperatorCall) -> OperatorCost | None:
        values, kernel, padding = call.tensor(0), call.integers(1), call.integers(3)
        stride = call.integers(2) or kernel
        dilation = (1,) if is_mean else call.integers(4)
        if values is None or kernel is None or stride is None or padding is None or dilation is None or len(values.shape) < 3:
            return None
        width = len(values.shape) - 2
        kernel, stride, padding, dilation = (sizes * width if len(sizes) == 1 else sizes for sizes in (kernel, stride, padding, dilation))
        rounds_up = call.flag(4 if is_mean else 5)
        if rounds_up is not False or any(len(sizes) != width for sizes in (kernel, stride, padding, dilation)):
            return None
        weight = (values.shape[1], 1, *kernel)
        result = result_shape(values.shape, weight, Geometry(stride, padding, dilation, (0,) * width, 1, is_transposed=False))
        if result is None:
            return None
        flop = math.prod(result) * math.prod(kernel) if is_mean else 0
        indices = None if is_mean else Tensor(result, INDEX_DTYPE)
        return _pass(float(flop), (values, values.shaped(result), indices), values)

    return model


def _pooling_backward(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of max_poolNd_with_indices_backward(gradient, input, …, indices): one addition per element of the gradient."""
    gradient, values = call.tensor(0), call.tensor(1)
    if gradient is None or values is None:
        return None
    return _pass(float(gradient.count), (gradient, values, Tensor(gradient.shape, INDEX_DTYPE)), values)


def _pass(flop: float, moved: tuple[Tensor | None, ...], values: Tensor) -> OperatorCost | None:
    total = moved_bytes(moved)
    return None if total is None else OperatorCost(CostClass.PASS, flop, total, values.dtype)


_SUM: Final = _reduction(1, -1)
_SELECTION: Final = _reduction(0, 0)

REDUCTIONS: Final[Mapping[str, CostModel]] = {
    "aten::sum": _SUM,
    "aten::mean": _reduction(1, 0),  # n - 1 additions and a division
    "aten::amax": _SELECTION,
    "aten::amin": _SELECTION,
    "aten::any": _reduction(0, 0, result_dtype="bool"),
    "aten::all": _reduction(0, 0, result_dtype="bool"),
    "aten::argmax": _reduction(0, 0, result_dtype=INDEX_DTYPE),
    "aten::argmin": _reduction(0, 0, result_dtype=INDEX_DTYPE),
    "aten::linalg_vector_norm": _reduction(2, 0, dimensions=2),  # of order 2: squares, sums and a root
    "aten::cumsum": _cumulative,
    "aten::max_pool2d_with_indices": _pooling(is_mean=False),
    "aten::max_pool3d_with_indices": _pooling(is_mean=False),
    "aten::avg_pool2d": _pooling(is_mean=True),
    "aten::avg_pool3d": _pooling(is_mean=True),
    "aten::max_pool2d_with_indices_backward": _pooling_backward,
    "aten::max_pool3d_with_indices_backward": _pooling_backward,
}


# ---------------------------------------------------------------- norms and softmax
# Flop are counted on the definitions: each addition, multiplication, division, root and exponential is one,
# a comparison none. Sums of n numbers take n - 1 additions. Tests evaluate the definitions on numbers that count operations.

_STATISTICS_PER_ROW: Final = 2  # its mean and the inverse of its deviation


def normalising_flop(row_count: int, length: int, *, has_scale: bool, has_shift: bool) -> float:
    """Return the flop of (x - mean) / sqrt(variance + epsilon), times a scale, plus a shift, for rows of this length.

    After Ba, Kiros and Hinton, "Layer Normalization", 2016, equations 3 and 4. Per row: mean n, variance 3n (difference,
    square, sum, with the division), epsilon and the inverse root 2, scaling n; scale and shift n each.
    """
    return float(row_count * (5 * length + 2 + length * (has_scale + has_shift)))


def normalising_backward_flop(row_count: int, length: int, *, has_scale: bool) -> float:
    """Return the flop of (dy - mean(dy) - x^ mean(dy x^)) / deviation, x^ = (x - mean) / deviation, dy = gradient times scale.

    After Ioffe and Szegedy, "Batch Normalization", 2015, section 3.1, simplified. Per row: x^ 2n, both means 3n with
    their divisions, difference of three terms 3n, by the deviation n; scaling the gradient n.
    """
    return float(row_count * (9 * length + length * has_scale))


def softmax_flop(row_count: int, length: int) -> float:
    """Return the flop of softmax; per row n differences from the largest, n exponentials, n - 1 additions, n divisions."""
    return float(row_count * (4 * length - 1))


def _layer_norm(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of native_layer_norm(input, normalized_shape, weight, bias, epsilon), which also writes the statistics."""
    values, scale, shift = call.tensor(0), call.tensor(2), call.tensor(3)
    length = _row_length(call.integers(1), scale)
    if values is None or length is None or length == 0 or values.count % length:
        return None
    rows = values.count // length
    flop = normalising_flop(rows, length, has_scale=scale is not None, has_shift=shift is not None)
    return _pass(flop, (values, scale, shift, values, _statistics(values, rows)), values)


def _layer_norm_backward(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of native_layer_norm_backward(gradient, input, normalized_shape, mean, deviation, weight, bias, requested)."""
    gradient, values, scale, shift = (call.tensor(index) for index in (0, 1, 5, 6))
    length = _row_length(call.integers(2), scale)
    if gradient is None or values is None or length is None or length == 0 or values.count % length:
        return None
    rows = values.count // length
    flop = normalising_backward_flop(rows, length, has_scale=scale is not None)
    # Of the scale: products with x^, summed over rows; of the shift: sums over rows.
    flop += length * ((2 * rows - 1) * (scale is not None) + (rows - 1) * (shift is not None))
    return _pass(flop, (gradient, values, _statistics(values, rows), scale, values, scale, shift), values)


def _group_norm(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of native_group_norm(input, weight, bias, batch, channels, size, groups, epsilon)."""
    values, scale, shift, groups = call.tensor(0), call.tensor(1), call.tensor(2), call.integer(6)
    if values is None or not groups or len(values.shape) < 2 or values.count % (values.shape[0] * groups or 1):
        return None
    rows = values.shape[0] * groups
    flop = normalising_flop(rows, values.count // rows if rows else 0, has_scale=scale is not None, has_shift=shift is not None)
    return _pass(flop, (values, scale, shift, values, _statistics(values, rows)), values)


def _batch_norm(training: int) -> CostModel:
    """Return the model of a batch norm (input, weight, bias, running mean, running variance, …), in which a channel is a row.

    `training` is the index of the flag. In training the running statistics are read and written, and those of the batch written;
    else the former are read, and there remain epsilon and the inverse root per channel, a difference and a product per element.
    """

    def model(call: OperatorCall) -> OperatorCost | None:
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


def _batch_norm_backward(indices: tuple[int, int, int]) -> CostModel:
    """Return the model of a batch norm's gradient; `indices` are those of gradient, input and weight."""

    def model(call: OperatorCall) -> OperatorCost | None:
        gradient, values, scale = (call.tensor(index) for index in indices)
        if gradient is None or values is None or len(values.shape) < 2 or not values.shape[1]:
            return None
        rows, length = values.shape[1], values.count // values.shape[1]
        flop = normalising_backward_flop(rows, length, has_scale=scale is not None)
        # Sums that the gradients of scale and shift are made of are there already: of the input's own.
        moved = (gradient, values, _statistics(values, rows), scale, values, scale, scale)
        return _pass(flop, moved, values)

    return model


def rms_norm_flop(row_count: int, length: int, *, has_scale: bool) -> float:
    """Return the flop of x / sqrt(mean(x^2) + epsilon), times a scale.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, equation 4.
    Per row: squares n, their mean n with the division, epsilon and the inverse root 2, scaling n; scale n.
    """
    return float(row_count * (3 * length + 2 + length * has_scale))


def _rms_norm(indices: tuple[int, int]) -> CostModel:
    """Return the model of an RMS norm; `indices` are those of input and weight."""

    def model(call: OperatorCall) -> OperatorCost | None:
        values, scale = (call.tensor(index) for index in indices)
        if values is None or scale is None or not scale.count or values.count % scale.count:
            return None
        flop = rms_norm_flop(values.count // scale.count, scale.count, has_scale=True)
        return _pass(flop, (values, scale, values), values)

    return model


def _added_rms_norm(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of vLLM's fused_add_rms_norm(input, residual, weight, epsilon).

    The sum replaces the residual, and its norm the input.
    """
    values, residual, scale = call.tensor(0), call.tensor(1), call.tensor(2)
    if values is None or residual is None or scale is None or not scale.count or values.count % scale.count:
        return None
    flop = values.count + rms_norm_flop(values.count // scale.count, scale.count, has_scale=True)
    return _pass(float(flop), (values, residual, scale, values, residual), values)


def _softmax(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of a softmax (input, dimension, …)."""
    values, length = call.tensor(0), _dimension_size(call, 0, 1)
    return None if values is None or not length else _pass(softmax_flop(values.count // length, length), (values, values), values)


def _log_softmax(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of _log_softmax; per row n differences, n exponentials, sum and logarithm n, n differences."""
    values, length = call.tensor(0), _dimension_size(call, 0, 1)
    return None if values is None or not length else _pass(4.0 * values.count, (values, values), values)


def _softmax_backward(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of _softmax_backward_data(gradient, output, dimension, …) and of log_softmax's: 4n - 1 flop per row.

    Softmax: y (dy - sum(dy y)); its logarithm: dy - exp(y) sum(dy).
    """
    gradient, result, length = call.tensor(0), call.tensor(1), _dimension_size(call, 1, 2)
    if gradient is None or result is None or not length:
        return None
    return _pass(softmax_flop(result.count // length, length), (gradient, result, gradient), result)


def _dimension_size(call: OperatorCall, tensor_index: int, dimension_index: int) -> int | None:
    """Return the size along the dimension; None: not recorded."""
    tensor, dimension = call.tensor(tensor_index), call.integer(dimension_index)
    if tensor is None or dimension is None or not -len(tensor.shape) <= dimension < len(tensor.shape):
        return None
    return tensor.shape[dimension]


def _row_length(normalized: tuple[int, ...] | None, scale: Tensor | None) -> int | None:
    return math.prod(normalized) if normalized is not None else None if scale is None else scale.count


def _statistics(values: Tensor, row_count: int) -> Tensor:
    """Return the tensor of the statistics, which are stored in float32, or in float64 for inputs of that type."""
    dtype = values.dtype if values.dtype in (None, "float64") else "float32"
    return Tensor((_STATISTICS_PER_ROW * row_count,), dtype)


NORMS: Final[Mapping[str, CostModel]] = {
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
