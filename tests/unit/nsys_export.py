"""Small exports of Nsight Systems, written row by row."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

PROCESS: Final = 77
THREAD: Final = 78
HARDWARE: Final = 1 << 56


def global_id(process: int = PROCESS, thread: int = 0) -> int:
    return HARDWARE | process << 24 | thread


COLUMNS: Final[Mapping[str, Mapping[str, Any]]] = {
    "StringIds": {"id": None, "value": None},
    "META_DATA_EXPORT": {"name": None, "value": None},
    "CUPTI_ACTIVITY_KIND_KERNEL": {
        "start": 0, "end": 0, "deviceId": 0, "streamId": 7, "correlationId": None, "globalPid": global_id(), "demangledName": 1,
        "registersPerThread": 32, "gridX": 8, "gridY": 1, "gridZ": 1, "blockX": 256, "blockY": 1, "blockZ": 1, "staticSharedMemory": 0,
        "dynamicSharedMemory": 1024, "graphNodeId": None,
    },
    "CUPTI_ACTIVITY_KIND_RUNTIME": {
        "start": 0, "end": 0, "globalTid": global_id(thread=THREAD), "correlationId": None, "nameId": 2, "returnValue": 0,
    },
    "NVTX_EVENTS": {
        "start": 0, "end": None, "eventType": 59, "text": None, "globalTid": global_id(thread=THREAD), "textId": None, "domainId": 0,
    },
    "CUPTI_ACTIVITY_KIND_MEMCPY": {
        "start": 0, "end": 0, "deviceId": 0, "streamId": 7, "correlationId": None, "globalPid": global_id(), "bytes": 0, "copyKind": 1,
    },
    "CUPTI_ACTIVITY_KIND_MEMSET": {
        "start": 0, "end": 0, "deviceId": 0, "streamId": 7, "correlationId": None, "globalPid": global_id(), "bytes": 0,
    },
    "CUDA_GRAPH_NODE_EVENTS": {
        "start": 0, "end": None, "eventClass": 0, "globalTid": global_id(thread=THREAD), "nameId": 2, "graphNodeId": 0,
        "originalGraphNodeId": None,
    },
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": {
        "start": 0, "end": 0, "deviceId": 0, "streamId": 7, "correlationId": None, "globalPid": global_id(), "graphId": 1,
        "graphExecId": 2,
    },
    "TARGET_INFO_GPU": {
        "id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "smCount": 132, "clockRate": 1980000000,
        "memoryBandwidth": 4_800_000_000_000, "totalMemory": 150_000_000_000, "uuid": "GPU-1", "cuDevice": 0,
    },
}  # fmt: skip
"""Columns of the tables, with what a row has that does not say otherwise."""

STRINGS: Final = {1: "saxpy(float *)", 2: "cudaLaunchKernel_v7000", 3: "forward"}

Rows = Sequence[Mapping[str, Any]]


def kernel(start: int, end: int, correlation: int | None = None, **others: Any) -> dict[str, Any]:
    return {"start": start, "end": end, "correlationId": correlation, **others}


call = kernel


def nvtx(start: int, end: int | None, text: str | None, **others: Any) -> dict[str, Any]:
    return {"start": start, "end": end, "text": text, **others}


def node(start: int, node_id: int, original_id: int | None = None, **others: Any) -> dict[str, Any]:
    return {"start": start, "graphNodeId": node_id, "originalGraphNodeId": original_id, **others}


def write_export(
    path: Path,
    *,
    kernels: Rows | None = None,
    calls: Rows | None = None,
    ranges: Rows | None = None,
    copies: Rows | None = None,
    fills: Rows | None = None,
    gpus: Rows | None = None,
    nodes: Rows | None = None,
    node_table: str = "CUDA_GRAPH_NODE_EVENTS",
    whole_graphs: Rows | None = None,
    strings: Mapping[int, Any] = STRINGS,
    schema_version: str | None = "3.25.0",
    without: Sequence[str] = (),
) -> Path:
    """Tables of None are not there; `without` names columns that no table has. nodes: creations of those of CUDA graphs."""
    tables: dict[str, Rows | None] = {
        "StringIds": [{"id": number, "value": text} for number, text in strings.items()],
        "META_DATA_EXPORT": None if schema_version is None else [{"name": "EXPORT_SCHEMA_VERSION", "value": schema_version}],
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
        "NVTX_EVENTS": ranges,
        "CUPTI_ACTIVITY_KIND_MEMCPY": copies,
        "CUPTI_ACTIVITY_KIND_MEMSET": fills,
        "TARGET_INFO_GPU": gpus,
        node_table: nodes,
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": whole_graphs,
    }
    with closing(sqlite3.connect(path)) as connection:
        for name, rows in tables.items():
            if rows is not None:
                _write_table(connection, name, rows, without)
        connection.commit()
    return path


def _write_table(connection: sqlite3.Connection, name: str, rows: Rows, without: Sequence[str]) -> None:
    columns = COLUMNS["CUDA_GRAPH_NODE_EVENTS" if name == "CUDA_GRAPH_EVENTS" else name]  # as versions until 2022 called it
    defaults = {column: value for column, value in columns.items() if column not in without}
    texts = ("text", "value", "name", "uuid")
    types = {column: "TEXT" if column in texts else "INTEGER" for column in defaults}
    if name == "StringIds":
        types["id"] = "INTEGER NOT NULL PRIMARY KEY"
    connection.execute(f'CREATE TABLE {name} ({", ".join(f""""{column}" {kind}""" for column, kind in types.items())})')
    places = ", ".join("?" * len(defaults))
    connection.executemany(
        f"INSERT INTO {name} VALUES ({places})", [tuple(row.get(column, value) for column, value in defaults.items()) for row in rows]
    )
