"""Work of a real trace against a count of its JSON that knows nothing of this project."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import polars as pl
import pytest

from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED, trace_frames
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.readers.kineto.reader import KinetoReader

TRACE = Path(__file__).parents[5] / "shared" / "data" / "kineto" / "h100_owlv2.json.gz"
MATRICES = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2)}


def product_flop() -> float:
    """2 m n k, batches included, of every product that the trace's operators name: each launched its kernels itself."""
    with gzip.open(TRACE, "rt") as file:
        events = json.load(file)["traceEvents"]
    total = 0.0
    for event in events:
        places = MATRICES.get(event.get("name", "")) if event.get("cat") == "cpu_op" else None
        if places is not None:
            left, right = (event["args"]["Input Dims"][place] for place in places)
            total += 2.0 * math.prod(left) * right[-1]
    return total


def test_the_products_of_a_model_are_counted_once() -> None:
    if not TRACE.exists():
        pytest.skip(f"{TRACE} is not there: the traces are not part of the project")
    frames = trace_frames(KinetoReader().read(TraceFiles(TRACE.name, TRACE, 0)).frames)
    rows = {name: TRACE_DERIVED[name].compute(frames, DEFAULT_QUERY).collect() for name in ("roofline", "layer_roofline", "layers")}
    roofline, layers = rows["roofline"], rows["layers"]
    whole = flop_of(roofline)
    assert layers["flop"].sum() == pytest.approx(whole)
    # Products with a vector, which cuBLAS leaves to other kernels than those of tensor cores, are the rest.
    is_product = (pl.col("path") == "tensor") & ~pl.col("kernel_name").str.contains("fprop|nchw")  # without convolutions
    is_vector = pl.col("kernel_name").str.contains("gemv|dot_kernel")
    assert flop_of(roofline.filter(is_product | is_vector)) == pytest.approx(product_flop(), rel=1e-9)
    # Nearly all of its time is of operators whose shapes were recorded, and no kernel of weight is faster than its device.
    assert float(roofline.select(pl.col("share_ratio").sum()).item()) > 0.99
    assert roofline.filter((pl.col("share_ratio") > 0.01) & (pl.col("efficiency_ratio") > 1)).is_empty()
    assert not roofline["is_implausible"].fill_null(False).any()


def flop_of(roofline: pl.DataFrame) -> float:
    """Of all launches."""
    return float(roofline.select((pl.col("flop") * pl.col("launch_count")).sum()).item())
