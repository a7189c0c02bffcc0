"""What the operators of a trace have to do, and which of them count when they lie within each other."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from services.analyzer.compiled import compiled
from services.analyzer.correlation import NONE, Indexes
from services.analyzer.table import INDEX, NUMBER
from services.analyzer.trace_tables import WORK_COLUMNS
from services.analyzer.work.kinds import Weight, Work
from services.analyzer.work.models import work_of
from services.analyzer.work.operator_call import OperatorCall
from services.analyzer.work.tensors import ELEMENT_BYTES

RECORDED: Final = "recorded"
MODELLED: Final = "op model"

DTYPES: Final = pl.Enum([*ELEMENT_BYTES, "tfloat32"])
SOURCES: Final = pl.Enum(["counters", "counters of the same launch configuration", RECORDED, MODELLED])
"""Best first."""

OPERATOR_NAME: Final = r"^([^,]+)"
"""emit_nvtx writes more behind the name, after a comma."""

_CALL: Final = ("name", "input_shapes", "input_dtypes", "input_values")
_WORK: Final[dict[str, pl.DataType | type[pl.DataType]]] = {"weight": pl.Int8, "model_flop": NUMBER, "bytes": NUMBER, "dtype": DTYPES}


def operator_work(ranges: pl.LazyFrame, names: pl.LazyFrame) -> pl.DataFrame:
    """One row per range whose work is known: range_index, weight, flop, bytes, dtype, work_source; in order.

    What a recorder counted itself goes before the model. Each model is evaluated once for all calls of the same name,
    shapes, types and values.

    Args:
        ranges, names: the tables ranges and trace_names of one trace.
    """
    known = (
        ranges.with_row_index("range_row")
        .filter(pl.col("flop").is_not_null() | pl.col("input_shapes").is_not_null())
        .select(*WORK_COLUMNS["ranges"], range_index=pl.col("range_row").cast(INDEX))
        .join(names.select("name_index", name=pl.col("name").str.extract(OPERATOR_NAME)), on="name_index", how="left")
        .collect()
    )
    calls = known.select(_CALL).unique(maintain_order=True)
    modelled = calls.hstack(pl.DataFrame([_row(work_of_call(*call)) for call in calls.iter_rows()], schema=_WORK, orient="row"))
    return (
        known.join(modelled, on=_CALL, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            weight=pl.coalesce("weight", pl.lit(int(Weight.PRODUCT), dtype=pl.Int8)),
            work_source=pl.when(pl.col("flop").is_not_null()).then(pl.lit(RECORDED)).otherwise(pl.lit(MODELLED)).cast(SOURCES),
            flop=pl.coalesce("flop", "model_flop"),
        )
        .filter(pl.col("flop").is_not_null() | pl.col("bytes").is_not_null())
        .sort("range_index")
        .select("range_index", "weight", "flop", "bytes", "dtype", "work_source")
    )


def work_of_call(name: str | None, shapes: str | None, dtypes: str | None, values: str | None) -> Work | None:
    """What a model says of a call as table ranges has it."""
    call = None if name is None or shapes is None else OperatorCall.parsed(name, shapes, dtypes, values)
    return None if call is None else work_of(call)


def _row(work: Work | None) -> tuple[int | None, float | None, float | None, str | None]:
    return (None, None, None, None) if work is None else (int(work.weight), work.flop, work.bytes, work.dtype)


def claims(parent: Indexes, weight: npt.NDArray[np.int8], operator_index: Indexes) -> Indexes:
    """For each launch the innermost operator around it whose work is known, unless that work counts further inside; NONE without.

    An operator in which kernels were launched that do the work of another one inside of it, at least as heavy, does not
    count: the two are one work, told twice. Kernels that it launched itself have no known work then.

    Args:
        parent: of each range the one around it, which comes before it; NONE for none.
        weight: of each range, 0 where its work is not known.
        operator_index: of each launch the innermost operator around it; NONE for none.
    """
    nearest, heaviest_inside = np.empty(parent.size, dtype=np.int32), np.zeros(parent.size, dtype=np.int8)
    found = np.full(operator_index.size, NONE, dtype=np.int32)
    _claim(parent, weight, operator_index, nearest, heaviest_inside, np.zeros(parent.size, dtype=np.bool_), found)
    return found


@compiled
def _claim(
    parent: Indexes,
    weight: npt.NDArray[np.int8],
    operator_index: Indexes,
    nearest: Indexes,
    heaviest_inside: npt.NDArray[np.int8],
    has_launched: npt.NDArray[np.bool_],
    found: Indexes,
) -> None:
    for row in range(parent.size):
        nearest[row] = row if weight[row] > 0 else nearest[parent[row]] if parent[row] >= 0 else NONE
    for launch in range(operator_index.size):
        if operator_index[launch] >= 0:
            found[launch] = nearest[operator_index[launch]]
            if found[launch] >= 0:
                has_launched[found[launch]] = True
    for place in range(parent.size):
        row = parent.size - 1 - place
        above = parent[row]
        if above >= 0:
            own = weight[row] if has_launched[row] else 0
            heaviest_inside[above] = max(heaviest_inside[above], heaviest_inside[row], own)
    for launch in range(found.size):
        if found[launch] >= 0 and heaviest_inside[found[launch]] >= weight[found[launch]]:
            found[launch] = NONE
