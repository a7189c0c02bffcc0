"""References in NumPy of the operations of a transformer. Conventions as in `references`.

B sequences of T tokens; H heads of D channels; M = B * T rows. qkv: queries, keys and values, shape (B, T, 3, H, D).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Inputs = Mapping[str, Array]
Scalars = Mapping[str, float]
Outputs = dict[str, Array]

GELU_FACTOR: Final = float(np.sqrt(2 / np.pi))


def embedding(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute x[m] = token_table[tokens[m]] + position_table[m % T]; shapes (M,), (V, D), (T, D), (M, D)."""
    tokens = inputs["tokens"]
    return {"x": inputs["token_table"][tokens] + inputs["position_table"][np.arange(tokens.size) % int(scalars["T"])]}


def add_bias(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute x += bias in every row; shapes (M, N), (N,)."""
    return {"x": inputs["x"] + inputs["bias"]}


def add_residual(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute x += delta, shapes (N,)."""
    return {"x": inputs["x"] + inputs["delta"]}


def gelu(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute x = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), shapes (N,). Hendrycks & Gimpel, arXiv:1606.08415."""
    return {"x": gelu_of(inputs["x"].astype(np.float64)).astype(inputs["x"].dtype)}


def matmul_bias(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute C = A @ B + bias; shapes (M, K), (K, N), (N,), (M, N)."""
    return {"C": _product(inputs).astype(inputs["A"].dtype)}


def matmul_bias_gelu(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute C = GELU(A @ B + bias); shapes (M, K), (K, N), (N,), (M, N)."""
    return {"C": gelu_of(_product(inputs)).astype(inputs["A"].dtype)}


def attention_scores(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute scale * q @ k^T for keys up to each query's place, the rest as it was; scores (B, H, T, T)."""
    queries, keys, _ = _heads(inputs["qkv"])
    scores = scalars["scale"] * (queries @ keys.swapaxes(-1, -2))
    return {"scores": np.where(_causal(scores.shape[-1]), scores, inputs["scores"]).astype(inputs["qkv"].dtype)}


def causal_softmax(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute the softmax over the first r % T + 1 scores of row r, the rest as it was; shape (R, T)."""
    scores = inputs["scores"]
    is_seen = np.arange(scores.shape[1]) <= (np.arange(scores.shape[0]) % scores.shape[1])[:, None]
    return {"scores": np.where(is_seen, _softmax(np.where(is_seen, scores, -np.inf)), scores).astype(scores.dtype)}


def attention_values(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Return the values weighted by the scores up to each query's place; output (B, T, H, D)."""
    _, _, values = _heads(inputs["qkv"])
    weights = np.tril(inputs["scores"].astype(np.float64))
    return {"output": np.ascontiguousarray((weights @ values).swapaxes(1, 2)).astype(inputs["qkv"].dtype)}


def causal_attention(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute softmax(scale * q @ k^T, causal) @ v; output (B, T, H, D). Vaswani et al., arXiv:1706.03762, section 3.2.1."""
    output = attention_of(inputs["qkv"].astype(np.float64), scalars["scale"])
    return {"output": output.astype(inputs["qkv"].dtype)}


def residual_layernorm(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute x += delta, and y = (x - mean) / sqrt(variance + epsilon) * gamma + beta over each row; shapes (M, N), (N,)."""
    x = inputs["x"].astype(np.float64) + inputs["delta"]
    y = layernorm_of(x, inputs["gamma"], inputs["beta"], scalars["epsilon"])
    return {"x": x.astype(inputs["x"].dtype), "y": y.astype(inputs["x"].dtype)}


# ---------------------------------------------------------------- float64 throughout


def gelu_of(x: Array) -> Array:
    """Compute GELU in its tanh form."""
    result: Array = 0.5 * x * (1 + np.tanh(GELU_FACTOR * (x + 0.044715 * x**3)))
    return result


def layernorm_of(x: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    """Normalize over the last axis, biased variance. Ba et al., arXiv:1607.06450."""
    scale = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + epsilon)
    result: Array = (x - x.mean(axis=-1, keepdims=True)) * scale * gamma + beta
    return result


def attention_of(qkv: Array, scale: float) -> Array:
    """Compute causal attention: (B, T, 3, H, D) to (B, T, H, D)."""
    queries, keys, values = _heads(qkv)
    scores = scale * (queries @ keys.swapaxes(-1, -2))
    weights = _softmax(np.where(_causal(scores.shape[-1]), scores, -np.inf))
    return np.ascontiguousarray((weights @ values).swapaxes(1, 2))


def _product(inputs: Inputs) -> Array:
    product: Array = inputs["A"].astype(np.float64) @ inputs["B"].astype(np.float64) + inputs["bias"]
    return product


def _heads(qkv: Array) -> tuple[Array, Array, Array]:
    """Return queries, keys and values in float64, each (B, H, T, D)."""
    queries, keys, values = qkv.astype(np.float64).transpose(2, 0, 3, 1, 4)
    return queries, keys, values


def _causal(length: int) -> Array:
    return np.tri(length, dtype=np.bool_)


def _softmax(scores: Array) -> Array:
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True), dtype=np.float64)
    result: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return result


TRANSFORMER_REFERENCES: Final[dict[str, Callable[[Inputs, Scalars], Outputs]]] = {
    "add_bias": add_bias,
    "add_residual": add_residual,
    "attention_scores": attention_scores,
    "attention_values": attention_values,
    "causal_attention": causal_attention,
    "causal_softmax": causal_softmax,
    "embedding": embedding,
    "gelu": gelu,
    "matmul_bias": matmul_bias,
    "matmul_bias_gelu": matmul_bias_gelu,
    "residual_layernorm": residual_layernorm,
}
