"""Changes of nodes, their runs and their telemetry, for any number of watchers.

Each watcher has a mailbox in which later news of the same node or run replaces earlier: one that stalls holds the latest
state of each, never a growing queue.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from services.core.errors import ShuttingDownError
from services.core.model import NodeStatus, NodeTelemetry, Run

HISTORY_NS: Final = 600 * 1_000_000_000
"""Telemetry that a new watcher gets: what its charts show at once."""

HISTORY_COUNT: Final = 20_000
"""Readings kept at most, whatever the nodes' clocks say."""


@dataclass(frozen=True, slots=True)
class NodesUpdate:
    nodes: tuple[NodeStatus, ...] = ()
    runs: tuple[Run, ...] = ()
    telemetry: tuple[NodeTelemetry, ...] = ()


@dataclass(slots=True)
class Mailbox:
    nodes: dict[str, NodeStatus] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    telemetry: deque[NodeTelemetry] = field(default_factory=lambda: deque(maxlen=HISTORY_COUNT))
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, update: NodesUpdate) -> None:
        self.nodes.update((status.address, status) for status in update.nodes)
        self.runs.update((run.run_id, run) for run in update.runs)
        self.telemetry.extend(update.telemetry)
        self.news.set()

    def take(self) -> NodesUpdate:
        update = NodesUpdate(tuple(self.nodes.values()), tuple(self.runs.values()), tuple(self.telemetry))
        self.nodes.clear()
        self.runs.clear()
        self.telemetry.clear()
        self.news.clear()
        return update


class NodeWatching:
    """Takes updates from collectors, hands them to watchers."""

    def __init__(self, clock_unix_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_unix_ns = clock_unix_ns
        self._mailboxes: list[Mailbox] = []
        self._telemetry: deque[NodeTelemetry] = deque(maxlen=HISTORY_COUNT)
        self._newest_unix_ns: dict[tuple[str, str | None], int] = {}
        self._is_closed = False

    def publish(self, *, nodes: Iterable[NodeStatus] = (), runs: Iterable[Run] = (), telemetry: Iterable[NodeTelemetry] = ()) -> None:
        self._forget_old()
        update = NodesUpdate(tuple(nodes), tuple(runs), tuple(reading for reading in telemetry if self._is_new(reading)))
        if update == NodesUpdate():
            return
        self._telemetry.extend(update.telemetry)
        for mailbox in self._mailboxes:
            mailbox.put(update)

    async def watch(
        self, nodes: Callable[[], Sequence[NodeStatus]], newest_runs: Callable[[], Sequence[Run]]
    ) -> AsyncIterator[NodesUpdate]:
        """Everything now, then changes without end.

        Args:
            nodes: answers at once with the nodes there are.
            newest_runs: reads the newest runs; called in a thread.

        Raises:
            ShuttingDownError: the service stops.
        """
        mailbox = Mailbox()
        self._mailboxes.append(mailbox)
        try:
            # The mailbox opens first: what changes while the runs are read comes right after them.
            telemetry = tuple(self._telemetry)
            yield NodesUpdate(tuple(nodes()), tuple(await asyncio.to_thread(newest_runs)), telemetry)
            while not self._is_closed:
                await mailbox.news.wait()
                update = mailbox.take()
                if update != NodesUpdate():
                    yield update
            raise ShuttingDownError("analyzer", found="it stops", expected="a service that goes on", remedy="Watch again later.")
        finally:
            self._mailboxes.remove(mailbox)

    def close(self) -> None:
        """Ends every stream with ShuttingDownError."""
        self._is_closed = True
        for mailbox in self._mailboxes:
            mailbox.news.set()

    def _is_new(self, reading: NodeTelemetry) -> bool:
        """A node that is connected to again sends what it remembers again; and much of that is older than anybody shows."""
        key, measured_unix_ns = (reading.node_id, reading.telemetry.device_id), reading.telemetry.measured_unix_ns
        if measured_unix_ns <= max(self._newest_unix_ns.get(key, 0), self._oldest_shown_unix_ns()):
            return False
        self._newest_unix_ns[key] = measured_unix_ns
        return True

    def _forget_old(self) -> None:
        while self._telemetry and self._telemetry[0].telemetry.measured_unix_ns < self._oldest_shown_unix_ns():
            self._telemetry.popleft()

    def _oldest_shown_unix_ns(self) -> int:
        return self._clock_unix_ns() - HISTORY_NS
