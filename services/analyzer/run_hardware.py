"""Ceilings and thresholds of runs: what they measured or state themselves, what is known of their devices, what was set by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import polars as pl

from services.analyzer.event_rows import Row, ceiling_row, frame_of
from services.analyzer.hardware_records import MEASURED, USER
from services.analyzer.run_records import RunRecord
from services.analyzer.schema import CEILINGS
from services.analyzer.store import Store
from services.analyzer.threshold_table import THRESHOLDS
from services.analyzer.trace_tables import HOST_DEVICE, TRACE_DEVICES
from services.core.disturbance import MAX_HOST_BUSY_RATIO
from services.core.model import Ceiling, CommandProfile, DeviceKind, Thresholds

DEVICE_KEYS: Final = ["run_id", "device_id"]
CEILING_KEYS: Final = [*DEVICE_KEYS, "ceiling_name", "unit", "path", "source"]


@dataclass(frozen=True, slots=True)
class TraceHardware:
    """What is known of devices that runs alone know, beside what their traces tell: rows of the tables of these names.

    Set by hand, or measured on the node that ran the traced program.
    """

    ceilings: pl.DataFrame
    thresholds: pl.DataFrame

    def tables(self) -> dict[str, pl.LazyFrame]:
        """As tables of a trace: it knows of no runs."""
        frames = {CEILINGS.table_name: self.ceilings, THRESHOLDS.table_name: self.thresholds}
        alone = [pl.lit("").alias("run_id"), pl.lit(None, dtype=pl.Int64).alias("event_index")]
        return {name: frame.lazy().with_columns(alone) for name, frame in frames.items()}

    @property
    def digest(self) -> str:
        """Other for other values; empty when there are none."""
        if self.ceilings.is_empty() and self.thresholds.is_empty():
            return ""
        rows = (*self.ceilings.drop("event_index", "measured_unix_ns").rows(), *self.thresholds.drop("event_index").rows())
        return f"-{hashlib.sha256(repr(rows).encode()).hexdigest()[:16]}"


def ceilings(store: Store, run_ids: Sequence[str] | None) -> pl.LazyFrame:
    """What the runs measured themselves and, where they did not or it is better, what is known of their devices from every source."""
    of_devices, of_traces = _of_devices(store, run_ids).lazy(), trace_hardware(store, run_ids)
    own = _without_worse(store.read(CEILINGS, run_ids), of_devices)
    # What a file states of its device counts until somebody has set something else.
    is_stated = pl.col("source") == USER
    stated = own.filter(is_stated).join(of_traces.thresholds.lazy(), on=DEVICE_KEYS, how="anti", maintain_order="left")
    known = pl.concat([own.filter(~is_stated), stated, of_traces.ceilings.lazy()])
    return pl.concat([known, of_devices.join(known, on=CEILING_KEYS, how="anti")])


def _without_worse(own: pl.LazyFrame, of_devices: pl.LazyFrame) -> pl.LazyFrame:
    """Leave out measured ceilings that their device is known to exceed: a ceiling is a maximum, whenever it was reached.

    A run that was first on its device, on a busy host, would else be held against what that host left of it for ever. What
    was measured on a quiet host takes the place of what was not.
    """
    known = of_devices.filter(source=MEASURED).select(*CEILING_KEYS, known_value="value", is_known_busy=_is_busy())
    newest = own.sort("event_index", maintain_order=True).group_by(CEILING_KEYS).agg(pl.col("value", "host_busy_ratio").last())
    is_better = (pl.col("known_value") > pl.col("value")) | (_is_busy() & ~pl.col("is_known_busy"))
    worse = newest.join(known, on=CEILING_KEYS).filter(is_better)
    return own.join(worse, on=CEILING_KEYS, how="anti", maintain_order="left")


def _is_busy() -> pl.Expr:
    return (pl.col("host_busy_ratio") > MAX_HOST_BUSY_RATIO).fill_null(value=False)


def thresholds(store: Store, run_ids: Sequence[str] | None) -> pl.LazyFrame:
    """What was set by hand, what imported runs state themselves and, for other devices, the default."""
    by_hand = trace_hardware(store, run_ids).thresholds.lazy()
    known = pl.concat([by_hand, store.read(THRESHOLDS, run_ids).join(by_hand, on=DEVICE_KEYS, how="anti", maintain_order="left")])
    return pl.concat([known, _thresholds_of_devices(store, run_ids).lazy().join(known, on=DEVICE_KEYS, how="anti")])


def trace_hardware(store: Store, run_ids: Sequence[str] | None) -> TraceHardware:
    found = store.hardware.of_runs(run_ids)
    records = store.runs.of(sorted(found)) if found else []
    known = [(record, device_id, *of_device) for record in records for device_id, of_device in found[record.run.run_id].items()]
    by_hand = [ceiling_row(record.run.run_id, _known_from(record), part) for record, _, parts, _ in known for part in parts]
    return TraceHardware(
        frame_of(CEILINGS, [*_of_nodes(store, run_ids), *by_hand]),
        frame_of(THRESHOLDS, [_threshold_row(record, device_id, limits) for record, device_id, _, limits in known]),
    )


def _of_nodes(store: Store, run_ids: Sequence[str] | None) -> list[Row]:
    """Of traces of programs that a node ran: what was measured of its devices that they name."""
    traced = [record for record in store.runs.of(store.trace_run_ids(run_ids)) if isinstance(record.run.spec.work, CommandProfile)]
    return [
        ceiling_row(record.run.run_id, _known_from(record), ceiling)
        for record in traced
        for name in _device_names(store, record.run.run_id)
        for ceiling in _measured(store, record.run.node_id, name)
    ]


def _device_names(store: Store, run_id: str) -> list[str]:
    return store.read(TRACE_DEVICES, [run_id]).select(pl.col("device_name").drop_nulls().unique().sort()).collect()["device_name"].to_list()


def _measured(store: Store, node_id: str, name: str) -> list[Ceiling]:
    """Of the node's devices of this name, as of the device that a trace names so.

    They are alike, or several runtimes' views of one processor: the highest of each kind counts.
    """
    is_host = name == HOST_DEVICE
    alike = [device for device in store.hardware.devices(node_id) if (device.kind is DeviceKind.CPU if is_host else device.name == name)]
    measured = [part for device in alike for part in store.hardware.ceilings(node_id, device.device_id) if part.source == MEASURED]
    highest = {(part.ceiling_name, part.unit, part.path): part for part in sorted(measured, key=lambda part: part.value)}
    return [replace(part, device_id=name) for part in highest.values()]


def _of_devices(store: Store, run_ids: Sequence[str] | None) -> pl.DataFrame:
    """Ceilings of each run's device from every source, with the event at which it was known."""
    records = [record for record in store.runs.of(run_ids) if record.run.device_id is not None]
    found = {device: store.hardware.ceilings(*device) for device in {_device_of(record) for record in records}}
    return frame_of(
        CEILINGS,
        [ceiling_row(record.run.run_id, record.device_event_index, ceiling) for record in records for ceiling in found[_device_of(record)]],
    )


def _thresholds_of_devices(store: Store, run_ids: Sequence[str] | None) -> pl.DataFrame:
    records = [record for record in store.runs.of(run_ids) if record.run.device_id is not None]
    found = {device: store.hardware.thresholds(*device) for device in {_device_of(record) for record in records}}
    return frame_of(THRESHOLDS, [_threshold_row(record, record.run.device_id or "", found[_device_of(record)]) for record in records])


def _threshold_row(record: RunRecord, device_id: str, limits: Thresholds) -> Row:
    return {"run_id": record.run.run_id, "event_index": _known_from(record), "device_id": device_id} | asdict(limits)


def _known_from(record: RunRecord) -> int | None:
    """The event from which on the run's device was known; of a trace of a node's run, which names its devices itself, the last."""
    return record.device_event_index if record.device_event_index is not None else record.next_event_index - 1


def _device_of(record: RunRecord) -> tuple[str, str]:
    """node_id and device_id."""
    return record.run.node_id, record.run.device_id or ""
