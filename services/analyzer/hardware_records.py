"""What is known of devices beyond any single run, and beyond their node's stay: descriptions, ceilings, thresholds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, fields

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from services.analyzer.catalogue import Catalogue, device_ceilings, device_descriptions, device_thresholds
from services.core import wire
from services.core.disturbance import is_busy
from services.core.model import Ceiling, Device, Thresholds

USER = "user"
MEASURED = "measured"
PUBLISHED = ("datasheet", "clock")
_CEILING_FIELDS = tuple(field.name for field in fields(Ceiling))


class HardwareRecords:
    """Of devices that a run alone knows the run's id stands for the node's."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def device(self, node_id: str, device_id: str) -> Device | None:
        """As its node last described it; None: no node has."""
        query = sa.select(device_descriptions.c.device).where(
            device_descriptions.c.node_id == node_id, device_descriptions.c.device_id == device_id
        )
        with self._catalogue.reading() as connection:
            data = connection.scalar(query)
        return None if data is None else wire.decode_bytes(data, Device)

    def devices(self, node_id: str) -> list[Device]:
        """All that the node has described."""
        query = sa.select(device_descriptions.c.device).where(device_descriptions.c.node_id == node_id)
        with self._catalogue.reading() as connection:
            return [wire.decode_bytes(data, Device) for data in connection.scalars(query)]

    def ceilings(self, node_id: str, device_id: str) -> tuple[Ceiling, ...]:
        """Of every source."""
        query = sa.select(device_ceilings).where(device_ceilings.c.node_id == node_id, device_ceilings.c.device_id == device_id)
        with self._catalogue.reading() as connection:
            return tuple(Ceiling(**{name: getattr(row, name) for name in _CEILING_FIELDS}) for row in connection.execute(query))

    def thresholds(self, node_id: str, device_id: str) -> Thresholds:
        """Those set by hand, or the defaults."""
        query = sa.select(device_thresholds.c.memory_inefficient_ratio, device_thresholds.c.compute_inefficient_ratio).where(
            device_thresholds.c.node_id == node_id, device_thresholds.c.device_id == device_id
        )
        with self._catalogue.reading() as connection:
            row = connection.execute(query).one_or_none()
        return Thresholds() if row is None else Thresholds(*row)

    def of_runs(self, run_ids: Collection[str] | None) -> dict[str, dict[str, tuple[tuple[Ceiling, ...], Thresholds]]]:
        """What was set by hand for devices that runs alone know, by run and device; of these runs, or of all that have such."""
        with self._catalogue.reading() as connection:
            known = connection.execute(sa.select(device_thresholds.c.node_id, device_thresholds.c.device_id)).all()
        found: dict[str, dict[str, tuple[tuple[Ceiling, ...], Thresholds]]] = {}
        for owner_id, device_id in known:
            if run_ids is None or owner_id in run_ids:
                found.setdefault(owner_id, {})[device_id] = (self.ceilings(owner_id, device_id), self.thresholds(owner_id, device_id))
        return found

    def forget(self, run_id: str) -> None:
        """What was set for devices of the run goes with it."""
        with self._catalogue.writing() as connection:
            for table in (device_ceilings, device_thresholds):
                connection.execute(sa.delete(table).where(table.c.node_id == run_id))

    def publish(self, node_id: str, device: Device, ceilings: Sequence[Ceiling]) -> None:
        """Keeps the device's description, and replaces what datasheet and clock say of it."""
        description = {"node_id": node_id, "device_id": device.device_id, "device": wire.encode_bytes(device)}
        with self._catalogue.writing() as connection:
            connection.execute(sa.insert(device_descriptions).prefix_with("OR REPLACE"), description)
            _replace(connection, node_id, device.device_id, PUBLISHED, ceilings)

    def set_by_hand(self, node_id: str, device_id: str, ceilings: Sequence[Ceiling], thresholds: Thresholds) -> None:
        """Replaces the user's ceilings and thresholds."""
        with self._catalogue.writing() as connection:
            _replace(connection, node_id, device_id, (USER,), ceilings)
            row = {"node_id": node_id, "device_id": device_id, **asdict(thresholds)}
            connection.execute(sa.insert(device_thresholds).prefix_with("OR REPLACE"), row)


def keep_measured(connection: Connection, node_id: str, ceilings: Sequence[Ceiling]) -> frozenset[str]:
    """Keep the newest measurement of each ceiling for its device; one of a busy host lowers none that is known.

    Returns:
        Devices of which something else is known now.
    """
    changed = set()
    for ceiling in ceilings:
        if ceiling.source != MEASURED:
            continue
        row = {"node_id": node_id, **asdict(ceiling)}
        is_same = (column == row[column.name] for column in device_ceilings.primary_key.columns)
        known = connection.execute(sa.select(device_ceilings.c.value, device_ceilings.c.host_busy_ratio).where(*is_same)).one_or_none()
        if known is not None and is_busy(ceiling.host_busy_ratio) and known.value > ceiling.value:
            continue
        connection.execute(sa.insert(device_ceilings).prefix_with("OR REPLACE"), row)
        if known is None or tuple(known) != (ceiling.value, ceiling.host_busy_ratio):
            changed.add(ceiling.device_id)
    return frozenset(changed)


def _replace(connection: Connection, node_id: str, device_id: str, sources: Sequence[str], ceilings: Sequence[Ceiling]) -> None:
    connection.execute(
        sa.delete(device_ceilings).where(
            device_ceilings.c.node_id == node_id, device_ceilings.c.device_id == device_id, device_ceilings.c.source.in_(sources)
        )
    )
    rows = [{"node_id": node_id, **asdict(ceiling)} for ceiling in ceilings]
    if rows:
        connection.execute(sa.insert(device_ceilings), rows)
