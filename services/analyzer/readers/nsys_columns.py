"""Which columns of an export's largest tables a question needs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from services.analyzer.readers.sqlite_file import WantedColumns

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX: Final = "NVTX_EVENTS"

NODE_ID: Final = "graphNodeId"

KERNEL_NAME_COLUMNS: Final = ("demangledName", "shortName", "mangledName")
"""Best first."""

KERNEL_COUNTS: Final = {
    "graph_node_id": NODE_ID,
    "grid_x": "gridX",
    "static_shared_bytes": "staticSharedMemory",
    "dynamic_shared_bytes": "dynamicSharedMemory",
    "stream_index": "streamId",
    "correlation_id": "correlationId",
}
KERNEL_SMALL_COUNTS: Final = {
    "device_index": "deviceId",
    "grid_y": "gridY",
    "grid_z": "gridZ",
    "block_x": "blockX",
    "block_y": "blockY",
    "block_z": "blockZ",
    "registers_per_thread": "registersPerThread",
}
"""Columns that are taken as they are, by the column of kernel_launches."""

CALL_CODES: Final = {"name_index": "nameId", "return_value": "returnValue"}
"""By the column of api_calls."""


def kernel_columns(there: Collection[str], wanted: Collection[str], *, has_calls: bool, has_nodes: bool) -> WantedColumns:
    """there: columns of the file's table; wanted: of kernel_launches. has_calls, has_nodes: kernels are put to what launched them."""
    names = [name for name in KERNEL_NAME_COLUMNS if name in there][:1] if "name_index" in wanted else []
    codes = ["deviceId", "globalPid", *names, *(source for name, source in KERNEL_SMALL_COUNTS.items() if name in wanted)]
    integers = ["start", "end", *(["correlationId"] if has_calls else [])]
    integers += [source for name, source in KERNEL_COUNTS.items() if name in wanted]
    integers += [NODE_ID] if has_nodes else []
    return WantedColumns.of(KERNELS, integers, codes=codes)


def call_columns(wanted: Collection[str]) -> WantedColumns:
    """wanted: of api_calls."""
    codes = ["globalTid", *(source for name, source in CALL_CODES.items() if name in wanted)]
    return WantedColumns.of(CALLS, ["start", "correlationId", *(["end"] if "duration_ns" in wanted else [])], codes=codes)


def range_columns(*, has_names: bool, has_domains: bool) -> WantedColumns:
    is_named = has_names or has_domains
    codes = ["eventType", "globalTid", *(["textId"] if is_named else []), *(["domainId"] if has_domains else [])]
    return WantedColumns.of(NVTX, ["start", "end"], ["text"] if is_named else [], codes)
