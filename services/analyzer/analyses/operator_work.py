"""What the operators of a trace have to do, and which of them count when they lie within each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from services.analyzer.correlation import NONE, Indexes
from services.analyzer.numeric import jit
from services.analyzer.table import NUMBER
from services.core.work.kinds import MODELLED, Weight
from services.core.work.models import work_of_call
from services.core.work.tensors import ELEMENT_BYTES

RECORDED: Final = "recorded"

DTYPES: Final = pl.Enum([*ELEMENT_BYTES, "tfloat32"])
SOURCES: Final = pl.Enum(["counters", "counters of the same launch configuration", RECORDED, MODELLED])
"""Best first."""

OPERATOR_NAME: Final = r"^([^,]+)"
"""emit_nvtx writes more behind the name, after a comma."""

_CALL: Final = ("name_index", "input_shapes", "input_dtypes", "input_values", "flop")
_WORK: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "weight": pl.Int8,
    "flop": NUMBER,
    "bytes": NUMBER,
    "dtype": DTYPES,
    "work_source": SOURCES,
}


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """Work of the operators of a trace.

    calls: one row per call that differs from others: weight, flop, bytes, dtype, work_source. call: of each range its row of
    these, NONE where its work is not known.
    """

    calls: pl.DataFrame
    call: Indexes

    @property
    def weight(self) -> npt.NDArray[np.int8]:
        """Of each range; 0 where its work is not known."""
        found: npt.NDArray[np.int8] = np.append(self.calls["weight"].to_numpy(), np.int8(0))[self.call]
        return found


def operator_work(ranges: pl.LazyFrame, names: pl.LazyFrame) -> OperatorWork:
    """What a recorder counted itself goes before the model. A model is asked once for all calls of the same name, shapes, types
    and values.

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
    work = [_worked(*call) for call in texts.iter_rows()]
    is_known = pl.Series([row is not None for row in work], dtype=pl.Boolean)
    call = np.full(count.item(), NONE, dtype=np.int32)
    rows = known["range_row"].filter(is_known)
    call[rows.explode().to_numpy()] = np.repeat(np.arange(rows.len(), dtype=np.int32), rows.list.len().to_numpy())
    return OperatorWork(pl.DataFrame([row for row in work if row is not None], schema=_WORK, orient="row"), call)


def _worked(
    name: str | None, shapes: str | None, dtypes: str | None, values: str | None, flop: float | None
) -> tuple[int, float | None, float | None, str | None, str] | None:
    """A row of calls; None: nothing is known."""
    work = work_of_call(name, shapes, dtypes, values)
    if work is None:
        return None if flop is None else (int(Weight.PRODUCT), flop, None, None, RECORDED)
    source = MODELLED if flop is None else RECORDED
    return int(work.weight), work.flop if flop is None else flop, work.bytes, work.dtype, source


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


@jit
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
