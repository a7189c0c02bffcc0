"""Convolutions of one to three dimensions and their gradients.

Every element of the result (of a transposed one: of the input) takes a multiply-add for each weight that leads to it: what
torch.utils.flop_counter counts (conv_flop_count, conv_backward_flop; for the gradient of a grouped weight it counts all
groups for each). Weights that fall on padding count as well: kernels multiply them too. A bias rides in the accumulator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.core.work.kinds import Model, Weight, Work
from services.core.work.operator_call import OperatorCall
from services.core.work.tensors import Shape, Tensor, moved_bytes


@dataclass(frozen=True, slots=True)
class Places:
    """Where an operator's inputs are. None: it has no such."""

    stride: int
    padding: int
    dilation: int | None
    groups: int | None = None
    transposed: int | None = None
    output_padding: int | None = None
    bias: int | None = None
    is_transposed: bool = False
    added: int | None = None


@dataclass(frozen=True, slots=True)
class Geometry:
    """Of one convolution, one number for each of its dimensions."""

    stride: Shape
    padding: Shape
    dilation: Shape
    output_padding: Shape
    groups: int
    is_transposed: bool


def result_shape(values: Shape, weight: Shape, geometry: Geometry) -> Shape | None:
    """[batch, channels, *sizes] of the result, after PyTorch's documentation of ConvNd and ConvTransposeNd; None: there is none."""
    sizes = []
    for size, kernel, stride, padding, dilation, further in zip(
        values[2:], weight[2:], geometry.stride, geometry.padding, geometry.dilation, geometry.output_padding, strict=True
    ):
        reach = dilation * (kernel - 1)
        if geometry.is_transposed:
            sizes.append((size - 1) * stride - 2 * padding + reach + further + 1)
        else:
            sizes.append((size + 2 * padding - reach - 1) // stride + 1 if stride > 0 else 0)
    channels = weight[1] * geometry.groups if geometry.is_transposed else weight[0]
    return None if any(size <= 0 for size in sizes) else (values[0], channels, *sizes)


def multiply_flop(values: Shape, weight: Shape, result: Shape, *, is_transposed: bool) -> float:
    """Of a weight [outputs, inputs / groups, *kernel], of a transposed one [inputs, outputs / groups, *kernel]."""
    return 2.0 * math.prod(values if is_transposed else result) * math.prod(weight[1:])


def _forward(places: Places) -> Model:
    def model(call: OperatorCall) -> Work | None:
        values, weight = call.tensor(0), call.tensor(1)
        if values is None or weight is None or len(weight.shape) < 3:
            return None
        if len(values.shape) == len(weight.shape) - 1:
            values = values.shaped((1, *values.shape))
        geometry = _geometry(call, places, len(weight.shape) - 2)
        if geometry is None or len(values.shape) != len(weight.shape):
            return None
        result = result_shape(values.shape, weight.shape, geometry)
        if result is None:
            return None
        further = [call.tensor(index) for index in (places.bias, places.added) if index is not None]
        return Work(
            Weight.PRODUCT,
            multiply_flop(values.shape, weight.shape, result, is_transposed=geometry.is_transposed),
            moved_bytes((values, weight, *further, values.shaped(result))),
            values.dtype,
        )

    return model


def _geometry(call: OperatorCall, places: Places, width: int) -> Geometry | None:
    """None: a number that decides is not recorded."""
    is_transposed = places.is_transposed if places.transposed is None else call.flag(places.transposed)
    stride, padding = _spread(call, places.stride, width), _spread(call, places.padding, width)
    dilation = (1,) * width if places.dilation is None else _spread(call, places.dilation, width)
    further = _spread(call, places.output_padding, width) if is_transposed and places.output_padding is not None else (0,) * width
    groups = 1 if places.groups is None else call.integer(places.groups)
    if stride is None or padding is None or dilation is None or further is None or groups is None or is_transposed is None:
        return None
    return Geometry(stride, padding, dilation, further, groups, is_transposed)


def _spread(call: OperatorCall, index: int, width: int) -> Shape | None:
    """One number holds for every dimension."""
    found = call.integers(index)
    return None if found is None else found * width if len(found) == 1 else found if len(found) == width else None


def _gradients(call: OperatorCall) -> Work | None:
    """convolution_backward: the gradient of the input and that of the weight each take what the convolution took."""
    gradient, values, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    transposed, wanted = call.flag(7), call.flags(10)
    if gradient is None or values is None or weight is None or transposed is None or wanted is None or len(wanted) != 3:
        return None
    if not len(gradient.shape) == len(values.shape) == len(weight.shape):
        return None
    once = multiply_flop(values.shape, weight.shape, gradient.shape, is_transposed=transposed)
    read = (gradient, values if wanted[1] else None, weight if wanted[0] else None)
    bias = gradient.shaped(gradient.shape[1:2])
    written = [tensor for tensor, is_wanted in zip((values, weight, bias), wanted, strict=True) if is_wanted]
    return Work(Weight.PRODUCT, once * (wanted[0] + wanted[1]), moved_bytes((*read, *written)), gradient.dtype)


def _gradient_of_input(call: OperatorCall) -> Work | None:
    """cudnn_convolution_backward_input, until 2021: the size of its result is a value, and was not recorded."""
    gradient, weight = call.tensor(1), call.tensor(2)
    if gradient is None or weight is None or len(gradient.shape) != len(weight.shape):
        return None
    flop = multiply_flop((), weight.shape, gradient.shape, is_transposed=False)
    sizes = call.integers(0)
    result = None if sizes is None else Tensor(sizes, gradient.dtype)
    return Work(Weight.PRODUCT, flop, None if result is None else moved_bytes((gradient, weight, result)), gradient.dtype)


_WITH_BIAS: Final = _forward(Places(bias=2, padding=3, stride=4, dilation=5, groups=6))
_GENERAL: Final = _forward(Places(bias=2, stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8))
_OF_ONE_KIND: Final = _forward(Places(bias=2, stride=3, padding=4, dilation=5, groups=6))
_TRANSPOSED: Final = _forward(Places(bias=2, stride=3, padding=4, output_padding=5, groups=6, dilation=7, is_transposed=True))
_DEPTHWISE: Final = _forward(Places(bias=3, stride=4, padding=5, dilation=6))

CONVOLUTIONS: Final[Mapping[str, Model]] = {
    "aten::convolution": _GENERAL,
    "aten::_convolution": _GENERAL,
    "aten::convolution_overrideable": _GENERAL,
    **{f"aten::conv{width}d": _OF_ONE_KIND for width in (1, 2, 3)},
    **{f"aten::conv_transpose{width}d": _TRANSPOSED for width in (1, 2, 3)},
    "aten::cudnn_convolution": _forward(Places(padding=2, stride=3, dilation=4, groups=5)),
    "aten::cudnn_convolution_transpose": _forward(Places(padding=2, output_padding=3, stride=4, dilation=5, groups=6, is_transposed=True)),
    "aten::cudnn_convolution_relu": _OF_ONE_KIND,
    "aten::cudnn_convolution_add_relu": _forward(Places(added=2, bias=4, stride=5, padding=6, dilation=7, groups=8)),
    "aten::miopen_convolution": _WITH_BIAS,
    "aten::miopen_depthwise_convolution": _WITH_BIAS,
    "aten::mkldnn_convolution": _WITH_BIAS,
    "aten::_conv_depthwise2d": _DEPTHWISE,
    "aten::conv_depthwise3d": _DEPTHWISE,
    "aten::convolution_backward": _gradients,
    "aten::cudnn_convolution_backward_input": _gradient_of_input,
}
