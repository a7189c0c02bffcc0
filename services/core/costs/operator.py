"""Recorded operator calls, their tensors and data types, and the least cost of a call."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Self

# ---------------------------------------------------------------- tensors

Shape = tuple[int, ...]

RECORDED_DTYPES: Final = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8",
    "c10::Float8_e4m3fnuz": "float8",
    "c10::Float8_e5m2": "float8",
    "c10::Float8_e5m2fnuz": "float8",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
}
"""The project's names of data types, by the C++ name that PyTorch records.

Complex numbers are left out: their arithmetic counts differently."""

ELEMENT_BYTES: Final = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "float8": 1,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
_RANKS: Final = {
    name: rank
    for rank, names in enumerate((("bool",), ("uint8", "int8"), ("int16",), ("int32",), ("int64",), ("float8",)))
    for name in names
} | {"float16": 6, "bfloat16": 6, "float32": 7, "float64": 8}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's shape and data type, by the project's name for it; None: not recorded."""

    shape: Shape
    dtype: str | None = None

    @property
    def count(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> float | None:
        """Return the size in bytes; None: the data type is not known."""
        return None if self.dtype is None else float(self.count * ELEMENT_BYTES[self.dtype])

    def shaped(self, shape: Shape) -> Tensor:
        """Return a tensor of this shape and the same type."""
        return Tensor(shape, self.dtype)


def moved_bytes(tensors: Iterable[Tensor | None]) -> float | None:
    """Return the bytes of all these tensors; entries that are None move nothing.

    The result is None where the type of one is not known.
    """
    total = 0.0
    for tensor in tensors:
        if tensor is not None:
            if tensor.bytes is None:
                return None
            total += tensor.bytes
    return total


def broadcast(*shapes: Shape) -> Shape | None:
    """Return the shape of an elementwise result, or None where the shapes do not fit and so cannot be the operator's."""
    width = max(map(len, shapes), default=0)
    sizes = []
    for column in zip(*((1,) * (width - len(shape)) + shape for shape in shapes), strict=True):
        sizes_over_1 = {size for size in column if size != 1}
        if len(sizes_over_1) > 1:
            return None
        sizes.append(sizes_over_1.pop() if sizes_over_1 else 1)
    return tuple(sizes)


def promoted_dtype(tensors: Iterable[Tensor]) -> str | None:
    """Return the data type of a result by PyTorch's promotion rules, or None where one of the types is not known.

    Tensors without dimensions decide only if they are of a higher kind; float16 with bfloat16 makes float32.
    """
    found: str | None = None
    has_dimensions = True
    for tensor in sorted(tensors, key=lambda tensor: len(tensor.shape) == 0):
        name = tensor.dtype
        if name is None:
            return None
        if found is None:
            found, has_dimensions = name, len(tensor.shape) > 0
        elif len(tensor.shape) > 0 or not has_dimensions or _kind(name) > _kind(found):
            found = "float32" if {name, found} == {"float16", "bfloat16"} else max(found, name, key=_RANKS.__getitem__)
    return found


def _kind(dtype: str) -> int:
    return 0 if dtype == "bool" else 2 if "float" in dtype else 1


# ---------------------------------------------------------------- operator calls

NUMBER: Final = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
LIST_DTYPE: Final = re.compile(r"Tensor\(([^()]*)\)")


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator call as a trace records it: the name with its namespace, and shapes, data types and values of its inputs.

    The tuples have one entry for each input; shorter ones lack the rest.
    """

    name: str
    shapes: tuple[Any, ...]
    dtypes: tuple[str, ...] | None = None  # None: not recorded, as by emit_nvtx
    values: tuple[str, ...] = ()

    @classmethod
    def parsed(cls, name: str, input_shapes: str, input_dtypes: str | None, input_values: str | None) -> Self | None:
        """Return the call from the JSON texts of the table ranges, or None where the shapes are not a list."""
        shapes, dtypes, values = _list(input_shapes), _list(input_dtypes), _list(input_values)
        if shapes is None:
            return None
        return cls(name, shapes, None if dtypes is None else tuple(map(str, dtypes)), tuple(map(str, values or ())))

    def tensor(self, index: int) -> Tensor | None:
        """Return an input, or None if it is not a tensor or nothing is known of it.

        An empty shape is a tensor only where its type says so.
        """
        shape = _shape(self.shapes[index]) if 0 <= index < len(self.shapes) else None
        if shape is None:
            return None
        if self.dtypes is None:
            return Tensor(shape) if shape else None
        recorded = self.dtypes[index] if index < len(self.dtypes) else ""
        dtype = RECORDED_DTYPES.get(recorded)
        return None if dtype is None and (not shape or recorded) else Tensor(shape, dtype)

    def tensors(self, index: int) -> list[Tensor]:
        """Return the tensors of an input that is a list of them.

        The result is empty if the list is, if the input is no list, or if it was too long to be recorded (more than 30 entries).
        Kineto records no data types for lists, PyTorch's execution traces write GenericList[Tensor(float),Tensor(float)];
        a single type holds for all.
        """
        recorded = self.shapes[index] if 0 <= index < len(self.shapes) else None
        shapes = [_shape(shape) for shape in recorded] if isinstance(recorded, list) else []
        dtype = self.dtypes[index] if self.dtypes is not None and index < len(self.dtypes) else ""
        types = LIST_DTYPE.findall(dtype)
        if len(types) != len(shapes):
            types = [dtype] * len(shapes)
        found = [Tensor(shape, RECORDED_DTYPES.get(name)) for shape, name in zip(shapes, types, strict=True) if shape is not None]
        return found if len(found) == len(shapes) else []

    def number(self, index: int) -> float | None:
        """Return an input that is a number; None: not recorded."""
        found = NUMBER.fullmatch(self.text(index))
        return None if found is None else float(found[0])

    def text(self, index: int) -> str:
        """Return an input's value as recorded; empty: not recorded."""
        return self.values[index] if index < len(self.values) else ""

    def integers(self, index: int) -> tuple[int, ...] | None:
        """Return an input that is an integer or a list of integers; None: not recorded."""
        found = NUMBER.findall(self.text(index))
        return tuple(int(float(part)) for part in found) if found else None

    def integer(self, index: int) -> int | None:
        """Return an input that is an integer; None: not recorded."""
        found = self.integers(index)
        return found[0] if found is not None and len(found) == 1 else None

    def flags(self, index: int) -> tuple[bool, ...] | None:
        """Return an input that is a flag or a list of flags; None: not recorded."""
        found = re.findall(r"True|False", self.text(index))
        return tuple(part == "True" for part in found) if found else None

    def flag(self, index: int) -> bool | None:
        """Return an input that is a flag; None: not recorded."""
        found = self.flags(index)
        return found[0] if found is not None and len(found) == 1 else None


def _list(text: str | None) -> tuple[Any, ...] | None:
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return tuple(found) if isinstance(found, list) else None


def _shape(value: Any) -> Shape | None:
    """Return the sizes as a tuple, or None where the value is not a list of sizes, e.g. for a list of tensors."""
    if not isinstance(value, list | tuple) or not all(isinstance(size, int) and size >= 0 for size in value):
        return None
    return tuple(value)


# ---------------------------------------------------------------- costs

MODELLED: Final = "op model"
"""Source of a cost that was computed from the shapes of a call, not counted."""


class CostClass(IntEnum):
    """The rank of an operator among those that it contains: only an inner one of the same rank replaces its cost.

    A convolution's gradient that fills a buffer or sums a bias along the way is still that gradient.
    """

    MOVE = 1  # copies, fills, lookups
    PASS = 2  # arithmetic on each element: elementwise, reductions, norms, pooling
    PRODUCT = 3  # products of matrices, convolutions, attention; and whatever a recorder counted itself


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """The cost of one call: flop and bytes, None where unknown.

    bytes: every input is read and every output written once, whatever caches hold. dtype: of the arithmetic.
    """

    weight: CostClass
    flop: float | None
    bytes: float | None
    dtype: str | None


CostModel = Callable[[OperatorCall], OperatorCost | None]
"""A cost model; it returns None where the shapes do not determine the cost."""
