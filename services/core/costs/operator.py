"""Recorded operator calls, their tensors and data types, and what a call costs at the least."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Self

# ---------------------------------------------------------------- operator call
# A call of an operator as a trace records it: shapes, data types and the values of what is no tensor.

NUMBER: Final = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
LIST_DTYPE: Final = re.compile(r"Tensor\(([^()]*)\)")


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """name: as recorded, with its namespace. Lists have one entry for each input; shorter ones know less."""

    name: str
    shapes: tuple[Any, ...]
    dtypes: tuple[str, ...] | None = None  # None: not recorded, as by emit_nvtx
    values: tuple[str, ...] = ()

    @classmethod
    def parsed(cls, name: str, input_shapes: str, input_dtypes: str | None, input_values: str | None) -> Self | None:
        """From the JSON in table ranges. None: it is no lists."""
        shapes, dtypes, values = _list(input_shapes), _list(input_dtypes), _list(input_values)
        if shapes is None:
            return None
        return cls(name, shapes, None if dtypes is None else tuple(map(str, dtypes)), tuple(map(str, values or ())))

    def tensor(self, index: int) -> Tensor | None:
        """None: the input is none, or nothing is known of it. An empty shape is a tensor only where its type says so."""
        shape = _shape(self.shapes[index]) if 0 <= index < len(self.shapes) else None
        if shape is None:
            return None
        if self.dtypes is None:
            return Tensor(shape) if shape else None
        recorded = self.dtypes[index] if index < len(self.dtypes) else ""
        dtype = RECORDED_DTYPES.get(recorded)
        return None if dtype is None and (not shape or recorded) else Tensor(shape, dtype)

    def tensors(self, index: int) -> list[Tensor]:
        """Of a list of tensors. Empty: it was, is no list, or was too long to be recorded, as those of more than 30 are.

        Kineto records no data types of lists, PyTorch's execution traces write GenericList[Tensor(float),Tensor(float)];
        one type alone is that of all.
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
        """None: not recorded."""
        found = NUMBER.fullmatch(self.text(index))
        return None if found is None else float(found[0])

    def text(self, index: int) -> str:
        return self.values[index] if index < len(self.values) else ""

    def integers(self, index: int) -> tuple[int, ...] | None:
        """Of a list of whole numbers, or of one; None: not recorded."""
        found = NUMBER.findall(self.text(index))
        return tuple(int(float(part)) for part in found) if found else None

    def integer(self, index: int) -> int | None:
        found = self.integers(index)
        return found[0] if found is not None and len(found) == 1 else None

    def flags(self, index: int) -> tuple[bool, ...] | None:
        """Of a list of flags, or of one; None: not recorded."""
        found = re.findall(r"True|False", self.text(index))
        return tuple(part == "True" for part in found) if found else None

    def flag(self, index: int) -> bool | None:
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
    """None: it is no list of sizes, as those of lists of tensors are not."""
    if not isinstance(value, list | tuple) or not all(isinstance(size, int) and size >= 0 for size in value):
        return None
    return tuple(value)


# ---------------------------------------------------------------- tensors
# Tensors as operators name them: a shape and a data type, and what follows from several of them.

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
"""Of the project, by the C++ name that PyTorch records. Complex numbers are left out: their arithmetic counts differently."""

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
    """dtype: of the project's names; None: not recorded."""

    shape: Shape
    dtype: str | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> float | None:
        """None: its data type is not known."""
        return None if self.dtype is None else float(self.count * ELEMENT_BYTES[self.dtype])

    def shaped(self, shape: Shape) -> Tensor:
        """Another of the same type."""
        return Tensor(shape, self.dtype)


def moved_bytes(tensors: Iterable[Tensor | None]) -> float | None:
    """All of them once; those that are not there (None) move nothing. None: the type of one is not known."""
    total = 0.0
    for tensor in tensors:
        if tensor is not None:
            if tensor.bytes is None:
                return None
            total += tensor.bytes
    return total


def broadcast(*shapes: Shape) -> Shape | None:
    """Shape of an elementwise result; None: they do not fit, so they are not what the operator worked on."""
    width = max(map(len, shapes), default=0)
    sizes = []
    for column in zip(*((1,) * (width - len(shape)) + shape for shape in shapes), strict=True):
        wanted = {size for size in column if size != 1}
        if len(wanted) > 1:
            return None
        sizes.append(wanted.pop() if wanted else 1)
    return tuple(sizes)


def promoted(tensors: Iterable[Tensor]) -> str | None:
    """Data type of a result: tensors without dimensions decide only where they are of a higher kind, and float16 with bfloat16
    makes float32, as PyTorch's rules of promotion have it. None: one of them is not known."""
    found: str | None = None
    is_whole = True
    for tensor in sorted(tensors, key=lambda tensor: len(tensor.shape) == 0):
        name = tensor.dtype
        if name is None:
            return None
        if found is None:
            found, is_whole = name, len(tensor.shape) > 0
        elif len(tensor.shape) > 0 or not is_whole or _kind(name) > _kind(found):
            found = "float32" if {name, found} == {"float16", "bfloat16"} else max(found, name, key=_RANKS.__getitem__)
    return found


def _kind(dtype: str) -> int:
    return 0 if dtype == "bool" else 2 if "float" in dtype else 1


# ---------------------------------------------------------------- kinds
# What an operator has to do at the least, and how much of the arithmetic around it that decides.

MODELLED: Final = "op model"
"""Source of a cost that was computed from the shapes of a call, not counted."""


class Weight(IntEnum):
    """How an operator counts beside those inside of it: only one that is as heavy takes its work away.

    A convolution's gradient that fills a buffer or sums a bias on its way is still that gradient.
    """

    MOVE = 1  # copies, fills, lookups
    PASS = 2  # arithmetic on each element: elementwise, reductions, norms, pooling
    PRODUCT = 3  # products of matrices, convolutions, attention; and whatever a recorder counted itself


@dataclass(frozen=True, slots=True)
class Work:
    """Of one call. flop, bytes: None is unknown. bytes: every input read and every output written once, whatever caches hold.

    dtype: of the arithmetic.
    """

    weight: Weight
    flop: float | None
    bytes: float | None
    dtype: str | None


Model = Callable[[OperatorCall], Work | None]
"""None: the shapes do not say what has to be done."""
