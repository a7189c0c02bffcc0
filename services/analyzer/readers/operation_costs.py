"""What an operation of commands.json has to do, from its shapes: the types that are known without anybody's formulas.

A multiply-add counts two operations. Bytes are those that have to move once, with nothing kept in a cache: every input and
the output. A user's op_registry.py comes before these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn, TypeGuard

import numpy as np

from kernalyse.services.analyzer.readers.documents import JsonObject

Shape = tuple[int, ...]

CONV_SYMBOL: Final = "square"
MATMUL_SYMBOL: Final = "circle"
ELEMENTWISE_SYMBOL: Final = "triangle-up"
OTHER_SYMBOL: Final = "diamond"
UNKNOWN_SYMBOL: Final = "star"

FLOP_PER_MAC: Final = 2
MAX_EXTENT: Final = 2**40
MAX_RANK: Final = 16
"""Shapes past these are damage, and their products would leave the range of a float."""


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
        return known.formula(operation, element_bytes)
    macs, moved_bytes = (operation.optional_number(name) for name in STATED_WORK_FIELDS)
    if macs is None or moved_bytes is None:
        return None
    for name, value in zip(STATED_WORK_FIELDS, (macs, moved_bytes), strict=True):
        if value < 0:
            operation.refuse(name, "a number not below zero")
    return OperationWork(FLOP_PER_MAC * macs, moved_bytes, OTHER_SYMBOL)


def _convolution(operation: JsonObject, element_bytes: float) -> OperationWork:
    """input_shape [n, channels, spatial…]; kernel_size, stride and padding an extent for each spatial axis.

    output extent = (input + 2 padding - dilation (kernel - 1) - 1) / stride + 1, rounded down, as torch.nn.Conv3d states it;
    each output takes channels / groups x kernel extents multiply-adds.
    """
    input_shape = _shape(operation, "input_shape", min_rank=3)
    spatial = input_shape[2:]
    kernel = _extents(operation, "kernel_size", spatial, least=1)
    stride = _extents(operation, "stride", spatial, least=1)
    padding = _extents(operation, "padding", spatial, least=0)
    dilation = _extents(operation, "dilation", spatial, least=1) if operation.members.get("dilation") is not None else (1,) * len(spatial)
    groups = _extent(operation, "groups") if operation.members.get("groups") is not None else 1
    output_channels = _extent(operation, "output_channels")
    if input_shape[1] % groups:
        operation.refuse("groups", f"a divisor of the {input_shape[1]} input channels")
    reach = tuple(step * (extent - 1) + 1 for step, extent in zip(dilation, kernel, strict=True))
    room = tuple(extent + 2 * edge - span for extent, edge, span in zip(spatial, padding, reach, strict=True))
    if min(room) < 0:
        operation.refuse("kernel_size", f"one that fits the padded input, {_text(spatial)}")
    output = (input_shape[0], output_channels, *(free // step + 1 for free, step in zip(room, stride, strict=True)))
    weights = (output_channels, input_shape[1] // groups, *kernel)
    flop = FLOP_PER_MAC * math.prod(output) * math.prod(weights[1:])
    return _work(flop, (input_shape, weights, output), element_bytes, CONV_SYMBOL)


def _matmul(operation: JsonObject, element_bytes: float) -> OperationWork:
    """input_mat1 [batch…, m, k] times input_mat2 [batch…, k, n]: m n k multiply-adds for each of the batch."""
    shapes = _matmul_shapes(operation)
    return _work(_matmul_flop(shapes), shapes, element_bytes, MATMUL_SYMBOL)


def _add_matmul(operation: JsonObject, element_bytes: float) -> OperationWork:
    """As `_matmul`, with a term that the sums begin with: no more multiply-adds, but its bytes are read too."""
    shapes = _matmul_shapes(operation)
    names = [name for name in ("input_input", "input_self") if operation.members.get(name) is not None]
    terms = [_shape(operation, name) for name in names[:1]]
    if terms and _broadcast(operation, names[0], terms[0], shapes[2]) != shapes[2]:
        operation.refuse(names[0], f"a shape that extends to {_text(shapes[2])}")
    return _work(_matmul_flop(shapes), (*shapes, *terms), element_bytes, MATMUL_SYMBOL)


def _elementwise(operation: JsonObject, element_bytes: float) -> OperationWork:
    """input_self and input_other, a shape or nothing for a number: one operation for each element of the output."""
    own = _shape(operation, "input_self")
    is_tensor = isinstance(operation.members.get("input_other"), list)
    others = (_shape(operation, "input_other"),) if is_tensor else ()
    output = _broadcast(operation, "input_other", own, others[0]) if others else own
    return _work(math.prod(output), (own, *others, output), element_bytes, ELEMENTWISE_SYMBOL)


@dataclass(frozen=True, slots=True)
class OperationType:
    """A type of operation with a formula of its own.

    required, optional: fields that the formula reads.
    """

    category: str
    formula: Callable[[JsonObject, float], OperationWork]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


OPERATION_TYPES: Final[Mapping[str, OperationType]] = {
    "ID_CONV": OperationType(
        "convolution",
        _convolution,
        ("input_shape", "output_channels", "kernel_size", "stride", "padding"),
        ("dilation", "groups"),
    ),
    "ID_MM": OperationType("matmul", _matmul, ("input_mat1", "input_mat2")),
    "ID_ADDMM": OperationType("matmul", _add_matmul, ("input_mat1", "input_mat2"), ("input_input", "input_self")),
    "ID_MUL": OperationType("elementwise", _elementwise, ("input_self",), ("input_other",)),
    "ID_ADD": OperationType("elementwise", _elementwise, ("input_self",), ("input_other",)),
}

STATED_WORK_FIELDS: Final = ("macs", "bytes")
"""Of an operation of any other type: what it does, where it says so itself."""


def _work(flop: int, moved: tuple[Shape, ...], element_bytes: float, symbol: str) -> OperationWork:
    return OperationWork(float(flop), float(element_bytes * sum(math.prod(shape) for shape in moved)), symbol)


def _matmul_shapes(operation: JsonObject) -> tuple[Shape, Shape, Shape]:
    """Of both factors and of the product."""
    left, right = _shape(operation, "input_mat1", min_rank=2), _shape(operation, "input_mat2", min_rank=2)
    if left[-1] != right[-2]:
        operation.refuse("input_mat2", f"{left[-1]} rows, as many as input_mat1 has columns")
    batch = _broadcast(operation, "input_mat2", left[:-2], right[:-2])
    return left, right, (*batch, left[-2], right[-1])


def _matmul_flop(shapes: tuple[Shape, Shape, Shape]) -> int:
    left, _, product = shapes
    return FLOP_PER_MAC * math.prod(product) * left[-1]


def _broadcast(operation: JsonObject, name: str, left: Shape, right: Shape) -> Shape:
    try:
        return np.broadcast_shapes(left, right)
    except ValueError:
        operation.refuse(name, f"a shape that fits {_text(left)}")


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
