"""A call of a node of an ONNX model, as a profile of ONNX Runtime records it: operator, and the tensors that went in and came out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from services.core.work.tensors import ELEMENT_BYTES, Shape, Tensor

MAX_ELEMENT_COUNT: Final = 2**62
"""Of a tensor. Damaged files have larger ones, whose products no float holds."""

RECORDED_DTYPES: Final = {"float": "float32", "double": "float64"} | {
    name: name for name in ELEMENT_BYTES if name not in ("float64", "float32", "float8")
}
"""Of the project, by the name that ONNX Runtime writes."""


@dataclass(frozen=True, slots=True)
class OnnxCall:
    """operator: without its domain. inputs: those that were tensors at the call, in order.

    A weight that the runtime has packed for its kernel when it loaded the model is no longer among the inputs: what it was
    follows from the others and the outputs.
    """

    operator: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @classmethod
    def recorded(cls, arguments: Mapping[str, Any]) -> Self | None:
        """From the arguments of an event of category Node: op_name, input_type_shape and output_type_shape, each
        [{"float": [8, 64]}, …]. None: they are not there, or something else."""
        operator = arguments.get("op_name")
        inputs, outputs = (_tensors(arguments.get(name)) for name in ("input_type_shape", "output_type_shape"))
        if not isinstance(operator, str) or inputs is None or outputs is None:
            return None
        return cls(operator, inputs, outputs)

    @property
    def first(self) -> Tensor | None:
        """The first input."""
        return self.inputs[0] if self.inputs else None

    @property
    def result(self) -> Tensor | None:
        """The first output."""
        return self.outputs[0] if self.outputs else None

    def inputs_of(self, rank: int) -> list[Tensor]:
        """Those with so many dimensions."""
        return [tensor for tensor in self.inputs if len(tensor.shape) == rank]


def _tensors(recorded: Any) -> tuple[Tensor, ...] | None:
    if not isinstance(recorded, list) or not all(isinstance(part, dict) and len(part) == 1 for part in recorded):
        return None
    found = []
    for part in recorded:
        ((name, sizes),) = part.items()
        shape = _shape(sizes)
        if shape is None:
            return None
        found.append(Tensor(shape, RECORDED_DTYPES.get(name)))
    return tuple(found)


def _shape(sizes: Any) -> Shape | None:
    """Sizes as tuple; None: they are no sizes, as those of a tensor of unknown shape, or more than any memory holds."""
    if not isinstance(sizes, list) or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
        return None
    return tuple(sizes) if math.prod(max(size, 1) for size in sizes) <= MAX_ELEMENT_COUNT else None
