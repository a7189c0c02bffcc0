"""Shares of nothing: of kernels that took no time."""

from __future__ import annotations

import polars as pl

from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED
from tests.unit.analyzer.analysis.test_trace_roofline import HALF, LARGE
from tests.unit.worked_traces import Kernel, Operator, worked_trace


def test_no_share_is_something_else_than_a_number() -> None:
    trace = worked_trace([Operator("step"), Operator("aten::mm", LARGE, parent=0, dtype=HALF)], [Kernel("gemm", 0, 1, 0), Kernel("k", 0)])
    for table_name in ("kernels", "layers", "layer_tree", "layer_kernels", "roofline", "layer_roofline", "counter_coverage", "occupancy"):
        rows = TRACE_DERIVED[table_name].compute(trace, DEFAULT_QUERY).collect()
        shares = rows.select(pl.col("^(share|duration)_ratio$"))
        assert rows.height > 0
        assert shares.width == 1
        assert shares.to_series().is_null().all(), table_name
