"""Sums and their kin, pooling: many elements become few. Flop as in norms: n numbers take n - 1 additions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from services.core.work.convolutions import Geometry, result_shape
from services.core.work.kinds import Model, Weight, Work
from services.core.work.operator_call import OperatorCall
from services.core.work.tensors import Shape, Tensor, moved_bytes

INDEX_DTYPE: Final = "int64"


def _reduction(flop_per_input: int, flop_per_result: int, *, dimensions: int | None = 1, result_dtype: str | None = None) -> Model:
    """dimensions: place of the dimensions that vanish; None, or an input without them: all vanish."""

    def model(call: OperatorCall) -> Work | None:
        values = call.tensor(0)
        count = None if values is None else _result_count(values.shape, call, dimensions)
        if values is None or count is None:
            return None
        dtype = values.dtype
        flop = float(values.count * flop_per_input + count * flop_per_result) if dtype is not None and "float" in dtype else 0.0
        moved = moved_bytes((values, Tensor((count,), result_dtype or dtype)))
        return None if moved is None else Work(Weight.PASS, max(flop, 0.0), moved, dtype)

    return model


def _result_count(shape: Shape, call: OperatorCall, dimensions: int | None) -> int | None:
    """None: not recorded which dimensions vanish."""
    if dimensions is None or (len(call.shapes) <= dimensions + 1 and not call.text(dimensions).strip("[]")):
        return 1
    if call.tensor(dimensions) is not None:
        return None
    gone = call.integers(dimensions)
    if gone is None:
        return 1 if call.text(dimensions) == "[]" else None
    if any(not -len(shape) <= place < len(shape) for place in gone):
        return None
    kept = set(range(len(shape))) - {place % len(shape) for place in gone}
    return math.prod(shape[place] for place in kept)


def _cumulative(call: OperatorCall) -> Work | None:
    """cumsum(input, dimension): n - 1 additions of each row."""
    values, dimension = call.tensor(0), call.integer(1)
    if values is None or dimension is None or not -len(values.shape) <= dimension < len(values.shape) or not values.count:
        return None
    flop = values.count - values.count // values.shape[dimension] if "float" in (values.dtype or "") else 0
    return _pass(float(flop), (values, values), values)


def _pooling(*, is_mean: bool) -> Model:
    """(input, kernel, stride, padding, …): max_poolNd takes a dilation, and writes the places of what it took beside the result.

    A mean of n takes n - 1 additions and a division; windows at the border count whole.
    """

    def model(call: OperatorCall) -> Work | None:
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
        places = None if is_mean else Tensor(result, INDEX_DTYPE)
        return _pass(float(flop), (values, values.shaped(result), places), values)

    return model


def _pooling_backward(call: OperatorCall) -> Work | None:
    """max_poolNd_with_indices_backward(gradient, input, …, places): an addition for each element of the gradient."""
    gradient, values = call.tensor(0), call.tensor(1)
    if gradient is None or values is None:
        return None
    return _pass(float(gradient.count), (gradient, values, Tensor(gradient.shape, INDEX_DTYPE)), values)


def _pass(flop: float, moved: tuple[Tensor | None, ...], values: Tensor) -> Work | None:
    total = moved_bytes(moved)
    return None if total is None else Work(Weight.PASS, flop, total, values.dtype)


_SUM: Final = _reduction(1, -1)
_SELECTION: Final = _reduction(0, 0)

REDUCTIONS: Final[Mapping[str, Model]] = {
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
