"""A telemetry history of the last hour for any number of nodes: recent readings in full, older ones thinned out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kernalyse.services.core.model import NodeTelemetry

HISTORY_NS: Final = 3600 * 1_000_000_000
FINE_NS: Final = 180 * 1_000_000_000
"""The period in which every reading is kept, for charts of a run in progress."""

COARSE_STEP_NS: Final = 4 * 1_000_000_000
"""Between older readings: an hour of them has as many points as a chart has pixels. More would delay a new page."""

AHEAD_NS: Final = 60 * 1_000_000_000
"""By which clocks of hosts that are in order may differ. Less, and readings that a node repeats would be taken for new ones; more, and a
node whose clock was ahead and is started again would show nothing for as long."""

MAX_FINE_COUNT: Final = 2_000
"""Most recent readings of one device, whatever its node's clock says."""


@dataclass(slots=True)
class _DeviceHistory:
    coarse: deque[NodeTelemetry] = field(default_factory=lambda: deque(maxlen=HISTORY_NS // COARSE_STEP_NS))
    fine: deque[NodeTelemetry] = field(default_factory=deque)

    def add(self, reading: NodeTelemetry) -> None:
        self.fine.append(reading)
        newest_ns = reading.telemetry.measured_unix_ns
        while _time_ns(self.fine[0]) < newest_ns - FINE_NS or len(self.fine) > MAX_FINE_COUNT:
            old = self.fine.popleft()
            if not self.coarse or _time_ns(old) - _time_ns(self.coarse[-1]) >= COARSE_STEP_NS:
                self.coarse.append(old)
        while self.coarse and _time_ns(self.coarse[0]) < newest_ns - HISTORY_NS:
            self.coarse.popleft()

    def cut(self, first_ns: int) -> None:
        """Drop the readings from a time on."""
        for readings in (self.fine, self.coarse):
            while readings and _time_ns(readings[-1]) >= first_ns:
                readings.pop()

    def __iter__(self) -> Iterator[NodeTelemetry]:
        yield from self.coarse
        yield from self.fine


class TelemetryHistory:
    """Readings by node and device, each in order of time; not thread-safe.

    Args:
        clock_unix_ns: the host's clock.
    """

    def __init__(self, clock_unix_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_unix_ns = clock_unix_ns
        self._devices: dict[tuple[str, str | None], _DeviceHistory] = {}

    def add(self, reading: NodeTelemetry) -> None:
        """Add a reading; one that is not newer than the last of its device is ignored, because a reconnected node repeats them."""
        if self.is_new(reading):
            history = self._devices.setdefault((reading.node_id, reading.telemetry.device_id), _DeviceHistory())
            history.cut(_time_ns(reading))
            history.add(reading)

    def is_new(self, reading: NodeTelemetry) -> bool:
        """Return whether the reading is newer than the last one of its device.

        Any is that follows one of the future: the clock of its node was ahead, and is not any more.
        """
        newest = self.newest(reading.node_id, reading.telemetry.device_id)
        return newest is None or _time_ns(reading) > _time_ns(newest) or _time_ns(newest) > self._clock_unix_ns() + AHEAD_NS

    def newest(self, node_id: str, device_id: str | None) -> NodeTelemetry | None:
        """Return the last reading of a device, or of the node's host where device_id is None."""
        known = self._devices.get((node_id, device_id))
        return known.fine[-1] if known else None

    def device_ids(self, node_id: str) -> list[str | None]:
        """Return the ids of the node's devices that have readings; None stands for its host."""
        return [device_id for known_node_id, device_id in self._devices if known_node_id == node_id]

    def readings(self, node_id: str | None = None, oldest_unix_ns: int = 0) -> list[NodeTelemetry]:
        """Return the readings of one node, or of all, in order of time within each device."""
        histories = [history for (known_id, _), history in self._devices.items() if node_id in (None, known_id)]
        return [reading for history in histories for reading in history if _time_ns(reading) >= oldest_unix_ns]

    def clear(self) -> None:
        """Remove all readings."""
        self._devices.clear()


def _time_ns(reading: NodeTelemetry) -> int:
    return reading.telemetry.measured_unix_ns
