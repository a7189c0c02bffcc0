"""Measured ceilings as a run of their own, and before a sweep on a device without known ones."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from services.core.errors import KernalyseError
from services.core.model import Ceiling, CeilingsMeasured, Device, DeviceKind, KernelSource, LogLevel, LogLines, Progress
from services.profiler.backends.base import DeviceSession
from services.profiler.catalog import catalog_folder
from services.profiler.measuring.ceiling_bench import CeilingPlan, CeilingSources
from services.profiler.measuring.ceilings import SOURCE_FILES, measure_ceilings, plan_ceilings
from services.profiler.measuring.clocks import open_clock_meter
from services.profiler.workloads.events import EventSink

MAX_AGE_NS: Final = 24 * 3600 * 1_000_000_000  # a day: long enough for a session of sweeps, short enough to notice a changed host
MAX_BUSY_AGE_NS: Final = 15 * 60 * 1_000_000_000
"""Of ceilings from a busy host: on one that stays busy, measuring them takes longer than many a run, and runs often follow one another."""

MAX_BUSY_RATIO: Final = 0.25  # ceilings of a busier host come out low (by half and more at 1.0), so the next sweep tries again
BUSY_INTERVAL_S: Final = 0.2  # shorter sees single scheduler slices, longer makes the sweep wait
CEILINGS_FOLDER: Final = "ceilings"  # below the catalogue's
ACTIVITY: Final = "measuring ceilings"
METHOD: Final = 2  # counts up when ceilings come to mean more or another thing: kept ones of another method do not count


def run_ceilings(session: DeviceSession, sources: CeilingSources, sink: EventSink, ceilings_file: Path | None) -> None:
    """Measures the ceilings of an open device, tells them, and keeps them in the file for later sweeps.

    Raises:
        KernalyseError: none could be measured.
    """
    count = len(plan_ceilings(session.device))

    def tell(index: int, plan: CeilingPlan) -> None:
        sink.write(Progress(index, 0, count, f"{ACTIVITY}: {plan.ceiling_name} {plan.path}", session.device.device_id))

    _measure_and_tell(session, sources, sink, ceilings_file, "by the next sweep", tell)
    sink.write(Progress(count, 0, count, "", session.device.device_id))


def tell_ceilings_before_sweep(
    session: DeviceSession, sources: CeilingSources, sink: EventSink, ceilings_file: Path | None, configuration_count: int
) -> bool:
    """On a CPU device, for which no datasheet has figures: tells the ceilings of the file, or measures them first.

    A sweep is worth having without ceilings, so what goes wrong here is only logged.

    Returns:
        Whether they are settled: False when the host was busy meanwhile, and they should be measured again after the sweep.
    """
    if session.device.kind is not DeviceKind.CPU:
        return True
    known = read_ceilings(ceilings_file, session.device) if ceilings_file is not None else ()
    if known:
        sink.write(CeilingsMeasured(known))
        return True
    sink.write(Progress(0, 0, configuration_count, ACTIVITY, session.device.device_id))
    try:
        return _measure_and_tell(session, sources, sink, ceilings_file, "after the sweep", _tell_nothing)
    except KernalyseError as error:
        sink.write(LogLines(LogLevel.WARNING, "worker", (f"No ceilings: {error.message}",)))
        return True


def tell_ceilings_after_sweep(session: DeviceSession, sources: CeilingSources, sink: EventSink, ceilings_file: Path | None) -> None:
    """Measures ceilings again that were taken on a busy host; the higher ones count. What goes wrong is only logged.

    On a host that is busy still they would come out as low again.
    """
    if _busy_ratio(session.device) > MAX_BUSY_RATIO:
        return
    try:
        _measure_and_tell(session, sources, sink, ceilings_file, "by the next sweep", _tell_nothing)
    except KernalyseError as error:
        sink.write(LogLines(LogLevel.WARNING, "worker", (f"Ceilings were not measured again: {error.message}",)))


def load_sources() -> CeilingSources:
    """The kernels that measure ceilings, from beside the catalogue's."""
    folder = catalog_folder() / CEILINGS_FOLDER
    return {name: KernelSource(name, (folder / name).read_text(encoding="utf-8")) for name in SOURCE_FILES}


def _tell_nothing(index: int, plan: CeilingPlan) -> None:
    """The sweep's own progress goes on."""


def _measure_and_tell(
    session: DeviceSession,
    sources: CeilingSources,
    sink: EventSink,
    ceilings_file: Path | None,
    next_chance: str,
    on_plan: Callable[[int, CeilingPlan], None],
) -> bool:
    """Whether the host was quiet enough for the figures to be final."""
    busy_ratio = _busy_ratio(session.device)
    if busy_ratio > MAX_BUSY_RATIO:
        when = f"They are measured again {next_chance}, once it is quiet."
        text = f"Other programs keep this host {busy_ratio:.0%} busy: ceilings may come out low. {when}"
        sink.write(LogLines(LogLevel.WARNING, "worker", (text,)))
    measured = measure_ceilings(session, sources, open_clock_meter(session.device), on_plan)
    if measured.problems:
        sink.write(LogLines(LogLevel.WARNING, "worker", tuple(f"Not measured: {problem}" for problem in measured.problems)))
    ceilings = measured.ceilings
    if ceilings_file is not None:
        ceilings = write_ceilings(ceilings_file, session.device, ceilings, busy_ratio)
    sink.write(CeilingsMeasured(ceilings))
    return busy_ratio <= MAX_BUSY_RATIO


def _busy_ratio(device: Device) -> float:
    """Of the host's cores. One that only feeds a GPU may be busy."""
    return psutil.cpu_percent(interval=BUSY_INTERVAL_S) / 100 if device.kind is DeviceKind.CPU else 0.0


# ---------------------------------------------------------------- the file


def read_ceilings(file: Path, device: Device, now_unix_ns: Callable[[], int] = time.time_ns) -> tuple[Ceiling, ...]:
    """The ceilings of this device and driver, if measured within a day on a host that had nothing else to do, or just now; else none."""
    now = now_unix_ns()
    known = _known_ceilings(file, device, now)
    if known is None or (known.busy_ratio > MAX_BUSY_RATIO and now - known.measured_unix_ns > MAX_BUSY_AGE_NS):
        return ()
    return known.ceilings


def write_ceilings(
    file: Path, device: Device, ceilings: tuple[Ceiling, ...], busy_ratio: float, now_unix_ns: Callable[[], int] = time.time_ns
) -> tuple[Ceiling, ...]:
    """Puts this device's ceilings beside those of the others, and answers with what is now known.

    A ceiling is a maximum, so the higher one stays of what was measured within a day. A file that cannot be written only
    costs the next sweep its time.
    """
    known = _known_ceilings(file, device, now_unix_ns())
    if known is not None:
        ceilings = _higher(ceilings, known.ceilings)
        busy_ratio = min(busy_ratio, known.busy_ratio)
    entry = {
        "identity": _identity(device),
        "measured_unix_ns": now_unix_ns(),
        "busy_ratio": busy_ratio,
        "ceilings": [asdict(ceiling) for ceiling in ceilings],
    }
    entries = {**_read_entries(file), device.device_id: entry}
    unfinished = file.with_name(f"{file.name}.unfinished")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(entries, indent=1), encoding="utf-8")
        unfinished.replace(file)  # whoever reads meanwhile sees the old file or the new one
    return ceilings


@dataclass(frozen=True, slots=True)
class _KnownCeilings:
    ceilings: tuple[Ceiling, ...]
    busy_ratio: float  # of the host, just before
    measured_unix_ns: int


def _known_ceilings(file: Path, device: Device, now_unix_ns: int) -> _KnownCeilings | None:
    entry = _read_entries(file).get(device.device_id)
    try:
        if entry is None or _identity(device) != entry["identity"] or not 0 <= now_unix_ns - entry["measured_unix_ns"] <= MAX_AGE_NS:
            return None
        ceilings = tuple(Ceiling(**fields) for fields in entry["ceilings"])
        return _KnownCeilings(ceilings, float(entry["busy_ratio"]), entry["measured_unix_ns"])
    except (KeyError, TypeError):  # a file of another version: as good as none
        return None


def _higher(fresh: tuple[Ceiling, ...], known: tuple[Ceiling, ...]) -> tuple[Ceiling, ...]:
    best = {(ceiling.ceiling_name, ceiling.path): ceiling for ceiling in known}
    for ceiling in fresh:
        key = (ceiling.ceiling_name, ceiling.path)
        if key not in best or ceiling.value > best[key].value:
            best[key] = ceiling
    return tuple(best.values())


def _identity(device: Device) -> dict[str, str | int | None]:
    return {
        "method": METHOD,
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
