"""Costs of ONNX operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from kernalyse.services.core.costs.contractions import multiply_flop
from kernalyse.services.core.costs.elementwise import DEFINITIONS
from kernalyse.services.core.costs.operator import ELEMENT_BYTES, CostClass, OperatorCost, Shape, Tensor, moved_bytes
from kernalyse.services.core.costs.reductions import normalising_flop, rms_norm_flop, softmax_flop

# ---------------------------------------------------------------- calls
# A call of a node of an ONNX model, as a profile of ONNX Runtime records it: the operator with its input and output tensors.

MAX_ELEMENT_COUNT: Final = 2**62
"""Most elements of a tensor. Damaged files have sizes whose products no float holds."""

RECORDED_DTYPES: Final = {"float": "float32", "double": "float64"} | {
    name: name for name in ELEMENT_BYTES if name not in ("float64", "float32", "float8")
}
"""The project's names of data types, by the name that ONNX Runtime writes."""


@dataclass(frozen=True, slots=True)
class OnnxCall:
    """A recorded call: the operator without its domain, the inputs that were tensors, in order, and the outputs.

    A weight that the runtime packed when it loaded the model is no longer among the inputs; its shape follows from the other
    inputs and the outputs.
    """

    operator: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @classmethod
    def recorded(cls, arguments: Mapping[str, Any]) -> Self | None:
        """Return the call that an event of category Node describes, or None where the arguments do not describe one.

        Args:
            arguments: op_name, and input_type_shape and output_type_shape, each [{"float": [8, 64]}, …].
        """
        operator = arguments.get("op_name")
        inputs, outputs = (_tensors(arguments.get(name)) for name in ("input_type_shape", "output_type_shape"))
        if not isinstance(operator, str) or inputs is None or outputs is None:
            return None
        return cls(operator, inputs, outputs)

    @property
    def first(self) -> Tensor | None:
        """Return the first input."""
        return self.inputs[0] if self.inputs else None

    @property
    def result(self) -> Tensor | None:
        """Return the first output."""
        return self.outputs[0] if self.outputs else None

    def inputs_of(self, rank: int) -> list[Tensor]:
        """Return the inputs with this number of dimensions."""
        return [tensor for tensor in self.inputs if len(tensor.shape) == rank]


OnnxCostModel = Callable[[OnnxCall], OperatorCost | None]
"""A cost model; it returns None where the shapes do not determine the cost."""


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
    """Return the sizes as a tuple, or None where they are unknown or larger than any memory."""
    if not isinstance(sizes, list) or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
        return None
    return tuple(sizes) if math.prod(max(size, 1) for size in sizes) <= MAX_ELEMENT_COUNT else None


# ---------------------------------------------------------------- moves


def _moves(values: Tensor, *moved: Tensor) -> OperatorCost | None:
    total = moved_bytes(moved)
    return None if total is None else OperatorCost(CostClass.MOVE, 0.0, total, values.dtype)


def _copy(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of Transpose, Cast, Concat, Split, Expand, Tile and Pad: every input and output moves once."""
    return None if call.first is None else _moves(call.first, *call.inputs, *call.outputs)


def _selection(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of Gather and Slice: the selected values, and the indices or limits that select them."""
    values, result = call.first, call.result
    return None if values is None or result is None else _moves(values, result, *call.inputs[1:], result)


def _scatter(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of ScatterND(values, indices, updates), at best in place."""
    if len(call.inputs) < 3:
        return None
    values, indices, updates = call.inputs[:3]
    return _moves(values, indices, updates, updates)


def _fill(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of Shape, Range and ConstantOfShape: the output is written."""
    return None if call.result is None else _moves(call.result, *call.outputs)


def _view(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of another shape for the same elements: nothing has to move."""
    return None if call.result is None else OperatorCost(CostClass.MOVE, 0.0, 0.0, call.result.dtype)


MOVES: Final[Mapping[str, OnnxCostModel]] = {
    **dict.fromkeys(("Transpose", "Cast", "Concat", "Split", "Expand", "Tile", "Pad", "DepthToSpace", "SpaceToDepth"), _copy),
    **dict.fromkeys(("ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost"), _copy),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "Slice"), _selection),
    **dict.fromkeys(("ScatterND", "ScatterElements"), _scatter),
    **dict.fromkeys(("Shape", "Size", "Range", "ConstantOfShape"), _fill),
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"), _view),
}


# ---------------------------------------------------------------- passes
# Operators of ONNX, and of ONNX Runtime's own domain, that pass over their elements: elementwise, norms, softmax, reductions.
#
# Every input is read and every output written once. Flop as for PyTorch's operators.

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
"""The names of these operators in elementwise.DEFINITIONS."""

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


def pass_cost(flop: float, call: OnnxCall, values: Tensor) -> OperatorCost | None:
    """Return the cost of a pass over the elements; flop count only for floating-point values."""
    moved = moved_bytes((*call.inputs, *call.outputs))
    is_float = values.dtype is not None and "float" in values.dtype
    return None if moved is None else OperatorCost(CostClass.PASS, flop if is_float else 0.0, moved, values.dtype)


def _elementwise(flop_per_element: float) -> OnnxCostModel:
    def model(call: OnnxCall) -> OperatorCost | None:
        result = call.result
        if result is None or not call.inputs:
            return None
        floats = [tensor for tensor in (result, *call.inputs) if tensor.dtype is not None and "float" in tensor.dtype]
        return pass_cost(flop_per_element * result.count, call, floats[0] if floats else result)

    return model


def _fast_gelu(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of FastGelu(x, bias): one more addition with a bias."""
    return _elementwise(_FLOP_PER_ELEMENT["FastGelu"] + (len(call.inputs) > 1))(call)


def _sum(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of Sum over any number of tensors."""
    return _elementwise(max(len(call.inputs) - 1, 0))(call)


def _layer_norm(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of LayerNormalization(x, scale, shift): rows are as long as the scale."""
    values, affine = call.first, call.inputs[1:]
    length = affine[0].count if affine else values.shape[-1] if values is not None and values.shape else 0
    return _normalising(call, values, length, has_shift=len(affine) > 1, added_count=0)


def _skip_layer_norm(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of SkipLayerNormalization(x, skip, scale, shift, bias): x + skip (+ bias) normalised.

    The first two vectors are scale and shift; the runtime may have packed them.
    """
    values = call.first
    length = values.shape[-1] if values is not None and values.shape else 0
    vectors = [tensor for tensor in call.inputs_of(1) if tensor.count == length]
    return _normalising(call, values, length, has_shift=True, added_count=1 + (len(vectors) > 2))


def _embed_layer_norm(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of EmbedLayerNormalization(words, token types, tables, scale, shift).

    Rows of two or three tables are added and normalised; only the selected rows of a table are read.
    """
    result = call.result
    if result is None or len(result.shape) != 3 or not result.count:
        return None
    tables = call.inputs_of(2)[1:]  # the first is the words'; of token types, too, there is one
    row_count = sum("float" in (tensor.dtype or "") for tensor in tables)
    length = result.shape[-1]
    rows = result.count // length
    flop = result.count * max(row_count - 1, 1) + normalising_flop(rows, length, has_scale=True, has_shift=True)
    indices = [tensor for tensor in call.inputs if "int" in (tensor.dtype or "")]
    moved = moved_bytes((*indices, *(result for _ in range(max(row_count, 2))), *call.outputs))
    return None if moved is None else OperatorCost(CostClass.PASS, float(flop), moved, result.dtype)


def _normalising(call: OnnxCall, values: Tensor | None, length: int, *, has_shift: bool, added_count: int) -> OperatorCost | None:
    if values is None or not length or values.count % length:
        return None
    flop = normalising_flop(values.count // length, length, has_scale=True, has_shift=has_shift)
    return pass_cost(flop + added_count * values.count, call, values)


def _rms_norm(added_count: int) -> OnnxCostModel:
    """Return the model of SimplifiedLayerNormalization(x, scale), or of the variant that first adds skip and bias."""

    def model(call: OnnxCall) -> OperatorCost | None:
        values = call.first
        length = values.shape[-1] if values is not None and values.shape else 0
        if values is None or not length:
            return None
        return pass_cost(added_count * values.count + rms_norm_flop(values.count // length, length, has_scale=True), call, values)

    return model


def _batch_norm(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of BatchNormalization(x [batch, channels, …], scale, shift, mean, variance) in inference.

    Per element: difference, product, scale, shift.
    """
    values = call.first
    if values is None or len(values.shape) < 2:
        return None
    return pass_cost(4.0 * values.count + 2 * values.shape[1], call, values)


def _instance_norm(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of InstanceNormalization(x [batch, channels, …], scale, shift): each channel of each batch entry is a row."""
    values = call.first
    rows = values.shape[0] * values.shape[1] if values is not None and len(values.shape) > 2 else 0
    if values is None or not rows:
        return None
    return pass_cost(normalising_flop(rows, values.count // rows, has_scale=True, has_shift=True), call, values)


def _softmax(added_count: int) -> OnnxCostModel:
    """Return the model of Softmax or BiasSoftmax; the dimension is not recorded, so the default, the last one, is assumed."""

    def model(call: OnnxCall) -> OperatorCost | None:
        values = call.first
        if values is None or not values.shape or not values.shape[-1]:
            return None
        return pass_cost(added_count * values.count + softmax_flop(values.count // values.shape[-1], values.shape[-1]), call, values)

    return model


def _log_softmax(call: OnnxCall) -> OperatorCost | None:
    values = call.first
    return None if values is None else pass_cost(4.0 * values.count, call, values)


def _reduction(flop_per_input: int, flop_per_result: int) -> OnnxCostModel:
    def model(call: OnnxCall) -> OperatorCost | None:
        values, result = call.first, call.result
        if values is None or result is None:
            return None
        return pass_cost(float(max(values.count * flop_per_input + result.count * flop_per_result, 0)), call, values)

    return model


def _average_pool(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of AveragePool(x): its window, an attribute, is not recorded, so only the bytes are known."""
    values = call.first
    return (
        None
        if values is None or call.result is None
        else OperatorCost(CostClass.PASS, None, moved_bytes((*call.inputs, *call.outputs)), values.dtype)
    )


def _cumulative_sum(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of CumSum(x, axis): n - 1 additions per row; the axis is not recorded, so all dimensions must be equal."""
    values = call.first
    if values is None or not values.count:
        return None
    if len(set(values.shape)) == 1:
        return pass_cost(float(values.count - values.count // values.shape[0]), call, values)
    flop = None if "float" in (values.dtype or "") else 0.0
    return OperatorCost(CostClass.PASS, flop, moved_bytes((*call.inputs, *call.outputs)), values.dtype)


_SELECTION: Final = _reduction(0, 0)

ELEMENTWISE: Final[Mapping[str, OnnxCostModel]] = {
    **{name: _elementwise(flop) for name, flop in _FLOP_PER_ELEMENT.items()},
    "FastGelu": _fast_gelu,
    "Sum": _sum,
}
NORMS: Final[Mapping[str, OnnxCostModel]] = {
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
REDUCTIONS: Final[Mapping[str, OnnxCostModel]] = {
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


# ---------------------------------------------------------------- products
# Operators of ONNX, and of ONNX Runtime's own domain, that are matrix products, convolutions or attention.
#
# As for PyTorch's operators, a fused multiply-add counts two; additions to the result, and activations of it, happen in the accumulator and
# count none.


def product_cost(flop: float, moved: tuple[Tensor | None, ...], values: Tensor) -> OperatorCost:
    """Return the cost of a product that moves these tensors."""
    return OperatorCost(CostClass.PRODUCT, flop, moved_bytes(moved), values.dtype)


def _matmul(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of MatMul(a [..., m, k], b [..., k, n]); b may have been packed, which happens to matrices only."""
    left, result = call.first, call.result
    if left is None or result is None or not left.shape:
        return None
    if len(call.inputs) > 1 and len(call.inputs[1].shape) == 1:  # a vector, which counts as a matrix of one column
        return product_cost(2.0 * result.count * left.shape[-1], (*call.inputs, *call.outputs), left)
    return _product(call, left, result, left.shape[-1])


def _transposed_product(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of FusedMatMul and Gemm.

    Either factor may be transposed, which is not recorded, so k follows from the number of elements of the left one.
    """
    left, result = call.first, call.result
    if left is None or result is None or len(left.shape) < 2 or len(result.shape) < 2 or not result.shape[-2]:
        return None
    inner, rest = divmod(left.shape[-1] * left.shape[-2], result.shape[-2])
    return None if rest else _product(call, left, result, inner)


def _product(call: OnnxCall, left: Tensor, result: Tensor, inner: int) -> OperatorCost | None:
    """Return the cost of a product with 2 k flop for each element of the result."""
    flop = 2.0 * result.count * inner
    columns = result.shape[-1] if result.shape else 1
    is_packed = not any(_is_matrix(tensor, inner, columns) for tensor in call.inputs[1:])
    packed = left.shaped((inner, columns)) if is_packed else None
    return product_cost(flop, (*call.inputs, packed, *call.outputs), left)


def _is_matrix(tensor: Tensor, rows: int, columns: int) -> bool:
    """Return whether the tensor is such a matrix, a transposed one, or a stack of them."""
    return len(tensor.shape) > 1 and tensor.shape[-2:] in ((rows, columns), (columns, rows))


def _quantized(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of MatMulNBits(a [..., k], packed b, scales, …) and DynamicQuantizeMatMul; weights count as they are stored."""
    left, result = call.first, call.result
    if left is None or result is None or not left.shape:
        return None
    return product_cost(2.0 * result.count * left.shape[-1], (*call.inputs, *call.outputs), left)


def _convolution(call: OnnxCall, *, is_transposed: bool) -> OperatorCost | None:
    """Return the cost of Conv(x [batch, inputs, *sizes], weight [outputs, inputs / groups, *kernel], …), FusedConv and ConvTranspose."""
    values, result = call.first, call.result
    weight = call.inputs[1] if len(call.inputs) > 1 else None
    if values is None or weight is None or result is None or not len(values.shape) == len(weight.shape) == len(result.shape) > 2:
        return None
    flop = multiply_flop(values.shape, weight.shape, result.shape, is_transposed=is_transposed)
    return product_cost(flop, (*call.inputs, *call.outputs), values)


def _attention(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of Attention: of ONNX Runtime's operator, which projects its input first, or of the one in ONNX itself.

    Attention(input [batch, length, inputs], weight [inputs, 3 * width], bias [3 * width], mask, past, …): with a past, present
    [2, batch, heads, all lengths, head width] is the second output. Whether a mask is causal is not recorded: all pairs count.
    """
    values, result = call.first, call.result
    if values is None or result is None:
        return None
    if len(call.inputs) > 1 and len(call.inputs[1].shape) > 2:
        return _heads_attention(call)
    biases = call.inputs_of(1)
    if len(values.shape) != 3 or len(result.shape) != 3 or not biases:
        return None
    batch, length, inputs = values.shape
    projected = biases[0].count
    present = next((tensor.shape for tensor in call.outputs[1:] if len(tensor.shape) == 5), None)
    key_length = length if present is None else present[3]
    key_width = (projected - result.shape[-1]) // 2
    flop = 2.0 * batch * length * inputs * projected + _pairs_flop(batch * length * key_length, key_width, result.shape[-1])
    is_packed = not any(_is_matrix(tensor, inputs, projected) for tensor in call.inputs[1:])
    weight = values.shaped((inputs, projected)) if is_packed else None
    return product_cost(flop, (*call.inputs, weight, *call.outputs), values)


def _heads_attention(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of MultiHeadAttention.

    Inputs: query [batch, length, width], key and value [batch, keys, width] or [batch, heads, keys, head width].
    """
    result = call.result
    if len(call.inputs) < 3 or result is None:
        return None
    query, key, value = call.inputs[:3]
    ranks = {len(tensor.shape) for tensor in (key, value)}
    if len(query.shape) not in (3, 4) or not ranks <= {3, 4} or len(result.shape) != len(query.shape):
        return None
    head_count = math.prod(query.shape[:-2]) if len(query.shape) == 4 else query.shape[0]
    pairs = head_count * query.shape[-2] * key.shape[-2]
    return product_cost(_pairs_flop(pairs, query.shape[-1], result.shape[-1]), (*call.inputs, *call.outputs), query)


def _grouped_query_attention(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of GroupQueryAttention of ONNX Runtime, which is always causal (docs/ContribOperators.md).

    Inputs: query, key, value, past key, past value, …; query, or query, key and value packed, [batch, length, …]; past and present
    [batch, key heads, all lengths, head width]. Each query sees the past and everything up to its own position. Where past and
    present share a buffer, its filled length is data; a local window is an attribute: neither is recorded, and without a window
    all pairs count.
    """
    query, result = call.first, call.result
    present, past = (next((tensor.shape for tensor in tensors if len(tensor.shape) == 4), None) for tensors in (call.outputs, call.inputs))
    if query is None or result is None or present is None or len(query.shape) != 3 or len(result.shape) != 3:
        return None
    batch, length, width = result.shape
    past_length = 0 if past is None else past[2]
    if past_length + length != present[2]:
        return None
    pairs = length * past_length + length * (length + 1) // 2
    return product_cost(_pairs_flop(batch * pairs, width, width), (*call.inputs, *call.outputs), query)


def _einsum(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of Einsum: the equation, an attribute, is not recorded, so only the bytes are known."""
    if call.first is None or call.result is None:
        return None
    return OperatorCost(CostClass.PRODUCT, None, moved_bytes((*call.inputs, *call.outputs)), call.first.dtype)


def _pairs_flop(pair_count: int, key_width: int, value_width: int) -> float:
    """Return the flop of the scores, and of scores times values, over all heads."""
    return 2.0 * pair_count * (key_width + value_width)


MATRICES: Final[Mapping[str, OnnxCostModel]] = {
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "Gemm": _transposed_product,
    "FusedGemm": _transposed_product,
    "FusedMatMul": _transposed_product,
    "FusedMatMulActivation": _transposed_product,
    "TransposeMatMul": _transposed_product,
    "MatMulNBits": _quantized,
    "DynamicQuantizeMatMul": _quantized,
    "Einsum": _einsum,
}
CONVOLUTIONS: Final[Mapping[str, OnnxCostModel]] = {
    **dict.fromkeys(("Conv", "FusedConv"), lambda call: _convolution(call, is_transposed=False)),
    "ConvTranspose": lambda call: _convolution(call, is_transposed=True),
}
ATTENTION: Final[Mapping[str, OnnxCostModel]] = {
    "Attention": _attention,
    "MultiHeadAttention": _heads_attention,
    "GroupQueryAttention": _grouped_query_attention,
}


# ---------------------------------------------------------------- registry

OTHER: Final = "other"
CATEGORIES: Final[Mapping[str, Mapping[str, OnnxCostModel]]] = {
    "matmul": MATRICES,
    "convolution": CONVOLUTIONS,
    "attention": ATTENTION,
    "normalization": NORMS,
    "elementwise": ELEMENTWISE,
    "reduction": REDUCTIONS,
    OTHER: MOVES,
}
"""Models by operator name, grouped by the category of kernels."""

ONNX_COST_MODELS: Final[Mapping[str, OnnxCostModel]] = {name: model for models in CATEGORIES.values() for name, model in models.items()}
_CATEGORY: Final = {name: category for category, models in CATEGORIES.items() for name in models} | {"Transpose": "transpose"}


def onnx_cost(call: OnnxCall) -> OperatorCost | None:
    """Return the cost of a call, or None where no model covers the operator or the shapes do not determine it."""
    model = ONNX_COST_MODELS.get(call.operator)
    return None if model is None else model(call)


def onnx_category(operator: str) -> str:
    """Return the category of an operator, e.g. matmul or elementwise; "other" for operators without a model."""
    return _CATEGORY.get(operator, OTHER)
