"""What is known of one point of a roofline: what limits it, what there is to gain, and every term explained in a sentence."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.roofline import IDENTITY, LEVEL_TITLES, VERIFICATION_TEXTS, WORK_SOURCES

Figures = Mapping[str, Any]
"""A row of a table, by its columns."""

LOW_OCCUPANCY_RATIO: Final = 0.25
"""Below it few kernels have enough warps to hide the latency of memory; above a half more hardly help."""

FLOP_PER_MAC: Final = 2

IMPLAUSIBLE: Final = "implausible"

LIMITS: Final[dict[str | None, str]] = {
    "memory bound": "{level} limits it: it moves bytes nearly as fast as that can. Only fewer bytes make it faster: fuse kernels, use "
    "smaller types, keep data in a nearer memory.",
    "compute bound": "The arithmetic units limit it: they are nearly as busy as they can be. Only less arithmetic or faster units (tensor "
    "cores, a smaller data type) make it faster.",
    "memory inefficient": "{level} would be its limit, but it is far from reaching it: look for uncoalesced access, too few bytes in "
    "flight, or launches too small to fill the device.",
    "compute inefficient": "The arithmetic units would be its limit, but they wait: look for latency, divergence, low occupancy, bank "
    "conflicts, or work that does not fill the device.",
    "normal": "Neither near its roof nor far from it: {side} is its limit, and there is room below.",
    IMPLAUSIBLE: "Its figures cannot be true: it is faster than the device can be.",
    None: "Too little is known of its device from this source to say what limits it: kernalyse ceilings measures what it can do.",
}


@dataclass(frozen=True, slots=True)
class Term:
    """A figure, and what it means in one sentence."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is told of one point.

    category: of its efficiency, or that it is implausible; empty: not known.
    headroom: empty where no roof is known.
    hints: what else was seen to cost time.
    """

    title: str
    category: str
    limit: str
    headroom: str
    hints: tuple[str, ...]
    terms: tuple[Term, ...]


# ---------------------------------------------------------------- which point


def point_key(row: Figures) -> str:
    """What stands for a row of the table roofline in the URL: its run and configuration, of a trace its run and a digest of its name.

    All memory levels of a configuration have the same.
    """
    if row["configuration_index"] is not None:
        return f"{row['run_id']}.{row['configuration_index']}"
    name = "\0".join(str(row[column]) for column in ("label", "path", "device_id"))
    return f"{row['run_id']}.k{hashlib.blake2b(name.encode(), digest_size=6).hexdigest()}"


def rows_of_point(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    """Those of the point; none when it is not among them."""
    run_id, _, token = key.rpartition(".")
    of_run = rows.filter(pl.col("run_id") == run_id)
    if token.isdecimal() and len(token) < 12:
        return of_run.filter(pl.col("configuration_index") == int(token))
    names = of_run.filter(pl.col("configuration_index").is_null())
    return names.filter([point_key(row) == key for row in names.select(*IDENTITY).iter_rows(named=True)])


# ---------------------------------------------------------------- what is known of it


def diagnosis(row: Figures, measured: Figures | None = None, occupancy: Figures | None = None, *, in_macs: bool = False) -> Diagnosis:
    """Of a row of the table roofline.

    Args:
        measured: its row of the table measurements; None: there is none.
        occupancy: its longest row of the table occupancy, of a trace.
        in_macs: its work is counted in multiply-adds, as that of accelerators.
    """
    category, state = IMPLAUSIBLE if row["is_implausible"] else row["efficiency_category"], row["verification_state"]
    level = LEVEL_TITLES.get(row["memory_level"], row["memory_level"] or "memory")
    side = level if row["bound"] == "memory" else "the arithmetic units"
    measured, occupancy = measured or {}, occupancy or {}
    return Diagnosis(
        title=row["label"] or theme.UNKNOWN,
        category=category or "",
        limit=LIMITS.get(category, LIMITS[None]).format(level=level, side=side),
        headroom=_headroom(row),
        hints=tuple(_hints(row, measured, occupancy)),
        terms=tuple(
            term
            for term in (
                *_time_terms(row, measured),
                *_work_terms(row, in_macs),
                *_rate_terms(row, level),
                *_roof_terms(row, level),
                *_machine_terms(measured, occupancy),
                Term("Result", VERIFICATION_TEXTS.get(state, state or ""), "Its output against the reference."),
            )
            if term.value not in ("", theme.UNKNOWN)
        ),
    )  # fmt: skip


def duration_ns(row: Figures) -> float | None:
    """Of one launch: the median, else the mean."""
    found: float | None = row["duration_median_ns"] if row["duration_median_ns"] is not None else row["duration_mean_ns"]
    return found


def _headroom(row: Figures) -> str:
    efficiency, time_ns = row["efficiency_ratio"], duration_ns(row)
    if row["is_implausible"] or efficiency is None or time_ns is None or not math.isfinite(efficiency):
        return ""
    if efficiency >= 1:
        return "It is at its roof: there is nothing to gain without less work."
    best = f"At its roof it would take {theme.duration(time_ns * efficiency)} instead of {theme.duration(time_ns)}"
    total_ns = row.get("duration_sum_ns")
    if total_ns and row.get("launch_count"):
        saved_ns = total_ns * (1 - efficiency)
        share = row.get("share_ratio")
        of_all = f", {theme.percent(share * (1 - efficiency))} of the time of all kernels" if share else ""
        return f"{best}; over {theme.count(row['launch_count'])} launches that is {theme.duration(saved_ns)} less{of_all}."
    return f"{best}, {theme.percent(1 - efficiency)} less."


def _hints(row: Figures, measured: Figures, occupancy: Figures) -> list[str]:
    found = []
    if row["is_implausible"]:
        found.append(row["implausible_reason"])
    if row["verification_state"] == "FAILED":
        found.append("Its result is wrong, so its speed means nothing.")
    ratio = measured.get("theoretical_occupancy_ratio") or occupancy.get("theoretical_occupancy_ratio")
    if ratio is not None and ratio < LOW_OCCUPANCY_RATIO:
        resource = occupancy.get("limiting_resource")
        why = f" ({resource.replace('_', ' ')} limit it)" if resource else ""
        found.append(f"Occupancy is low{why}: few warps are there to hide the latency of memory.")
    waves = occupancy.get("wave_count")
    if waves is not None and waves < 1:
        found.append(f"The grid fills {theme.percent(waves)} of the device: the other multiprocessors idle.")
    spilled = (measured.get("spill_store_bytes") or 0) + (measured.get("spill_load_bytes") or 0)
    if spilled:
        found.append(f"Registers spill {theme.memory(spilled)} a thread to local memory.")
    if measured.get("throttle_reasons"):
        found.append(f"The clock was throttled: {measured['throttle_reasons']}.")
    if (measured.get("host_busy_ratio") or 0) > 0.1:
        found.append(f"Other programs kept {theme.percent(measured['host_busy_ratio'])} of the host busy meanwhile.")
    return found


def _time_terms(row: Figures, measured: Figures) -> list[Term]:
    is_median = row["duration_median_ns"] is not None
    low, high = measured.get("duration_median_low_ns"), measured.get("duration_median_high_ns")
    interval = f" ({theme.duration(low)} to {theme.duration(high)})" if is_median and low is not None and high is not None else ""
    meaning = "Median device time of one launch, with its 95 % confidence interval." if interval else (
        "Median device time of one launch." if is_median else "Mean device time of one launch."
    )  # fmt: skip
    launches = row.get("launch_count")
    return [
        Term("Time", f"{theme.duration(duration_ns(row))}{interval}", meaning),
        Term("Launches", theme.count(launches), "How often it ran in the trace, with known work."),
        Term("Share of time", theme.percent(row.get("share_ratio")), "Its part of the device time of all kernels."),
    ]


def _work_terms(row: Figures, in_macs: bool) -> list[Term]:
    flop, source = row["flop"], WORK_SOURCES.get(row["work_source"], row["work_source"] or "")
    if in_macs:
        macs = None if flop is None else flop / FLOP_PER_MAC
        work = Term("MACs", theme.si(macs, "MAC"), f"Multiply-adds of one execution, two operations each, {source}.")
    else:
        work = Term("Flop", theme.si(flop, "flop"), f"Floating-point operations of one launch, {source}.")
    return [
        work,
        Term("Bytes", theme.memory(row["bytes"]), f"What one launch moves, {source}."),
        Term("Arithmetic intensity", theme.intensity(row["intensity_flop_per_byte"]), "Operations for each byte."),
    ]


def _rate_terms(row: Figures, level: str) -> list[Term]:
    return [
        Term("Achieved", theme.flop_rate(row["achieved_flop_per_s"], row["dtype"]), "Operations over time."),
        Term("Utilisation", theme.percent(_over(row["achieved_flop_per_s"], row["compute_ceiling_flop_per_s"])),
             f"Achieved over the compute ceiling of its data type, {theme.flop_rate(row['compute_ceiling_flop_per_s'], row['dtype'])}."),
        Term("Bandwidth", theme.byte_rate(row["achieved_bytes_per_s"]), "Bytes over time."),
        Term("Bandwidth utilisation", theme.percent(_over(row["achieved_bytes_per_s"], row["memory_ceiling_bytes_per_s"])),
             f"Bandwidth over the ceiling of {level}, {theme.byte_rate(row['memory_ceiling_bytes_per_s'])}."),
    ]  # fmt: skip


def _roof_terms(row: Figures, level: str) -> list[Term]:
    source = row["ceiling_source"]
    return [
        Term(
            "Attainable",
            theme.flop_rate(row["attainable_flop_per_s"], row["dtype"]),
            "The roof at its intensity: the lower of both ceilings.",
        ),
        Term("Efficiency", theme.percent(row["efficiency_ratio"]), "Achieved over attainable."),
        Term("Bound", row["bound"] or "", "Which ceiling is its roof: left of the ridge memory, right of it compute."),
        Term("Ridge", theme.intensity(row["ridge_flop_per_byte"]), "The intensity at which both ceilings meet."),
        Term("Held against", f"{level} · {source}" if source else "", "Memory level, and where the ceiling is known from."),
    ]


def _machine_terms(measured: Figures, occupancy: Figures) -> list[Term]:
    ratio = measured.get("theoretical_occupancy_ratio") or occupancy.get("theoretical_occupancy_ratio")
    registers = measured.get("register_count") or occupancy.get("registers_per_thread")
    return [
        Term("Occupancy", theme.percent(ratio), "Warps that a multiprocessor holds at once, over the most that it can (theoretical)."),
        Term("Registers", theme.count(registers), "Per thread; many of them leave room for few warps."),
        Term("Waves", theme.UNKNOWN if occupancy.get("wave_count") is None else theme.digits(occupancy["wave_count"]),
             "How many times over the grid fills the device."),
        Term("SM clock", theme.frequency(measured.get("sm_clock_hz")), "Mean while it was sampled."),
        Term("Power", theme.power(measured.get("power_watts")), "Of the device, while it was sampled."),
        Term("Noise", theme.percent(measured.get("noise_ratio")), "Standard deviation of the samples over their mean."),
        Term("Cache", (measured.get("cache_mode") or "").lower(), "Cold: the last-level cache was flushed before each sample."),
    ]  # fmt: skip


def _over(value: float | None, ceiling: float | None) -> float | None:
    return None if value is None or not ceiling else value / ceiling
