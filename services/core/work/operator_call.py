"""A call of an operator as a trace records it: shapes, data types and the values of what is no tensor."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, Self

from services.core.work.tensors import RECORDED_DTYPES, Shape, Tensor

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
