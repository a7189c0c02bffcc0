"""What a kernel does as its name tells it: the last resort, for kernels of which no range and no module is known."""

from __future__ import annotations

from typing import Final

import polars as pl

from services.analyzer.analyses.trace_breakdown import COMMUNICATION

PATTERNS: Final = (
    ("communication kernels", COMMUNICATION + r"|send_?recv|broadcast_kernel"),
    ("copy kernels", r"(?i)reshape_and_cache|copy_page"),  # of attention's cache, whose names say attention too
    ("attention kernels", r"(?i)flash|fmha|attention|attn|\bmha_"),
    ("position embedding kernels", r"(?i)rotary|\brope|_rope"),
    ("mixture of experts kernels", r"(?i)\bmoe|_moe|expert"),
    ("normalization kernels", r"(?i)(?:layer|batch|group|instance|rms)_?norm|\bbn_[fb]w|\bbnorm"),
    ("softmax kernels", r"(?i)soft_?max"),
    ("loss kernels", r"(?i)nll_?loss|cross_?entropy|classnllcriterion|\bmse_|_loss"),
    (
        "convolution kernels",
        r"(?i)conv(?:olv|olution|\d|_|\b)|scudnn|winograd|fprop|(?:^|[^a-z])[dw]grad|igemm_(?:fwd|bwd|wrw)|im2col|col2im|cask_cudnn|fft2d_",
    ),
    (
        "matmul kernels",
        r"(?i)gemm|gemv|cublas|nvjet|cutlass|xmma|wmma|tensorop_|\bbmm_|cijk_|matmul|dot_kernel|splitkreduce|epilogue::|triton_tem_|_mm_|"
        r"^aten::(?:(?:add|b|badd)?mm|linear|mv|addmv)$",
    ),
    ("pooling kernels", r"(?i)(?:max|avg|average|adaptive)_?pool|pool(?:ing)?_(?:fwd|bwd|forward|backward)"),
    ("quantization kernels", r"(?i)quant"),
    ("optimizer kernels", r"(?i)multi_tensor_apply|adam|\bsgd|_sgd|lambstage|adagrad|rmsprop"),
    (
        "random number kernels",
        r"(?i)dropout|distribution_elementwise|philox|curand|rocrand|bernoulli|random|^aten::(?:rand|normal_|uniform_)",
    ),
    ("sort kernels", r"(?i)sort|top_?k|devicescan|cumsum|cumprod|histogram|bitonic|deviceselect"),
    ("indexing kernels", r"(?i)embedding|index_?(?:select|put|add|copy|elementwise)|gather|scatter"),
    ("fft kernels", r"(?i)(?:vector|regular|cu)_?fft|\bfft|rocfft"),
    (
        "copy kernels",
        r"(?i)copy|memcpy|memset|catarray|concat|transpose|permute|nchwtonhwc|nhwctonchw|fillfunctor|fill_kernel|\bcast_|padding",
    ),
    ("reduction kernels", r"(?i)reduce|reduction|argmax|argmin|triton_(?:red|per)_|^aten::(?:sum|mean|amax|amin|norm)$"),
    (
        "elementwise kernels",
        r"(?i)elementwise|pointwise|triton_poi_|tensorop(?:with|\d)|act_and_mul|activation|gelu|silu|relu|sigmoid|tanh|add_bias|bias_add|"
        r"scalepackedtensor|^aten::(?:add|sub|rsub|mul|div|neg|exp|log|pow|sqrt|rsqrt|clamp|clamp_min|threshold|threshold_backward)_?$",
    ),
)
"""What of a name tells what a kernel is for, and the layer that it is counted for; of several the first, special before general.

Libraries name kernels by what they do; what a program's own kernels are called says nothing here, and they stay without a layer.
"""

GUESSED: Final = "guessed"


def guessed_layer(kernel_name: pl.Expr) -> pl.Expr:
    """The layer of kernels of these names; null where a name tells nothing."""
    return pl.coalesce(pl.when(kernel_name.str.contains(pattern)).then(pl.lit(layer)) for layer, pattern in PATTERNS)
