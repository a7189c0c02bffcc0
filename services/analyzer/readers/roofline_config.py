"""roofline_config.json beside a list of operations or kernels: what their device can do at most, and what counts as inefficient."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from services.analyzer.readers.json_document import JsonObject, read_document
from services.analyzer.readers.result_rows import Row
from services.analyzer.readers.trace import TraceFiles
from services.core.model import Thresholds
from services.core.roofline_config import (
    BANDWIDTH,
    BYTES_PER_GB,
    COMPUTE_THRESHOLD,
    FILE_NAME,
    MEMBERS,
    MEMORY_THRESHOLD,
    OP_PER_TERA_OP,
    PEAK,
)


@dataclass(frozen=True, slots=True)
class RooflineConfig:
    """None: not stated."""

    peak_flop_per_s: float | None
    memory_bytes_per_s: float | None
    memory_inefficient_ratio: float | None
    compute_inefficient_ratio: float | None
    notes: tuple[str, ...]

    def ceilings(self, device_id: str, dtypes: Iterable[str]) -> list[Row]:
        """Rows of table ceilings: its one peak holds for every data type."""
        compute = [("flop_per_s", dtype, "fma", self.peak_flop_per_s) for dtype in dtypes]
        rows = [("bytes_per_s", "dram", "copy", self.memory_bytes_per_s), *compute]
        shared = {"device_id": device_id, "source": "user", "confidence": "", "note": FILE_NAME}
        return [
            {"unit": unit, "ceiling_name": name, "path": path, "value": value} | shared
            for unit, name, path, value in rows
            if value is not None
        ]

    def thresholds(self, device_id: str) -> list[Row]:
        """Rows of table thresholds; none when it states none."""
        stated = {
            name: value for name in ("memory_inefficient_ratio", "compute_inefficient_ratio") if (value := getattr(self, name)) is not None
        }
        known = replace(Thresholds(), **stated)
        row = {
            "device_id": device_id,
            "memory_inefficient_ratio": known.memory_inefficient_ratio,
            "compute_inefficient_ratio": known.compute_inefficient_ratio,
        }
        return [row] if stated else []


def roofline_config(files: TraceFiles) -> RooflineConfig | None:
    """What lies beside the file; None: nothing. Raises InvalidTraceError when it cannot be read, or a value that makes no sense."""
    path = files.companions.get(FILE_NAME)
    if path is None:
        return None
    document = read_document(TraceFiles(FILE_NAME, path, files.arrived_unix_ns))
    unknown = [name for name in document.members if name not in MEMBERS]
    return RooflineConfig(
        peak_flop_per_s=_rate(document, PEAK, OP_PER_TERA_OP),
        memory_bytes_per_s=_rate(document, BANDWIDTH, BYTES_PER_GB),
        memory_inefficient_ratio=_ratio(document, MEMORY_THRESHOLD),
        compute_inefficient_ratio=_ratio(document, COMPUTE_THRESHOLD),
        notes=(
            f"Ceilings are those of {FILE_NAME}; a multiply-add counts as two of its operations.",
            *([f"Left out of it, for nothing here knows them: {', '.join(unknown)}."] if unknown else ()),
        ),
    )


def _rate(document: JsonObject, name: str, factor: float) -> float | None:
    value = document.optional_number(name)
    if value is not None and not 0 < value * factor < float("inf"):
        document.refuse(name, "a number over zero")
    return None if value is None else value * factor


def _ratio(document: JsonObject, name: str) -> float | None:
    percentage = document.optional_number(name)
    if percentage is not None and not 0 <= percentage <= 100:
        document.refuse(name, "a percentage from 0 to 100")
    return None if percentage is None else percentage / 100
