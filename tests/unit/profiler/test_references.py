"""References compute what their formulas say, checked on numbers worked out by hand or by plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernalyse.services.core.errors import InvalidCatalogError
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.kernel_sources.definitions import REFERENCE_NAMES
from kernalyse.services.profiler.measuring.references import REFERENCES, compute_reference


def _array(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(values, np.float32)


QKV = _array(1, 2, 8, 2, 1.5, 20).reshape(1, 2, 3, 1, 1)  # two tokens of one head of one channel: query, key, value of each
EMBEDDED = {
    "tokens": np.array([1, 0, 0], np.int32),
    "token_table": _array(1, 2, 21, 22).reshape(2, 2),
    "position_table": _array(10, 20, 12, 22).reshape(2, 2),
}


def test_names_known_without_numpy_are_those_that_exist() -> None:
    assert tuple(sorted(REFERENCES)) == REFERENCE_NAMES


@pytest.mark.parametrize(
    ("name", "inputs", "scalars", "output", "expected"),
    [
        ("vector_add", {"a": _array(1, 2), "b": _array(10, 20)}, {}, "c", [11, 22]),
        ("saxpy", {"x": _array(1, 2), "y": _array(10, 20)}, {"alpha": 3}, "y", [13, 26]),
        ("stream_copy", {"a": _array(4, 5)}, {}, "c", [4, 5]),
        ("stream_scale", {"c": _array(4, 5)}, {"alpha": 2}, "b", [8, 10]),
        ("stream_add", {"a": _array(1, 2), "b": _array(10, 20)}, {}, "c", [11, 22]),
        ("stream_triad", {"b": _array(1, 2), "c": _array(10, 20)}, {"alpha": 3}, "a", [31, 62]),
        ("transpose", {"input": _array(1, 2, 3, 4, 5, 6).reshape(2, 3)}, {}, "output", [[1, 4], [2, 5], [3, 6]]),
        ("matmul", {"A": _array(1, 2, 3, 4).reshape(2, 2), "B": _array(5, 6, 7, 8).reshape(2, 2)}, {}, "C", [[19, 22], [43, 50]]),
        ("reduce_sum", {"x": _array(1, 2, 3, 4, 5)}, {"blocks": 2}, "partial", [6, 9]),
        ("reduce_sum", {"x": _array(1, 2)}, {"blocks": 3}, "partial", [1, 2, 0]),
        ("softmax", {"x": _array(0, np.log(3), 1000, 1000).reshape(2, 2)}, {}, "y", [[0.25, 0.75], [0.5, 0.5]]),
        ("add_bias", {"x": _array(1, 2, 3, 4).reshape(2, 2), "bias": _array(10, 20)}, {}, "x", [[11, 22], [13, 24]]),
        ("gelu", {"x": _array(-1, 0, 1)}, {}, "x", [-0.15880801, 0, 0.84119199]),
        ("embedding", EMBEDDED, {"T": 2}, "x", [[31, 42], [13, 24], [11, 22]]),
        ("causal_softmax", {"scores": _array(5, 9, 0, np.log(3)).reshape(2, 2)}, {}, "scores", [[1, 9], [0.25, 0.75]]),
        (
            "attention_scores",
            {"qkv": QKV, "scores": _array(9, 9, 9, 9).reshape(1, 1, 2, 2)},
            {"scale": 0.5},
            "scores",
            [[[[1, 9], [2, 1.5]]]],
        ),
        ("attention_values", {"qkv": QKV, "scores": _array(1, 9, 0.25, 0.75).reshape(1, 1, 2, 2)}, {}, "output", [[[[8]], [[17]]]]),
        ("causal_attention", {"qkv": QKV}, {"scale": 0.0}, "output", [[[[8]], [[14]]]]),
        (
            "layernorm",
            {"x": _array(1, 3).reshape(1, 2), "gamma": _array(2, 2), "beta": _array(10, 20)},
            {"epsilon": 0.0},
            "y",
            [[8, 22]],
        ),
    ],
)
def test_reference_computes_its_formula(
    name: str,
    inputs: dict[str, np.ndarray[tuple[int, ...], np.dtype[Any]]],
    scalars: dict[str, float],
    output: str,
    expected: list[float],
) -> None:
    result = compute_reference(name, inputs, scalars)
    assert list(result) == [output]
    assert result[output].dtype == np.float32
    np.testing.assert_allclose(result[output], expected, rtol=1e-6)


def test_large_matmul_stays_within_the_catalogue_tolerance_of_float64() -> None:
    random = np.random.default_rng(1)
    a, b = random.random((700, 600), np.float32), random.random((600, 700), np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    found = compute_reference("matmul", {"A": a, "B": b}, {})["C"]
    tolerance = load_catalog().definition("matmul_naive").relative_tolerance
    assert np.abs(found - exact).max() / exact.max() < tolerance / 10


def test_products_of_halves_are_summed_in_float32_as_tensor_cores_do() -> None:
    size = 4096
    halves = {"A": np.ones((1, size), np.float16), "B": np.full((size, 1), 17, np.float16)}
    found = compute_reference("matmul", halves, {})["C"]
    assert found.dtype == np.dtype(np.float32)
    assert found.item() == 17 * size  # beyond the largest float16, 65504


def test_unknown_reference_names_those_there_are() -> None:
    with pytest.raises(InvalidCatalogError, match="expected one of add_bias, add_residual,"):
        compute_reference("fft", {}, {})


def test_reference_on_a_kernel_of_other_names_says_what_is_missing() -> None:
    with pytest.raises(InvalidCatalogError, match="a kernel without a"):
        compute_reference("vector_add", {"left": _array(1)}, {})
