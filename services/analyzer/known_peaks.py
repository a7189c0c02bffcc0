"""What data sheets say of the devices that imported results name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import polars as pl

from services.analyzer.event_rows import ceiling_row, frame_of
from services.analyzer.hardware.peaks import device_peaks
from services.analyzer.readers.trace import ImportedTables
from services.analyzer.schema import CEILINGS, MEASUREMENTS
from services.core.model import Ceiling, Device, DeviceKind
from services.core.roofline_config import BANDWIDTH, FILE_NAME, PEAK

WORK: Final = ("flop", "bytes", "stated_flop_per_s")
"""Columns of table measurements; without a value in one of them nothing is held against a roof."""

IN_A_FILE: Final = f"{PEAK} (10^12 operations/s) and {BANDWIDTH} (GB/s) in a {FILE_NAME} beside it"
HOW_TO_GIVE_PEAKS: Final = f"give its peaks on the Roofline page under Hardware, or {IN_A_FILE}"


def with_known_peaks(tables: ImportedTables) -> ImportedTables:
    """Return the tables with what data sheets say of each device that they name and what they do not say themselves.

    Notes name the data sheet, and devices that nothing is known of, with the remedy.
    """
    measurements = tables.frames.get(MEASUREMENTS.table_name)
    if measurements is None or not any(measurements[name].count() for name in WORK):
        return tables
    told = tables.frames.get(CEILINGS.table_name, CEILINGS.empty())
    added: list[Ceiling] = []
    notes: list[str] = []
    for device in _devices(tables, measurements):
        known = told.filter(device_id=device.device_id)
        peaks = device_peaks(device)
        stated = set(known.select("ceiling_name", "path", "source").iter_rows())
        new = [ceiling for ceiling in peaks.ceilings if (ceiling.ceiling_name, ceiling.path, ceiling.source) not in stated]
        if new:
            added += new
            notes.append(f"Ceilings of {device.device_id}: {peaks.explanation.partition(': ')[2]}")
        elif known.is_empty() and device.kind is DeviceKind.GPU:
            notes.append(f"No data sheet is known of {device.name}, so nothing has a roof: {HOW_TO_GIVE_PEAKS}.")
    if not notes:
        return tables
    frame = pl.concat([told, frame_of(CEILINGS, [ceiling_row("", None, ceiling) for ceiling in added])])
    return replace(
        tables, frames={**tables.frames, CEILINGS.table_name: frame}, notes="\n".join(note for note in (tables.notes, *notes) if note)
    )


def _devices(tables: ImportedTables, measurements: pl.DataFrame) -> Iterator[Device]:
    """Those that measurements name, as far as they are described; one that is not is taken for a GPU of that name."""
    described = {device.device_id: device for device in tables.devices}
    for device_id in measurements["device_id"].drop_nulls().unique(maintain_order=True):
        yield described.get(device_id) or Device(device_id, device_id, DeviceKind.GPU, ())
