"""Changes of nodes, their runs and their telemetry, for any number of subscribers.

Each subscriber has a mailbox in which a later state of a node or run replaces the earlier one: a subscriber that stalls has
the latest state of each waiting, never a growing queue.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kernalyse.services.core.errors import ShuttingDownError
from kernalyse.services.core.model import HardwareKey, NodeStatus, NodeTelemetry, Run
from kernalyse.services.core.telemetry_history import HISTORY_NS, TelemetryHistory

UPDATE_READING_COUNT: Final = 5_000
"""Most telemetry readings of one update: the last hour of a hundred devices would exceed the size of a message."""

WAITING_READING_COUNT: Final = 20_000
"""Newest telemetry readings that wait for a subscriber that stalls; older ones are dropped."""


@dataclass(frozen=True, slots=True)
class NodesUpdate:
    """Changes since the previous update of a subscriber, or everything in the first one."""

    nodes: tuple[NodeStatus, ...] = ()
    runs: tuple[Run, ...] = ()
    telemetry: tuple[NodeTelemetry, ...] = ()
    changed_hardware: tuple[HardwareKey, ...] = ()
    removed_addresses: tuple[str, ...] = ()
    deleted_run_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class Mailbox:
    """The changes that wait for one subscriber. is_of_peer: for another analyzer, which has its own changes and those of others anyway."""

    is_of_peer: bool = False
    nodes: dict[str, NodeStatus] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    telemetry: deque[NodeTelemetry] = field(default_factory=lambda: deque(maxlen=WAITING_READING_COUNT))
    changed_hardware: dict[HardwareKey, None] = field(default_factory=dict)
    removed_addresses: dict[str, None] = field(default_factory=dict)
    deleted_run_ids: dict[str, None] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, update: NodesUpdate) -> None:
        """Add an update; it replaces earlier states of the same nodes and runs."""
        for address in update.removed_addresses:
            self.nodes.pop(address, None)
            self.removed_addresses[address] = None
        for status in update.nodes:
            self.nodes[status.address] = status
            self.removed_addresses.pop(status.address, None)
        for run in update.runs:
            self.runs[run.run_id] = run
            self.deleted_run_ids.pop(run.run_id, None)  # a file that is imported again becomes the same run
        for run_id in update.deleted_run_ids:
            self.runs.pop(run_id, None)
            self.deleted_run_ids[run_id] = None
        self.telemetry.extend(update.telemetry)
        self.changed_hardware.update(dict.fromkeys(update.changed_hardware))
        self.changed.set()

    def take(self) -> NodesUpdate:
        """Remove and return everything that waits."""
        update = NodesUpdate(
            tuple(self.nodes.values()),
            tuple(self.runs.values()),
            tuple(self.telemetry),
            tuple(self.changed_hardware),
            tuple(self.removed_addresses),
            tuple(self.deleted_run_ids),
        )
        self.nodes.clear()
        self.runs.clear()
        self.telemetry.clear()
        self.changed_hardware.clear()
        self.removed_addresses.clear()
        self.deleted_run_ids.clear()
        self.changed.clear()
        return update


class NodeSubscriptions:
    """The distributor of updates from collectors to subscribers."""

    def __init__(self, clock_unix_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_unix_ns = clock_unix_ns
        self._mailboxes: list[Mailbox] = []
        self._telemetry = TelemetryHistory(clock_unix_ns)
        self._is_closed = False

    def publish(
        self,
        *,
        nodes: Iterable[NodeStatus] = (),
        runs: Iterable[Run] = (),
        telemetry: Iterable[NodeTelemetry] = (),
        changed_hardware: Iterable[HardwareKey] = (),
        removed_addresses: Iterable[str] = (),
        deleted_run_ids: Iterable[str] = (),
        is_of_peer: bool = False,
    ) -> None:
        """Put the changes into every mailbox. Telemetry that was published before is left out.

        Args:
            is_of_peer: they come from another analyzer, and are told to none.
        """
        update = NodesUpdate(
            *(tuple(nodes), tuple(runs), tuple(self._new(telemetry))),
            *(tuple(changed_hardware), tuple(removed_addresses), tuple(deleted_run_ids)),
        )
        if update == NodesUpdate():
            return
        for mailbox in self._mailboxes:
            if not (is_of_peer and mailbox.is_of_peer):
                mailbox.put(update)

    async def watch(
        self, nodes: Callable[[], Sequence[NodeStatus]], newest_runs: Callable[[], Sequence[Run]], *, is_of_peer: bool = False
    ) -> AsyncIterator[NodesUpdate]:
        """Yield the current state, then changes without end.

        Args:
            nodes: returns the status of every node without blocking.
            newest_runs: reads the newest runs; called in a thread.
            is_of_peer: for another analyzer.

        Raises:
            ShuttingDownError: the service stops.
        """
        mailbox = Mailbox(is_of_peer)
        self._mailboxes.append(mailbox)
        try:
            # The mailbox opens first: what changes while the runs are read comes right after them.
            telemetry = self._telemetry.readings(oldest_unix_ns=self._oldest_shown_unix_ns())
            first, rest = telemetry[:UPDATE_READING_COUNT], telemetry[UPDATE_READING_COUNT:]
            yield NodesUpdate(tuple(nodes()), tuple(await asyncio.to_thread(newest_runs)), tuple(first))
            for begin in range(0, len(rest), UPDATE_READING_COUNT):
                yield NodesUpdate(telemetry=tuple(rest[begin : begin + UPDATE_READING_COUNT]))
            while not self._is_closed:
                await mailbox.changed.wait()
                update = mailbox.take()
                if update != NodesUpdate():
                    yield update
            raise ShuttingDownError("analyzer", found="it stops", expected="a service that goes on", remedy="Watch again later.")
        finally:
            self._mailboxes.remove(mailbox)

    def newest(self, node_id: str) -> list[NodeTelemetry]:
        """Return the last reading of each device of a node, and of its host."""
        found = (self._telemetry.newest(node_id, device_id) for device_id in self._telemetry.device_ids(node_id))
        return [reading for reading in found if reading is not None]

    def close(self) -> None:
        """End every stream with ShuttingDownError."""
        self._is_closed = True
        for mailbox in self._mailboxes:
            mailbox.changed.set()

    def _new(self, telemetry: Iterable[NodeTelemetry]) -> Iterator[NodeTelemetry]:
        """Yield the readings that are new: a node that reconnects sends its history again, much of it older than anybody shows."""
        for reading in telemetry:
            if reading.telemetry.measured_unix_ns > self._oldest_shown_unix_ns() and self._telemetry.is_new(reading):
                self._telemetry.add(reading)
                yield reading

    def _oldest_shown_unix_ns(self) -> int:
        return self._clock_unix_ns() - HISTORY_NS
