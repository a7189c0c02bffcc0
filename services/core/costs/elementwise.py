"""Costs of operators that work on each element by itself: every input is read and the result written once.

Flop are counted on the definition: each addition, multiplication, division, root, power, exponential, logarithm or
trigonometric function counts one; comparisons, selections, bit operations and changes of sign or type count none, nor do
operations on integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kernalyse.services.core.costs.operator import (
    CostClass,
    CostModel,
    OperatorCall,
    OperatorCost,
    Tensor,
    broadcast,
    moved_bytes,
    promoted_dtype,
)

IN_PLACE: Final = "_"


@dataclass(frozen=True, slots=True)
class Elementwise:
    """The definition of an operator on its first `input_count` inputs, tensors or numbers.

    result_dtype: None for the common type of the inputs.
    """

    input_count: int
    flop: float
    result_dtype: str | None = None


NO_FLOP: Final = 0.0
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


def _model(definition: Elementwise, name: str, *, is_in_place: bool) -> CostModel:
    def model(call: OperatorCall) -> OperatorCost | None:
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
        flop = result.count * definition.flop if "float" in dtype else NO_FLOP
        # A tensor without dimensions is passed as a number if another input has dimensions.
        read = [tensor for tensor in inputs if tensor.shape or not shape]
        moved = moved_bytes((*read, result, *masks))
        return None if moved is None else OperatorCost(CostClass.PASS, float(flop), moved, dtype)

    return model


def _arithmetic_dtype(name: str, inputs: list[Tensor], call: OperatorCall) -> str | None:
    """Return the type of the arithmetic, or None where it is not recorded; a Python number changes the type of integers only."""
    values = [tensor for tensor in inputs if tensor.dtype != LOGICAL] if name in ("where", "masked_fill") else inputs
    dtype = promoted_dtype(values or inputs)
    if dtype is None or "float" in dtype or len(inputs) == len(call.shapes):
        return dtype
    return "float32" if name in ("div", "true_divide") else dtype


def _models() -> dict[str, CostModel]:
    found: dict[str, CostModel] = {}
    for name, definition in DEFINITIONS.items():
        found[f"aten::{name}"] = _model(definition, name, is_in_place=False)
        found[f"aten::{name}{IN_PLACE}"] = _model(definition, name, is_in_place=True)
    return found


ELEMENTWISE: Final[Mapping[str, CostModel]] = _models()


# ---------------------------------------------------------------- optimizers
# Steps of optimizers over lists of tensors, fused or operator by operator (foreach).
#
# Flop as for elementwise operators, for each element of the parameters. Lists are recorded without data types: they hold parameters,
# gradients and their moments, which are floating-point; their width, and so the bytes, remains unknown.

ADAM_FLOP: Final = 13
SGD_FLOP: Final = 2
DECAY_FLOP: Final = 2


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.count for tensor in tensors)


def _step(flop: float, parameters: list[Tensor], moved: Iterable[Tensor]) -> OperatorCost:
    return OperatorCost(CostClass.PASS, flop * _count(parameters), moved_bytes(moved), parameters[0].dtype)


def _adam(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of _fused_adam_ and _fused_adamw_.

    Inputs: parameters, gradients, m, v, largest v, steps, rate, beta1, beta2, decay, epsilon, …

    Kingma and Ba, "Adam", 2015, algorithm 1, as torch.optim.Adam has it: m + (1 - beta1)(g - m) 3; beta2 v + (1 - beta2) g g 4;
    sqrt(v) / correction + epsilon 3; parameter - rate m / that 3. A decay of the weights (of gradients in Adam, of parameters
    in AdamW: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) 2, unscaling gradients 1. Parameters, m and v
    are read and written, gradients read; the largest v (amsgrad) and unscaled gradients are written as well.
    """
    parameters, gradients, means, squares, largest, steps = (call.tensors(index) for index in range(6))
    decay = call.number(9)
    is_scaled = call.tensor(13) is not None
    if decay is None or not _count(parameters) == _count(gradients) == _count(means) == _count(squares) or not parameters:
        return None
    flop = ADAM_FLOP + DECAY_FLOP * (decay != 0) + is_scaled
    both = (*parameters, *means, *squares, *largest, *(gradients if is_scaled else ()))
    return _step(flop, parameters, (*both, *both, *(() if is_scaled else gradients), *steps))


def _sgd(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of _fused_sgd_.

    Inputs: parameters, gradients, buffers, decay, momentum, rate, dampening, nesterov, maximize, is first, scale, …

    As the documentation of torch.optim.SGD has it: parameter - rate g 2; decay 2; momentum * buffer + (1 - dampening) g 3, which
    in the first step is a copy; Nesterov's g + momentum * buffer 2; unscaling gradients 1.
    """
    parameters, gradients, buffers = (call.tensors(index) for index in range(3))
    decay, momentum, is_nesterov, is_first = call.number(3), call.number(4), call.flag(7), call.flag(9)
    is_scaled = call.tensor(10) is not None
    if decay is None or momentum is None or is_nesterov is None or is_first is None or not parameters:
        return None
    has_momentum = momentum != 0
    if _count(parameters) != _count(gradients) or (has_momentum and _count(buffers) != _count(parameters)):
        return None
    flop = SGD_FLOP + DECAY_FLOP * (decay != 0) + has_momentum * (3 * (not is_first) + 2 * is_nesterov) + is_scaled
    kept = buffers if has_momentum else []
    moved = (*parameters, *parameters, *gradients, *kept, *(() if is_first else kept), *(gradients if is_scaled else ()))
    return _step(flop, parameters, moved)


def _unscaling(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of _amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse scale): one product per element."""
    gradients = call.tensors(0)
    return _step(1, gradients, (*gradients, *gradients)) if gradients else None


def _foreach(flop: float, input_count: int) -> CostModel:
    """Return the model of an elementwise operator over lists; the first list is as long as the result."""

    def model(call: OperatorCall) -> OperatorCost | None:
        inputs = [call.tensors(index) for index in range(input_count)]
        if not inputs[0]:
            return None
        if any(len(tensors) not in (0, len(inputs[0])) for tensors in inputs):
            return None
        return _step(flop, inputs[0], (*(tensor for tensors in inputs for tensor in tensors), *inputs[0]))

    return model


def _foreach_fill(call: OperatorCall) -> OperatorCost | None:
    targets = call.tensors(0)
    return OperatorCost(CostClass.MOVE, 0.0, moved_bytes(targets), targets[0].dtype) if targets else None


def _foreach_copy(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of _foreach_copy_(targets, sources)."""
    targets, sources = call.tensors(0), call.tensors(1)
    return OperatorCost(CostClass.MOVE, 0.0, moved_bytes((*sources, *targets)), targets[0].dtype) if targets and sources else None


_FOREACH: Final = (
    *("add", "sub", "mul", "div", "pow", "exp", "log", "sqrt", "rsqrt", "reciprocal", "neg", "abs", "sign", "sigmoid"),
    *("maximum", "minimum", "clamp_min", "clamp_max", "addcmul", "addcdiv", "lerp"),
)


def _foreach_models() -> dict[str, CostModel]:
    found: dict[str, CostModel] = {}
    for name in _FOREACH:
        definition = DEFINITIONS[name]
        for suffix in ("", IN_PLACE):
            found[f"aten::_foreach_{name}{suffix}"] = _foreach(definition.flop, definition.input_count)
    return found


OPTIMIZERS: Final[Mapping[str, CostModel]] = {
    **_foreach_models(),
    "aten::_foreach_zero_": _foreach_fill,
    "aten::_foreach_copy_": _foreach_copy,
    "aten::_fused_adam_": _adam,
    "aten::_fused_adamw_": _adam,
    "aten::_fused_sgd_": _sgd,
    "aten::_amp_foreach_non_finite_check_and_unscale_": _unscaling,
}
