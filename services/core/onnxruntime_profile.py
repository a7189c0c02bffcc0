"""Words of ONNX Runtime's profiles (SessionOptions.enable_profiling), for whoever writes some and whoever reads them.

A list of complete events of Chrome's kind, in whole microseconds, which are cut off, not rounded: categories Session (runs of the
model), Node (`NAME_kernel_time`, with operator, provider and shapes) and, of builds that trace the GPU, Kernel.
"""

from __future__ import annotations

from typing import Final

FORMAT: Final = "onnxruntime"

SESSION: Final = "Session"
NODE: Final = "Node"
KERNEL: Final = "Kernel"
MODEL_RUN: Final = "model_run"
"""Name of the Session event that is one run of the model."""
NODE_ENDING: Final = "_kernel_time"
"""Of events that are a node's execution; others say what was waited for before and after."""

LAUNCHING_PROVIDERS: Final = (
    *("CUDAExecutionProvider", "ROCMExecutionProvider", "MIGraphXExecutionProvider", "TensorrtExecutionProvider"),
    *("NvTensorRTRTXExecutionProvider", "DmlExecutionProvider", "WebGpuExecutionProvider", "JsExecutionProvider"),
)
"""Their kernels go on after the node has returned: its time is that of the launch. All others compute within it."""

NS_PER_US: Final = 1000
