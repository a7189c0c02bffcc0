"""Names used in the files of ONNX Runtime profiles and of roofline_config.json."""

from __future__ import annotations

from typing import Final

from kernalyse.services.core.model import Ceiling, Hardware

# ---------------------------------------------------------------- ONNX Runtime profiles
# Names in the profiles that SessionOptions.enable_profiling writes, shared by the writer and the reader.
#
# A profile is a list of complete events in Chrome's trace format. Times are whole microseconds, truncated, not rounded. Categories are
# Session (runs of the model), Node (`NAME_kernel_time`, with operator, provider and shapes) and, of builds that trace the GPU, Kernel.

FORMAT: Final = "onnxruntime"

SESSION: Final = "Session"
NODE: Final = "Node"
KERNEL: Final = "Kernel"
MODEL_RUN: Final = "model_run"
"""Name of the Session event that is one run of the model."""
NODE_SUFFIX: Final = "_kernel_time"
"""Suffix of events that are a node's execution; others record waiting before and after it."""

LAUNCHING_PROVIDERS: Final = (
    *("CUDAExecutionProvider", "ROCMExecutionProvider", "MIGraphXExecutionProvider", "TensorrtExecutionProvider"),
    *("NvTensorRTRTXExecutionProvider", "DmlExecutionProvider", "WebGpuExecutionProvider", "JsExecutionProvider"),
)
"""Providers whose kernels continue after the node has returned, so that its time is that of the launch. All others compute within it."""

NS_PER_US: Final = 1000


# ---------------------------------------------------------------- roofline_config.json
# Peaks and thresholds of one device, as tools for lists of operations store them.

FILE_NAME: Final = "roofline_config.json"
OP_PER_TERA_OP: Final = 1e12
BYTES_PER_GB: Final = 1e9
PERCENT: Final = 100
PEAK, BANDWIDTH, MEMORY_THRESHOLD, COMPUTE_THRESHOLD = "peak_tops", "mem_bw", "mem_thresh", "comp_thresh"
MEMBERS: Final = (PEAK, BANDWIDTH, MEMORY_THRESHOLD, COMPUTE_THRESHOLD)

SOURCES: Final = ("user", "measured", "datasheet", "clock")
"""Sources of ceilings, by precedence."""

DIGITS: Final = 12
"""Significant digits: values read from such a file are written back unchanged, although a division by 1e12 rounds the last digit."""


def to_roofline_config(hardware: Hardware, dtype: str = "", path: str = "") -> dict[str, float]:
    """Return the members of roofline_config.json by name; unknown values are left out.

    Args:
        hardware: ceilings and thresholds of the device.
        dtype: of the compute ceiling that becomes the file's only peak; empty: any.
        path: of that ceiling; empty: any.
    """
    memory = known_ceiling(hardware, "bytes_per_s", "dram")
    compute = known_ceiling(hardware, "flop_per_s", dtype, path)
    rates = {PEAK: (compute, OP_PER_TERA_OP), BANDWIDTH: (memory, BYTES_PER_GB)}
    limits = hardware.thresholds
    return {
        **{name: _rounded(ceiling.value / factor) for name, (ceiling, factor) in rates.items() if ceiling is not None},
        MEMORY_THRESHOLD: _rounded(limits.memory_inefficient_ratio * PERCENT),
        COMPUTE_THRESHOLD: _rounded(limits.compute_inefficient_ratio * PERCENT),
    }


def known_ceiling(
    hardware: Hardware, unit: str, ceiling_name: str = "", path: str = "", sources: tuple[str, ...] = SOURCES
) -> Ceiling | None:
    """Return the ceiling from the first source that has a matching one, or None; an empty name or path matches any."""
    for source in sources:
        for ceiling in hardware.ceilings:
            is_meant = (ceiling.unit, ceiling.source) == (unit, source) and ceiling_name in ("", ceiling.ceiling_name)
            if is_meant and path in ("", ceiling.path):
                return ceiling
    return None


def _rounded(value: float) -> float:
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded
