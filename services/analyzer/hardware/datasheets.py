"""Peaks of devices by their data sheets, and limits of a multiprocessor by compute capability."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

import polars as pl

from kernalyse.services.core.model import Ceiling, DataType, Device, DeviceKind

# ---------------------------------------------------------------- peaks
# What the datasheets say of known GPUs, and what compute capability and clock say of every NVIDIA GPU.
#
# peaks.csv has one row per product, rates.csv one per class of compute capability. Empty cells are unknown. Both state dense rates (no
# sparsity), an FMA counting two.

FLOP_SUFFIX: Final = "_flop_per_s"
RATE_SUFFIXES: Final = {"_flop_per_clock_per_sm": "flop_per_s", "_bytes_per_clock_per_sm": "bytes_per_s"}
TENSOR_SUFFIX: Final = "_tensor"

Record = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Peaks:
    """explanation: one sentence that says where the ceilings come from, or why there are none."""

    ceilings: tuple[Ceiling, ...]
    explanation: str


def device_peaks(device: Device) -> Peaks:
    """Ceilings of source "datasheet" for a product of the table and of source "clock" for every NVIDIA GPU, else none.

    Each names the clock at which it holds: "clock" ceilings the device's maximum, and they scale with what it really ran at.
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
    figures = [("dram", "bytes_per_s", "copy", product["dram_bytes_per_s"])]
    figures += [
        (_name(column, FLOP_SUFFIX), "flop_per_s", _path(column, FLOP_SUFFIX), value)
        for column, value in product.items()
        if column.endswith(FLOP_SUFFIX)
    ]
    return tuple(
        Ceiling(device_id, name, unit, float(value), path, "datasheet", product["confidence"], note, _clock_hz(product, name, path))
        for name, unit, path, value in figures
        if value
    )


def _clock_hz(product: Record, name: str, path: str) -> int | None:
    """At which a datasheet's figure holds: tensor cores have one of their own, save for double precision."""
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
    # The whole name has to match: "NVIDIA L4" must not take an L40S, nor "NVIDIA H200" an H200 NVL.
    # People write products as the table calls them, too.
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


# ---------------------------------------------------------------- sm limits
# What a multiprocessor of each compute capability holds at once: sm_limits.csv, one row per capability.

THREADS_PER_WARP: Final = 32

_TEXTS: Final = {"compute_capability": pl.String, "source": pl.String}


@cache
def sm_limits() -> pl.DataFrame:
    """Rows of the file, counts and bytes as whole numbers.

    partition_count: parts that the registers of a multiprocessor are divided into, each for warps of its own. shared_unit_bytes,
    register_unit_count: of which a block's shared memory and a warp's registers take whole ones.
    """
    text = resources.files(__package__).joinpath("sm_limits.csv").read_bytes()
    return pl.read_csv(text, schema_overrides=_TEXTS)
