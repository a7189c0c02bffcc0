"""Operators of PyTorch among the NVTX ranges of Nsight Systems, as emit_nvtx names them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kernalyse.services.analyzer.queries.registry import DEFAULT_QUERY, TRACE_DERIVED, trace_frames, trace_inputs
from kernalyse.services.analyzer.readers.base import ReadResult, Selection, TraceFiles
from kernalyse.services.analyzer.readers.nsys.reader import NsysSqliteReader
from tests.unit.nsys_export import call, kernel, nvtx, write_export

LINEAR: Final = "aten::linear, op_id = 3, sizes = [[3, 5], [7, 5], []]"
ADDMM: Final = "aten::addmm, seq = 12, op_id = 4, sizes = [[7], [3, 5], [5, 7], [], []], input_op_ids = [(3,0), (2,0)]"


def export(directory: Path, *ranges: str) -> TraceFiles:
    """Ranges within each other; a kernel is launched in the innermost, another in the outermost."""
    path = write_export(
        directory / "a.sqlite",
        kernels=[kernel(500, 900, 1), kernel(950, 1000, 2)],
        calls=[call(100, 110, 1), call(190, 195, 2)],
        ranges=[nvtx(10 * place, 200 - 10 * place, text) for place, text in enumerate(ranges)],
        gpus=[{}],
    )
    return TraceFiles(path.name, path, 0)


def named_operators(tables: ReadResult) -> list[str | None]:
    names = tables.frames["ranges"].join(tables.frames["trace_names"], on="name_index", maintain_order="left")["name"].to_list()
    return [None if row is None else names[row] for row in tables.frames["kernel_launches"]["operator_index"].to_list()]


def test_a_kernel_belongs_to_the_innermost_range_that_tells_shapes(tmp_path: Path) -> None:
    tables = NsysSqliteReader().read(export(tmp_path, "step", LINEAR, ADDMM, "own words"))
    assert named_operators(tables) == [ADDMM, None]
    assert tables.frames["ranges"]["input_shapes"].to_list() == [
        None, "[[3, 5], [7, 5], []]", "[[7], [3, 5], [5, 7], [], []]", None,
    ]  # fmt: skip


def test_the_work_of_a_product_is_known_by_its_shapes_alone(tmp_path: Path) -> None:
    read = NsysSqliteReader().read_columns(export(tmp_path, "step", LINEAR, ADDMM), Selection.of(trace_inputs(["layers"])))
    rows = TRACE_DERIVED["layers"].compute(trace_frames(read.frames), DEFAULT_QUERY).collect().to_dicts()
    told = {row["layer"]: (row["flop"], row["bytes"], row["work_source"], row["worked_share_ratio"]) for row in rows}
    assert told == {ADDMM: (210.0, None, "op model", 1.0), "step": (None, None, None, 0.0)}


def test_without_shapes_nothing_more_is_read(tmp_path: Path) -> None:
    files = export(tmp_path, "step", "aten::mm, op_id = 3")
    everything = NsysSqliteReader().read(files)
    assert "operator_index" not in everything.frames["kernel_launches"].columns
    wanted = NsysSqliteReader().read_columns(files, Selection.of(trace_inputs(["layers"])))
    assert set(wanted.frames["kernel_launches"].columns) == {"range_index", "duration_ns", "layer_source", "name_index"}
    assert set(wanted.frames) == {"kernel_launches", "ranges", "trace_names"}
