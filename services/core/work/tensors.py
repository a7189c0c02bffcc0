"""Tensors as operators name them: a shape and a data type, and what follows from several of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

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
