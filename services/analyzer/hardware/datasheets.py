"""Datasheet peaks of GPUs, and limits of a multiprocessor by compute capability."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

from kernalyse.services.core.model import Ceiling, DataType, Device, DeviceKind

if TYPE_CHECKING:
    import polars as pl

# ---------------------------------------------------------------- peaks
# peaks.csv has one row per product, rates.csv one per class of compute capability. Empty cells are unknown. Both have dense rates (no
# sparsity), and an FMA counts as two operations.

FLOP_SUFFIX: Final = "_flop_per_s"
RATE_SUFFIXES: Final = {"_flop_per_clock_per_sm": "flop_per_s", "_bytes_per_clock_per_sm": "bytes_per_s"}
TENSOR_SUFFIX: Final = "_tensor"

Record = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Peaks:
    """The ceilings of a device. explanation: one sentence on where they come from, or why there are none."""

    ceilings: tuple[Ceiling, ...]
    explanation: str


def device_peaks(device: Device) -> Peaks:
    """Return the ceilings of a device: of source "datasheet" for a product in the table, of source "clock" for every NVIDIA GPU.

    Each names the clock that it applies to: "clock" ceilings the device's maximum clock, and they scale with the actual one.
    The rate of "clock" ceilings is operations per clock and multiprocessor, times multiprocessors, times clock.
    """
    if device.kind is not DeviceKind.GPU:
        return Peaks((), f"{device.name} is not a GPU: its ceilings have to be measured.")
    product = _product(device.name)
    at_clock = _peaks_at_clock(device, product)
    if product is None:
        return at_clock
    ceilings = (*_datasheet_ceilings(device.device_id, product), *at_clock.ceilings)
    return Peaks(ceilings, f"{device.name}: datasheet of {product['name']}{'' if at_clock.ceilings else ' alone'}.")


def _datasheet_ceilings(device_id: str, product: Record) -> tuple[Ceiling, ...]:
    note = "; ".join(text for text in (product["source"], product["note"]) if text)
    values = [("dram", "bytes_per_s", "copy", product["dram_bytes_per_s"])]
    values += [
        (_name(column, FLOP_SUFFIX), "flop_per_s", _path(column, FLOP_SUFFIX), value)
        for column, value in product.items()
        if column.endswith(FLOP_SUFFIX)
    ]
    return tuple(
        Ceiling(device_id, name, unit, float(value), path, "datasheet", product["confidence"], note, _clock_hz(product, name, path))
        for name, unit, path, value in values
        if value
    )


def _clock_hz(product: Record, name: str, path: str) -> int | None:
    """Return the clock that a datasheet's rate applies to: tensor cores have one of their own, except for double precision."""
    clock_hz = product["tensor_clock_hz" if path == "tensor" and name != DataType.FLOAT64 else "boost_clock_hz"]
    return int(clock_hz) if clock_hz and path != "copy" else None


def _peaks_at_clock(device: Device, product: Record | None) -> Peaks:
    missing = [
        name
        for name, value in (
            ("compute capability", device.compute_capability),
            ("count of multiprocessors", device.compute_unit_count),
            ("maximum clock", device.max_clock_hz),
        )
        if not value
    ]
    if missing:
        return Peaks((), f"{device.name} is in no datasheet table, and its {', '.join(missing)} is not known: measure its ceilings.")
    rates = _rates(device.compute_capability or "", device.name, product)
    if rates is None:
        return Peaks((), f"No rates are known of compute capability {device.compute_capability} ({device.name}): measure its ceilings.")
    clock_hz = device.max_clock_hz or 0
    clocks_per_s = float(device.compute_unit_count or 0) * float(clock_hz)
    note = f"{device.compute_unit_count} SM x {clock_hz / 1e6:.0f} MHz x rate of {rates['rate_class']}; {rates['source']}"
    note = f"{note}; {rates['note']}" if rates["note"] else note
    ceilings = tuple(
        Ceiling(
            device.device_id,
            _name(column, suffix),
            unit,
            float(value) * clocks_per_s,
            _path(column, suffix) if unit == "flop_per_s" else "copy",
            "clock",
            rates["confidence"],
            note,
            clock_hz,
        )
        for column, value in rates.items()
        for suffix, unit in RATE_SUFFIXES.items()
        if column.endswith(suffix) and value
    )
    return Peaks(ceilings, f"{device.name} is in no datasheet table: compute peaks at its maximum clock, no peak of device memory.")


def _name(column: str, suffix: str) -> str:
    return column.removesuffix(suffix).removesuffix(TENSOR_SUFFIX)


def _path(column: str, suffix: str) -> str:
    return "tensor" if column.removesuffix(suffix).endswith(TENSOR_SUFFIX) else "fma"


def _product(device_name: str) -> Record | None:
    # The complete name has to match: "NVIDIA L4" must not match an L40S, nor "NVIDIA H200" an H200 NVL.
    # Users also write products by their name in the table.
    products = _read("peaks.csv")
    return next((row for row in products if re.fullmatch(row["nvml_name_pattern"], device_name) or row["name"] == device_name), None)


def _rates(compute_capability: str, device_name: str, product: Record | None) -> Record | None:
    # GeForce parts run some tensor paths at half the rate of data-centre parts of the same compute capability.
    suffixes = ("-geforce", "") if "GeForce" in device_name else ("-dc", "")
    classes = [product["rate_class"]] if product is not None else [compute_capability + suffix for suffix in suffixes]
    return next((row for row in _read("rates.csv") if row["rate_class"] in classes), None)


@cache
def _read(file_name: str) -> tuple[Record, ...]:
    text = (resources.files("kernalyse.services.analyzer.hardware") / file_name).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


# ---------------------------------------------------------------- limits of a multiprocessor

THREADS_PER_WARP: Final = 32


@cache
def sm_limits() -> pl.DataFrame:
    """Return the limits of a multiprocessor, one row per compute capability; counts and bytes are integers.

    partition_count: partitions of a multiprocessor's registers, each for warps of its own. shared_unit_bytes, register_unit_count:
    the granularity in which a block gets shared memory and a warp gets registers. Source: column source of sm_limits.csv.
    """
    import polars as pl  # data sheets are read where there is none, too

    text = resources.files(__package__).joinpath("sm_limits.csv").read_bytes()
    return pl.read_csv(text, schema_overrides={"compute_capability": pl.String, "source": pl.String})
