"""Disturbances of a measurement: other work on its host or its device, and a throttled clock."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

DISTURBED_SYMBOL: Final = "⚠"
SEPARATOR: Final = "; "
"""Separates the disturbances of one measurement."""

MAX_HOST_BUSY_RATIO: Final = 0.25
"""Load by other programs, as a fraction of the host's cores. On a busier host, kernels lose time slices and ceilings come out low, by
half and more at 1.0. With a much lower limit, a browser that shows the dashboard would count as a disturbance."""

MAX_COUNTED_BUSY_RATIO: Final = 0.75
"""The highest load that is corrected for. A ceiling is the best of many launches, so a host at full load still reached a third of its
bandwidth (11.5 of 33.4 GB/s). A lower limit would call valid kernels of a quiet moment impossible; a much higher one, none at all."""

EMERGENCY_THROTTLE_REASONS: Final = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
"""Reasons to cut the clock in an emergency, which makes a sample meaningless. A power cap is left out: large GPUs run every dense
kernel under it."""


def is_busy(host_busy_ratio: float | None) -> bool:
    """Return whether other programs kept the host too busy for reliable measurements of a CPU device."""
    return host_busy_ratio is not None and host_busy_ratio > MAX_HOST_BUSY_RATIO


def undisturbed_rate(rate: float, host_busy_ratio: float | None) -> float:
    """Return an upper bound of what a rate measured on a busy host would have been without the other programs."""
    if host_busy_ratio is None or not is_busy(host_busy_ratio):
        return rate
    return rate / (1 - min(host_busy_ratio, MAX_COUNTED_BUSY_RATIO))


def disturbances(
    host_busy_ratio: float | None, other_process_count: int | None, throttle_reasons: Collection[str] | None
) -> tuple[str, ...]:
    """Return a phrase for each known disturbance of a measurement."""
    found = []
    if host_busy_ratio is not None and is_busy(host_busy_ratio):
        found.append(f"host {host_busy_ratio * 100:.0f} % busy")
    if other_process_count:
        found.append(f"device shared with {other_process_count} other process{'es' if other_process_count > 1 else ''}")
    throttled = sorted(EMERGENCY_THROTTLE_REASONS & set(throttle_reasons or ()))
    if throttled:
        found.append(f"clock throttled by {', '.join(throttled)}")
    return tuple(found)


def disturbance_note(texts: Iterable[str | None]) -> str:
    """Return a sentence on how many of several measurements were disturbed, and by what at worst; empty where none was.

    Args:
        texts: for each measurement its disturbances, joined by SEPARATOR; None: nothing known.
    """
    known = list(texts)
    disturbed = [text for text in known if text]
    if not disturbed:
        return ""
    worst: dict[str, str] = {}
    for part in (part for text in disturbed for part in text.split(SEPARATOR)):
        kind = re.sub(r"\d+", "", part)
        worst[kind] = max(worst.get(kind, ""), part, key=_figures)
    count = "Disturbed" if len(known) == 1 else f"{len(disturbed)} of {len(known)} disturbed"
    in_order = sorted(worst.values(), reverse=True)  # alphabetical: host, device, clock, ceilings
    return f"{DISTURBED_SYMBOL} {count}: {', '.join(in_order)}."


def comparison_disturbance_notes(before: Iterable[str | None], after: Iterable[str | None]) -> tuple[str, ...]:
    """Return a sentence for each operand of a comparison that was disturbed; arguments as of `disturbance_note`."""
    notes = (("Before", disturbance_note(before)), ("After", disturbance_note(after)))
    return tuple(f"{operand}: {note}" for operand, note in notes if note)


def _figures(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]
