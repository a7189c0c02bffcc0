"""Ceiling measurement as a run of its own, and before a sweep on a device without known ceilings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from kernalyse.services.core.disturbance import is_busy
from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import Ceiling, CeilingsMeasured, Device, DeviceKind, KernelSource, LogLevel, LogLines, Progress
from kernalyse.services.profiler.backends.base import DeviceSession
from kernalyse.services.profiler.kernel_sources.catalog import catalog_directory
from kernalyse.services.profiler.measuring.ceiling_bench import CeilingPlan, CeilingSources
from kernalyse.services.profiler.measuring.ceilings import SOURCE_FILES, measure_ceilings, plan_ceilings
from kernalyse.services.profiler.measuring.device_state import HostUseMeter, NoUseMeter, UseMeter, open_clock_meter
from kernalyse.services.profiler.workloads.events import EventSink

MAX_AGE_NS: Final = 24 * 3600 * 1_000_000_000  # a day: long enough for a session of sweeps, short enough to notice a changed host
MAX_BUSY_AGE_NS: Final = 15 * 60 * 1_000_000_000
"""Of ceilings from a busy host: on one that stays busy, measuring them takes longer than many a run, and runs often follow one another."""

BUSY_INTERVAL_S: Final = 0.2  # shorter sees single scheduler slices, longer makes the sweep wait
CEILINGS_DIRECTORY: Final = "ceilings"  # below the catalog's
ACTIVITY: Final = "measuring ceilings"
METHOD: Final = 2  # counts up when the meaning of ceilings changes: stored ones of another method are ignored


def run_ceilings(session: DeviceSession, sources: CeilingSources, sink: EventSink, ceilings_file: Path | None) -> None:
    """Measure the ceilings of an open device, report them, and store them in the file for later sweeps.

    Raises:
        KernalyseError: none could be measured.
    """
    count = len(plan_ceilings(session.device))

    def report(index: int, plan: CeilingPlan) -> None:
        sink.write(Progress(index, 0, count, f"{ACTIVITY}: {plan.ceiling_name} {plan.path}", session.device.device_id))

    _measure_and_report(session, sources, sink, ceilings_file, "by the next sweep", report)
    sink.write(Progress(count, 0, count, "", session.device.device_id))


def report_ceilings_before_sweep(
    session: DeviceSession, sources: CeilingSources, sink: EventSink, ceilings_file: Path | None, configuration_count: int
) -> bool:
    """Report the ceilings of the file for a CPU device, which has no datasheet, or measure them first.

    A sweep is worth having without ceilings, so what goes wrong here is only logged.

    Returns:
        Whether they are settled: False when the host was busy meanwhile, and they should be measured again after the sweep.
    """
    if session.device.kind is not DeviceKind.CPU:
        return True
    known = read_ceilings(ceilings_file, session.device) if ceilings_file is not None else ()
    was_busy = any(is_busy(ceiling.host_busy_ratio) for ceiling in known)
    # What a busy host reached is good enough only while it is as busy as then.
    if known and (not was_busy or is_busy(_host_busy_ratio(open_host_meter(session.device)))):
        if was_busy:
            _report_busy(sink, known, "after the sweep")
        sink.write(CeilingsMeasured(known))
        return not was_busy
    sink.write(Progress(0, 0, configuration_count, ACTIVITY, session.device.device_id))
    try:
        return _measure_and_report(session, sources, sink, ceilings_file, "after the sweep", _report_nothing)
    except KernalyseError as error:
        sink.write(LogLines(LogLevel.WARNING, "worker", (f"No ceilings: {error.message}",)))
        return True


def report_ceilings_after_sweep(session: DeviceSession, sources: CeilingSources, sink: EventSink, ceilings_file: Path | None) -> None:
    """Measure ceilings again that were taken on a busy host; the higher rates count. Errors are only logged.

    On a host that is busy still they would come out as low again.
    """
    busy_ratio = _host_busy_ratio(open_host_meter(session.device))
    if is_busy(busy_ratio):
        text = f"The host is {busy_ratio:.0%} busy still: its ceilings are not measured again before the next sweep that finds it quiet."
        sink.write(LogLines(LogLevel.WARNING, "worker", (text,)))
        return
    try:
        _measure_and_report(session, sources, sink, ceilings_file, "by the next sweep", _report_nothing)
    except KernalyseError as error:
        sink.write(LogLines(LogLevel.WARNING, "worker", (f"Ceilings were not measured again: {error.message}",)))


def load_sources() -> CeilingSources:
    """Return the sources of the kernels that measure ceilings, from the catalog's directory."""
    directory = catalog_directory() / CEILINGS_DIRECTORY
    return {name: KernelSource(name, (directory / name).read_text(encoding="utf-8")) for name in SOURCE_FILES}


def _report_nothing(index: int, plan: CeilingPlan) -> None:
    """Report nothing: the sweep's own progress continues."""


def _measure_and_report(
    session: DeviceSession,
    sources: CeilingSources,
    sink: EventSink,
    ceilings_file: Path | None,
    next_chance: str,
    on_plan: Callable[[int, CeilingPlan], None],
) -> bool:
    """Measure and report; return whether the host was idle enough for the rates to be final."""
    meter = open_host_meter(session.device)
    before = _host_busy_ratio(meter)
    measured = measure_ceilings(session, sources, open_clock_meter(session.device), on_plan)
    # Other programs may have begun since, or have waited for something just then.
    busy_ratio = max((ratio for ratio in (before, meter.read().host_busy_ratio) if ratio is not None), default=None)
    if measured.problems:
        sink.write(LogLines(LogLevel.WARNING, "worker", tuple(f"Not measured: {problem}" for problem in measured.problems)))
    if ceilings_file is not None:
        ceilings = write_ceilings(ceilings_file, session.device, measured.ceilings, busy_ratio)
    else:
        ceilings = _of_host(measured.ceilings, busy_ratio)
    was_busy = any(is_busy(ceiling.host_busy_ratio) for ceiling in ceilings)
    if was_busy:
        _report_busy(sink, ceilings, next_chance)
    sink.write(CeilingsMeasured(ceilings))
    return not was_busy


def _report_busy(sink: EventSink, ceilings: Sequence[Ceiling], next_chance: str) -> None:
    busy_ratio = max(ceiling.host_busy_ratio or 0.0 for ceiling in ceilings)
    text = (
        f"Other programs kept this host {busy_ratio:.0%} busy while its ceilings were measured: they may be too low, and are marked. "
        f"They are measured again {next_chance}, once it is quiet."
    )
    sink.write(LogLines(LogLevel.WARNING, "worker", (text,)))


def _of_host(ceilings: Sequence[Ceiling], busy_ratio: float | None) -> tuple[Ceiling, ...]:
    return tuple(replace(ceiling, host_busy_ratio=busy_ratio) for ceiling in ceilings)


def open_host_meter(device: Device) -> UseMeter:
    """Return the meter of the host's cores for a CPU device; a host that only feeds a GPU may be busy."""
    return HostUseMeter() if device.kind is DeviceKind.CPU else NoUseMeter()


def _host_busy_ratio(meter: UseMeter) -> float | None:
    """Return how busy other programs keep the host now."""
    if not isinstance(meter, NoUseMeter):
        time.sleep(BUSY_INTERVAL_S)
    return meter.read().host_busy_ratio


# ---------------------------------------------------------------- stored ceilings


def read_ceilings(file: Path, device: Device, now_unix_ns: Callable[[], int] = time.time_ns) -> tuple[Ceiling, ...]:
    """Return this device and driver's ceilings, if measured within a day on a host that was otherwise idle, or just now; else none."""
    now = now_unix_ns()
    known = _known_ceilings(file, device, now)
    if known is None or (is_busy(known.busy_ratio) and now - known.measured_unix_ns > MAX_BUSY_AGE_NS):
        return ()
    return _of_host(known.ceilings, known.busy_ratio)


def write_ceilings(
    file: Path, device: Device, ceilings: tuple[Ceiling, ...], busy_ratio: float | None, now_unix_ns: Callable[[], int] = time.time_ns
) -> tuple[Ceiling, ...]:
    """Store this device's ceilings in the file, and return those now known for it.

    A ceiling is a maximum, so the higher one stays of what was measured within a day, and with it the quietest host: it is at
    least as high as what was measured there. A file that cannot be written only costs the next sweep its time.
    """
    known = _known_ceilings(file, device, now_unix_ns())
    if known is not None:
        ceilings = _higher(ceilings, known.ceilings)
        busy_ratio = min((ratio for ratio in (busy_ratio, known.busy_ratio) if ratio is not None), default=None)
    entry = {
        "identity": _identity(device),
        "measured_unix_ns": now_unix_ns(),
        "busy_ratio": busy_ratio,
        "ceilings": [{name: value for name, value in asdict(ceiling).items() if name != "host_busy_ratio"} for ceiling in ceilings],
    }
    entries = {**_read_entries(file), device.device_id: entry}
    unfinished = file.with_name(f"{file.name}.unfinished")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(entries, indent=1), encoding="utf-8")
        unfinished.replace(file)  # a concurrent reader sees the old file or the new one
    return _of_host(ceilings, busy_ratio)


@dataclass(frozen=True, slots=True)
class _KnownCeilings:
    ceilings: tuple[Ceiling, ...]
    busy_ratio: float | None  # of the host meanwhile; None: of no influence
    measured_unix_ns: int


def _known_ceilings(file: Path, device: Device, now_unix_ns: int) -> _KnownCeilings | None:
    entry = _read_entries(file).get(device.device_id)
    try:
        if entry is None or _identity(device) != entry["identity"] or not 0 <= now_unix_ns - entry["measured_unix_ns"] <= MAX_AGE_NS:
            return None
        ceilings = tuple(Ceiling(**fields) for fields in entry["ceilings"])
        busy_ratio = entry["busy_ratio"]
        return _KnownCeilings(ceilings, None if busy_ratio is None else float(busy_ratio), entry["measured_unix_ns"])
    except (KeyError, TypeError):  # a file of another version: ignored
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
