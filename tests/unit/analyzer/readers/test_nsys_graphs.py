"""Kernels inside CUDA graphs count for the range in which their node was made: each rule in a few rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kernalyse.services.analyzer.queries.registry import trace_inputs
from kernalyse.services.analyzer.readers.base import ReadResult, Selection, TraceFiles
from kernalyse.services.analyzer.readers.nsys.frames import NODE_TABLES
from kernalyse.services.analyzer.readers.nsys.reader import NsysSqliteReader
from tests.unit.nsys_export import Rows, call, global_id, kernel, node, nvtx, write_export

OTHER_THREAD = global_id(thread=79)
OTHER_PROCESS = global_id(90, 91)
RANGES = [
    nvtx(0, 100, "capture"),
    nvtx(10, 20, "attention"),
    nvtx(30, 40, "mlp"),
    nvtx(0, 100, "warm-up", globalTid=OTHER_THREAD),
    nvtx(0, 100, "of 90", globalTid=OTHER_PROCESS),
    nvtx(200, 300, "step"),
]
LAUNCH = call(250, 251, 1)


def export(path: Path, kernels: Rows, nodes: Rows | None, node_table: str = NODE_TABLES[0]) -> Path:
    """Kernels of one graph, which was launched in step."""
    return write_export(path, kernels=kernels, calls=[LAUNCH], ranges=RANGES, nodes=nodes, node_table=node_table)


def read(path: Path) -> ReadResult:
    return NsysSqliteReader().read(TraceFiles(path.name, path, 0))


def layers(tables: ReadResult) -> list[tuple[str | None, str | None]]:
    """Range and source of each kernel."""
    ranges = tables.frames["ranges"].join(tables.frames["trace_names"], on="name_index").select("range_index", "name")
    launches = tables.frames["kernel_launches"].join(ranges, on="range_index", how="left", maintain_order="left")
    return launches.select("name", "layer_source").rows()


@pytest.mark.parametrize("node_table", NODE_TABLES)
def test_the_creation_of_a_node_tells_the_range(tmp_path: Path, node_table: str) -> None:
    """Whatever the order of the creations; the launch stays that of the graph."""
    kernels = [kernel(400, 410, 1, graphNodeId=7), kernel(410, 420, 1, graphNodeId=5), kernel(420, 430, 1)]
    tables = read(export(tmp_path / "a.sqlite", kernels, [node(35, 7), node(15, 5)], node_table))
    assert layers(tables) == [("mlp", "graph"), ("attention", "graph"), ("step", "range")]
    assert tables.frames["kernel_launches"]["launch_start_ns"].to_list() == [250, 250, 250]
    assert tables.frames["kernel_launches"]["graph_node_id"].to_list() == [7, 5, None]
    assert "2 kernels of CUDA graphs are counted for the range in which their node was created" in tables.notes


def test_a_clone_stands_for_the_node_that_it_is_of(tmp_path: Path) -> None:
    """Node 9 is a clone of a clone of 5; that of 8 is of a node whose own creation was not recorded."""
    nodes = [node(15, 5), node(90, 6, 5), node(220, 9, 6), node(35, 8, 1234)]
    tables = read(export(tmp_path / "a.sqlite", [kernel(400, 410, 1, graphNodeId=9), kernel(410, 420, 1, graphNodeId=8)], nodes))
    assert layers(tables) == [("attention", "graph"), ("mlp", "graph")]


def test_clones_of_each_other_come_to_an_end(tmp_path: Path) -> None:
    tables = read(export(tmp_path / "a.sqlite", [kernel(400, 410, 1, graphNodeId=5)], [node(15, 5, 6), node(16, 6, 5), node(17, 7, 7)]))
    assert layers(tables) == [("attention", "graph")]


def test_of_several_creations_the_first_counts(tmp_path: Path) -> None:
    tables = read(export(tmp_path / "a.sqlite", [kernel(400, 410, 1, graphNodeId=5)], [node(35, 5), node(15, 5), node(90, 5)]))
    assert layers(tables) == [("attention", "graph")]


def test_nodes_are_those_of_their_process_and_thread(tmp_path: Path) -> None:
    nodes = [node(15, 5, globalTid=OTHER_PROCESS), node(15, 5, globalTid=OTHER_THREAD), node(35, 6)]
    kernels = [
        kernel(400, 410, 1, graphNodeId=5),
        kernel(410, 420, 1, graphNodeId=5, globalPid=global_id(90)),
        kernel(420, 430, 1, graphNodeId=6, globalPid=global_id(90)),
    ]
    assert layers(read(export(tmp_path / "a.sqlite", kernels, nodes))) == [("warm-up", "graph"), ("of 90", "graph"), (None, None)]


def test_without_a_creation_or_a_range_around_it_the_launch_counts(tmp_path: Path) -> None:
    kernels = [kernel(400, 410, 1, graphNodeId=5), kernel(410, 420, 1, graphNodeId=6)]
    tables = read(export(tmp_path / "a.sqlite", kernels, [node(150, 6)]))
    assert layers(tables) == [("step", "range"), ("step", "range")]
    assert "1 kernels of CUDA graphs have no recorded creation of their node" in tables.notes
    without = read(export(tmp_path / "b.sqlite", kernels, None))
    assert layers(without) == [("step", "range"), ("step", "range")]
    assert "2 kernels of CUDA graphs have no recorded creation of their node" in without.notes


def test_a_node_without_a_launch_has_its_layer(tmp_path: Path) -> None:
    tables = read(export(tmp_path / "a.sqlite", [kernel(400, 410, 99, graphNodeId=5)], [node(15, 5)]))
    assert layers(tables) == [("attention", "graph")]
    assert "1 of 1 kernels have no runtime call" in tables.notes


def test_a_question_reads_the_nodes_that_it_needs(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite", [kernel(400, 410, 1, graphNodeId=5)], [node(15, 5)])
    files = TraceFiles(path.name, path, 0)
    of_layers = NsysSqliteReader().read_columns(files, Selection.of(trace_inputs(["layers"])))
    assert of_layers.frames["kernel_launches"]["layer_source"].to_list() == ["graph"]
    of_kernels = NsysSqliteReader().read_columns(files, Selection.of(trace_inputs(["kernels"])))
    assert "CUDA graphs" not in of_kernels.notes


def test_graphs_that_were_traced_as_wholes_are_said(tmp_path: Path) -> None:
    tables = read(write_export(tmp_path / "a.sqlite", calls=[LAUNCH], ranges=RANGES, whole_graphs=[kernel(400, 900, 1)] * 3))
    assert "3 executions of CUDA graphs were recorded as single events" in tables.notes
    assert "--cuda-graph-trace=node" in tables.notes


def test_events_of_whole_graphs_are_no_nodes(tmp_path: Path) -> None:
    """Today's CUDA_GRAPH_EVENTS has no graphNodeId."""
    path = export(tmp_path / "a.sqlite", [kernel(400, 410, 1, graphNodeId=5)], [node(15, 5)], NODE_TABLES[1])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE CUDA_GRAPH_EVENTS RENAME COLUMN graphNodeId TO graphId")
        connection.commit()
    assert layers(read(path)) == [("step", "range")]
