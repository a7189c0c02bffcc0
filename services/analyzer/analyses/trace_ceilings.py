"""What the devices of a trace can do at most, as far as that is known without measuring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from services.analyzer.analyses.trace_points import device_id
from services.analyzer.event_rows import ceiling_row, frame_of
from services.analyzer.hardware.peaks import device_peaks
from services.analyzer.schema import CEILINGS
from services.core.model import Ceiling, Device, DeviceKind

OTHER_VENDORS: Final = ("AMD", "Radeon", "Intel")
"""Whose compute capability, where a recorder writes one, is no number of NVIDIA's."""

_DESCRIPTION: Final = ("device_name", "compute_capability", "sm_count", "clock_hz", "memory_bandwidth_bytes_per_s")


def trace_ceilings(devices: pl.LazyFrame) -> pl.LazyFrame:
    """Table ceilings, one row per ceiling of each kind of device: by datasheet, and at the clock that the trace tells.

    Args:
        devices: table trace_devices of one trace.
    """
    return pl.defer(lambda: _rows(devices), schema=CEILINGS.schema)


def _rows(devices: pl.LazyFrame) -> pl.DataFrame:
    kinds = devices.select(*_DESCRIPTION, device_id=device_id()).unique("device_id", keep="first", maintain_order=True).collect()
    found = [ceiling for kind in kinds.iter_rows(named=True) for ceiling in _ceilings(kind)]
    return frame_of(CEILINGS, [ceiling_row("", None, ceiling) for ceiling in found])


def _ceilings(kind: dict[str, Any]) -> Iterator[Ceiling]:
    name = kind["device_name"] or ""
    if name.startswith(OTHER_VENDORS):
        return
    device = Device(
        kind["device_id"],
        name,
        DeviceKind.GPU,
        (),
        compute_capability=kind["compute_capability"],
        compute_unit_count=kind["sm_count"],
        max_clock_hz=kind["clock_hz"],
    )
    known = device_peaks(device).ceilings
    yield from known
    bytes_per_s = kind["memory_bandwidth_bytes_per_s"]
    if bytes_per_s and not any(ceiling.ceiling_name == "dram" for ceiling in known):
        note = "Memory clock x bus width, as the driver told the recorder."
        yield Ceiling(device.device_id, "dram", "bytes_per_s", float(bytes_per_s), "copy", "clock", "medium", note)
