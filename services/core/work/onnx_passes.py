"""Operators of ONNX, and of ONNX Runtime's own domain, that pass over their elements: elementwise, norms, softmax, reductions.

Every input is read and every output written once. Flop as in elementwise, norms and reductions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.core.work.elementwise import DEFINITIONS
from services.core.work.kinds import Weight, Work
from services.core.work.norms import normalising_flop, rms_norm_flop, softmax_flop
from services.core.work.onnx_call import OnnxCall
from services.core.work.onnx_products import OnnxModel
from services.core.work.tensors import Tensor, moved_bytes

_NAMES: Final = {
    **{name: name.lower() for name in ("Add", "Sub", "Mul", "Div", "Pow", "Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Tan", "Tanh")},
    **{
        name: name.lower() for name in ("Erf", "Neg", "Abs", "Sign", "Floor", "Ceil", "Round", "Relu", "Sigmoid", "Elu", "Softplus", "Gelu")
    },
    **{name: name.lower() for name in ("Gelu", "HardSwish", "HardSigmoid", "Where", "IsNaN", "IsInf")},
    **{"Mod": "fmod", "Clip": "clamp", "LeakyRelu": "leaky_relu", "PRelu": "leaky_relu", "Max": "maximum", "Min": "minimum"},
    **{"Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge"},
    **{"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor", "Not": "logical_not"},
}
"""What elementwise calls them."""

_FLOP_PER_ELEMENT: Final[Mapping[str, float]] = {
    **{name: DEFINITIONS[known].flop for name, known in _NAMES.items()},
    "QuickGelu": 1 + DEFINITIONS["silu"].flop,  # x sigmoid(1.702 x)
    "FastGelu": 9,  # x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), the cube two products
    "BiasGelu": 1 + DEFINITIONS["gelu"].flop,
    "Mish": 4,  # x tanh(softplus x)
    "BiasAdd": 2,  # bias and residual
    "QuantizeLinear": 1,  # by the scale; rounding and shifting are of whole numbers
    "DequantizeLinear": 1,
    "RotaryEmbedding": 3,  # x cos + rotated x sin
}


def pass_work(flop: float, call: OnnxCall, values: Tensor) -> Work | None:
    """Of whole numbers nothing is floating-point. None: the type of a tensor is not known."""
    moved = moved_bytes((*call.inputs, *call.outputs))
    is_float = values.dtype is not None and "float" in values.dtype
    return None if moved is None else Work(Weight.PASS, flop if is_float else 0.0, moved, values.dtype)


def _elementwise(flop_per_element: float) -> OnnxModel:
    def model(call: OnnxCall) -> Work | None:
        result = call.result
        if result is None or not call.inputs:
            return None
        floats = [tensor for tensor in (result, *call.inputs) if tensor.dtype is not None and "float" in tensor.dtype]
        return pass_work(flop_per_element * result.count, call, floats[0] if floats else result)

    return model


def _fast_gelu(call: OnnxCall) -> Work | None:
    """FastGelu(x, bias): an addition more with a bias."""
    return _elementwise(_FLOP_PER_ELEMENT["FastGelu"] + (len(call.inputs) > 1))(call)


def _sum(call: OnnxCall) -> Work | None:
    """Sum of any number of tensors."""
    return _elementwise(max(len(call.inputs) - 1, 0))(call)


def _layer_norm(call: OnnxCall) -> Work | None:
    """LayerNormalization(x, scale, shift): rows are as long as the scale."""
    values, affine = call.first, call.inputs[1:]
    length = affine[0].count if affine else values.shape[-1] if values is not None and values.shape else 0
    return _normalising(call, values, length, has_shift=len(affine) > 1, added_count=0)


def _skip_layer_norm(call: OnnxCall) -> Work | None:
    """SkipLayerNormalization(x, skip, scale, shift, bias): x + skip (+ bias) normalised. Of the vectors, the first two are scale
    and shift; a runtime may have packed them."""
    values = call.first
    length = values.shape[-1] if values is not None and values.shape else 0
    vectors = [tensor for tensor in call.inputs_of(1) if tensor.count == length]
    return _normalising(call, values, length, has_shift=True, added_count=1 + (len(vectors) > 2))


def _embed_layer_norm(call: OnnxCall) -> Work | None:
    """EmbedLayerNormalization(words, token types, tables, scale, shift): rows of two or three tables added and normalised.

    Of a table the rows that are taken are read, not all.
    """
    result = call.result
    if result is None or len(result.shape) != 3 or not result.count:
        return None
    tables = call.inputs_of(2)[1:]  # the first is the words'; of token types, too, there is one
    row_count = sum("float" in (tensor.dtype or "") for tensor in tables)
    length = result.shape[-1]
    rows = result.count // length
    flop = result.count * max(row_count - 1, 1) + normalising_flop(rows, length, has_scale=True, has_shift=True)
    places = [tensor for tensor in call.inputs if "int" in (tensor.dtype or "")]
    moved = moved_bytes((*places, *(result for _ in range(max(row_count, 2))), *call.outputs))
    return None if moved is None else Work(Weight.PASS, float(flop), moved, result.dtype)


def _normalising(call: OnnxCall, values: Tensor | None, length: int, *, has_shift: bool, added_count: int) -> Work | None:
    if values is None or not length or values.count % length:
        return None
    flop = normalising_flop(values.count // length, length, has_scale=True, has_shift=has_shift)
    return pass_work(flop + added_count * values.count, call, values)


def _rms_norm(added_count: int) -> OnnxModel:
    """SimplifiedLayerNormalization(x, scale), and with a skip before it: SkipSimplifiedLayerNormalization(x, skip, scale, bias)."""

    def model(call: OnnxCall) -> Work | None:
        values = call.first
        length = values.shape[-1] if values is not None and values.shape else 0
        if values is None or not length:
            return None
        return pass_work(added_count * values.count + rms_norm_flop(values.count // length, length, has_scale=True), call, values)

    return model


def _batch_norm(call: OnnxCall) -> Work | None:
    """BatchNormalization(x [batch, channels, …], scale, shift, mean, variance) of inference: difference, product, scale, shift."""
    values = call.first
    if values is None or len(values.shape) < 2:
        return None
    return pass_work(4.0 * values.count + 2 * values.shape[1], call, values)


def _instance_norm(call: OnnxCall) -> Work | None:
    """InstanceNormalization(x [batch, channels, …], scale, shift): a row for each channel of each."""
    values = call.first
    rows = values.shape[0] * values.shape[1] if values is not None and len(values.shape) > 2 else 0
    if values is None or not rows:
        return None
    return pass_work(normalising_flop(rows, values.count // rows, has_scale=True, has_shift=True), call, values)


def _softmax(added_count: int) -> OnnxModel:
    """Softmax and BiasSoftmax. The dimension is not recorded: the last, which is the default of today."""

    def model(call: OnnxCall) -> Work | None:
        values = call.first
        if values is None or not values.shape or not values.shape[-1]:
            return None
        return pass_work(added_count * values.count + softmax_flop(values.count // values.shape[-1], values.shape[-1]), call, values)

    return model


def _log_softmax(call: OnnxCall) -> Work | None:
    values = call.first
    return None if values is None else pass_work(4.0 * values.count, call, values)


def _reduction(flop_per_input: int, flop_per_result: int) -> OnnxModel:
    def model(call: OnnxCall) -> Work | None:
        values, result = call.first, call.result
        if values is None or result is None:
            return None
        return pass_work(float(max(values.count * flop_per_input + result.count * flop_per_result, 0)), call, values)

    return model


def _average_pool(call: OnnxCall) -> Work | None:
    """AveragePool(x): its window is an attribute, which is not recorded: what it adds up is unknown, what it moves is not."""
    values = call.first
    return (
        None if values is None or call.result is None else Work(Weight.PASS, None, moved_bytes((*call.inputs, *call.outputs)), values.dtype)
    )


def _cumulative_sum(call: OnnxCall) -> Work | None:
    """CumSum(x, axis): n - 1 additions of each row. Of the axis no value is recorded: known where all are of one size."""
    values = call.first
    if values is None or not values.count:
        return None
    if len(set(values.shape)) == 1:
        return pass_work(float(values.count - values.count // values.shape[0]), call, values)
    flop = None if "float" in (values.dtype or "") else 0.0
    return Work(Weight.PASS, flop, moved_bytes((*call.inputs, *call.outputs)), values.dtype)


_SELECTION: Final = _reduction(0, 0)

ELEMENTWISE: Final[Mapping[str, OnnxModel]] = {
    **{name: _elementwise(flop) for name, flop in _FLOP_PER_ELEMENT.items()},
    "FastGelu": _fast_gelu,
    "Sum": _sum,
}
NORMS: Final[Mapping[str, OnnxModel]] = {
    "LayerNormalization": _layer_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "EmbedLayerNormalization": _embed_layer_norm,
    **dict.fromkeys(("SimplifiedLayerNormalization", "RMSNormalization"), _rms_norm(0)),
    "SkipSimplifiedLayerNormalization": _rms_norm(1),
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "Softmax": _softmax(0),
    "BiasSoftmax": _softmax(1),
    "LogSoftmax": _log_softmax,
}
REDUCTIONS: Final[Mapping[str, OnnxModel]] = {
    "ReduceSum": _reduction(1, -1),
    "ReduceProd": _reduction(1, -1),
    "ReduceMean": _reduction(1, 0),
    "ReduceSumSquare": _reduction(2, -1),
    "ReduceL2": _reduction(2, 0),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "MaxPool", "GlobalMaxPool", "TopK"), _SELECTION),
    "GlobalAveragePool": _reduction(1, 0),
    "AveragePool": _average_pool,
    "CumSum": _cumulative_sum,
}
