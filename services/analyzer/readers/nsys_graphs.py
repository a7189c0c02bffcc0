"""Kernels inside CUDA graphs: the range in which the node of each was made.

A graph is launched by one call, whose range says where it was run. What a kernel is for says the range around the call that
made its node, by hand or by capturing a stream. To instantiate a graph clones its nodes: a clone tells the node that it is of.
https://docs.nvidia.com/nsight-systems/AnalysisGuide/index.html, tables CUDA_GRAPH_NODE_EVENTS and CUPTI_ACTIVITY_KIND_KERNEL.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from services.analyzer.correlation import NONE, Indexes, Integers, causes, nested
from services.analyzer.readers.exported_tables import ExportedTables
from services.analyzer.readers.nsys_columns import NODE_ID
from services.analyzer.readers.nsys_events import Events
from services.analyzer.readers.nsys_ranges import Ranges
from services.analyzer.readers.sqlite_file import WantedColumns

NODE_TABLES: Final = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
"""The first that tells of nodes: until 2022 the second one did, which today tells of whole graphs."""

WHOLE_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
"""Executions of graphs whose kernels were not traced."""

ORIGINAL_ID: Final = "originalGraphNodeId"
DOUBLING_COUNT: Final = 5
"""Of steps from clone to original: 32 clones of clones. A file in which nodes are clones of each other ends there too."""


def node_table(file: ExportedTables) -> str | None:
    """The table with the creations of nodes; None: there is none."""
    return next((name for name in NODE_TABLES if NODE_ID in file.column_names(name)), None)


def read_nodes(file: ExportedTables) -> Events:
    """Creations of nodes, in order of start. Raises InvalidTraceError when the table is damaged."""
    table_name = node_table(file)
    if table_name is None:
        return Events.none()
    return Events.read(file, WantedColumns.of(table_name, ["start", "globalTid", NODE_ID, ORIGINAL_ID])).timed(may_be_open=True).by_start()


def node_ranges(kernels: Events, nodes: Events, ranges: Ranges) -> Indexes:
    """Innermost range at the creation of the node of each kernel; NONE where no node, no creation or no range is known."""
    if nodes.row_count == 0 or kernels.row_count == 0:
        return np.full(kernels.row_count, NONE, dtype=np.int32)
    events = ranges.events
    innermost = nested(events.thread, events.column("start"), ranges.end_ns, ~ranges.is_open, nodes.thread, nodes.column("start")).innermost
    original = _originals(nodes)
    found: Indexes = np.append(innermost[original], np.int32(NONE))[creations(kernels, nodes)]
    return found


def creations(work: Events, nodes: Events) -> Indexes:
    """Row of the creation of the node of each piece of work; NONE of none."""
    return _first_creations(work.process, work.column(NODE_ID), nodes)


def _originals(nodes: Events) -> Indexes:
    """For each creation that of the node that it is a clone of in the end, as far as that is known; else itself."""
    rows = np.arange(nodes.row_count, dtype=np.int32)
    original = _first_creations(nodes.process, nodes.column(ORIGINAL_ID), nodes)
    original = np.where(original == NONE, rows, original)
    for _ in range(DOUBLING_COUNT):
        original = original[original]
    return original


def _first_creations(process: Indexes, node_ids: Integers, nodes: Events) -> Indexes:
    """Of several events of a node the first made it."""
    found = causes(process, node_ids, np.ascontiguousarray(nodes.process[::-1]), np.ascontiguousarray(nodes.column(NODE_ID)[::-1]))
    return np.where(found == NONE, np.int32(NONE), np.int32(nodes.row_count - 1) - found).astype(np.int32)
