"""What each kernel of a trace has to do: its flop and bytes, and what tells them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from services.analyzer.analyses.operator_work import DTYPES, SOURCES, claims, operator_work
from services.analyzer.correlation import NONE, Indexes
from services.analyzer.table import INDEX, NUMBER
from services.core.work.kinds import Weight

PATHS: Final = pl.Enum(["fma", "tensor"])

TENSOR_DTYPES: Final = ("float16", "bfloat16", "float8", "int8")
"""Products of these go to tensor cores wherever a device has some."""

TFLOAT32_KERNEL: Final = r"(?i)tf32|tfloat32|s1688"
DOUBLE_TENSOR_KERNEL: Final = r"(?i)d884|dmma"
VECTOR_KERNEL: Final = r"(?i)gemv|dot_kernel"
"""In names of kernels of cuBLAS, cuDNN and CUTLASS: which instructions they use, which their operators do not tell. Products
with a vector leave tensor cores alone."""

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "launch_index": INDEX,
    "flop": NUMBER,
    "bytes": NUMBER,
    "dtype": DTYPES,
    "path": PATHS,
    "work_source": SOURCES,
}


def launch_work(launches: pl.LazyFrame, ranges: pl.LazyFrame, names: pl.LazyFrame, counted: pl.LazyFrame | None = None) -> pl.DataFrame:
    """Launches whose work is known, in order: launch_index, flop, bytes, dtype, path, work_source.

    Counters go before what operators have to do. The work of an operator is split over its kernels by their durations;
    nothing counts twice (`claims`).

    Args:
        launches, ranges, names: the tables kernel_launches, ranges and trace_names of one trace.
        counted: table launch_work, what counters say of some launches.
    """
    by_operators = _by_operators(launches, ranges, names)
    if counted is None:
        return by_operators
    by_counters = counted.select(pl.col(name).cast(dtype, strict=False) for name, dtype in SCHEMA.items()).collect()
    if by_counters.is_empty():
        return by_operators
    others = by_operators.join(by_counters, on="launch_index", how="anti")
    return pl.concat([others, by_counters]).sort("launch_index")


def _by_operators(launches: pl.LazyFrame, ranges: pl.LazyFrame, names: pl.LazyFrame) -> pl.DataFrame:
    known = operator_work(ranges, names)
    if known.calls.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    parent, launched = pl.collect_all([ranges.select("parent_range_index"), launches.select("name_index", "duration_ns", "operator_index")])
    operator = claims(_places(parent.to_series()), known.weight, _places(launched["operator_index"]))
    worked = np.flatnonzero(operator != NONE)
    share = shares(operator[worked], launched["duration_ns"].gather(worked).fill_null(0).to_numpy())
    work = known.calls[known.call[operator[worked]]]
    kernels = launched["name_index"].gather(worked)
    return work.select(
        pl.Series("launch_index", worked, dtype=INDEX),
        flop=pl.col("flop") * share,
        bytes=pl.col("bytes") * share,
        **_arithmetic(work, kernels, names.select("name_index", "name").collect()),
        work_source="work_source",
    )


def shares(operator: Indexes, duration_ns: npt.NDArray[np.int64]) -> pl.Series:
    """Of each launch its part of the duration of all launches of its operator; of such that took no time equal parts."""
    return (
        pl.DataFrame({"operator": operator, "duration_ns": duration_ns})
        .lazy()
        .with_columns(pl.col("duration_ns").clip(lower_bound=0))
        .with_columns(total_ns=pl.col("duration_ns").sum().over("operator"), count=pl.len().over("operator"))
        .select(pl.when(pl.col("total_ns") > 0).then(pl.col("duration_ns") / pl.col("total_ns")).otherwise(1 / pl.col("count")))
        .collect()
        .to_series()
    )


def _arithmetic(work: pl.DataFrame, kernels: pl.Series, names: pl.DataFrame) -> dict[str, pl.Series]:
    """Data type and path: products go to tensor cores where their type or the name of their kernel says so."""
    told = names.select(
        "name_index",
        is_tfloat32=pl.col("name").str.contains(TFLOAT32_KERNEL),
        is_double_tensor=pl.col("name").str.contains(DOUBLE_TENSOR_KERNEL),
        is_vector=pl.col("name").str.contains(VECTOR_KERNEL),
    )
    dtype = pl.col("dtype")
    is_tfloat32 = (dtype == "float32") & pl.col("is_tfloat32")
    is_double = (dtype == "float64") & pl.col("is_double_tensor")
    is_tensor = (pl.col("weight") == int(Weight.PRODUCT)) & ((dtype.is_in(TENSOR_DTYPES) & ~pl.col("is_vector")) | is_tfloat32 | is_double)
    found = (
        work.select("dtype", "weight", kernels.alias("name_index"))
        .join(told, on="name_index", how="left", maintain_order="left")
        .select(
            dtype=pl.when(is_tensor & is_tfloat32).then(pl.lit("tfloat32", dtype=DTYPES)).otherwise(dtype),
            path=pl.when(is_tensor).then(pl.lit("tensor")).when(dtype.is_not_null()).then(pl.lit("fma")).cast(PATHS),
        )
    )
    return {name: found[name] for name in ("dtype", "path")}


def _places(indexes: pl.Series) -> Indexes:
    """NONE for null."""
    found: Indexes = indexes.cast(INDEX).fill_null(NONE).to_numpy()
    return found
