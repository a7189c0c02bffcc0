"""Samples on one CUDA stream: flush, clock, event, launches, event, clock, with the stream held while all that is enqueued."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from services.profiler.backends.base import TimedSamples
from services.profiler.backends.cuda_blocking import MAX_QUEUED_COUNT, StreamBlocker
from services.profiler.backends.cuda_clock import SampleClock

logger = logging.getLogger(__name__)  # of the worker's run: what it warns of goes to stderr, and so into the run's log

NS_PER_MS: Final = 1e6
OPERATIONS_PER_SAMPLE: Final = 5  # two events, two stamps, a flush
OPERATIONS_PER_STEP: Final = 3  # two events and the launch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SampleWork:
    """Work between the two events of one sample."""

    enqueue: Callable[[], None]
    launch_count: int
    is_cold: bool
    is_warm: bool  # it has run before: all its code is on the device, so it may be put behind a blocked stream


class SampleTimer:
    """Takes samples.

    Args:
        driver: of PyCUDA.
        flush: overwrites the L2 cache, on the same stream.
        blocker: None: nothing can hold this stream.
        clock: None: this device's global timer cannot be read.
    """

    def __init__(
        self, driver: Any, stream: Any, flush: Callable[[], None], blocker: StreamBlocker | None, clock: SampleClock | None
    ) -> None:
        self._driver = driver
        self._stream = stream
        self._flush = flush
        self._blocker = blocker
        self._clock = clock
        self._events: list[tuple[Any, Any]] = []

    def take(self, work: SampleWork, count: int) -> TimedSamples:
        """Take samples behind a held stream if they fit; the first of work that is not warm with the stream running."""
        batches: list[TimedSamples] = []
        taken_count = 0
        while taken_count < count:
            is_warm = work.is_warm or taken_count > 0
            batch_count = min(max_batch_count(work.launch_count), count - taken_count) if is_warm else 1
            batch = self._take_batch(work, batch_count, can_block=is_warm)
            batches.append(batch)
            taken_count += batch.duration_ns.size
        return _joined(batches)

    def take_steps(self, steps: Sequence[Callable[[], None]], count: int, *, is_cold: bool) -> npt.NDArray[np.float64]:
        """Return the device time of each step in ns, by events of its own, shape (count, steps): all of them, `count` times over.

        steps: each puts one launch on the stream; all have run before.
        """
        operation_count = len(steps) * OPERATIONS_PER_STEP + 1
        return np.stack([self._hold(operation_count, partial(self._take_pass, steps, is_cold)) for _ in range(count)])

    def _take_pass(self, steps: Sequence[Callable[[], None]], is_cold: bool, blocker: StreamBlocker | None) -> npt.NDArray[np.float64]:
        events = self._take_events(len(steps))
        with blocker.held() if blocker is not None else nullcontext():
            if is_cold:
                self._flush()
            for enqueue, (start, end) in zip(steps, events, strict=True):
                start.record(self._stream)
                enqueue()
                end.record(self._stream)
        self._stream.synchronize()
        return np.array([start.time_till(end) * NS_PER_MS for start, end in events])

    def _take_batch(self, work: SampleWork, count: int, *, can_block: bool) -> TimedSamples:
        if not can_block:
            return self._take(work, count, None)
        return self._hold(count * (work.launch_count + OPERATIONS_PER_SAMPLE), partial(self._take, work, count))

    def _hold(self, operation_count: int, take: Callable[[StreamBlocker | None], T]) -> T:
        """Return the result of `take`, its operations behind a held stream where so many fit there."""
        if self._blocker is not None and operation_count < MAX_QUEUED_COUNT:
            taken = take(self._blocker)
            if not self._blocker.timed_out:
                return taken
            self._blocker = None  # whatever it was would happen again, and cost the time limit again
            logger.warning(
                "Held up for the whole time limit, the stream ran on while samples were being enqueued: "
                "from here on samples are taken without holding it, and launch overhead of short kernels is in them."
            )
        return take(None)

    def _take(self, work: SampleWork, count: int, blocker: StreamBlocker | None) -> TimedSamples:
        events = self._take_events(count)
        if self._clock is not None:
            self._clock.clear(count)
        with blocker.held() if blocker is not None else nullcontext():
            for index, (start, end) in enumerate(events):
                if work.is_cold:
                    self._flush()
                if self._clock is not None:
                    self._clock.stamp_before(index)
                start.record(self._stream)
                work.enqueue()
                end.record(self._stream)
                if self._clock is not None:
                    self._clock.stamp_after(index)
        self._stream.synchronize()
        spans_ns = np.array([start.time_till(end) * NS_PER_MS for start, end in events])
        return TimedSamples(
            duration_ns=spans_ns / work.launch_count,
            sm_clock_hz=None if self._clock is None else self._clock.read(count),
            is_blocked=blocker is not None,
        )

    def _take_events(self, count: int) -> list[tuple[Any, Any]]:
        """Make events before the stream is held, and keep them: making one may make the host wait for the device."""
        while len(self._events) < count:
            self._events.append((self._driver.Event(), self._driver.Event()))
        return self._events[:count]

    def close(self) -> None:
        self._events.clear()
        if self._clock is not None:
            self._clock.close()


def max_batch_count(launch_count: int) -> int:
    """Return how many samples go behind a held stream together; at least one, which goes without holding it if it is too long."""
    return max(1, (MAX_QUEUED_COUNT - 1) // (launch_count + OPERATIONS_PER_SAMPLE))


def _joined(batches: list[TimedSamples]) -> TimedSamples:
    def all_of(arrays: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    clocks = [batch.sm_clock_hz for batch in batches if batch.sm_clock_hz is not None]
    return TimedSamples(
        duration_ns=all_of([batch.duration_ns for batch in batches]),
        sm_clock_hz=all_of(clocks) if len(clocks) == len(batches) else None,
        is_blocked=all(batch.is_blocked for batch in batches),
    )
