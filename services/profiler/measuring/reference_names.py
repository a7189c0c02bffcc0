"""Names of the NumPy references, apart from them: whoever only checks a name needs no NumPy."""

from __future__ import annotations

from typing import Final

REFERENCE_NAMES: Final = (
    "layernorm",
    "matmul",
    "reduce_sum",
    "saxpy",
    "softmax",
    "stream_add",
    "stream_copy",
    "stream_scale",
    "stream_triad",
    "transpose",
    "vector_add",
)
