"""Names of the NumPy references, apart from them: whoever only checks a name needs no NumPy."""

from __future__ import annotations

from typing import Final

REFERENCE_NAMES: Final = (
    "add_bias",
    "add_residual",
    "attention_scores",
    "attention_values",
    "causal_attention",
    "causal_softmax",
    "embedding",
    "gelu",
    "layernorm",
    "matmul",
    "matmul_bias",
    "matmul_bias_gelu",
    "reduce_sum",
    "residual_layernorm",
    "saxpy",
    "softmax",
    "stream_add",
    "stream_copy",
    "stream_scale",
    "stream_triad",
    "transpose",
    "vector_add",
)
