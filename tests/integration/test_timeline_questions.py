"""Questions about a trace that is stored: worked out once, kept beside the run, gone with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.client import Client
from kernalyse.services.analyzer.queries import registry
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import Filter, SortKey, TableQuery
from kernalyse.services.core.rpc import translated_errors
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.integration.analyzer_under_test import AnalyzerHere, connected, get_table, serving
from tests.unit.nsys_export import call, kernel, nvtx, write_export


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_export(
        tmp_path / "nightly.sqlite",
        kernels=[kernel(500, 900, 1), kernel(950, 1000, 2), kernel(2000, 2010, 3)],
        calls=[call(150, 160, 1), call(250, 260, 2), call(1900, 1910, 3)],
        ranges=[nvtx(0, 1000, "step"), nvtx(100, 200, None, textId=3)],
        copies=[kernel(910, 940, 4, bytes=64)],
        gpus=[{}],
    )


async def imported(analyzer: AnalyzerHere, path: Path) -> str:
    def send() -> str:
        with Client(analyzer.endpoint) as client:
            return client.import_trace(path).run.run_id

    return await asyncio.to_thread(send)


def kept(directory: Path, run_id: str) -> set[str]:
    return {path.stem.split("-")[0] for path in (directory / "store" / "runs").glob(f"{run_id}-*/results/*.parquet")}


@pytest.mark.slow
async def test_an_answer_is_worked_out_once_and_goes_with_the_run(
    private_directories: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(private_directories) as analyzer, connected(analyzer.endpoint) as stub:
        run_id = await imported(analyzer, trace)
        assert kept(private_directories, run_id) == set()
        query = TableQuery("gaps", (run_id,))
        first, total = await get_table(stub, query)
        assert first.select("start_ns", "duration_ns", "reason").rows() == [(1000, 1000, "host_busy"), (900, 50, "memory")]
        assert (total, kept(private_directories, run_id)) == (2, {"gaps"})
        await get_table(stub, TableQuery("gap_reasons", (run_id,)))

    def refuse(*_: object) -> pl.LazyFrame:
        raise AssertionError("worked out again")

    for name, definitions in registry.DERIVED.items():
        monkeypatch.setitem(registry.DERIVED, name, tuple(replace(derived, compute=refuse) for derived in definitions))
    async with serving(private_directories) as analyzer, connected(analyzer.endpoint) as stub:
        again, _ = await get_table(stub, query)
        assert again.equals(first)
        reasons, _ = await get_table(stub, TableQuery("gap_reasons", (run_id,), order_by=(SortKey("reason"),)))
        assert reasons["reason"].to_list() == ["host_busy", "memory"]
        longest, total = await get_table(stub, TableQuery("gaps", (run_id,), filters=(Filter("reason", "memory"),), limit=1))
        assert (longest["memory_ns"].to_list(), total) == ([30], 1)
        with translated_errors():
            await stub.DeleteRun(messages.DeleteRunRequest(run_id=run_id))
    assert not list((private_directories / "store" / "runs").glob(f"{run_id}-*"))


@pytest.mark.slow
async def test_a_window_of_the_timeline(private_directories: Path, trace: Path) -> None:
    async with serving(private_directories) as analyzer, connected(analyzer.endpoint) as stub:
        run_id = await imported(analyzer, trace)

        async def drawn(**window: Any) -> list[tuple[Any, ...]]:
            frame, _ = await get_table(stub, TableQuery("timeline", (run_id,), **window))
            assert frame["run_id"].unique().to_list() == [run_id]
            return frame.select("track", "start_ns", "duration_ns", "name", "row_index").rows()

        saxpy = "saxpy(float *)"
        assert await drawn(window_start_ns=905, window_end_ns=960, pixel_count=20) == [
            ("kernels", 950, 50, saxpy, 1),
            ("memory", 910, 30, "copy host_to_device", 0),
            ("ranges", 0, 1000, "step", 0),
        ]
        assert (await drawn(window_start_ns=400, window_end_ns=1400, pixel_count=1))[0] == ("kernels", 400, 1000, saxpy, None)
        assert [row[0] for row in await drawn()] == ["kernels"] * 3 + ["memory"] + ["ranges"] * 2 + ["calls"] * 3
        assert (await drawn(window_start_ns=1905, window_end_ns=1908))[0][:3] == ("calls", 1900, 10)
        assert kept(private_directories, run_id) == {"timeline_events"}
        with pytest.raises(InvalidRequestError, match="an end after the start"):
            await drawn(window_start_ns=5, window_end_ns=5)
