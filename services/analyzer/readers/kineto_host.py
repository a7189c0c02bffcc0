"""Operators of a Kineto trace that stand where kernels would: those of a program whose work the CPU did itself."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from services.analyzer.correlation import Indexes, Integers, coded, nested
from services.analyzer.numeric import jit
from services.analyzer.readers.kineto_fields import EventKind, Field
from services.analyzer.readers.kineto_program import Program
from services.core.work.kinds import Weight
from services.core.work.models import work_of_call

HOST_INDEX: Final = 0
"""device_index of HOST_DEVICE."""

OF_DEVICES: Final = (EventKind.KERNEL, EventKind.CALL, EventKind.COPY, EventKind.SET)
OTHER_RUNTIMES: Final = ("_runtime", "_driver")
"""Endings of categories that no table holds, of devices that kernels are not recorded of."""

DISPATCHED: Final = re.compile(r"(?!autograd::engine::)\w+::")
"""Names of operators as PyTorch dispatches them: "aten::addmm". Nodes of the gradient's graph, which call them, have none of that."""

CALL_FIELDS: Final = (Field.NAME, Field.INPUT_SHAPES, Field.INPUT_DTYPES, Field.INPUT_VALUES, Field.FLOP)
NEVER: Final = -1
"""Weight of what is no operator that could do work."""

NO_MOMENTS: Final = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))


def is_of_host_alone(trace: Program) -> bool:
    """Whether there are operators, nothing of a device, and no device: where one is, operators may only start what it does."""
    events = trace.events
    has_other = any(category is not None and category.endswith(OTHER_RUNTIMES) for category, _ in events.dropped_counts)
    has_device = bool(events.document.get("deviceProperties")) or has_other or trace.rows_of(*OF_DEVICES).size > 0
    return not has_device and trace.rows_of(EventKind.OPERATOR).size > 0


def working_operators(ranges: Program) -> Integers:
    """Rows of the operators that did the work, none of them within another.

    They call no other operator, or only such of lighter work: an addmm that copies what it adds to is still that addmm.

    Args:
        ranges: in the order of their table.
    """
    column = ranges.events.column
    is_operator = column(Field.KIND) == EventKind.OPERATOR
    (thread,) = coded(ranges.thread_code)
    end_ns = ranges.start_ns + ranges.duration_ns
    parent = nested(thread.codes, ranges.start_ns, end_ns, is_operator, *NO_MOMENTS).parent
    weight = np.where(is_operator, _weights(ranges), np.int8(NEVER))
    is_working = np.zeros(parent.size, dtype=np.bool_)
    _choose(parent, weight, np.zeros(parent.size, dtype=np.int8), np.zeros(parent.size, dtype=np.bool_), is_working)
    return np.flatnonzero(is_working)


def _weights(ranges: Program) -> NDArray[np.int8]:
    """Of each range as an operator; 0 where no model tells its work. A model is asked once for all calls that are alike."""
    texts = ranges.events.texts
    asked = pl.DataFrame({field.name: ranges.events.column(field) for field in CALL_FIELDS})
    calls = asked.unique(maintain_order=True)
    weights = [_weight(*(None if token < 0 else texts[token] for token in call)) for call in calls.iter_rows()]
    known = calls.with_columns(weight=pl.Series(weights, dtype=pl.Int8))
    found: NDArray[np.int8] = asked.join(known, on=asked.columns, how="left", maintain_order="left")["weight"].to_numpy()
    return found


def _weight(name: str | None, shapes: str | None, dtypes: str | None, values: str | None, flop: str | None) -> int:
    if name is None or not DISPATCHED.match(name):
        return NEVER
    work = work_of_call(name, shapes, dtypes, values)
    if work is None:
        return 0 if flop is None else Weight.PRODUCT
    return work.weight


@jit
def _choose(
    parent: Indexes,
    weight: NDArray[np.int8],
    heaviest_inside: NDArray[np.int8],
    is_within: NDArray[np.bool_],
    is_working: NDArray[np.bool_],
) -> None:
    """From the outside in: parents come before what they hold."""
    for place in range(parent.size):
        row = parent.size - 1 - place
        above = parent[row]
        if above >= 0:
            heaviest_inside[above] = max(heaviest_inside[above], heaviest_inside[row], weight[row])
    for row in range(parent.size):
        above = parent[row]
        is_within[row] = above >= 0 and (is_within[above] or is_working[above])
        if weight[row] >= 0 and not is_within[row]:
            is_working[row] = heaviest_inside[row] == 0 or weight[row] > heaviest_inside[row]
