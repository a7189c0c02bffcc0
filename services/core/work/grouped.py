"""Products of groups of rows with a matrix each, as of mixtures of experts. Flop as in products.

How rows are spread over groups is a value, and not recorded, but every row is multiplied once, with whichever matrix. Of the
matrices at most as many are read as there are rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.core.work.kinds import Model, Weight, Work
from services.core.work.operator_call import OperatorCall
from services.core.work.products import product
from services.core.work.tensors import Tensor, moved_bytes


def _grouped(call: OperatorCall, *, offsets: int, result_dtype: str | None = None) -> Work | None:
    """_grouped_mm(left, right, offsets, …): torch.nn.functional.grouped_mm says which shapes go together. Groups divide

    - the rows of left: [m, k] times [groups, k, n];
    - the columns of right: [groups, m, k] times [k, n];
    - what is summed over: [m, k] times [k, n] gives [groups, m, n];
    - or nothing: [groups, m, k] times [groups, k, n].
    """
    left, right, ends = call.tensor(0), call.tensor(1), call.tensor(offsets)
    if left is None or right is None:
        return None
    ranks = len(left.shape), len(right.shape)
    if ranks == (3, 3):
        return _typed(product(left, right), (left, right), left.shaped((*left.shape[:2], right.shape[2])), result_dtype)
    if ends is None or len(ends.shape) != 1:
        return None
    groups = ends.shape[0]
    if ranks == (2, 3) and right.shape[0] == groups:
        read = (left, right.shaped((min(groups, left.shape[0]), *right.shape[1:])))
        work, result = product(left, right.shaped(right.shape[1:])), (left.shape[0], right.shape[2])
    elif ranks == (3, 2) and left.shape[0] == groups:
        read = (left.shaped((min(groups, right.shape[1]), *left.shape[1:])), right)
        work, result = product(left.shaped(left.shape[1:]), right), (left.shape[1], right.shape[1])
    elif ranks == (2, 2):
        read = (left, right)
        work = product(left, right)
        return _typed(work, (*read, ends), left.shaped((groups, left.shape[0], right.shape[1])), result_dtype)
    else:
        return None
    return _typed(work, (*read, ends), left.shaped(result), result_dtype)


def _typed(work: Work | None, read: tuple[Tensor, ...], result: Tensor, result_dtype: str | None) -> Work | None:
    """With the bytes of what is read and written."""
    if work is None:
        return None
    written = result if result_dtype is None else Tensor(result.shape, result_dtype)
    return Work(work.weight, work.flop, moved_bytes((*read, written)), work.dtype)


def _fused_experts(call: OperatorCall) -> Work | None:
    """inplace_fused_experts and outplace_fused_experts(rows [m, k], w1 [experts, 2 n, k], w2 [experts, k, n], chosen weights [m, few], …).

    vLLM's mixture of experts: each row goes through both matrices of each of its few experts. Packed weights, whose shapes are
    others, are not known.
    """
    rows, first, second, chosen = (call.tensor(index) for index in range(4))
    if rows is None or first is None or second is None or chosen is None:
        return None
    if not (len(rows.shape) == len(chosen.shape) == 2 and len(first.shape) == len(second.shape) == 3):
        return None
    experts, both, inner = first.shape
    if rows.shape[1] != inner or second.shape != (experts, inner, both // 2) or both % 2 or chosen.shape[0] != rows.shape[0]:
        return None
    flop = 2.0 * chosen.count * (both * inner + inner * (both // 2))
    used = min(experts, chosen.count)
    weights = (first.shaped((used, both, inner)), second.shaped((used, inner, both // 2)))
    return Work(Weight.PRODUCT, flop, moved_bytes((rows, *weights, chosen, rows)), rows.dtype)


GROUPED: Final[Mapping[str, Model]] = {
    "aten::_grouped_mm": lambda call: _grouped(call, offsets=2),
    "aten::_scaled_grouped_mm": lambda call: _grouped(call, offsets=4, result_dtype="bfloat16"),
    "vllm::inplace_fused_experts": _fused_experts,
    "vllm::outplace_fused_experts": _fused_experts,
}
