"""Costs (flop, bytes) of a trace's operators and launches, and the points that they give under a roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from kernalyse.services.analyzer.analysis.traces.layers import in_layers, layer_keys, named
from kernalyse.services.analyzer.numeric import jit
from kernalyse.services.analyzer.numeric.correlation import NULL_INDEX, Indexes
from kernalyse.services.analyzer.tables.base import COUNT, INDEX, NUMBER, TEXT, DataType
from kernalyse.services.core.costs.operator import ELEMENT_BYTES, MODELLED, CostClass
from kernalyse.services.core.costs.registry import recorded_call_cost
from kernalyse.services.core.kernel_categories import COMMUNICATION

# ---------------------------------------------------------------- costs of operators

RECORDED: Final = "recorded"

DTYPES: Final = pl.Enum([*ELEMENT_BYTES, "tfloat32"])
SOURCES: Final = pl.Enum(["counters", "counters of the same launch configuration", RECORDED, MODELLED])
"""Sources of costs, the most reliable first."""

OPERATOR_NAME: Final = r"^([^,]+)"
"""The name of an operator; emit_nvtx appends details after a comma."""

_CALL: Final = ("name_index", "input_shapes", "input_dtypes", "input_values", "flop")
_WORK: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "weight": pl.Int8,
    "flop": NUMBER,
    "bytes": NUMBER,
    "dtype": DTYPES,
    "work_source": SOURCES,
}


@dataclass(frozen=True, slots=True)
class OperatorCosts:
    """The costs of the operators of a trace.

    calls: one row per distinct call: weight, flop, bytes, dtype, work_source. call: row of `calls` for each range, NONE where its
    cost is not known.
    """

    calls: pl.DataFrame
    call: Indexes

    @property
    def weight(self) -> npt.NDArray[np.int8]:
        """Weight of each range; 0 where its cost is not known."""
        found: npt.NDArray[np.int8] = np.append(self.calls["weight"].to_numpy(), np.int8(0))[self.call]
        return found


def operator_costs(ranges: pl.LazyFrame, names: pl.LazyFrame) -> OperatorCosts:
    """Return the costs of the operators, as recorded by the profiler, else by the cost model of the operator.

    A model is evaluated once for all calls of the same name, shapes, types and values.

    Args:
        ranges, names: the tables ranges and trace_names of one trace.
    """
    known, count = pl.collect_all(
        [
            ranges.with_row_index("range_row")
            .filter(pl.col("flop").is_not_null() | pl.col("input_shapes").is_not_null())
            .select(*_CALL, "range_row")
            .group_by(_CALL, maintain_order=True)
            .agg("range_row"),
            ranges.select(pl.len()),
        ]
    )
    name_of = names.select("name_index", pl.col("name").str.extract(OPERATOR_NAME)).collect()
    texts = known.join(name_of, on="name_index", how="left", maintain_order="left").select("name", *_CALL[1:])
    costs = [_cost_row(*call) for call in texts.iter_rows()]
    is_known = pl.Series([row is not None for row in costs], dtype=pl.Boolean)
    call = np.full(count.item(), NULL_INDEX, dtype=np.int32)
    rows = known["range_row"].filter(is_known)
    call[rows.explode().to_numpy()] = np.repeat(np.arange(rows.len(), dtype=np.int32), rows.list.len().to_numpy())
    return OperatorCosts(pl.DataFrame([row for row in costs if row is not None], schema=_WORK, orient="row"), call)


def _cost_row(
    name: str | None, shapes: str | None, dtypes: str | None, values: str | None, flop: float | None
) -> tuple[int, float | None, float | None, str | None, str] | None:
    """Return a row of `OperatorWork.calls`; None if the cost is not known."""
    cost = recorded_call_cost(name, shapes, dtypes, values)
    if cost is None:
        return None if flop is None else (int(CostClass.PRODUCT), flop, None, None, RECORDED)
    source = MODELLED if flop is None else RECORDED
    return int(cost.weight), cost.flop if flop is None else flop, cost.bytes, cost.dtype, source


def attribute_operators(parent: Indexes, weight: npt.NDArray[np.int8], operator_index: Indexes) -> Indexes:
    """Return for each launch the innermost operator around it with a known cost, unless an inner operator counts instead; NONE without.

    An operator does not count if an operator inside of it that is at least as heavy has launched kernels: both describe the same
    computation. The kernels that the outer operator launched itself then have no known cost.

    Args:
        parent: parent of each range, which precedes it; NONE for none.
        weight: weight of each range, 0 where its cost is not known.
        operator_index: the innermost operator around each launch; NONE for none.
    """
    nearest, heaviest_inside = np.empty(parent.size, dtype=np.int32), np.zeros(parent.size, dtype=np.int8)
    found = np.full(operator_index.size, NULL_INDEX, dtype=np.int32)
    _attribute(parent, weight, operator_index, nearest, heaviest_inside, np.zeros(parent.size, dtype=np.bool_), found)
    return found


@jit
def _attribute(
    parent: Indexes,
    weight: npt.NDArray[np.int8],
    operator_index: Indexes,
    nearest: Indexes,
    heaviest_inside: npt.NDArray[np.int8],
    has_launched: npt.NDArray[np.bool_],
    found: Indexes,
) -> None:
    for row in range(parent.size):
        nearest[row] = row if weight[row] > 0 else nearest[parent[row]] if parent[row] >= 0 else NULL_INDEX
    for launch in range(operator_index.size):
        if operator_index[launch] >= 0:
            found[launch] = nearest[operator_index[launch]]
            if found[launch] >= 0:
                has_launched[found[launch]] = True
    for row in range(parent.size - 1, -1, -1):
        above = parent[row]
        if above >= 0:
            own = weight[row] if has_launched[row] else 0
            heaviest_inside[above] = max(heaviest_inside[above], heaviest_inside[row], own)
    for launch in range(found.size):
        if found[launch] >= 0 and heaviest_inside[found[launch]] >= weight[found[launch]]:
            found[launch] = NULL_INDEX


# ---------------------------------------------------------------- costs of launches

PATHS: Final = pl.Enum(["fma", "tensor"])

TENSOR_DTYPES: Final = ("float16", "bfloat16", "float8", "int8")
"""Matrix products of these types run on tensor cores wherever a device has some."""

TFLOAT32_KERNEL: Final = r"(?i)tf32|tfloat32|s1688"
DOUBLE_TENSOR_KERNEL: Final = r"(?i)d884|dmma"
VECTOR_KERNEL: Final = r"(?i)gemv|dot_kernel"
"""Parts of kernel names of cuBLAS, cuDNN and CUTLASS that show which instructions they use, which operators do not tell. Products
with a vector do not use tensor cores."""

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "launch_index": INDEX,
    "flop": NUMBER,
    "bytes": NUMBER,
    "dtype": DTYPES,
    "path": PATHS,
    "work_source": SOURCES,
}


def launch_work(launches: pl.LazyFrame, ranges: pl.LazyFrame, names: pl.LazyFrame, counted: pl.LazyFrame | None = None) -> pl.DataFrame:
    """Return the launches with known costs, in order: launch_index, flop, bytes, dtype, path, work_source.

    Costs by counters override those of operators. The cost of an operator is divided among its kernels in proportion to their
    durations; nothing counts twice (`attribute_operators`).

    Args:
        launches, ranges, names: the tables kernel_launches, ranges and trace_names of one trace.
        counted: table launch_work, the costs of some launches by counters.
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
    known = operator_costs(ranges, names)
    if known.calls.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    replay = pl.when(pl.col("layer_source") == "graph").then(pl.col("api_call_index"))
    parent, launched = pl.collect_all(
        [ranges.select("parent_range_index"), launches.select("name_index", "duration_ns", "operator_index", replay=replay)]
    )
    operator = attribute_operators(_indexes(parent.to_series()), known.weight, _indexes(launched["operator_index"]))
    rows = np.flatnonzero(operator != NULL_INDEX)
    durations_ns = launched["duration_ns"].gather(rows).fill_null(0).to_numpy()
    fraction = duration_fractions(operator[rows], _indexes(launched["replay"].gather(rows)), durations_ns)
    costs = known.calls[known.call[operator[rows]]]
    kernels = launched["name_index"].gather(rows)
    return costs.select(
        pl.Series("launch_index", rows, dtype=INDEX),
        flop=pl.col("flop") * fraction,
        bytes=pl.col("bytes") * fraction,
        **_dtypes_and_paths(costs, kernels, names.select("name_index", "name").collect()),
        work_source="work_source",
    )


def duration_fractions(operator: Indexes, replay: Indexes, duration_ns: npt.NDArray[np.int64]) -> pl.Series:
    """Return each launch's fraction of the total duration of its operator's launches; equal fractions if they took no time.

    Args:
        operator: of each launch.
        replay: the call that launched its CUDA graph, which does all work of a captured operator once more; NONE for other launches.
        duration_ns: of each launch.
    """
    execution = ("operator", "replay")
    return (
        pl.DataFrame({"operator": operator, "replay": replay, "duration_ns": duration_ns})
        .lazy()
        .with_columns(pl.col("duration_ns").clip(lower_bound=0))
        .with_columns(total_ns=pl.col("duration_ns").sum().over(execution), count=pl.len().over(execution))
        .select(pl.when(pl.col("total_ns") > 0).then(pl.col("duration_ns") / pl.col("total_ns")).otherwise(1 / pl.col("count")))
        .collect()
        .to_series()
    )


def _dtypes_and_paths(costs: pl.DataFrame, kernels: pl.Series, names: pl.DataFrame) -> dict[str, pl.Series]:
    """Return data type and path: products run on tensor cores if their type or the name of their kernel says so."""
    marks = names.select(
        "name_index",
        is_tfloat32=pl.col("name").str.contains(TFLOAT32_KERNEL),
        is_double_tensor=pl.col("name").str.contains(DOUBLE_TENSOR_KERNEL),
        is_vector=pl.col("name").str.contains(VECTOR_KERNEL),
    )
    dtype = pl.col("dtype")
    is_tfloat32 = (dtype == "float32") & pl.col("is_tfloat32")
    is_double = (dtype == "float64") & pl.col("is_double_tensor")
    is_tensor = (pl.col("weight") == int(CostClass.PRODUCT)) & (
        (dtype.is_in(TENSOR_DTYPES) & ~pl.col("is_vector")) | is_tfloat32 | is_double
    )
    found = (
        costs.select("dtype", "weight", kernels.alias("name_index"))
        .join(marks, on="name_index", how="left", maintain_order="left")
        .select(
            dtype=pl.when(is_tensor & is_tfloat32).then(pl.lit("tfloat32", dtype=DTYPES)).otherwise(dtype),
            path=pl.when(is_tensor).then(pl.lit("tensor")).when(dtype.is_not_null()).then(pl.lit("fma")).cast(PATHS),
        )
    )
    return {name: found[name] for name in ("dtype", "path")}


def _indexes(indexes: pl.Series) -> Indexes:
    """Return a column of indexes as an array, NONE for null."""
    found: Indexes = indexes.cast(INDEX).fill_null(NULL_INDEX).to_numpy()
    return found


# ---------------------------------------------------------------- points
# Kernels and layers become points under a roofline: costs and times of their launches are summed, then divided.

TraceFrames = Mapping[str, pl.LazyFrame]

DEVICE_KEYS: Final = ("process_id", "device_index")
KINDS: Final = ("dtype", "path", "work_source")
FIGURES: Final[dict[str, DataType]] = {
    "device_id": TEXT,
    "dtype": TEXT,
    "path": TEXT,
    "work_source": TEXT,
    "flop": NUMBER,
    "bytes": NUMBER,
    "launch_count": COUNT,
    "duration_sum_ns": COUNT,
}
TIE_BREAKERS: Final = ("source", "dtype", "path", "device_id")
KERNEL_POINT: Final[dict[str, DataType]] = {"name": TEXT, **FIGURES}
LAYER_POINT: Final[dict[str, DataType]] = {"name": TEXT, "source": TEXT, **FIGURES}
COUNTED_POINT: Final[dict[str, DataType]] = {**KERNEL_POINT, "counted_level": TEXT}
COUNTED_LAYER_POINT: Final[dict[str, DataType]] = {**LAYER_POINT, "counted_level": TEXT}

WORK: Final = ("flop", "bytes")
MIN_KNOWN_SHARE: Final = 0.5
"""Least fraction of the time of launches with known costs for which flop, or bytes, must be known. If it were 1, one small launch
without bytes would leave an ML model with the compute ceiling alone, far above what its memory allows; if it were low, the known bytes
could be so few that the intensity would be many times too high."""

LEVEL_BYTES: Final = {"dram": "bytes", "l2": "l2_bytes", "l1": "l1_bytes"}
"""Columns of launch_work with the bytes of each memory level."""


def device_id() -> pl.Expr:
    """Return the device_id of rows of trace_devices. Devices of one name count as one, since kernels perform alike on them."""
    return pl.coalesce("device_name", pl.format("device {}", "device_index"))


def kernel_points(trace: TraceFrames, work: pl.DataFrame | None = None) -> pl.LazyFrame:
    """Return one row per kernel name, data type, path and device with known costs: KERNEL_POINT.

    flop, bytes and duration_sum_ns are sums over the launches with known costs. If some of them have only one of flop and bytes,
    the other is the sum over the rest, and null if the rest has less than MIN_KNOWN_SHARE of the time.

    Args:
        trace: the tables of the trace.
        work: the result of `compute_launch_costs` for the trace, if it was computed already.
    """
    return pl.defer(lambda: _kernel_points(trace, work), schema=KERNEL_POINT)


def counted_points(trace: TraceFrames) -> pl.LazyFrame:
    """Return points by counters alone, one row per memory level with counted bytes, from the farthest to the nearest: COUNTED_POINT.

    Launches without bytes of a level do not count at that level.
    """
    return pl.defer(lambda: _at_levels(trace, _kernel_points), schema=COUNTED_POINT)


def layer_points(trace: TraceFrames, depth: int | None = None, work: pl.DataFrame | None = None) -> pl.LazyFrame:
    """Return one row per layer and source, as in table layers, that has launches with known costs: LAYER_POINT.

    Collectives are excluded, since their bytes go over links. dtype and path are those of most of the flop, without flop of most
    of the bytes; device_id is null if the layer ran on devices of several kinds.

    Args:
        trace: the tables of the trace.
        depth: depth of the ranges that kernels count for; None: the innermost.
        work: see `kernel_points`.
    """
    return pl.defer(lambda: _layer_points(trace, depth, work), schema=LAYER_POINT)


def counted_layer_points(trace: TraceFrames, depth: int | None = None) -> pl.LazyFrame:
    """Return `layer_points` by counters alone, one row per memory level as in `counted_points`: COUNTED_LAYER_POINT."""
    return pl.defer(lambda: _at_levels(trace, lambda launched, work: _layer_points(launched, depth, work)), schema=COUNTED_LAYER_POINT)


def compute_launch_costs(trace: TraceFrames) -> pl.DataFrame:
    """Return `launch_work` of the trace."""
    return launch_work(trace["kernel_launches"], trace["ranges"], trace["trace_names"], trace.get("launch_work"))


def _kernel_points(trace: TraceFrames, work: pl.DataFrame | None) -> pl.DataFrame:
    keys = ("name_index", "dtype", "path", "device_id", "work_source")
    worked, totals = launches_with_costs(trace, ("name_index",), work), totals_with_costs(trace)
    sums = [summed(part, keys) for part, summed in ((worked, sum_launches), (totals, sum_totals)) if part.height]
    if not sums:
        return pl.DataFrame(schema=KERNEL_POINT)
    names = trace["trace_names"].select("name_index", "name")
    return make_points(
        pl.concat(sums).lazy().join(names, on="name_index", how="left"), ("name", "dtype", "path", "device_id"), KERNEL_POINT
    )


def _at_levels(trace: TraceFrames, points: Callable[[TraceFrames, pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
    counted = trace["launch_work"].filter(pl.col("work_source") != MODELLED).collect()
    launched = {name: frame for name, frame in trace.items() if name != "kernel_totals"}
    levels = []
    for level, column in LEVEL_BYTES.items():
        work = counted.filter(pl.col(column).is_not_null()).with_columns(bytes=column).sort("launch_index")
        work = work.select(pl.col(name).cast(dtype, strict=False) for name, dtype in SCHEMA.items())
        levels.append(points(launched, work).with_columns(counted_level=pl.lit(level)))
    found = pl.concat(levels)
    keys = (pl.col("duration_sum_ns").neg(), "name", *(name for name in TIE_BREAKERS if name in found.columns))
    return found.sort(keys, nulls_last=True, maintain_order=True)


def _layer_points(trace: TraceFrames, depth: int | None, work: pl.DataFrame | None) -> pl.DataFrame:
    keys = ("name_index", "layer_source", *KINDS, "device_id")
    worked, totals = launches_with_costs(trace, ("range_index", "name_index", "layer_source"), work), totals_with_costs(trace)
    sums = []
    if worked.height:
        names = trace["trace_names"].select("name_index", "name")
        communicating = names.filter(pl.col("name").str.contains(COMMUNICATION)).select("name_index").collect()
        worked = worked.join(communicating, on="name_index", how="anti", maintain_order="left")
    if worked.height:
        sums.append(sum_launches(worked.with_columns(layer_keys(worked, trace["ranges"], depth)), keys))
    if totals.height:
        sums.append(sum_totals(in_layers(totals.lazy(), trace["scopes"], depth).collect(), keys))
    if not sums:
        return pl.DataFrame(schema=LAYER_POINT)
    return make_points(named(pl.concat(sums).lazy(), trace["trace_names"]).rename({"layer": "name"}), ("name", "source"), LAYER_POINT)


def launches_with_costs(trace: TraceFrames, columns: Sequence[str], work: pl.DataFrame | None) -> pl.DataFrame:
    """Return the launches with known costs, with the given columns of kernel_launches, duration_ns and device_id."""
    work = compute_launch_costs(trace) if work is None else work
    requested = [*dict.fromkeys((*columns, "duration_ns", *DEVICE_KEYS))]
    if work.is_empty():
        return work
    launches = trace["kernel_launches"].select(requested)
    found = launches.collect()[work["launch_index"]]
    return work.hstack(found).join(_devices(trace).collect(), on=DEVICE_KEYS, how="left", nulls_equal=True, maintain_order="left")


def totals_with_costs(trace: TraceFrames) -> pl.DataFrame:
    """Return the sums with known costs of profilers that record no single launches, in the form of `launches_with_costs`."""
    if "kernel_totals" not in trace:
        return pl.DataFrame()
    return (
        trace["kernel_totals"]
        .filter(pl.col("flop").is_not_null() | pl.col("bytes").is_not_null())
        .join(_devices(trace), on=DEVICE_KEYS, how="left", nulls_equal=True, maintain_order="left")
        .select(
            *("name_index", "scope_index", "device_id", "launch_count", "duration_sum_ns", "flop", "bytes"),
            pl.col("dtype").cast(DTYPES, strict=False),
            path=pl.lit(None, dtype=PATHS),
            work_source=pl.lit(RECORDED, dtype=SOURCES),
        )
        .collect()
    )


def _devices(trace: TraceFrames) -> pl.LazyFrame:
    return trace["trace_devices"].select(*DEVICE_KEYS, device_id=device_id()).unique(DEVICE_KEYS, keep="first")


def sum_launches(worked: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the sums of launches by these keys, see `sum_totals`."""
    timed = worked.with_columns(launch_count=pl.lit(1, COUNT), duration_sum_ns=pl.col("duration_ns").clip(lower_bound=0))
    return sum_totals(timed, keys)


def sum_totals(totals: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the sums by these keys as input of `make_points`: known flop and bytes, and the time of the launches that have each."""
    known_ns = {f"{name}_known_ns": pl.when(pl.col(name).is_not_null()).then("duration_sum_ns") for name in WORK}
    return totals.with_columns(**known_ns).group_by(keys).agg(pl.col(*WORK, *known_ns, "launch_count", "duration_sum_ns").sum())


def make_points(sums: pl.LazyFrame, keys: Sequence[str], schema: Mapping[str, DataType]) -> pl.DataFrame:
    """Return one point per value of the keys, the longest first, with the columns of the schema."""
    heaviest_first = pl.struct(pl.col("flop").fill_null(0.0), pl.col("bytes").fill_null(0.0), pl.col("dtype").cast(TEXT).fill_null(""))
    return (
        sums.sort(heaviest_first, descending=True)
        .group_by(keys, maintain_order=True)
        .agg(
            *(pl.col(name).first() for name in ("dtype", "path") if name not in keys),
            *([pl.when(pl.col("device_id").n_unique() == 1).then(pl.col("device_id").first())] if "device_id" not in keys else []),
            pl.col("work_source").unique().sort().cast(TEXT).str.join(", "),
            *map(_mostly_known, WORK),
            pl.col("launch_count", "duration_sum_ns").sum(),
        )
        .sort(pl.col("duration_sum_ns").neg(), "name", *(name for name in TIE_BREAKERS if name in schema), nulls_last=True)
        .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
        .collect()
    )


def _mostly_known(name: str) -> pl.Expr:
    """Return the sum of the known values; null if they cover too little of the time, or nothing."""
    known_ns = pl.col(f"{name}_known_ns")
    is_known = known_ns.sum() >= MIN_KNOWN_SHARE * pl.col("duration_sum_ns").sum()
    return pl.when(is_known & known_ns.max().gt(0)).then(pl.col(name).sum()).alias(name)
