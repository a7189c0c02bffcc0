"""Measured ceilings as a run of their own, and before a sweep on a device without known ones."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from services.core.errors import KernalyseError
from services.core.model import Ceiling, CeilingsMeasured, Device, DeviceKind, KernelSource, LogLevel, LogLines, Progress
from services.profiler.backends.base import DeviceSession
from services.profiler.catalog import catalog_folder
from services.profiler.measuring.ceilings import FMA_FILE, MEMORY_FILE, CeilingSources, measure_ceilings
from services.profiler.workloads.events import EventSink

MAX_AGE_NS: Final = 24 * 3600 * 1_000_000_000  # a day: long enough for a session of sweeps, short enough to notice a changed host
CEILINGS_FOLDER: Final = "ceilings"  # below the catalogue's
ACTIVITY: Final = "measuring ceilings"


def run_ceilings(session: DeviceSession, sources: CeilingSources, sink: EventSink, ceilings_file: Path | None) -> None:
    """Measures the ceilings of an open device, tells them, and keeps them in the file for later sweeps.

    Raises:
        KernalyseError: none could be measured.
    """
    sink.write(Progress(0, 0, 1, ACTIVITY, session.device.device_id))
    _measure_and_tell(session, sources, sink, ceilings_file)
    sink.write(Progress(1, 0, 1, "", session.device.device_id))


def tell_ceilings_before_sweep(
    session: DeviceSession, sources: CeilingSources, sink: EventSink, ceilings_file: Path | None, configuration_count: int
) -> None:
    """On a CPU device, for which no datasheet has figures: tells the ceilings of the file, or measures them first.

    A sweep is worth having without ceilings, so what goes wrong here is only logged.
    """
    if session.device.kind is not DeviceKind.CPU:
        return
    known = read_ceilings(ceilings_file, session.device) if ceilings_file is not None else ()
    if known:
        sink.write(CeilingsMeasured(known))
        return
    sink.write(Progress(0, 0, configuration_count, ACTIVITY, session.device.device_id))
    try:
        _measure_and_tell(session, sources, sink, ceilings_file)
    except KernalyseError as error:
        sink.write(LogLines(LogLevel.WARNING, "worker", (f"No ceilings: {error.message}",)))


def load_sources() -> CeilingSources:
    """The kernels that measure ceilings, from beside the catalogue's."""
    memory, fma = (
        KernelSource(name, (catalog_folder() / CEILINGS_FOLDER / name).read_text(encoding="utf-8")) for name in (MEMORY_FILE, FMA_FILE)
    )
    return CeilingSources(memory, fma)


def _measure_and_tell(session: DeviceSession, sources: CeilingSources, sink: EventSink, ceilings_file: Path | None) -> None:
    ceilings = measure_ceilings(session, sources)
    sink.write(CeilingsMeasured(ceilings))
    if ceilings_file is not None:
        write_ceilings(ceilings_file, session.device, ceilings)


# ---------------------------------------------------------------- the file


def read_ceilings(file: Path, device: Device, now_unix_ns: Callable[[], int] = time.time_ns) -> tuple[Ceiling, ...]:
    """The ceilings of this device and driver, if measured within a day; none otherwise."""
    entry = _read_entries(file).get(device.device_id)
    try:
        if entry is None or _identity(device) != entry["identity"] or not 0 <= now_unix_ns() - entry["measured_unix_ns"] <= MAX_AGE_NS:
            return ()
        return tuple(Ceiling(**fields) for fields in entry["ceilings"])
    except (KeyError, TypeError):  # a file of another version: as good as none
        return ()


def write_ceilings(file: Path, device: Device, ceilings: tuple[Ceiling, ...], now_unix_ns: Callable[[], int] = time.time_ns) -> None:
    """Puts this device's ceilings beside those of the others. A file that cannot be written only costs the next sweep its time."""
    entry = {
        "identity": _identity(device),
        "measured_unix_ns": now_unix_ns(),
        "ceilings": [asdict(ceiling) for ceiling in ceilings],
    }
    entries = {**_read_entries(file), device.device_id: entry}
    unfinished = file.with_name(f"{file.name}.unfinished")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(entries, indent=1), encoding="utf-8")
        unfinished.replace(file)  # whoever reads meanwhile sees the old file or the new one


def _identity(device: Device) -> dict[str, str | int | None]:
    return {
        "name": device.name,
        "runtime": device.runtime,
        "driver_version": device.driver_version,
        "compute_unit_count": device.compute_unit_count,
    }


def _read_entries(file: Path) -> Mapping[str, Any]:
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}
