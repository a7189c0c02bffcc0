"""Ceilings and thresholds as people see and set them: of a device of a node, or of one that a run alone knows."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from kernalyse.services.analyzer.queries.registry import resolve_table
from kernalyse.services.analyzer.queries.run_tables import StoreSource, thresholds
from kernalyse.services.analyzer.store.repositories import USER
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.derived import ROOFLINE
from kernalyse.services.analyzer.tables.runs import CEILINGS, MEASUREMENTS
from kernalyse.services.core.errors import DeviceNotFoundError, HardwareChangedError, InvalidRequestError
from kernalyse.services.core.formatting import percentage, rate
from kernalyse.services.core.model import Ceiling, Device, Hardware, HardwareKey, Thresholds

UNITS: Final = {"flop_per_s": "flop/s", "bytes_per_s": "B/s"}
"""With what people call them."""

MAX_CLOCK_HZ: Final = 10**12
"""A hundred times that of the fastest device; what is far above would not fit the database."""

ETAG_DIGITS: Final = 12
"""Significant ones of a value: one that went through a file and came back is the same."""


class HardwareSettings:
    """Methods block; call them in threads.

    Args:
        node_device: a device of a node that is not described in the store. Raises DeviceNotFoundError.
    """

    def __init__(self, store: Store, node_device: Callable[[str, str], Device]) -> None:
        self._store = store
        self._node_device = node_device
        self._lock = threading.Lock()  # no edit comes between the look at the etag and the writing of another

    def get(self, key: HardwareKey) -> Hardware:
        """Raises DeviceNotFoundError, RunNotFoundError."""
        if key.run_id:
            return self._of_run(key)
        device = self._store.hardware.device(key.node_id, key.device_id) or self._node_device(key.node_id, key.device_id)
        known = self._store.hardware.ceilings(key.node_id, key.device_id)
        return _hardware(device, known, self._store.hardware.thresholds(key.node_id, key.device_id))

    def update(self, key: HardwareKey, by_hand: Sequence[Ceiling], wanted: Thresholds | None, etag: str) -> Hardware:
        """Sets ceilings, and thresholds unless they are None; answers with what holds then.

        Args:
            by_hand: in the place of all that were set by hand before.
            etag: of the state that the edit began with; empty: whatever it is.

        Raises:
            DeviceNotFoundError, RunNotFoundError: nothing is known of the device.
            InvalidRequestError: a value that no device can have, or two for one.
            HardwareChangedError: others have set something else since.
        """
        now_unix_ns = time.time_ns()
        checked = [
            _checked_ceiling(replace(ceiling, device_id=key.device_id, source=USER, measured_unix_ns=now_unix_ns)) for ceiling in by_hand
        ]
        _refuse_repeats(checked)
        with self._lock:
            before = self.get(key)
            after = _hardware(before.device, checked, before.thresholds if wanted is None else _checked_thresholds(wanted))
            if etag not in ("", before.etag) and before.etag != after.etag:
                raise _changed(key, before, after)
            self._store.hardware.set_user_overrides(key.run_id or key.node_id, key.device_id, checked, after.thresholds)
            return self.get(key)

    def _of_run(self, key: HardwareKey) -> Hardware:
        run = self._store.runs.get(key.run_id).run
        is_device = pl.col("device_id") == key.device_id
        rows = resolve_table(CEILINGS, StoreSource(self._store, [key.run_id])).filter(is_device).collect()
        names = [column.name for column in CEILINGS.columns if column.name not in ("run_id", "event_index")]
        known = tuple(Ceiling(**row) for row in rows.select(names).fill_null("").to_dicts())
        if not known and key.device_id != run.device_id:
            self._refuse_unknown(key)
        of_run = thresholds(self._store, [key.run_id]).filter(is_device).collect().to_dicts()
        return _hardware(
            None,
            known,
            Thresholds(of_run[-1]["memory_inefficient_ratio"], of_run[-1]["compute_inefficient_ratio"]) if of_run else Thresholds(),
        )

    def _refuse_unknown(self, key: HardwareKey) -> None:
        source = StoreSource(self._store, [key.run_id])
        tables = (resolve_table(table, source).select("device_id") for table in (MEASUREMENTS, ROOFLINE))
        devices = pl.concat(tables).unique().drop_nulls().collect()["device_id"].sort().to_list()
        if key.device_id not in devices:
            raise DeviceNotFoundError(
                f"device {key.device_id!r} of run {key.run_id}",
                found="no such device",
                expected=f"one of {', '.join(devices)}" if devices else "a run with a device",
                remedy="The run's table roofline names its devices.",
            )


def _hardware(device: Device | None, known: Sequence[Ceiling], limits: Thresholds) -> Hardware:
    by_hand = sorted(f"{c.ceiling_name} {c.unit} {c.path} {c.value:.{ETAG_DIGITS}g}" for c in known if c.source == USER)
    ratios = (limits.memory_inefficient_ratio, limits.compute_inefficient_ratio)
    parts = (*by_hand, *(f"{ratio:.{ETAG_DIGITS}g}" for ratio in ratios))
    return Hardware(device, tuple(known), limits, hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16])


def _changed(key: HardwareKey, before: Hardware, after: Hardware) -> HardwareChangedError:
    """Names every figure that is not what the edit would make it."""
    now, wanted = _shown(before), _shown(after)
    others = {name: now.get(name, "not set") for name in {**now, **wanted} if now.get(name) != wanted.get(name)}
    return HardwareChangedError(
        f"hardware of {key.device_id}",
        found="; ".join(f"{name} {value}, where this edit has {wanted.get(name, 'none')}" for name, value in others.items()),
        expected="what was set when the edit began",
        remedy="Somebody else has changed it meanwhile: look at these values, then save yours again if they are to take their place.",
    )


def _shown(hardware: Hardware) -> dict[str, str]:
    """What can be set, in words."""
    limits = hardware.thresholds
    return {
        **{_title(c): rate(c.value, UNITS[c.unit]) for c in hardware.ceilings if c.source == USER},
        "memory threshold": percentage(limits.memory_inefficient_ratio),
        "compute threshold": percentage(limits.compute_inefficient_ratio),
    }


def _title(ceiling: Ceiling) -> str:
    return f"{ceiling.ceiling_name} {'bandwidth' if ceiling.unit == 'bytes_per_s' else f'peak ({ceiling.path})'}"


def _checked_ceiling(ceiling: Ceiling) -> Ceiling:
    subject = f"ceiling {ceiling.ceiling_name or '(no name)'} of {ceiling.device_id}"
    if not (math.isfinite(ceiling.value) and ceiling.value > 0):
        raise InvalidRequestError(f"{subject}: value", found=str(ceiling.value), expected="a finite number over zero", remedy="Correct it.")
    if ceiling.unit not in UNITS:
        raise InvalidRequestError(f"{subject}: unit", found=repr(ceiling.unit), expected=" or ".join(UNITS), remedy="Correct it.")
    if not ceiling.ceiling_name:
        raise InvalidRequestError(f"{subject}: name", found="nothing", expected="dram, l2, l1 or a data type", remedy="Name the ceiling.")
    if ceiling.clock_hz is not None and not 0 < ceiling.clock_hz <= MAX_CLOCK_HZ:
        raise InvalidRequestError(
            f"{subject}: clock_hz", found=str(ceiling.clock_hz), expected=f"over 0 and at most {MAX_CLOCK_HZ}", remedy="Correct it."
        )
    return replace(ceiling, path=ceiling.path or ("copy" if ceiling.unit == "bytes_per_s" else "fma"))


def _refuse_repeats(by_hand: Sequence[Ceiling]) -> None:
    keys = [(ceiling.ceiling_name, ceiling.unit, ceiling.path) for ceiling in by_hand]
    for key in keys:
        if keys.count(key) > 1:
            raise InvalidRequestError(f"ceiling {' '.join(key)}", found="several values", expected="one", remedy="Leave one of them.")


def _checked_thresholds(limits: Thresholds) -> Thresholds:
    for name in ("memory_inefficient_ratio", "compute_inefficient_ratio"):
        value = getattr(limits, name)
        if not 0 < value <= 1:  # false for NaN too
            raise InvalidRequestError(f"threshold {name}", found=str(value), expected="over 0 and at most 1", remedy="Correct it.")
    return limits
