"""A stream that waits while samples are enqueued behind it, so that no launch overhead falls between their events.

After NVBench's blocking kernel, with a time-out in the kernel itself: whatever makes the host wait for the stream before it
has released it (a module loaded late, a tool that serializes launches) costs the time-out and not the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from services.profiler.backends.stream_holding import without_garbage_collector

MAX_QUEUED_COUNT: Final = 512
"""Operations behind a blocked stream. The driver's queue holds about 1024: a full one makes the host wait for the stream that
waits for the host. Fewer than some dozens would spend most of the time on blocking and releasing."""

TIME_LIMIT_NS: Final = 10_000_000_000  # enqueuing takes milliseconds; a shorter limit would strike on a host that swaps

RELEASED: Final = 0
TIMED_OUT: Final = 1


class StreamBlocker:
    """Holds one stream.

    Args:
        driver: of PyCUDA.
        enqueue: puts kernalyse_hold_stream on the stream, with the addresses of its two flags and its time limit in ns.
    """

    def __init__(self, driver: Any, enqueue: Callable[[int, int, int], None], time_limit_ns: int = TIME_LIMIT_NS) -> None:
        self._flags = driver.pagelocked_zeros((2,), np.int32, mem_flags=driver.host_alloc_flags.DEVICEMAP)
        self._address = int(self._flags.base.get_device_pointer())
        self._enqueue = enqueue
        self._time_limit_ns = time_limit_ns

    def warm_up(self) -> None:
        """Enqueue the kernel once, without anything to wait for: its code has to be on the device before it may block it."""
        self._flags[RELEASED] = 1
        self._launch()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the stream, idle until now, waiting until the end of the block, however it ends."""
        self._flags[:] = 0
        with without_garbage_collector():  # what it frees on the device would wait for the stream that waits for the host
            try:
                self._launch()
                yield
            finally:
                self._flags[RELEASED] = 1

    @property
    def timed_out(self) -> bool:
        """Return whether the last wait ended by its time limit; known once the stream is idle."""
        return bool(self._flags[TIMED_OUT])

    def _launch(self) -> None:
        flag_bytes = self._flags.itemsize
        self._enqueue(self._address + RELEASED * flag_bytes, self._address + TIMED_OUT * flag_bytes, self._time_limit_ns)
