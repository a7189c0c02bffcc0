"""What GetTable can be asked of a trace besides which table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.core.errors import InvalidRequestError
from services.core.model import TableQuery
from tests.integration.analyzer_under_test import connected, get_table, serving
from tests.integration.test_importing import imported
from tests.unit.nsys_export import call, kernel, nvtx, write_export


@pytest.fixture
async def stub(private_folders: Path, tmp_path: Path) -> AsyncIterator[Any]:
    """Of an analyzer with one trace: a step of two layers, the second of which has a part."""
    trace = write_export(
        tmp_path / "nested.sqlite",
        kernels=[kernel(500, 510, 1), kernel(510, 530, 2), kernel(530, 570, 3)],
        calls=[call(150, 160, 1), call(250, 260, 2), call(350, 360, 3)],
        ranges=[nvtx(0, 1000, "step"), nvtx(100, 200, "first"), nvtx(200, 400, "second"), nvtx(300, 390, "part")],
    )
    async with serving(private_folders) as here, connected(here.endpoint) as stub:
        await imported(stub, trace.read_bytes(), name=trace.name)
        yield stub


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (None, {"part": 40, "second": 20, "first": 10}),
        (2, {"part": 40, "second": 20, "first": 10}),
        (1, {"second": 60, "first": 10}),
        (0, {"step": 70}),
    ],
)
async def test_layers_are_summed_at_the_depth_asked_for(stub: Any, depth: int | None, expected: dict[str, int]) -> None:
    frame, _ = await get_table(stub, TableQuery("layers", ("last",), depth=depth))
    assert dict(frame.select("layer", "duration_sum_ns").iter_rows()) == expected


async def test_a_depth_of_what_has_none_is_refused(stub: Any) -> None:
    for table_name in ("kernels", "ranges", "measurements"):
        with pytest.raises(InvalidRequestError, match=rf"depth 0 of table {table_name}.*expected.*layers"):
            await get_table(stub, TableQuery(table_name, ("last",), depth=0))
