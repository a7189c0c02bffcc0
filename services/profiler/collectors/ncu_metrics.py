"""Metrics that ncu is asked for, by compute capability: time, work, bytes at each memory level, use of the device.

Names are those of the sections that ncu itself makes its rooflines of (SpeedOfLight*.section, ncu 2025). What the numbers
come to is the analyzer's to say.
"""

from __future__ import annotations

from typing import Final

USE_METRICS: Final = (
    "gpu__time_duration.sum",
    "sm__cycles_elapsed.avg",
    "sm__cycles_elapsed.avg.per_second",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "smsp__inst_executed.sum",
    "launch__registers_per_thread",
    "launch__waves_per_multiprocessor",
)
CACHE_METRICS: Final = ("lts__lts2xbar_cycles_active.sum", "lts__t_sector_hit_rate.pct", "l1tex__t_sector_hit_rate.pct")

SASS: Final = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
FMA_OPERATIONS: Final = tuple(f"{letter}{operation}" for letter in "dfh" for operation in ("add", "mul", "fma"))
PACKED_OPERATIONS: Final = ("fadd2", "fmul2", "ffma2")  # of compute capability 10 and 11

CAPABILITIES_WITHOUT_DRAM: Final = ("8.7", "11.0", "12.1")  # their memory is the host's: ncu has no counters of it

TENSOR: Final = "sm__ops_path_tensor_{}.sum"


def _with_sparsity(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}_sparsity_{state}" for name in names for state in ("off", "on"))


_AMPERE: Final = (
    "src_fp64",
    *_with_sparsity("src_bf16_dst_fp32", "src_fp16_dst_fp16", "src_fp16_dst_fp32", "src_int8", "src_tf32_dst_fp32"),
)
_BLACKWELL: Final = ("src_fp64", "src_bf16_dst_fp32", "src_fp16_dst_fp16", "src_fp16_dst_fp32", "src_int8", "src_tf32_dst_fp32")
TENSOR_PATHS: Final = {
    (7, 5): ("src_fp16_bf16_tf32_dst_fp32", "src_fp16_dst_fp16", "src_int8"),
    (8, 0): _AMPERE,
    (8, 9): (*_AMPERE, *_with_sparsity("src_fp8")),
    (9, 0): ("src_fp64", "src_bf16_dst_fp32", "src_fp16", "src_int8", "src_tf32_dst_fp32", *_with_sparsity("src_fp8")),
    (10, 0): (*_BLACKWELL, "src_fp4_dst_fp32", "src_fp4_fp6_fp8_dst_fp16", "src_fp4_fp6_fp8_dst_fp32"),
    (10, 3): (
        *(*_BLACKWELL, "src_fp4_dst_fp32", "src_fp4_fp6_dst_fp16", "src_fp4_fp6_dst_fp32"),
        # float8 is there by instruction alone, and sparse with sums in float32 not at all.
        *(*_with_sparsity("op_utcqmma_src_fp8_dst_fp16"), "op_utcqmma_src_fp8_dst_fp32_sparsity_off"),
    ),
    (11, 0): (*_BLACKWELL, "src_fp4_dst_fp32", "src_fp4_fp6_fp8_dst_fp16", "src_fp4_fp6_fp8_dst_fp32"),
    (12, 0): (
        *_BLACKWELL,
        *_with_sparsity("src_fp4_dst_fp32", "src_fp4_fp6_dst_fp16", "src_fp4_fp6_dst_fp32", "src_fp8_dst_fp16", "src_fp8_dst_fp32"),
    ),
}
"""Floating-point and int8 operations of tensor cores, from each compute capability on up to the next. None is part of
another: the op_* metrics that ncu has beside them from 9.0 on split the same work by instruction."""


def metric_names(compute_capability: str) -> tuple[str, ...]:
    """Return what to ask ncu for on such a device, e.g. "9.0". A newer one than is known here is asked for what the newest known has."""
    major, _, minor = compute_capability.partition(".")
    version = (int(major), int(minor or 0))
    operations = FMA_OPERATIONS + (PACKED_OPERATIONS if version[0] in (10, 11) else ())
    return (
        *USE_METRICS,
        *_dram_metrics(compute_capability, version),
        *CACHE_METRICS,
        _l1_metric(version),
        *(SASS.format(operation) for operation in operations),
        *_tensor_metrics(version),
    )


def _dram_metrics(compute_capability: str, version: tuple[int, int]) -> tuple[str, ...]:
    if compute_capability in CAPABILITIES_WITHOUT_DRAM:
        return ()
    infix = "op_" if version >= (10, 0) else ""
    names = ("dram__bytes.sum", f"dram__bytes_{infix}read.sum", f"dram__bytes_{infix}write.sum")
    return (*names, "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed")


def _l1_metric(version: tuple[int, int]) -> str:
    if version >= (9, 0):
        return "l1tex__lsu_writeback_active_mem_lgds.sum"
    return "l1tex__lsu_writeback_active_mem_lg.sum" if version >= (7, 5) else "l1tex__lsu_writeback_active.sum"


def _tensor_metrics(version: tuple[int, int]) -> tuple[str, ...]:
    known = [first for first in TENSOR_PATHS if first <= version]
    if not known:
        return ("sm__inst_executed_pipe_tensor.sum",)  # Volta counts instructions
    return tuple(TENSOR.format(name) for name in TENSOR_PATHS[max(known)])
