"""The costs (flop, bytes) of launches from hardware counters."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Final

import polars as pl

from kernalyse.services.analyzer.tables.runs import COUNTED_WORK, FMA_DTYPES, TENSOR_DTYPES, flop_column

# ---------------------------------------------------------------- costs by counters

PACKED_CAPABILITIES: Final = (10, 12)
"""Compute capabilities, from the first up to the second (exclusive), for which ncu counts packed float32 instructions (gb10x)."""

SASS: Final = "smsp__sass_thread_inst_executed_op_{}_pred_on"
FMA_WEIGHTS: Final[Mapping[str, Mapping[str, int]]] = {
    "float64": {"dadd": 1, "dmul": 1, "dfma": 2},
    "float32": {"fadd": 1, "fmul": 1, "ffma": 2},
    # An instruction processes two halves. One that uses only one counts as two, so this is an upper bound.
    "float16": {"hadd": 2, "hmul": 2, "hfma": 4},
}
PACKED_WEIGHTS: Final = {"fadd2": 2, "fmul2": 2, "ffma2": 4}

TENSOR: Final = "sm__ops_path_tensor_"
TENSOR_INPUTS: Final = {
    "fp64": "float64",
    "tf32": "tfloat32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp16_bf16_tf32": "float16",  # Turing's one path; it has neither of the other two
    "fp8": "float8",
    "fp4_fp6": "float8",  # instructions of mixed narrow inputs, at the rate of float8
    "fp4_fp6_fp8": "float8",
    "fp4": "float4",
    "int8": "int8",
}

L1_METRICS: Final = {
    "shared": "l1tex__lsu_writeback_active_mem_lgds",
    "global": "l1tex__lsu_writeback_active_mem_lg",
    "oldest": "l1tex__lsu_writeback_active",
    "tagged": "l1tex__t_bytes",
}
L1_BYTES_PER_CYCLE: Final = 128
L2_METRICS: Final = {"returned": "lts__lts2xbar_cycles_active", "tagged": "lts__t_bytes"}
L2_BYTES_PER_CYCLE: Final = 32
DRAM_METRICS: Final = {
    "total": "dram__bytes",
    "read": "dram__bytes_read",
    "write": "dram__bytes_write",
    "op_read": "dram__bytes_op_read",  # the names of Blackwell
    "op_write": "dram__bytes_op_write",
}
TENSOR_INSTRUCTIONS: Final = "sm__inst_executed_pipe_tensor"
VOLTA_TENSOR_FLOP: Final = 512  # of one such instruction, there and nowhere else
TENSOR_PATH_CAPABILITY: Final = 7.5  # from here on operations are counted


def counted_work(counters: pl.LazyFrame, counter_reports: pl.LazyFrame, configurations: pl.LazyFrame) -> pl.LazyFrame:
    """Return table counted_work: one row per profiled launch. Columns without a metric in the report are null.

    Formulas are those of NVIDIA's roofline sections (SpeedOfLight_Hierarchical*RooflineChart.section, ncu 2025):

    - flop of CUDA cores: additions + multiplications + 2 x fused multiply-adds that were not predicated off; of float16
      twice that, for an instruction holds two. On compute capability 10 and 11 packed float32 instructions count too
      (2, 2 and 4), and without their counters float32 is not known.
    - flop of tensor cores: sm__ops_path_tensor_src_*.sum, operations already. The op_* metrics next to them split the same
      operations by instruction, so they are summed only where a report has nothing else. int8 counts as the formulas of int8
      kernels do; int4 and int1 are excluded, since no ceiling is known of them. Volta: 512 x sm__inst_executed_pipe_tensor.sum
      (NERSC's method, arXiv:2008.11326).
    - dram_bytes: dram__bytes.sum, or reads + writes. There is none on compute capability 8.7, 11.0 and 12.1.
    - l2_bytes: 32 x lts__lts2xbar_cycles_active.sum; where that is missing lts__t_bytes.sum, the larger figure of NERSC's
      method.
    - l1_bytes: 128 x l1tex__lsu_writeback_active_mem_lgds.sum from compute capability 9.0 on, ..._mem_lg.sum from 7.5 to
      8.9, ..._active.sum before; where that is missing l1tex__t_bytes.sum, as NERSC's method has it.

    Args:
        counters, counter_reports, configurations: the tables of these names, of any runs.
    """
    metrics = in_project_units(counters)
    sums = metric_sums(metrics)
    return (
        _launches(counters)
        .join(_measures(metrics), on=LAUNCH_KEYS, how="left", maintain_order="left")
        .join(_fma_flop(sums), on=LAUNCH_KEYS, how="left", maintain_order="left")
        .join(_tensor_flop(sums), on=LAUNCH_KEYS, how="left", maintain_order="left")
        .join(_bytes(sums), on=LAUNCH_KEYS, how="left", maintain_order="left")
        .join(counter_reports.unique(LAUNCH_KEYS[:2], keep="first"), on=LAUNCH_KEYS[:2], how="left", maintain_order="left")
        .join(_configuration_names(configurations), on=["run_id", "configuration_index"], how="left", maintain_order="left")
        .with_columns(_flop_columns())
        .with_columns(_level_columns())
        .with_columns(flop=_flop(), kernel_name=pl.coalesce("configured_kernel_name", "kernel_name"))
        .with_columns(_most("dtype"), _most("path"))
        .select(pl.col(name).cast(dtype) for name, dtype in COUNTED_WORK.schema.items())
    )


def _launches(counters: pl.LazyFrame) -> pl.LazyFrame:
    columns = ("configuration_index", "kernel_name", "compute_capability")
    return counters.group_by(LAUNCH_KEYS, maintain_order=True).agg(pl.col(columns).first())


def _configuration_names(configurations: pl.LazyFrame) -> pl.LazyFrame:
    return configurations.select("run_id", "configuration_index", "label", configured_kernel_name="kernel_name").unique(
        ["run_id", "configuration_index"], keep="first"
    )


def _measures(metrics: pl.LazyFrame) -> pl.LazyFrame:
    """Return the columns that are single metrics."""
    cycles_s = first_metric("sm__cycles_elapsed.avg") / first_metric("sm__cycles_elapsed.avg.per_second")
    return metrics.group_by(LAUNCH_KEYS).agg(
        duration_ns=pl.coalesce(first_metric("gpu__time_duration.sum", "gpu__time_duration.avg"), cycles_s * 1e9),
        sm_clock_hz=first_metric(
            "sm__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second", "gpc__cycles_elapsed.avg.per_second"
        ),
        achieved_occupancy_ratio=first_metric(
            "sm__warps_active.avg.pct_of_peak_sustained_active", "smsp__warps_active.avg.pct_of_peak_sustained_active"
        ),
        sm_active_ratio=first_metric(
            "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed", "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"
        ),
        sm_throughput_ratio=first_metric("sm__throughput.avg.pct_of_peak_sustained_elapsed"),
        memory_throughput_ratio=first_metric("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),
    )


# ---------------------------------------------------------------- flop


def _fma_flop(sums: pl.LazyFrame) -> pl.LazyFrame:
    return sums.group_by(LAUNCH_KEYS).agg(
        *(_weighted(weights).alias(f"plain_{dtype}") for dtype, weights in FMA_WEIGHTS.items()),
        packed_float32=_weighted(PACKED_WEIGHTS),
        tensor_instruction_count=metric_total(TENSOR_INSTRUCTIONS),
    )


def _weighted(weights: Mapping[str, int]) -> pl.Expr:
    """Return the weighted sum of counters; null if one of them is missing."""
    first, *rest = (metric_total(SASS.format(operation)) * weight for operation, weight in weights.items())
    for term in rest:
        first = first + term
    return first


def _flop_columns() -> list[pl.Expr]:
    first, end = PACKED_CAPABILITIES
    has_packed = (_capability() >= first) & (_capability() < end)
    packed = pl.when(has_packed).then(pl.col("packed_float32")).otherwise(pl.col("packed_float32").fill_null(0))
    totals = {dtype: pl.col(f"plain_{dtype}") for dtype in FMA_DTYPES} | {"float32": pl.col("plain_float32") + packed}
    columns = [total.alias(flop_column(dtype, "fma")) for dtype, total in totals.items()]
    volta = pl.when(_capability() < TENSOR_PATH_CAPABILITY).then(pl.col("tensor_instruction_count") * VOLTA_TENSOR_FLOP)
    return [*columns, pl.coalesce(flop_column("float16", "tensor"), volta).alias(flop_column("float16", "tensor"))]


def _tensor_flop(sums: pl.LazyFrame) -> pl.LazyFrame:
    """Return flop of tensor cores by data type; null without a metric of the data type."""
    inputs = pl.col("base_name").str.extract(r"src_([a-z0-9_]+?)(?:_dst_\w+?)?(?:_sparsity_(?:on|off))?$")
    is_split = pl.col("base_name").str.starts_with(f"{TENSOR}op_")
    total, split = pl.col("total").filter(~is_split), pl.col("total").filter(is_split)
    dtype = pl.col("inputs").replace_strict(TENSOR_INPUTS, default=None, return_dtype=pl.String)
    return (
        sums.filter(pl.col("base_name").str.starts_with(TENSOR))
        .with_columns(inputs=inputs)
        .group_by(*LAUNCH_KEYS, "inputs")
        .agg(total=pl.when(total.len() > 0).then(total.sum()).otherwise(split.sum()))
        .with_columns(dtype=dtype)
        .group_by(LAUNCH_KEYS)
        .agg(_sum_of(name).alias(flop_column(name, "tensor")) for name in TENSOR_DTYPES)
    )


def _sum_of(dtype: str) -> pl.Expr:
    totals = pl.col("total").filter(pl.col("dtype") == dtype)
    return pl.when(totals.len() > 0).then(totals.sum())


def _flop() -> pl.Expr:
    """Return the total flop; null if the part of CUDA cores or of tensor cores is not known."""
    tensor = [pl.col(flop_column(dtype, "tensor")) for dtype in TENSOR_DTYPES]
    is_known = pl.any_horizontal(column.is_not_null() for column in tensor)
    has_none = pl.col("tensor_instruction_count") == 0
    tensor_flop = pl.when(is_known).then(pl.sum_horizontal(tensor)).when(has_none).then(0.0)
    return sum((pl.col(flop_column(dtype, "fma")) for dtype in FMA_DTYPES), tensor_flop)


def _most(what: str) -> pl.Expr:
    """Return the data type or the path of most of the flop."""
    columns = {(dtype, "fma"): flop_column(dtype, "fma") for dtype in FMA_DTYPES}
    columns |= {(dtype, "tensor"): flop_column(dtype, "tensor") for dtype in TENSOR_DTYPES}
    largest = pl.max_horizontal(*columns.values())
    position = 0 if what == "dtype" else 1
    return pl.coalesce(
        pl.when((pl.col("flop") > 0) & (pl.col(column) == largest)).then(pl.lit(key[position])) for key, column in columns.items()
    ).alias(what)


# ---------------------------------------------------------------- bytes


def _bytes(sums: pl.LazyFrame) -> pl.LazyFrame:
    names = {f"{level}_{variant}": name for level, metrics in _METRICS_OF_LEVELS.items() for variant, name in metrics.items()}
    return sums.group_by(LAUNCH_KEYS).agg(metric_total(name).alias(column) for column, name in names.items())


_METRICS_OF_LEVELS: Final = {"dram": DRAM_METRICS, "l2": L2_METRICS, "l1": L1_METRICS}


def _level_columns() -> list[pl.Expr]:
    dram_bytes = pl.coalesce("dram_total", pl.col("dram_read") + pl.col("dram_write"), pl.col("dram_op_read") + pl.col("dram_op_write"))
    l1_variant = (
        pl.when((_capability() >= 9) & pl.col("l1_shared").is_not_null())
        .then(pl.lit("shared"))
        .when((_capability() >= 7.5) & (_capability() < 9) & pl.col("l1_global").is_not_null())
        .then(pl.lit("global"))
        .when((_capability() < 7.5) & pl.col("l1_oldest").is_not_null())
        .then(pl.lit("oldest"))
        .when(pl.col("l1_tagged").is_not_null())
        .then(pl.lit("tagged"))
    )
    l2_variant = (
        pl.when(pl.col("l2_returned").is_not_null()).then(pl.lit("returned")).when(pl.col("l2_tagged").is_not_null()).then(pl.lit("tagged"))
    )
    return [
        dram_bytes.alias("dram_bytes"),
        _level_bytes("l2", l2_variant, L2_BYTES_PER_CYCLE).alias("l2_bytes"),
        _level_bytes("l1", l1_variant, L1_BYTES_PER_CYCLE).alias("l1_bytes"),
        _metric_name("l2", l2_variant).alias("l2_metric_name"),
        _metric_name("l1", l1_variant).alias("l1_metric_name"),
    ]


def _level_bytes(level: str, variant: pl.Expr, bytes_per_cycle: int) -> pl.Expr:
    """Return cycles in which data was returned, times bytes per cycle; the tag stage counts bytes itself."""
    return pl.coalesce(
        pl.when(variant == name).then(pl.col(f"{level}_{name}") * (1 if name == "tagged" else bytes_per_cycle))
        for name in _METRICS_OF_LEVELS[level]
    )


def _metric_name(level: str, variant: pl.Expr) -> pl.Expr:
    return variant.replace_strict({name: f"{metric}.sum" for name, metric in _METRICS_OF_LEVELS[level].items()}, default=None)


def _capability() -> pl.Expr:
    return pl.col("compute_capability").cast(pl.Float64, strict=False)


# ---------------------------------------------------------------- metric totals
# Metrics of launches, converted to the units of this project and summed over the device.

LAUNCH_KEYS: Final = ["run_id", "event_index", "launch_index"]

EXPONENTS: Final = {"": 0, "n": -9, "u": -6, "m": -3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
SECONDS: Final = ("second", "s")
NS_PER_S: Final = 1e9


def _unit_scales() -> dict[str, float]:
    """Return factors from ncu's units to nanoseconds, bytes, hertz, bytes per second and ratios. Other units are unchanged."""
    scales = {"%": 0.01}
    for prefix, exponent in EXPONENTS.items():
        scales[f"{prefix}byte"] = scales[f"{prefix}byte/block"] = scales[f"{prefix}hz"] = scales[f"{prefix}Hz"] = 10.0**exponent
        for second in SECONDS:
            scales[f"{prefix}{second}"] = 10.0 ** (exponent + 9)
    for (prefix, exponent), (per, divisor), what, second in product(
        EXPONENTS.items(), EXPONENTS.items(), ("byte", "cycle", "inst"), SECONDS
    ):
        scales[f"{prefix}{what}/{per}{second}"] = 10.0 ** (exponent - divisor)  # exact, as quotients of powers are not
    return scales


UNIT_SCALES: Final = _unit_scales()

LABELS: Final = {
    ("Duration", None): "gpu__time_duration.sum",
    ("SM Frequency", None): "sm__cycles_elapsed.avg.per_second",
    ("Achieved Occupancy", "%"): "sm__warps_active.avg.pct_of_peak_sustained_active",
    ("Compute (SM) Throughput", "%"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ("Registers Per Thread", "register/thread"): "launch__registers_per_thread",
    ("Static Shared Memory Per Block", None): "launch__shared_mem_per_block_static",
    ("Dynamic Shared Memory Per Block", None): "launch__shared_mem_per_block_dynamic",
    ("Memory Throughput", "%"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
}
"""Metrics by the labels that page details shows, and by unit where metrics of several units have the same label."""

SUM: Final = ".sum"
RATES: Final = {"per_second": 1, "per_cycle_elapsed": 2}
"""Rollups from which the sum can be recovered, and their ranks after the sum itself (rank 0)."""


def in_project_units(counters: pl.LazyFrame) -> pl.LazyFrame:
    """Return the numeric counters in nanoseconds, bytes, hertz, bytes per second or ratios, with labels replaced by metric names.

    Args:
        counters: table counters.
    """
    # A percentage without a unit is recognized by its name.
    scale = (
        pl.when(pl.col("metric_name").str.contains(r"\bpct\b|\.pct_") & pl.col("unit").is_null())
        .then(pl.lit(0.01))
        .otherwise(pl.col("unit").replace_strict(UNIT_SCALES, default=1.0, return_dtype=pl.Float64))
    )
    return counters.filter(pl.col("value").is_not_null()).with_columns(value=pl.col("value") * scale, metric_name=_resolved_metric_name())


def metric_sums(metrics: pl.LazyFrame) -> pl.LazyFrame:
    """Return one row per launch and metric with its sum over the device: base_name, total.

    Reports with sections have rates instead: over the duration, or per cycle at smsp__cycles_elapsed.avg.per_second (NVIDIA's own
    roofline section multiplies the two). A sum that the report has itself takes precedence.

    Args:
        metrics: the result of `in_project_units`.
    """
    rollup = pl.col("metric_name").str.extract(r"\.sum(?:\.(\w+))?$")
    duration_s = _of_launch("gpu__time_duration.sum") / NS_PER_S
    cycles_per_s = pl.coalesce(_of_launch("smsp__cycles_elapsed.avg.per_second"), _of_launch("sm__cycles_elapsed.avg.per_second"))
    return (
        metrics.with_columns(rollup=rollup, duration_s=duration_s, cycles_per_s=cycles_per_s)
        .filter(pl.col("metric_name").str.contains(SUM, literal=True))
        .with_columns(
            base_name=pl.col("metric_name").str.extract(r"^(.*?)\.sum"),
            rank=pl.when(pl.col("metric_name").str.ends_with(SUM))
            .then(0)
            .otherwise(pl.col("rollup").replace_strict(RATES, default=None, return_dtype=pl.Int64)),
            total=pl.when(pl.col("rollup") == "per_second")
            .then(pl.col("value") * pl.col("duration_s"))
            .when(pl.col("rollup") == "per_cycle_elapsed")
            .then(pl.col("value") * pl.col("cycles_per_s") * pl.col("duration_s"))
            .otherwise(pl.col("value")),
        )
        .filter(pl.col("rank").is_not_null(), pl.col("total").is_not_null())
        .sort("rank", maintain_order=True)
        .unique([*LAUNCH_KEYS, "base_name"], keep="first", maintain_order=True)
        .select(*LAUNCH_KEYS, "base_name", "total")
    )


def first_metric(*names: str) -> pl.Expr:
    """Return the value of the first of these metrics that a launch has. For use in a group of the rows of one launch."""
    return pl.coalesce(pl.col("value").filter(pl.col("metric_name") == name).first() for name in names)


def metric_total(base_name: str) -> pl.Expr:
    """Return the sum of this metric. For use in a group of the sums of one launch."""
    return pl.col("total").filter(pl.col("base_name") == base_name).first()


def _of_launch(metric_name: str) -> pl.Expr:
    return first_metric(metric_name).over(LAUNCH_KEYS)


def _resolved_metric_name() -> pl.Expr:
    name = pl.col("metric_name")
    expression = name
    for (label, unit), metric_name in LABELS.items():
        is_meant = (name == label) if unit is None else (name == label) & (pl.col("unit") == unit)
        expression = pl.when(is_meant).then(pl.lit(metric_name)).otherwise(expression)
    return expression.alias("metric_name")
