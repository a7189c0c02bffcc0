"""Device memory that outlives a configuration."""

from __future__ import annotations

from collections import defaultdict

from services.profiler.backends.base import DeviceBuffer, DeviceSession
from services.profiler.measuring.inputs import BufferPlan


class DeviceBuffers:
    """Buffers of one session, kept from one configuration to the next where a size comes again.

    Allocating and first touching a buffer costs more than many a launch; keeping every size that ever came would fill the
    device. So what the next configuration does not need is released before it allocates.
    """

    def __init__(self, session: DeviceSession) -> None:
        self._session = session
        self._held: list[DeviceBuffer] = []

    def take(self, plans: tuple[BufferPlan, ...]) -> dict[str, DeviceBuffer]:
        """One buffer for each plan, by name; contents are undefined. What an earlier call returned is taken back.

        Raises MemoryLimitError.
        """
        free: dict[int, list[DeviceBuffer]] = defaultdict(list)
        for buffer in self._held:
            free[buffer.size_bytes].append(buffer)
        kept = {plan.name: free[plan.size_bytes].pop() for plan in plans if free[plan.size_bytes]}
        self._held = list(kept.values())
        for surplus in free.values():
            for buffer in surplus:
                self._session.release(buffer)
        for plan in plans:
            if plan.name not in kept:
                kept[plan.name] = self._session.allocate(plan.size_bytes)
                self._held.append(kept[plan.name])
        return kept

    def release(self) -> None:
        """Releases everything."""
        for buffer in self._held:
            self._session.release(buffer)
        self._held = []
