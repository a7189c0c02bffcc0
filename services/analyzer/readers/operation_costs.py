"""What an operation of commands.json has to do, from its shapes: the types that are known without anybody's formulas.

The work is that of PyTorch's operator of the same name (core.costs); here its shapes are checked, so that an error names the
field. A user's op_registry.py comes before these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, TypeGuard

from kernalyse.services.analyzer.readers.documents import JsonObject
from kernalyse.services.core.costs.operator import ELEMENT_BYTES, RECORDED_DTYPES, OperatorCall, OperatorCost, Shape, broadcast
from kernalyse.services.core.costs.registry import operator_cost

OTHER_SYMBOL: Final = "diamond"
UNKNOWN_SYMBOL: Final = "star"

MODEL_DTYPE: Final = "float"
"""As PyTorch records float32. Models count no operations of whole numbers, as accelerators' lists do."""

MODEL_ELEMENT_BYTES: Final = ELEMENT_BYTES[RECORDED_DTYPES[MODEL_DTYPE]]

FLOP_PER_MAC: Final = 2
MAX_EXTENT: Final = 2**40
MAX_RANK: Final = 16
"""Shapes past these are damage."""


@dataclass(frozen=True, slots=True)
class OperationWork:
    """flop, bytes: of one execution; None: not known. symbol: by Plotly's names."""

    flop: float | None
    bytes: float | None
    symbol: str


UNKNOWN_WORK: Final = OperationWork(None, None, UNKNOWN_SYMBOL)


def built_in_work(operation: JsonObject, element_bytes: float) -> OperationWork | None:
    """Return the work of an operation; None: neither is its type known nor does it say its MACs and bytes itself.

    Raises InvalidTraceError for shapes that are missing or do not fit each other.
    """
    known = OPERATION_TYPES.get(operation.text("type"))
    if known is not None:
        return _modelled_work(operation, known, element_bytes)
    macs, moved_bytes = (operation.optional_number(name) for name in STATED_WORK_FIELDS)
    if macs is None or moved_bytes is None:
        return None
    for name, value in zip(STATED_WORK_FIELDS, (macs, moved_bytes), strict=True):
        if value < 0:
            operation.refuse(name, "a number not below zero")
    return OperationWork(FLOP_PER_MAC * macs, moved_bytes, OTHER_SYMBOL)


def _modelled_work(operation: JsonObject, known: OperationType, element_bytes: float) -> OperationWork:
    """Every tensor of an operation is of one type: its bytes are those of MODEL_DTYPE, scaled."""
    work = known.model(operation)
    if work.flop == math.inf:
        operation.refuse(known.required[0], "extents whose product a float can hold")
    assert work.bytes is not None  # the model is told the data type
    return OperationWork(work.flop, work.bytes / MODEL_ELEMENT_BYTES * element_bytes, known.symbol)


def _work(operator: str, shapes: Sequence[Shape], values: tuple[object, ...] = ()) -> OperatorCost | None:
    """Return the work of an operator of PyTorch; None: the shapes do not fit each other. values: of its arguments by place."""
    return operator_cost(OperatorCall(operator, tuple(shapes), (MODEL_DTYPE,) * len(shapes), tuple(map(str, values))))


def _convolution(operation: JsonObject) -> OperatorCost:
    """input_shape [n, channels, spatial…]; kernel_size, stride and padding an extent for each spatial axis."""
    input_shape = _shape(operation, "input_shape", min_rank=3)
    spatial = input_shape[2:]
    kernel = _extents(operation, "kernel_size", spatial, least=1)
    stride = _extents(operation, "stride", spatial, least=1)
    padding = _extents(operation, "padding", spatial, least=0)
    dilation = _extents(operation, "dilation", spatial, least=1) if operation.members.get("dilation") is not None else 1
    groups = _extent(operation, "groups") if operation.members.get("groups") is not None else 1
    output_channels = _extent(operation, "output_channels")
    if input_shape[1] % groups:
        operation.refuse("groups", f"a divisor of the {input_shape[1]} input channels")
    weight = (output_channels, input_shape[1] // groups, *kernel)
    # convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    work = _work("aten::convolution", (input_shape, weight), ("", "", "", stride, padding, dilation, False, "", groups))
    return work or operation.refuse("kernel_size", f"one that fits the padded input, {_text(spatial)}")


def _matmul(operation: JsonObject) -> OperatorCost:
    """input_mat1 [batch…, m, k] times input_mat2 [batch…, k, n]."""
    left, right = _shape(operation, "input_mat1", min_rank=2), _shape(operation, "input_mat2", min_rank=2)
    if left[-1] != right[-2]:
        operation.refuse("input_mat2", f"{left[-1]} rows, as many as input_mat1 has columns")
    return _work("aten::matmul", (left, right)) or operation.refuse("input_mat2", f"a shape that fits {_text(left[:-2])}")


def _add_matmul(operation: JsonObject) -> OperatorCost:
    """As `_matmul`, with a term that the sums begin with: no more multiply-adds, but its bytes are read too."""
    product = _matmul(operation)
    left, right = _shape(operation, "input_mat1"), _shape(operation, "input_mat2")
    name = next((name for name in ("input_input", "input_self") if operation.members.get(name) is not None), None)
    if name is None:
        return product
    term, result = _shape(operation, name), (*(broadcast(left[:-2], right[:-2]) or ()), left[-2], right[-1])
    if broadcast(term, result) != result:
        operation.refuse(name, f"a shape that extends to {_text(result)}")
    return _work("aten::addmm", (term, left, right)) or product


def _elementwise(operator: str) -> Callable[[JsonObject], OperatorCost]:
    """input_self and input_other, a shape or nothing for a number."""

    def model(operation: JsonObject) -> OperatorCost:
        names = ["input_self", *(["input_other"] if isinstance(operation.members.get("input_other"), list) else [])]
        # A shape of no extents is a tensor of one element; PyTorch's models would take it for a number.
        shapes = [_shape(operation, name) or (1,) for name in names]
        return _work(operator, shapes) or operation.refuse("input_other", f"a shape that fits {_text(shapes[0])}")

    return model


@dataclass(frozen=True, slots=True)
class OperationType:
    """A type of operation whose work follows from its shapes.

    required, optional: fields that the model reads.
    """

    category: str
    symbol: str
    model: Callable[[JsonObject], OperatorCost]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


OPERATION_TYPES: Final[Mapping[str, OperationType]] = {
    "ID_CONV": OperationType(
        "convolution",
        "square",
        _convolution,
        ("input_shape", "output_channels", "kernel_size", "stride", "padding"),
        ("dilation", "groups"),
    ),
    "ID_MM": OperationType("matmul", "circle", _matmul, ("input_mat1", "input_mat2")),
    "ID_ADDMM": OperationType("matmul", "circle", _add_matmul, ("input_mat1", "input_mat2"), ("input_input", "input_self")),
    "ID_MUL": OperationType("elementwise", "triangle-up", _elementwise("aten::mul"), ("input_self",), ("input_other",)),
    "ID_ADD": OperationType("elementwise", "triangle-up", _elementwise("aten::add"), ("input_self",), ("input_other",)),
}

STATED_WORK_FIELDS: Final = ("macs", "bytes")
"""Of an operation of any other type: what it does, where it says so itself."""


# ---------------------------------------------------------------- shapes


def _shape(operation: JsonObject, name: str, min_rank: int = 0) -> Shape:
    values = operation.values(name)
    if not min_rank <= len(values) <= MAX_RANK:
        operation.refuse(name, f"{min_rank} to {MAX_RANK} extents")
    return tuple(value if _is_extent(value, 0) else _refuse_extent(operation, name, 0) for value in values)


def _extents(operation: JsonObject, name: str, spatial: Shape, least: int) -> Shape:
    """One for each spatial axis; a single number stands for all."""
    value = operation.members.get(name)
    values = value if isinstance(value, list) else [value] * len(spatial)
    if len(values) != len(spatial):
        operation.refuse(name, f"{len(spatial)} numbers, one for each spatial axis of the input")
    return tuple(value if _is_extent(value, least) else _refuse_extent(operation, name, least) for value in values)


def _extent(operation: JsonObject, name: str) -> int:
    value = operation.count(name)
    return value if _is_extent(value, 1) else _refuse_extent(operation, name, 1)


def _is_extent(value: object, least: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_EXTENT


def _refuse_extent(operation: JsonObject, name: str, least: int) -> NoReturn:
    operation.refuse(name, f"whole numbers from {least} to {MAX_EXTENT}")


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "a number"
