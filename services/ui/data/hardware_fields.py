"""What people may set of a device, as fields of a form: what they show, and what is typed into them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kernalyse.services.core.file_formats import BYTES_PER_GB, OP_PER_TERA_OP, PERCENT, known_ceiling
from kernalyse.services.core.formatting import operation
from kernalyse.services.core.model import Ceiling, Hardware, Thresholds
from kernalyse.services.ui import theme

BANDWIDTH: Final = "bandwidth"
PEAK: Final = "peak"
MEMORY_THRESHOLD: Final = "memory_threshold"
COMPUTE_THRESHOLD: Final = "compute_threshold"
OTHER_SOURCES: Final = ("measured", "datasheet", "clock")
DIGITS: Final = 12

PREFIXES: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_NUMBER: Final = r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*"
_RATE: Final = re.compile(rf"{_NUMBER}([kKMGTP]?)(?:(b/s|bps|flop/s|flops?|ops?/s|ops?)?)\s*", re.IGNORECASE)
_PERCENTAGE: Final = re.compile(rf"{_NUMBER}%?\s*")
_BYTE_UNITS: Final = ("b/s", "bps")

Compute = tuple[str, str]
"""Data type and path ("fma" or "tensor")."""


@dataclass(frozen=True, slots=True)
class Field:
    """One that is shown.

    value: what was set by hand, in the unit; empty: nothing. fallback: what counts without it, and where that is from.
    """

    name: str
    title: str
    unit: str
    value: str
    fallback: str
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What a form asks for. problems: why not, one sentence each, by the field's name; then nothing may be set."""

    ceilings: tuple[Ceiling, ...]
    thresholds: Thresholds
    problems: Mapping[str, str]


def fields_of(hardware: Hardware, computes: Sequence[Compute], *, has_one_peak: bool) -> tuple[Field, ...]:
    """Fields of a device.

    Args:
        computes: what has a peak to be set.
        has_one_peak: one field for the peak of all of them, as roofline_config.json has it.
    """
    peaks = [(PEAK, "Peak compute, every data type", computes[:1])] if has_one_peak else []
    peaks += [] if has_one_peak else [(_name(compute), f"Peak compute, {_title(compute)}", [compute]) for compute in computes]
    limits = hardware.thresholds
    return (
        *(_rate_field(hardware, name, title, "flop_per_s", *(of[0] if of else ("", ""))) for name, title, of in peaks),
        _rate_field(hardware, BANDWIDTH, "Memory bandwidth", "bytes_per_s", "dram", ""),
        *(
            Field(name, title, "%", f"{ratio * PERCENT:.{DIGITS}g}", f"below it {what}", is_required=True)
            for name, title, ratio, what in (
                (MEMORY_THRESHOLD, "Memory inefficient threshold", limits.memory_inefficient_ratio, "a memory-bound point is inefficient"),
                (
                    COMPUTE_THRESHOLD,
                    "Compute inefficient threshold",
                    limits.compute_inefficient_ratio,
                    "a compute-bound point is inefficient",
                ),
            )
        ),
    )


def settings_of(typed: Mapping[str, str], hardware: Hardware, computes: Sequence[Compute], *, has_one_peak: bool) -> Settings:
    """What was typed into `fields_of`, checked. Ceilings by hand that have no field stay as they are."""
    problems: dict[str, str] = {}
    wanted: dict[tuple[str, str, str], Ceiling] = {
        (ceiling.unit, ceiling.ceiling_name, ceiling.path): ceiling for ceiling in hardware.ceilings if ceiling.source == "user"
    }
    device_id = next((ceiling.device_id for ceiling in hardware.ceilings), "")

    def take(name: str, unit: str, of: Sequence[Compute]) -> None:
        try:
            value = parse_rate(typed.get(name, ""), unit)
        except ValueError as error:
            problems[name] = str(error)
            return
        for ceiling_name, path in of:
            wanted.pop((unit, ceiling_name, path), None)
            if value is not None:
                wanted[unit, ceiling_name, path] = Ceiling(device_id, ceiling_name, unit, value, path, "user", note="Set by hand.")

    take(BANDWIDTH, "bytes_per_s", [("dram", "copy")])
    if has_one_peak:
        take(PEAK, "flop_per_s", computes)
    else:
        for compute in computes:
            take(_name(compute), "flop_per_s", [compute])
    ratios = []
    for name in (MEMORY_THRESHOLD, COMPUTE_THRESHOLD):
        try:
            ratios.append(parse_percentage(typed.get(name, "")))
        except ValueError as error:
            problems[name] = str(error)
    return Settings(tuple(wanted.values()), hardware.thresholds if problems else Thresholds(*ratios), problems)


def parse_rate(text: str, unit: str) -> float | None:
    """ "3.35 TB/s", or "3350" in GB/s; "60 TFLOP/s", "60 TOPS", or "60" in TFLOP/s. None: nothing was typed.

    Args:
        unit: "flop_per_s" or "bytes_per_s".

    Raises:
        ValueError: with a sentence, where it is no rate over zero.
    """
    if not text.strip():
        return None
    is_bytes = unit == "bytes_per_s"
    expected = "Expected a number over zero, such as " + ("3350 or 3.35 TB/s." if is_bytes else "60 or 60 TFLOP/s.")
    found = _RATE.fullmatch(text)
    if found is None:
        raise ValueError(f"Found {text.strip()[:40]!r}. {expected}")
    number, prefix, given_unit = float(found[1]), found[2], (found[3] or "").lower()
    if given_unit and (given_unit in _BYTE_UNITS) != is_bytes:
        raise ValueError(f"Found {text.strip()[:40]!r}, in another unit. {expected}")
    if prefix in ("m", "g", "t", "p"):
        prefix = prefix.upper()
    value = number * (PREFIXES[prefix] if prefix or given_unit else BYTES_PER_GB if is_bytes else OP_PER_TERA_OP)
    if not 0 < value < math.inf:
        raise ValueError(f"Found {text.strip()[:40]!r}. {expected}")
    return value


def parse_percentage(text: str) -> float:
    """ "50" or "50 %" → 0.5. Raises ValueError with a sentence."""
    found = _PERCENTAGE.fullmatch(text)
    if found is None or not 0 < float(found[1]) <= PERCENT:
        raise ValueError(f"Found {text.strip()[:40]!r}. Expected a percentage over 0 and at most 100, such as 50.")
    return float(found[1]) / PERCENT


def _rate_field(hardware: Hardware, name: str, title: str, unit: str, ceiling_name: str, path: str) -> Field:
    is_bytes = unit == "bytes_per_s"
    by_hand = known_ceiling(hardware, unit, ceiling_name, path, ("user",))
    other = known_ceiling(hardware, unit, ceiling_name, path, OTHER_SOURCES)
    shown = "" if other is None else theme.byte_rate(other.value) if is_bytes else theme.flop_rate(other.value, ceiling_name)
    factor = BYTES_PER_GB if is_bytes else OP_PER_TERA_OP
    return Field(
        name,
        title,
        "GB/s" if is_bytes else f"T{operation(ceiling_name).upper()}/s",
        "" if by_hand is None else f"{by_hand.value / factor:.{DIGITS}g}",
        "not known otherwise" if other is None else f"{'otherwise ' if by_hand else ''}{shown}, {_source(other)}",
    )


def _source(ceiling: Ceiling) -> str:
    return {"clock": "at the clock", "datasheet": "of the datasheet"}.get(ceiling.source, ceiling.source)


def _name(compute: Compute) -> str:
    return f"{PEAK}-{compute[0]}-{compute[1]}"


def _title(compute: Compute) -> str:
    return f"{compute[0]} on tensor cores" if compute[1] == "tensor" else compute[0]
