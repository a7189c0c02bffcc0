"""Categories of kernels inferred from their names, for kernels without a definition."""

from __future__ import annotations

import re
from typing import Final

COMMUNICATION: Final = r"(?i)nccl|rccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
"""Matches names of communication kernels: those of NCCL, RCCL and NVSHMEM, and collectives of other libraries."""

NAME_PATTERNS: Final = (
    ("communication", COMMUNICATION + r"|send_?recv|broadcast_kernel"),
    ("copy", r"(?i)reshape_and_cache|copy_page"),  # of attention's cache; the names contain "attention" too
    ("attention", r"(?i)flash|fmha|attention|attn|\bmha_|_sdpa_|dot_do_o|convert_dq"),
    ("position embedding", r"(?i)rotary|\brope|_rope"),
    ("mixture of experts", r"(?i)\bmoe|_moe|expert"),
    ("normalization", r"(?i)(?:layer|batch|group|instance|rms)_?norm|\bbn_[fb]w|\bbnorm|gammabeta"),
    ("softmax", r"(?i)soft_?max"),
    ("loss", r"(?i)nll_?loss|cross_?entropy|classnllcriterion|\bmse_|_loss"),
    (
        "convolution",
        r"(?i)conv(?:olv|olution|\d|_|\b)|scudnn|winograd|fprop|(?:^|[^a-z])[dw]grad|igemm_(?:fwd|bwd|wrw)|im2col|col2im|cask_cudnn|fft2d_",
    ),
    (
        "matmul",
        r"(?i)gemm|gemv|cublas|nvjet|cutlass|xmma|wmma|tensorop_|\bbmm_|cijk_|matmul|dot_kernel|splitkreduce|epilogue::|triton_tem_|_mm_|"
        r"^aten::(?:(?:add|b|badd)?mm|linear|mv|addmv)$",
    ),
    ("pooling", r"(?i)(?:max|avg|average|adaptive)_?pool|pool(?:ing)?_(?:fwd|bwd|forward|backward)"),
    ("quantization", r"(?i)quant"),
    ("optimizer", r"(?i)multi_tensor_apply|adam|\bsgd|_sgd|lambstage|adagrad|rmsprop"),
    (
        "random number",
        r"(?i)dropout|distribution_elementwise|philox|curand|rocrand|bernoulli|random|^aten::(?:rand|normal_|uniform_)",
    ),
    ("sort", r"(?i)sort|top_?k|devicescan|cumsum|cumprod|histogram|bitonic|deviceselect"),
    ("indexing", r"(?i)embedding|index_?(?:select|put|add|copy|elementwise)|gather|scatter"),
    ("fft", r"(?i)(?:vector|regular|cu)_?fft|\bfft|rocfft"),
    (
        "copy",
        r"(?i)copy|memcpy|memset|catarray|concat|transpose|permute|nchwtonhwc|nhwctonchw|fillfunctor|fill_kernel|\bcast_|padding",
    ),
    ("reduction", r"(?i)reduce|reduction|argmax|argmin|triton_(?:red|per)_|^aten::(?:sum|mean|amax|amin|norm)$"),
    (
        "elementwise",
        r"(?i)elementwise|pointwise|triton_poi_|tensorop(?:with|\d)|act_and_mul|activation|gelu|silu|relu|sigmoid|tanh|add_bias|bias_add|"
        r"scalepackedtensor|^aten::(?:add|sub|rsub|mul|div|neg|exp|log|pow|sqrt|rsqrt|clamp|clamp_min|threshold|threshold_backward)_?$",
    ),
)
"""Categories and the patterns of their kernel names, special before general: the first match counts.

The expressions mean the same to `re` and to polars. They cover the naming habits of libraries, not those of single programs.
"""

CATALOG_CATEGORIES: Final = (
    "matmul", "attention", "convolution", "elementwise", "stream", "transpose", "reduction", "normalization", "other",
)  # fmt: skip
"""The categories of kernel definitions."""

SAME_CATEGORY: Final = {"softmax": "normalization"}
TRANSPOSE: Final = re.compile(r"(?i)transpose")
OTHER: Final = "other"


def infer_category(kernel_name: str) -> str:
    """Return the entry of CATALOG_CATEGORIES that the kernel's name indicates; "other" where it indicates none."""
    found = next((category for category, pattern in NAME_PATTERNS if re.search(pattern, kernel_name)), OTHER)
    if found == "copy" and TRANSPOSE.search(kernel_name):
        return "transpose"
    found = SAME_CATEGORY.get(found, found)
    return found if found in CATALOG_CATEGORIES else OTHER
