"""References in NumPy of what kernels should compute: from input arrays and scalars by name to output arrays by name.

Sums are accumulated in float64 and rounded once at the end, so that a reference is at least as exact as any kernel it
judges; elementwise work stays in the type of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.core.errors import InvalidCatalogError
from services.profiler.measuring.transformer_references import TRANSFORMER_REFERENCES

Array = npt.NDArray[Any]
Inputs = Mapping[str, Array]
Scalars = Mapping[str, float]
Outputs = dict[str, Array]
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
    if 2 * a.shape[0] * a.shape[1] * b.shape[1] > EXACT_MATMUL_FLOP:
        return {"C": a @ b}
    return {"C": (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)}


def transpose(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute output = input transposed; shapes (M, N), (N, M)."""
    return {"output": np.ascontiguousarray(inputs["input"].T)}


def reduce_sum(inputs: Inputs, scalars: Scalars) -> Outputs:
    """Compute partial[b] = sum of the b-th share of ceil(N / blocks) elements of x; shapes (N,), (blocks,)."""
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
