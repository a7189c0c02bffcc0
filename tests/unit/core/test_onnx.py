"""kernalyse.services.core.costs.onnx: what nodes of ONNX models have to do, from the shapes that ONNX Runtime records."""

from __future__ import annotations

from typing import Any

import pytest

from kernalyse.services.core.costs.onnx import OnnxCall, onnx_category, onnx_cost


def work(operator: str, inputs: list[Any], outputs: list[Any], dtype: str = "float") -> tuple[float | None, float | None]:
    """inputs, outputs: shapes, or (shape, data type)."""
    arguments = {"op_name": operator, "input_type_shape": typed(inputs, dtype), "output_type_shape": typed(outputs, dtype)}
    call = OnnxCall.recorded(arguments)
    assert call is not None
    found = onnx_cost(call)
    assert found is not None
    return found.flop, found.bytes


def typed(shapes: list[Any], dtype: str) -> list[dict[str, Any]]:
    return [{shape[1]: shape[0]} if isinstance(shape, tuple) else {dtype: shape} for shape in shapes]


PRODUCT_FLOP = 2 * 12 * 128 * 512


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs", "flop", "elements"),
    [
        # m = 12, k = 128, n = 512; a weight that was packed is gone from the inputs, and is read all the same.
        ("MatMul", [[1, 12, 128], [128, 512]], [[1, 12, 512]], PRODUCT_FLOP, 12 * 128 + 128 * 512 + 12 * 512),
        ("MatMul", [[1, 12, 128]], [[1, 12, 512]], PRODUCT_FLOP, 12 * 128 + 128 * 512 + 12 * 512),
        ("MatMul", [[12, 128], [128]], [[12]], 2 * 12 * 128, 12 * 128 + 128 + 12),
        ("MatMul", [[3, 2, 12, 64], [3, 2, 64, 12]], [[3, 2, 12, 12]], 6 * 2 * 12 * 12 * 64, 6 * (2 * 12 * 64 + 12 * 12)),
        ("FusedMatMul", [[2, 12, 64], [2, 12, 64]], [[2, 12, 12]], 2 * 2 * 12 * 12 * 64, 2 * (2 * 12 * 64 + 12 * 12)),
        ("Gemm", [[1, 128], [2]], [[1, 2]], 2 * 128 * 2, 128 + 2 + 128 * 2 + 2),
        ("FusedGemm", [[1, 128], [128]], [[1, 128]], 2 * 128 * 128, 128 + 128 + 128 * 128 + 128),  # a bias is no square weight
        ("Gemm", [[128, 5], [128, 7], [7]], [[5, 7]], 2 * 5 * 7 * 128, 128 * 5 + 128 * 7 + 7 + 35),  # the left one transposed
        ("Conv", [[1, 3, 8, 8], [4, 3, 3, 3], [4]], [[1, 4, 6, 6]], 2 * 4 * 36 * 27, 192 + 108 + 4 + 144),
        ("ConvTranspose", [[1, 4, 6, 6], [4, 3, 3, 3]], [[1, 3, 8, 8]], 2 * 144 * 27, 144 + 108 + 192),
        # Attention of ONNX Runtime: the projection to 3 * 128, then scores and values.
        ("Attention", [[1, 12, 128], [384]], [[1, 12, 128]], 2 * 12 * 128 * 384 + 4 * 144 * 128, 12 * 128 * 2 + 384 + 128 * 384),
        ("MultiHeadAttention", [[1, 12, 128], [1, 20, 128], [1, 20, 128]], [[1, 12, 128]], 4 * 240 * 128, 2 * 1536 + 2 * 2560),
        ("Attention", [[1, 2, 12, 64], [1, 2, 20, 64], [1, 2, 20, 64]], [[1, 2, 12, 64]], 4 * 2 * 240 * 64, 2 * 1536 + 2 * 2560),
        # 5 queries after 7 past keys: 5 * 7 + 15 pairs of each of 4 heads, 2 of keys, 8 wide.
        (
            "GroupQueryAttention",
            [[1, 5, 32], [1, 5, 16], [1, 5, 16], [1, 2, 7, 8], [1, 2, 7, 8]],
            [[1, 5, 32], [1, 2, 12, 8], [1, 2, 12, 8]],
            4 * 50 * 32,
            2 * 160 + 2 * 80 + 2 * 112 + 2 * 192,
        ),
        ("GroupQueryAttention", [[3, 5, 64]], [[3, 5, 32], [3, 2, 5, 8], [3, 2, 5, 8]], 3 * 4 * 15 * 32, 960 + 480 + 2 * 240),  # packed
        ("CumSum", [[12]], [[12]], 11, 24),
        ("CumSum", [[3, 3]], [[3, 3]], 6, 18),
        ("LayerNormalization", [[1, 12, 128], [128], [128]], [[1, 12, 128]], 12 * (7 * 128 + 2), 2 * 1536 + 256),
        ("SkipLayerNormalization", [[2, 8], [2, 8], [8], [8], [8]], [[2, 8]], 2 * (7 * 8 + 2) + 2 * 16, 3 * 16 + 24),
        ("SimplifiedLayerNormalization", [[2, 8], [8]], [[2, 8]], 2 * (4 * 8 + 2), 2 * 16 + 8),
        ("Softmax", [[2, 12, 12]], [[2, 12, 12]], 24 * 47, 2 * 288),
        ("BiasGelu", [[12, 512], [512]], [[12, 512]], 6 * 6144, 2 * 6144 + 512),
        ("Add", [[128], [1, 12, 128]], [[1, 12, 128]], 1536, 128 + 2 * 1536),
        ("Relu", [[8, 64]], [[8, 64]], 0, 2 * 512),
        ("ReduceMean", [[4, 100]], [[4, 1]], 400, 404),
        ("Transpose", [[3, 5]], [[5, 3]], 0, 30),
        ("Reshape", [[3, 5]], [[15]], 0, 0),
    ],
)
def test_work_follows_from_the_shapes(operator: str, inputs: list[Any], outputs: list[Any], flop: float, elements: int) -> None:
    assert work(operator, inputs, outputs) == (flop, 4.0 * elements)


def test_a_lookup_moves_the_rows_that_are_taken() -> None:
    assert work("Gather", [[1024, 128], ([1, 12], "int64")], [[1, 12, 128]]) == (0.0, 4.0 * 2 * 1536 + 8 * 12)


@pytest.mark.parametrize("operator", ["Einsum", "AveragePool", "CumSum"])
def test_what_moves_is_known_even_where_an_attribute_tells_the_rest(operator: str) -> None:
    assert work(operator, [[2, 3, 8]], [[2, 3, 8]]) == (None, 4.0 * 96)


def test_whole_numbers_are_no_floating_point_work() -> None:
    assert work("Add", [[7], [7]], [[7]], "int64") == (0.0, 8.0 * 21)
    assert work("Cast", [([7], "int64")], [[7]]) == (0.0, 8.0 * 7 + 4.0 * 7)


def test_half_precision_is_as_wide_as_it_is() -> None:
    assert work("MatMul", [[4, 8], [8, 2]], [[4, 2]], "float16") == (128.0, 2.0 * (32 + 16 + 8))


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs"),
    [
        ("Frobnicate", [[4]], [[4]]),
        ("MatMul", [], [[4]]),
        ("Gemm", [[7, 3]], [[4, 4]]),  # nothing that multiplies to it
        ("Conv", [[1, 3, 8]], [[1, 4, 6]]),
        ("MultiHeadAttention", [[1, 12, 2, 3, 64]], [[1, 12, 128]]),
        ("Softmax", [[]], [[]]),
        ("GroupQueryAttention", [[1, 1, 64], [1, 2, 128, 8]], [[1, 1, 32], [1, 2, 128, 8]]),  # past and present share a buffer
        ("Add", [([4], "string"), ([4], "string")], [([4], "string")]),
    ],
)
def test_what_shapes_do_not_tell_is_unknown(operator: str, inputs: list[Any], outputs: list[Any]) -> None:
    call = OnnxCall.recorded(
        {"op_name": operator, "input_type_shape": typed(inputs, "float"), "output_type_shape": typed(outputs, "float")}
    )
    assert call is not None
    assert onnx_cost(call) is None


@pytest.mark.parametrize(
    "shapes", [None, 7, [7], [{}], [{"float": [2], "int64": [2]}], [{"float": [-1]}], [{"float": ["n"]}], [{"float": [10**400]}]]
)
def test_no_shapes_are_no_call(shapes: Any) -> None:
    assert OnnxCall.recorded({"op_name": "Relu", "input_type_shape": shapes, "output_type_shape": []}) is None


def test_operators_have_categories() -> None:
    names = ("FusedMatMul", "Softmax", "BiasGelu", "Transpose", "Gather", "Frobnicate")
    assert [onnx_category(name) for name in names] == ["matmul", "normalization", "elementwise", "transpose", "other", "other"]
