"""What an export of Nsight Systems says of itself: its version, its session, processes and devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from services.analyzer.readers.exported_tables import ExportedTables
from services.analyzer.readers.nsys_numbers import PROCESS_SHIFT

KNOWN_SCHEMA: Final = (3, 30)
"""Newest that was read for this reader: https://docs.nvidia.com/nsight-systems/AnalysisGuide/index.html (2026.5)."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device of the machine; None: not stated."""

    device_name: str | None
    compute_capability: str | None
    sm_count: int | None
    clock_hz: int | None
    memory_bandwidth_bytes_per_s: int | None
    memory_bytes: int | None
    uuid: str | None


@dataclass(frozen=True, slots=True)
class Environment:
    """process_names: by process key. device_gpus: by process id, or None for all, and the number that the process gives the device."""

    session_start_unix_ns: int | None
    first_ns: int | None  # of the recording, since the session's start
    last_ns: int | None
    host_name: str | None
    process_names: Mapping[int, str]
    device_gpus: Mapping[tuple[int | None, int], Gpu]
    notes: tuple[str, ...]

    def gpu(self, process_id: int, device_index: int) -> Gpu | None:
        return self.device_gpus.get((process_id, device_index)) or self.device_gpus.get((None, device_index))


def read_environment(file: ExportedTables) -> Environment:
    """Every table of it may be missing."""
    session = next(iter(file.rows("TARGET_INFO_SESSION_START_TIME")), {})
    details = next(iter(file.rows("ANALYSIS_DETAILS")), {})
    system = {row.get("name"): row.get("value") for row in file.rows("TARGET_INFO_SYSTEM_ENV")}
    return Environment(
        session_start_unix_ns=_whole(session.get("utcEpochNs")),
        first_ns=_whole(details.get("startTime")),
        last_ns=_whole(details.get("stopTime")),
        host_name=_text(system.get("Hostname")),
        process_names={
            row["globalPid"] >> PROCESS_SHIFT: str(row["name"])
            for row in file.rows("PROCESSES")
            if _whole(row.get("globalPid")) is not None and row.get("name")
        },
        device_gpus=_device_gpus(file),
        notes=tuple(_version_notes(file)),
    )


def _version_notes(file: ExportedTables) -> list[str]:
    stated = {row.get("name"): row.get("value") for name in ("META_DATA_EXPORT", "EXPORT_META_DATA") for row in file.rows(name)}
    product, schema = _text(stated.get("EXPORT_PRODUCT_VERSION")), _text(stated.get("EXPORT_SCHEMA_VERSION"))
    if schema is None:
        return ["Nsight Systems; the file does not say which version wrote it."]
    notes = [f"Nsight Systems {product or 'of unknown version'}, schema {schema}."]
    numbers = tuple(int(part) for part in schema.split(".")[:2] if part.isdecimal())
    if numbers > KNOWN_SCHEMA:
        known = ".".join(map(str, KNOWN_SCHEMA))
        notes.append(f"Schema {schema} is newer than {known}, the newest known here: what has the names known so far is read.")
    return notes


def _device_gpus(file: ExportedTables) -> dict[tuple[int | None, int], Gpu]:
    rows = {row["id"]: row for row in file.rows("TARGET_INFO_GPU") if _whole(row.get("id")) is not None}
    gpus = {number: _gpu(row) for number, row in rows.items()}
    found: dict[tuple[int | None, int], Gpu] = {}
    for number, row in rows.items():  # without the table below, devices have the numbers that the driver gives them
        found[None, number if row.get("cuDevice") is None else row["cuDevice"]] = gpus[number]
    for row in file.rows("TARGET_INFO_CUDA_DEVICE"):  # CUDA_VISIBLE_DEVICES makes them differ by process
        if row.get("gpuId") in gpus and _whole(row.get("cudaId")) is not None:
            found[_whole(row.get("pid")), row["cudaId"]] = gpus[row["gpuId"]]
    return found


def _gpu(row: Row) -> Gpu:
    major, minor = _whole(row.get("computeMajor")), _whole(row.get("computeMinor"))
    return Gpu(
        device_name=_text(row.get("name")),
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
        sm_count=_whole(row.get("smCount")),
        clock_hz=_whole(row.get("clockRate")),
        memory_bandwidth_bytes_per_s=_whole(row.get("memoryBandwidth")),
        memory_bytes=_whole(row.get("totalMemory")),
        uuid=_text(row.get("uuid")),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
