"""Operators that work on each element by itself: every input read and the result written once.

Flop are counted on the definition: each addition, multiplication, division, root, power, exponential, logarithm or
trigonometric function one, comparisons, selections, bit operations and changes of sign or type none. Of whole numbers
nothing is floating-point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.core.work.kinds import Model, Weight, Work
from services.core.work.operator_call import OperatorCall
from services.core.work.tensors import Tensor, broadcast, moved_bytes, promoted

IN_PLACE: Final = "_"


@dataclass(frozen=True, slots=True)
class Elementwise:
    """input_count: the first inputs, tensors or numbers. result_dtype: None for that of the inputs together."""

    input_count: int
    flop: float
    result_dtype: str | None = None


NONE_COUNTED: Final = 0.0
LOGICAL: Final = "bool"

DEFINITIONS: Final[Mapping[str, Elementwise]] = {
    **dict.fromkeys(("add", "sub", "rsub"), Elementwise(2, 1)),  # alpha is 1 nearly always
    **dict.fromkeys(("mul", "div", "true_divide", "pow", "atan2", "remainder", "fmod"), Elementwise(2, 1)),
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"), Elementwise(1, 1)),
    **dict.fromkeys(("sin", "cos", "tan", "tanh", "erf", "square"), Elementwise(1, 1)),
    **dict.fromkeys(("neg", "abs", "sign", "floor", "ceil", "round", "bitwise_not"), Elementwise(1, 0)),
    **dict.fromkeys(("relu", "clamp", "clamp_min", "clamp_max", "hardtanh"), Elementwise(1, 0)),
    **dict.fromkeys(("maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"), Elementwise(2, 0)),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"), Elementwise(2, 0, LOGICAL)),
    **dict.fromkeys(("isnan", "isinf", "isfinite", "logical_not"), Elementwise(1, 0, LOGICAL)),
    "leaky_relu": Elementwise(1, 1),
    "sigmoid": Elementwise(1, 3),  # exp, addition, division
    "silu": Elementwise(1, 4),  # x times sigmoid
    "hardswish": Elementwise(1, 3),  # x (x + 3) / 6
    "hardsigmoid": Elementwise(1, 2),
    "elu": Elementwise(1, 2),
    "softplus": Elementwise(1, 2),
    "gelu": Elementwise(1, 5),  # x / 2 (1 + erf(x / sqrt 2))
    "addcmul": Elementwise(3, 2),
    "addcdiv": Elementwise(3, 2),
    "lerp": Elementwise(3, 3),
    "threshold_backward": Elementwise(2, 0),  # of gradient and input
    "sigmoid_backward": Elementwise(2, 3),  # dy y (1 - y)
    "tanh_backward": Elementwise(2, 3),  # dy (1 - y^2)
    "silu_backward": Elementwise(2, 8),  # s = sigmoid(x); dy s (1 + x (1 - s))
    "gelu_backward": Elementwise(2, 13),  # dy (cdf + x pdf): cdf 4, pdf 4 (square, half, exp, factor), product, sum, product
    "where": Elementwise(3, 0),
    "masked_fill": Elementwise(2, 0),
    "native_dropout": Elementwise(1, 2),  # times the mask, times the scale; the mask is a result as well
}


def _model(definition: Elementwise, name: str, *, is_in_place: bool) -> Model:
    def model(call: OperatorCall) -> Work | None:
        inputs = [tensor for index in range(definition.input_count) if (tensor := call.tensor(index)) is not None]
        first = call.tensor(0)
        if not inputs or (is_in_place and first is None):
            return None
        shape = broadcast(*(tensor.shape for tensor in inputs))
        dtype = _arithmetic_dtype(name, inputs, call)
        if shape is None or dtype is None:
            return None
        result = first if is_in_place and first is not None else Tensor(shape, definition.result_dtype or dtype)
        masks = (Tensor(shape, LOGICAL),) if name == "native_dropout" else ()
        flop = result.count * definition.flop if "float" in dtype else NONE_COUNTED
        # A tensor without dimensions beside one that has some is handed over as a number.
        read = [tensor for tensor in inputs if tensor.shape or not shape]
        moved = moved_bytes((*read, result, *masks))
        return None if moved is None else Work(Weight.PASS, float(flop), moved, dtype)

    return model


def _arithmetic_dtype(name: str, inputs: list[Tensor], call: OperatorCall) -> str | None:
    """Of the result before it is compared; None: not recorded. A number that is no tensor changes nothing but whole numbers."""
    values = [tensor for tensor in inputs if tensor.dtype != LOGICAL] if name in ("where", "masked_fill") else inputs
    dtype = promoted(values or inputs)
    if dtype is None or "float" in dtype or len(inputs) == len(call.shapes):
        return dtype
    return "float32" if name in ("div", "true_divide") else dtype


def _models() -> dict[str, Model]:
    found: dict[str, Model] = {}
    for name, definition in DEFINITIONS.items():
        found[f"aten::{name}"] = _model(definition, name, is_in_place=False)
        found[f"aten::{name}{IN_PLACE}"] = _model(definition, name, is_in_place=True)
    return found


ELEMENTWISE: Final[Mapping[str, Model]] = _models()
