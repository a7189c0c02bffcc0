"""Timing of launches on an NVIDIA device: events, a kernel that blocks the stream, stamps of the SM clock."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from kernalyse.services.core.model import Device, Dim3, KernelSource
from kernalyse.services.profiler.backends.base import Build, LaunchConfiguration, TimedSamples, can_block_streams, without_garbage_collector
from kernalyse.services.profiler.backends.cuda.compiler import NvccCompiler
from kernalyse.services.profiler.backends.cuda.modules import nvcc_architecture

# ---------------------------------------------------------------- samples
# A sample on a stream: flush, clock, event, launches, event, clock. The stream is blocked while all that is enqueued.

logger = logging.getLogger(__name__)  # of the worker's run: what it warns of goes to stderr, and so into the run's log

NS_PER_MS: Final = 1e6
OPERATIONS_PER_SAMPLE: Final = 5  # two events, two stamps, a flush
OPERATIONS_PER_STEP: Final = 3  # two events and the launch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SampleWork:
    """The operations between the two events of one sample."""

    enqueue: Callable[[], None]
    launch_count: int
    is_cold: bool
    is_warm: bool  # it has run before: all its code is on the device, so it may be put behind a blocked stream


class SampleTimer:
    """A timer that takes samples on one stream.

    Args:
        driver: of PyCUDA.
        flush: overwrites the L2 cache, on the same stream.
        blocker: None: this stream cannot be blocked.
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
        """Take samples behind a blocked stream if they fit. The first launch of cold code runs on an open stream."""
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
        """Run all steps `count` times; return the device time of each in ns, shape (count, steps).

        steps: each puts one launch on the stream; all have run before.
        """
        operation_count = len(steps) * OPERATIONS_PER_STEP + 1
        return np.stack([self._run_blocked(operation_count, partial(self._take_pass, steps, is_cold)) for _ in range(count)])

    def _take_pass(self, steps: Sequence[Callable[[], None]], is_cold: bool, blocker: StreamBlocker | None) -> npt.NDArray[np.float64]:
        events = self._take_events(len(steps))
        with blocker.blocked() if blocker is not None else nullcontext():
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
        return self._run_blocked(count * (work.launch_count + OPERATIONS_PER_SAMPLE), partial(self._take, work, count))

    def _run_blocked(self, operation_count: int, take: Callable[[StreamBlocker | None], T]) -> T:
        """Return the result of `take`, behind a blocked stream where its operations fit."""
        if self._blocker is not None and operation_count < MAX_QUEUED_COUNT:
            taken = take(self._blocker)
            if not self._blocker.timed_out:
                return taken
            self._blocker = None  # whatever it was would happen again, and cost the time limit again
            logger.warning(
                "Blocked for the full time limit, the stream ran on while samples were being enqueued: "
                "from here on samples are taken without blocking it, and launch overhead of short kernels is in them."
            )
        return take(None)

    def _take(self, work: SampleWork, count: int, blocker: StreamBlocker | None) -> TimedSamples:
        events = self._take_events(count)
        if self._clock is not None:
            self._clock.clear(count)
        with blocker.blocked() if blocker is not None else nullcontext():
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
        """Return cached events, made before the stream is blocked: creating one may make the host wait for the device."""
        while len(self._events) < count:
            self._events.append((self._driver.Event(), self._driver.Event()))
        return self._events[:count]

    def close(self) -> None:
        """Free the events and the stamp buffer."""
        self._events.clear()
        if self._clock is not None:
            self._clock.close()


def max_batch_count(launch_count: int) -> int:
    """Return how many samples fit behind a blocked stream; at least 1, for a sample too long for it is taken without blocking."""
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


# ---------------------------------------------------------------- device code
# The timing kernels are compiled once a process and loaded once a session.

SOURCE_FILE: Final = Path(__file__).parent / "device_code" / "measuring_program" / "timing_kernels.cuh"
HOLD, STAMP, STEP = FUNCTION_NAMES = ("kernalyse_hold_stream", "kernalyse_write_stamp", "kernalyse_measure_timer_step")
STEP_BYTES: Final = 8


@lru_cache(maxsize=4)
def _timing_cubin(compiler: NvccCompiler, architecture: str) -> bytes:
    return compiler.compile(timing_build(), architecture).code


def timing_build() -> Build:
    """Return the build of the timing header, named .cu because nvcc goes by the file name."""
    return Build(KernelSource(f"{SOURCE_FILE.stem}.cu", SOURCE_FILE.read_text(encoding="utf-8")), HOLD)


def open_timer(driver: Any, compiler: NvccCompiler, device: Device, stream: Any, flush: Callable[[], None]) -> SampleTimer:
    """Return a timer whose device code is loaded and has run once.

    Code that is loaded later would wait for the blocked stream, which waits for the host.

    Args:
        driver: of PyCUDA.
        flush: overwrites the L2 cache, on `stream`.

    Raises:
        CompileError, BackendUnavailableError: nvcc does not compile for this device, or is missing.
    """
    module = driver.module_from_buffer(_timing_cubin(compiler, nvcc_architecture(device)))

    def enqueue(name: str, block_count: int, *arguments: PackedArgument) -> None:
        launcher(functions[name], LaunchConfiguration(Dim3(1), Dim3(block_count)), pack_arguments(arguments), stream)()

    functions = {name: module.get_function(name) for name in FUNCTION_NAMES}
    flush()
    blocker = None
    if can_block_streams(os.environ):
        blocker = StreamBlocker(
            driver,
            lambda released, timed_out, limit_ns: enqueue(HOLD, 1, released, timed_out, np.uint64(limit_ns)),
        )
        blocker.warm_up()
    step_ns = _timer_step_ns(driver, stream, lambda address: enqueue(STEP, 1, address))
    clock = None
    if step_ns:
        clock = SampleClock(
            driver,
            stream,
            lambda stamp: enqueue(STAMP, device.compute_unit_count or 1, stamp),
            step_ns,
            max_batch_count(launch_count=1),
        )
        clock.clear(1)
        clock.stamp_before(0)
    stream.synchronize()
    return SampleTimer(driver, stream, flush, blocker, clock)


def _timer_step_ns(driver: Any, stream: Any, enqueue: Callable[[int], None]) -> int:
    """Return the resolution of the device's global timer in ns; 0 where it cannot be read."""
    step_ns, buffer = np.zeros(1, np.uint64), driver.mem_alloc(STEP_BYTES)
    enqueue(int(buffer))
    stream.synchronize()
    driver.memcpy_dtoh(step_ns, buffer)
    buffer.free()
    return int(step_ns[0])


# ---------------------------------------------------------------- blocked streams
# A stream that waits while samples are enqueued behind it, so that no launch overhead falls between their events.
#
# As NVBench's blocking kernel, with a time-out in the kernel itself: if the host waits for the stream before it has released it (a
# module loaded late, a tool that serializes launches), that costs the time-out and not the run.

MAX_QUEUED_COUNT: Final = 512
"""Operations behind a blocked stream. The driver's queue holds about 1024: a full one makes the host wait for the stream that
waits for the host. Fewer than some dozens would spend most of the time on blocking and releasing."""

TIME_LIMIT_NS: Final = 10_000_000_000  # enqueuing takes milliseconds; a shorter limit would strike on a host that swaps

RELEASED: Final = 0
TIMED_OUT: Final = 1


class StreamBlocker:
    """A kernel that blocks one stream until the host releases it.

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
        """Run the blocking kernel once without blocking, so that its code is loaded before it blocks the device."""
        self._flags[RELEASED] = 1
        self._launch()

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Block the stream, which must be idle, until the context ends."""
        self._flags[:] = 0
        with without_garbage_collector():  # what it frees on the device would wait for the stream that waits for the host
            try:
                self._launch()
                yield
            finally:
                self._flags[RELEASED] = 1

    @property
    def timed_out(self) -> bool:
        """Return whether the last block ended by its time limit; valid once the stream is idle."""
        return bool(self._flags[TIMED_OUT])

    def _launch(self) -> None:
        flag_bytes = self._flags.itemsize
        self._enqueue(self._address + RELEASED * flag_bytes, self._address + TIMED_OUT * flag_bytes, self._time_limit_ns)


# ---------------------------------------------------------------- clock stamps on the device
# The multiprocessors' clock during each sample: cycles of one of them over nanoseconds of the device's global timer.

STAMP_BYTES: Final = 16  # two 64-bit counters: cycles, then nanoseconds


class SampleClock:
    """Clock stamps of one batch of samples, in a device buffer.

    Args:
        driver: of PyCUDA.
        enqueue: puts kernalyse_write_stamp on the stream, with the address of a stamp.
        step_ns: of the global timer.
    """

    def __init__(self, driver: Any, stream: Any, enqueue: Callable[[int], None], step_ns: int, max_sample_count: int) -> None:
        self._driver = driver
        self._stream = stream
        self._enqueue = enqueue
        self._step_ns = step_ns
        self._buffer = driver.mem_alloc(2 * max_sample_count * STAMP_BYTES)

    def clear(self, sample_count: int) -> None:
        """Enqueue the clearing of the stamps of `sample_count` samples."""
        self._driver.memset_d32_async(self._buffer, 0, 2 * sample_count * STAMP_BYTES // 4, self._stream)

    def stamp_before(self, sample_index: int) -> None:
        """Enqueue the stamp at the start of a sample."""
        self._stamp(2 * sample_index)

    def stamp_after(self, sample_index: int) -> None:
        """Enqueue the stamp at the end of a sample."""
        self._stamp(2 * sample_index + 1)

    def _stamp(self, index: int) -> None:
        self._enqueue(int(self._buffer) + index * STAMP_BYTES)

    def read(self, sample_count: int) -> npt.NDArray[np.float64]:
        """Return the clocks of the samples since `clear`, once the stream is idle, shape (sample_count,)."""
        stamps = np.zeros((sample_count, 2, 2), np.uint64)
        self._driver.memcpy_dtoh(stamps, self._buffer)
        return sample_clocks(stamps, self._step_ns)

    def close(self) -> None:
        """Free the stamp buffer."""
        self._buffer.free()


# ---------------------------------------------------------------- clocks from stamps

MIN_STEP_COUNT: Final = 100
"""Steps of the device's timer between two stamps for a clock to be told. Each stamp is off by up to one step, so the clock is
by at most 2 %, a fraction of what throttling takes away. With more, a timer that steps once a microsecond would give short
kernels the mean clock of a whole batch."""


def sample_clocks(stamps: npt.NDArray[np.uint64], timer_step_ns: int) -> npt.NDArray[np.float64]:
    """Return the SM clock of each sample in Hz, shape (n,); NaN where the stamps do not give one.

    The time between a sample's own stamps is taken where it is long enough; else, step by step, its neighbours on both sides
    are taken in. So a clock is the mean over the shortest stretch around the sample that tells it.

    Args:
        stamps: of consecutive samples, shape (n, 2, 2): before and after each, cycles and nanoseconds; 0 where there is no stamp.
        timer_step_ns: of the device's timer; 0: it does not move.
    """
    count = stamps.shape[0]
    clocks_hz = np.full(count, np.nan)
    is_stamped = stamps.min(axis=2) > 0
    for step_count in range(count if timer_step_ns > 0 else 0):
        waiting = np.flatnonzero(np.isnan(clocks_hz))
        if not waiting.size:
            break
        first, last = np.maximum(waiting - step_count, 0), np.minimum(waiting + step_count, count - 1)
        cycles, elapsed_ns = (stamps[last, 1] - stamps[first, 0]).astype(np.int64).T
        is_known = is_stamped[first, 0] & is_stamped[last, 1] & (cycles > 0) & (elapsed_ns >= MIN_STEP_COUNT * timer_step_ns)
        clocks_hz[waiting[is_known]] = cycles[is_known] / elapsed_ns[is_known] * 1e9
    return clocks_hz


# ---------------------------------------------------------------- arguments and launches

PackedArgument = int | np.generic
"""A device address, or a scalar of the parameter's own type."""


def pack_arguments(arguments: Sequence[PackedArgument]) -> bytes:
    """Return a buffer laid out as a C struct of the parameters: each argument at the next multiple of its own size."""
    packed = bytearray()
    for argument in arguments:
        data = argument.to_bytes(8, "little") if isinstance(argument, int) else argument.tobytes()
        packed += bytes(-len(packed) % len(data)) + data
    return bytes(packed)


def launcher(function: Any, configuration: LaunchConfiguration, packed: bytes, stream: Any) -> Callable[[], None]:
    """Return a function that enqueues one launch; everything it needs is looked up beforehand.

    By the call on which PyCUDA's own launches end. These pack the arguments anew each time, know no 16-bit floats, and set
    the block in a further call that CUDA has deprecated: 5 us a launch instead of 1.

    Args:
        function, stream: of PyCUDA.
    """
    block, grid, shared_bytes = configuration.block, configuration.grid, configuration.dynamic_shared_memory_bytes
    launch, extents = function._launch_kernel, ((grid.x, grid.y, grid.z), (block.x, block.y, block.z))

    def enqueue() -> None:
        launch(*extents, packed, shared_bytes, stream)

    return enqueue
