"""NumPy references of kernels: functions from input arrays and scalars by name to output arrays by name.

Sums are accumulated in float64 and rounded once at the end, so that a reference is at least as exact as any kernel it
judges; elementwise work stays in the type of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kernalyse.services.core.errors import InvalidCatalogError

# ---------------------------------------------------------------- transformer references
# B sequences of T tokens; H heads of D channels; M = B * T rows. qkv: queries, keys and values, shape (B, T, 3, H, D).

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
    return {"x": apply_gelu(inputs["x"].astype(np.float64)).astype(inputs["x"].dtype)}


def matmul_bias(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute C = A @ B + bias; shapes (M, K), (K, N), (N,), (M, N)."""
    return {"C": _product(inputs).astype(inputs["A"].dtype)}


def matmul_bias_gelu(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute C = GELU(A @ B + bias); shapes (M, K), (K, N), (N,), (M, N)."""
    return {"C": apply_gelu(_product(inputs)).astype(inputs["A"].dtype)}


def attention_scores(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute scale * q @ k^T for keys up to each query's position, the rest unchanged; scores (B, H, T, T)."""
    queries, keys, _ = _heads(inputs["qkv"])
    scores = scalars["scale"] * (queries @ keys.swapaxes(-1, -2))
    return {"scores": np.where(_causal(scores.shape[-1]), scores, inputs["scores"]).astype(inputs["qkv"].dtype)}


def causal_softmax(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute the softmax over the first r % T + 1 scores of row r, the rest unchanged; shape (R, T)."""
    scores = inputs["scores"]
    is_seen = np.arange(scores.shape[1]) <= (np.arange(scores.shape[0]) % scores.shape[1])[:, None]
    return {"scores": np.where(is_seen, _softmax(np.where(is_seen, scores, -np.inf)), scores).astype(scores.dtype)}


def attention_values(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Return the values weighted by the scores up to each query's position; output (B, T, H, D)."""
    _, _, values = _heads(inputs["qkv"])
    weights = np.tril(inputs["scores"].astype(np.float64))
    return {"output": np.ascontiguousarray((weights @ values).swapaxes(1, 2)).astype(inputs["qkv"].dtype)}


def causal_attention(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute softmax(scale * q @ k^T, causal) @ v; output (B, T, H, D). Vaswani et al., arXiv:1706.03762, section 3.2.1."""
    output = apply_causal_attention(inputs["qkv"].astype(np.float64), scalars["scale"])
    return {"output": output.astype(inputs["qkv"].dtype)}


def residual_layernorm(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute x += delta, and y = (x - mean) / sqrt(variance + epsilon) * gamma + beta over each row; shapes (M, N), (N,)."""
    x = inputs["x"].astype(np.float64) + inputs["delta"]
    y = apply_layernorm(x, inputs["gamma"], inputs["beta"], scalars["epsilon"])
    return {"x": x.astype(inputs["x"].dtype), "y": y.astype(inputs["x"].dtype)}


# ---------------------------------------------------------------- float64 helpers


def apply_gelu(x: Array) -> Array:
    """Compute GELU in its tanh form."""
    result: Array = 0.5 * x * (1 + np.tanh(GELU_FACTOR * (x + 0.044715 * x**3)))
    return result


def apply_layernorm(x: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    """Normalize over the last axis, biased variance. Ba et al., arXiv:1607.06450."""
    scale = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + epsilon)
    result: Array = (x - x.mean(axis=-1, keepdims=True)) * scale * gamma + beta
    return result


def apply_causal_attention(qkv: Array, scale: float) -> Array:
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


# ---------------------------------------------------------------- registry and elementary references

Reference = Callable[[Inputs, Scalars], Outputs]

EXACT_MATMUL_FLOP: Final = 2 * 512**3
"""Up to here a float64 product takes milliseconds. Above, float32 BLAS, whose error stays far below a kernel's tolerance."""


def compute_reference(name: str, inputs: Inputs, scalars: Scalars) -> Outputs:
    """Return the expected outputs of the reference `name`.

    Args:
        inputs: the kernel's input and input-output arrays, by the names of its parameters.
        scalars: the kernel's parameters and scalar arguments.

    Raises:
        InvalidCatalogError: no such reference, or it needs an array or scalar that the kernel does not have.
    """
    if name not in REFERENCES:
        raise InvalidCatalogError(
            f"reference {name}", found="no such reference", expected=f"one of {', '.join(sorted(REFERENCES))}", remedy="Correct the name."
        )
    try:
        return REFERENCES[name](inputs, scalars)
    except KeyError as error:
        raise InvalidCatalogError(
            f"reference {name}",
            found=f"a kernel without {error.args[0]}",
            expected=f"a buffer, parameter or argument named {error.args[0]}",
            remedy="Name the kernel's parameters as the reference does, or choose another reference.",
        ) from error


def vector_add(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute c = a + b, shapes (N,)."""
    return {"c": inputs["a"] + inputs["b"]}


def saxpy(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute y = alpha * x + y, shapes (N,)."""
    x, y = inputs["x"], inputs["y"]
    return {"y": x.dtype.type(scalars["alpha"]) * x + y}


def stream_copy(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute c = a, shapes (N,)."""
    return {"c": inputs["a"]}


def stream_scale(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute b = alpha * c, shapes (N,)."""
    return {"b": inputs["c"].dtype.type(scalars["alpha"]) * inputs["c"]}


def stream_triad(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute a = b + alpha * c, shapes (N,)."""
    return {"a": inputs["b"] + inputs["c"].dtype.type(scalars["alpha"]) * inputs["c"]}


def matmul(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute C = A @ B; shapes (M, K), (K, N), (M, N)."""
    a, b = inputs["A"], inputs["B"]
    if a.dtype.itemsize < np.dtype(np.float32).itemsize:  # tensor cores sum in float32; NumPy's own product of halves takes minutes
        a, b = a.astype(np.float32), b.astype(np.float32)
    if 2 * a.shape[0] * a.shape[1] * b.shape[1] > EXACT_MATMUL_FLOP:
        return {"C": a @ b}
    return {"C": (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)}


def transpose(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute output = input transposed; shapes (M, N), (N, M)."""
    return {"output": np.ascontiguousarray(inputs["input"].T)}


def reduce_sum(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute partial[b] = sum of the b-th chunk of ceil(N / blocks) elements of x; shapes (N,), (blocks,)."""
    x, blocks = inputs["x"], int(scalars["blocks"])
    shares = np.zeros(blocks * -(-x.size // blocks), x.dtype)
    shares[: x.size] = x
    return {"partial": shares.reshape(blocks, -1).sum(axis=1, dtype=np.float64).astype(x.dtype)}


def softmax(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute y = exp(x - max) / sum(exp(x - max)) over each row; shapes (M, N)."""
    x = inputs["x"]
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    sums = exponentials.sum(axis=1, keepdims=True, dtype=np.float64)
    return {"y": (exponentials / sums).astype(x.dtype)}


def layernorm(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute y = (x - mean) / sqrt(variance + epsilon) * gamma + beta over each row, biased variance; shapes (M, N), (N,)."""
    x = inputs["x"].astype(np.float64)
    scale = 1 / np.sqrt(x.var(axis=1, keepdims=True) + scalars["epsilon"])
    y = (x - x.mean(axis=1, keepdims=True)) * scale * inputs["gamma"] + inputs["beta"]
    return {"y": y.astype(inputs["x"].dtype)}


REFERENCES: Final[dict[str, Reference]] = {
    "layernorm": layernorm,
    "matmul": matmul,
    "reduce_sum": reduce_sum,
    "saxpy": saxpy,
    "softmax": softmax,
    "stream_add": vector_add,
    "stream_copy": stream_copy,
    "stream_scale": stream_scale,
    "stream_triad": stream_triad,
    "transpose": transpose,
    "vector_add": vector_add,
    **TRANSFORMER_REFERENCES,
}
