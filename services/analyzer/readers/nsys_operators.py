"""Operators among NVTX ranges: PyTorch's emit_nvtx writes their shapes into the text.

"aten::addmm, seq = 12, op_id = 34, sizes = [[8], [4, 16], [16, 8]], input_op_ids = [(33,0)]": torch/csrc/profiler/util.cpp,
getNvtxStr. Data types it does not write.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from services.analyzer.correlation import NONE, Indexes, nested
from services.analyzer.readers.nsys_events import Events
from services.analyzer.readers.nsys_ranges import Ranges

SIZES: Final = r", sizes = (\[[\[\]0-9, ]*\])"
SIGN: Final = ", sizes = ["


def input_shapes(ranges: Ranges, names: pl.Series) -> pl.Series | None:
    """Of each range, as recorded: JSON; null for ranges that are no operators. None: no range is one.

    Args:
        names: by name index.
    """
    if ranges.name.size == 0 or not names.str.contains(SIGN, literal=True).any():
        return None
    found = names.str.extract(SIZES).gather(pl.Series(ranges.name))
    return None if found.null_count() == found.len() else found


def operators_around(ranges: Ranges, shapes: pl.Series, calls: Events) -> Indexes:
    """Innermost operator around each call, NONE of none; the same of NONE, at the end."""
    counts = shapes.is_not_null().to_numpy() & ~ranges.is_open
    found = nested(ranges.events.thread, ranges.events.column("start"), ranges.end_ns, counts, calls.thread, calls.column("start"))
    around: Indexes = np.append(found.innermost, np.int32(NONE))
    return around
