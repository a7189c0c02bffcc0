"""What GetTable can be asked of a trace besides which table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import TableQuery
from tests.integration.analyzer_under_test import connected, get_table, serving
from tests.integration.test_importing import imported, listed
from tests.unit.nsys_export import call, kernel, nvtx, write_export


@pytest.fixture
async def stub(private_directories: Path, tmp_path: Path) -> AsyncIterator[Any]:
    """Of an analyzer with one trace: a step of two layers, the second of which has a part."""
    trace = write_export(
        tmp_path / "nested.sqlite",
        kernels=[kernel(500, 510, 1), kernel(510, 530, 2), kernel(530, 570, 3)],
        calls=[call(150, 160, 1), call(250, 260, 2), call(350, 360, 3)],
        ranges=[nvtx(0, 1000, "step"), nvtx(100, 200, "first"), nvtx(200, 400, "second"), nvtx(300, 390, "part")],
    )
    async with serving(private_directories) as here, connected(here.endpoint) as stub:
        await imported(stub, trace.read_bytes(), name=trace.name)
        yield stub


@pytest.fixture
async def faster(stub: Any, tmp_path: Path) -> str:
    """The run of another trace, with the first two kernels of the one above alone."""
    trace = write_export(
        tmp_path / "faster.sqlite",
        kernels=[kernel(500, 510, 1), kernel(510, 530, 2)],
        calls=[call(150, 160, 1), call(250, 260, 2)],
        ranges=[nvtx(0, 1000, "step"), nvtx(100, 200, "first"), nvtx(200, 400, "second")],
    )
    run_id: str = (await imported(stub, trace.read_bytes(), name=trace.name)).run.run_id
    return run_id


async def test_layers_are_summed_at_the_depth_asked_for_and_what_has_none_is_refused(stub: Any) -> None:
    expected: dict[int | None, dict[str, int]] = {
        None: {"part": 40, "second": 20, "first": 10},
        2: {"part": 40, "second": 20, "first": 10},
        1: {"second": 60, "first": 10},
        0: {"step": 70},
    }
    for depth, layers in expected.items():
        frame, _ = await get_table(stub, TableQuery("layers", ("last",), depth=depth))
        assert dict(frame.select("layer", "duration_sum_ns").iter_rows()) == layers, depth
    for table_name in ("kernels", "ranges", "measurements"):
        with pytest.raises(InvalidRequestError, match=rf"depth 0 of table {table_name}.*expected.*layers"):
            await get_table(stub, TableQuery(table_name, ("last",), depth=0))


async def test_two_traces_are_compared_at_the_depth_asked_for(stub: Any, faster: str) -> None:
    runs = await listed(stub)
    (slower,) = (run.run_id for run in runs if run.run_id != faster)
    kernels, _ = await get_table(stub, TableQuery("kernel_comparison", (slower, faster)))
    assert kernels.select("run_id", "baseline_run_id", "duration_delta_ns").rows() == [(faster, slower, -40)]
    layers, _ = await get_table(stub, TableQuery("layer_comparison", (slower, faster)))
    assert {row["layer"]: row["duration_delta_ns"] for row in layers.rows(named=True)} == {"part": -40, "first": 0, "second": 0}
    outer, _ = await get_table(stub, TableQuery("layer_comparison", (slower, faster), depth=0))
    assert outer.select("layer", "duration_delta_ns", "duration_ratio").rows() == [("step", -40, 30 / 70)]


async def test_what_is_no_trace_is_not_compared_as_one(stub: Any, faster: str) -> None:
    results = (await imported(stub)).run.run_id
    for run_ids, words in (((faster, results), f"run {results} without a trace"), ((faster,), "1 runs"), ((faster, faster), "1 runs")):
        with pytest.raises(InvalidRequestError, match=words):
            await get_table(stub, TableQuery("kernel_comparison", run_ids))
