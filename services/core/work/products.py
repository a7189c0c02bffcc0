"""Products of matrices.

A fused multiply-add counts two, as everywhere. The addition of addmm and its kin rides in the accumulator and counts none,
as in torch.utils.flop_counter (mm_flop, addmm_flop, bmm_flop, baddbmm_flop) and in what Kineto records. Of einsum no equation
is recorded: the products inside of it count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from services.core.work.kinds import Model, Weight, Work
from services.core.work.operator_call import OperatorCall
from services.core.work.tensors import Tensor, broadcast, moved_bytes


def product(left: Tensor, right: Tensor, added: Tensor | None = None) -> Work | None:
    """left [..., m, k] times right [..., k, n]: 2 * batch * m * n * k flop; both and what is added read, the result written.

    A vector is a matrix of one row or column, as numpy.matmul has it. None: the shapes do not fit.
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
    return Work(Weight.PRODUCT, flop, moved_bytes((left, right, added, left.shaped(result))), left.dtype)


def _of(left: int, right: int, added: int | None = None) -> Model:
    """Model of an operator whose inputs are at these places."""

    def model(call: OperatorCall) -> Work | None:
        first, second = call.tensor(left), call.tensor(right)
        if first is None or second is None:
            return None
        return product(first, second, None if added is None else call.tensor(added))

    return model


def _scaled(call: OperatorCall) -> Work | None:
    """_scaled_mm of two float8 matrices: its result is of the type of its bias, else of two bytes an element."""
    left, right = call.tensor(0), call.tensor(1)
    found = None if left is None or right is None else product(left, right)
    if found is None or left is None or right is None:
        return None
    result = Tensor((left.shape[0], right.shape[-1]), "bfloat16")
    return Work(found.weight, found.flop, moved_bytes((left, right, result)), found.dtype)


def _linear(call: OperatorCall) -> Work | None:
    """x [..., k] times weight [n, k] transposed, plus bias [n]."""
    values, weight = call.tensor(0), call.tensor(1)
    if values is None or weight is None or len(weight.shape) != 2 or not values.shape:
        return None
    rows = math.prod(values.shape[:-1])
    return product(values.shaped((rows, values.shape[-1])), weight.shaped((weight.shape[1], weight.shape[0])), call.tensor(2))


def _matrix_times_vector(call: OperatorCall) -> Work | None:
    """addmv: a vector added to a matrix times a vector."""
    matrix, vector = call.tensor(1), call.tensor(2)
    return None if matrix is None or vector is None else product(matrix, vector, call.tensor(0))


def _summed_batches(call: OperatorCall) -> Work | None:
    """addbmm: the products of a batch summed into one matrix: one product over batch * k."""
    left, right = call.tensor(1), call.tensor(2)
    if left is None or right is None or len(left.shape) != 3 or len(right.shape) != 3 or left.shape[0] != right.shape[0]:
        return None
    batch, rows, inner = left.shape
    return product(left.shaped((rows, batch * inner)), right.shaped((batch * right.shape[1], right.shape[2])), call.tensor(0))


PRODUCTS: Final[Mapping[str, Model]] = {
    "aten::mm": _of(0, 1),
    "aten::bmm": _of(0, 1),
    "aten::matmul": _of(0, 1),
    "aten::mv": _of(0, 1),
    "aten::dot": _of(0, 1),
    "aten::vdot": _of(0, 1),
    "aten::addmm": _of(1, 2, 0),
    "aten::addmm_": _of(1, 2, 0),
    "aten::_addmm_activation": _of(1, 2, 0),
    "aten::baddbmm": _of(1, 2, 0),
    "aten::baddbmm_": _of(1, 2, 0),
    "aten::addmv": _matrix_times_vector,
    "aten::addmv_": _matrix_times_vector,
    "aten::addbmm": _summed_batches,
    "aten::addbmm_": _summed_batches,
    "aten::linear": _linear,
    "aten::_scaled_mm": _scaled,
}
