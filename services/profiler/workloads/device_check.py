"""The check of a device: a short set of measurements in blocks, each block with everything once.

The work of each measurement is fixed, so that durations of equal devices can be compared; ceilings, which look for the highest rate, are
measured elsewhere (measuring/ceilings.py), with the same kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from kernalyse.services.core.device_health import COPY, DEVICE_TO_HOST, HOST_TO_DEVICE, MULTIPLY_ADD, SMALL_LAUNCHES, TENSOR_CORES
from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import (
    CacheMode,
    Configuration,
    DataType,
    DeviceKind,
    Dim3,
    LogLevel,
    LogLines,
    MeasuringOptions,
    ParameterValue,
    StoppingCriterion,
    StopReason,
    TimingMethod,
    Verification,
    VerificationState,
)
from kernalyse.services.profiler.backends.base import DeviceSession, HostCopySession, PreparedLaunch, TimedSamples, Timing
from kernalyse.services.profiler.measuring.benchmark import Method, Recorder
from kernalyse.services.profiler.measuring.ceiling_bench import BLOCK_THREAD_COUNT, SINGLE_HOT, CeilingContext, CeilingSources
from kernalyse.services.profiler.measuring.ceilings import (
    BLOCKS_PER_COMPUTE_UNIT,
    FLOAT_BYTES,
    FLOP_PER_ROUND,
    STREAM_VARIANTS,
    WIDE_STREAM_VARIANTS,
    FmaPlan,
    TensorPlan,
    check_product,
    fma_plans,
    random_operands,
    tensor_plans,
)
from kernalyse.services.profiler.measuring.device_state import open_clock_meter, open_use_meter
from kernalyse.services.profiler.workloads.events import EventSink, ProgressReporter

COPY_BYTES: Final = 2**28  # of an array: several times any L2, and within the memory of any device
HOST_COPY_BYTES: Final = 2**26  # takes milliseconds over PCIe, long beside the call
MULTIPLY_ADD_ROUNDS: Final = 4_096  # about a millisecond on large GPUs, ten on CPUs
TENSOR_ROUNDS: Final = 2_048  # about a millisecond
SMALL_LAUNCH_COUNT: Final = 256  # launches of one sample

BLOCK_NS: Final = 100_000_000
"""Time of a measurement within a block. In a tenth of it a neighbour's burst would decide; with ten times as much a check of ten blocks
would keep a device for minutes."""

MAX_BLOCK_SAMPLES: Final = 1_000


@dataclass(frozen=True, slots=True)
class CheckedWork:
    """One measurement of the check.

    Args:
        name: one of core.device_health.
        take: takes this many samples of the work.
        configuration: that its rows tell of; its index is given later.
        timing: how a sample is taken.
    """

    name: str
    take: Callable[[int], TimedSamples]
    configuration: Configuration
    timing: Timing = SINGLE_HOT


def run_check(session: DeviceSession, sources: CeilingSources, block_count: int, sink: EventSink) -> None:
    """Measure everything once in each block, and report a measurement of each: a sample is the median of a block.

    What the device lacks is left out, with a line that says so.

    Raises:
        KernalyseError: nothing could be measured; the first reason.
    """
    bench = CeilingContext(session, sources, open_clock_meter(session.device))
    use_meter = open_use_meter(session.device)
    with ExitStack() as stack:
        works, problems = _works(bench, stack)
        if problems:
            sink.write(LogLines(LogLevel.WARNING, "worker", tuple(f"Not checked: {problem.message}" for problem in problems)))
        if not works:
            raise problems[0]
        options = MeasuringOptions(
            cache_mode=CacheMode.HOT,
            stopping_criterion=StoppingCriterion.SAMPLE_COUNT,
            min_sample_count=block_count,
            max_sample_count=block_count,
        )
        method = Method.of(options, session.device)
        progress = ProgressReporter(sink, len(works), session.device.device_id)
        for index, work in enumerate(works):
            sink.write(replace(work.configuration, configuration_index=index))
        recorders = [Recorder(method.rule) for _ in works]
        counts = [_sample_count(work) for work in works]
        for block in range(block_count):
            progress.report(f"block {block + 1} of {block_count}")
            for index, (work, recorder, count) in enumerate(zip(works, recorders, counts, strict=True)):
                start_ns = time.perf_counter_ns()
                batch = recorder.record(_as_one(work.take(count)), bench.clock_meter.read())
                recorder.criterion.keep(batch.counted_ns)
                recorder.elapsed_ns += time.perf_counter_ns() - start_ns
                sink.write(batch.event(index))
        use = use_meter.read()
        for index, (work, recorder) in enumerate(zip(works, recorders, strict=True)):
            if recorder.criterion.sample_count < 2:
                recorder.check_clock(work.name)
            unchecked = Verification(VerificationState.NO_REFERENCE)
            result = recorder.result(StopReason.SAMPLE_LIMIT, unchecked, work.timing)
            sink.write(result.measurement(index, method, session.device, use))
            progress.complete()


def _works(bench: CeilingContext, stack: ExitStack) -> tuple[list[CheckedWork], list[KernalyseError]]:
    """Return what can be measured on the device, in the order of a block, and why the rest cannot."""
    makers = (_copy, _host_to_device, _device_to_host, _small_launches, _multiply_adds, _tensor_cores)
    works, problems = [], []
    for make in makers:
        try:
            work = make(bench, stack)
        except KernalyseError as error:
            problems.append(error)
        else:
            works += [] if work is None else [work]
    return works, problems


def _sample_count(work: CheckedWork) -> int:
    """Return how many samples fill the time of a measurement within a block, after a first one that warms up."""
    work.take(1)
    start_ns = time.perf_counter_ns()
    work.take(1)
    return max(1, min(MAX_BLOCK_SAMPLES, BLOCK_NS // max(1, time.perf_counter_ns() - start_ns)))


def _as_one(samples: TimedSamples) -> TimedSamples:
    """Return the samples of a block as one, their median."""
    clocks = samples.sm_clock_hz
    mean = None if clocks is None or not np.isfinite(clocks).any() else np.array([np.nanmean(clocks)])
    return TimedSamples(np.array([np.median(samples.duration_ns)]), mean, samples.is_blocked)


# ---------------------------------------------------------------- measurements


def _copy(bench: CeilingContext, stack: ExitStack) -> CheckedWork:
    variant = STREAM_VARIANTS[0] if bench.device.kind is DeviceKind.CPU else WIDE_STREAM_VARIANTS[1]
    element_count = COPY_BYTES // variant.element_bytes
    arrays = stack.enter_context(bench.buffers(COPY_BYTES, COPY_BYTES))
    block_count = element_count // variant.elements_per_thread // BLOCK_THREAD_COUNT
    # Memory that was never written is one shared page of zeros on hosts, which reads far too quickly.
    bench.session.upload(arrays[0], np.ones(COPY_BYTES // FLOAT_BYTES, np.float32))
    launch = bench.prepare(variant, [*arrays, np.int32(element_count)], block_count)
    return _launched(bench, COPY, launch, block_count, moved_bytes=2.0 * COPY_BYTES)


def _small_launches(bench: CeilingContext, stack: ExitStack) -> CheckedWork:
    """One block each: what a launch costs, with next to nothing in it."""
    arrays = stack.enter_context(bench.buffers(*[BLOCK_THREAD_COUNT * FLOAT_BYTES] * 2))
    launch = bench.prepare(STREAM_VARIANTS[0], [*arrays, np.int32(BLOCK_THREAD_COUNT)], 1)
    timing = SINGLE_HOT
    if TimingMethod.BATCHED in bench.session.timing_methods:
        timing = Timing(TimingMethod.BATCHED, CacheMode.HOT, SMALL_LAUNCH_COUNT)
    return _launched(bench, SMALL_LAUNCHES, launch, 1, timing=timing)


def _multiply_adds(bench: CeilingContext, stack: ExitStack) -> CheckedWork:
    plan = next(plan for plan in fma_plans(bench.device) if isinstance(plan, FmaPlan) and plan.ceiling_name == DataType.FLOAT32)
    block_count = BLOCKS_PER_COMPUTE_UNIT * bench.unit_count()
    thread_count = block_count * BLOCK_THREAD_COUNT
    (results,) = stack.enter_context(bench.buffers(thread_count * FLOAT_BYTES))
    launch = bench.prepare(plan.variants[0], [results, np.int32(MULTIPLY_ADD_ROUNDS)], block_count)
    return _launched(bench, MULTIPLY_ADD, launch, block_count, flop=float(FLOP_PER_ROUND) * MULTIPLY_ADD_ROUNDS * thread_count, path="fma")


def _tensor_cores(bench: CeilingContext, stack: ExitStack) -> CheckedWork | None:
    """None: the device has none that are known."""
    plans = [plan for plan in tensor_plans(bench.device) if isinstance(plan, TensorPlan) and plan.ceiling_name == DataType.FLOAT16]
    if not plans:
        return None
    variant = plans[0].variants[-1]  # the newest instructions of the device's generation
    block_count = variant.blocks_per_compute_unit * bench.unit_count()
    tile_count = block_count * (variant.block_thread_count // variant.tile_thread_count)
    stored, values = random_operands(variant)
    results_bytes = tile_count * variant.rows * variant.columns * variant.sum_type.itemsize
    operands, results = stack.enter_context(bench.buffers(stored.nbytes, results_bytes))
    bench.session.upload(operands, stored)

    def prepare(rounds: int) -> PreparedLaunch:
        return bench.prepare(variant, [operands, results, np.int32(rounds)], block_count, variant.block_thread_count)

    bench.session.run(prepare(1))
    product = np.empty((variant.rows, variant.columns), variant.sum_type)
    bench.session.download(results, product)
    check_product(variant, product, values)  # wrong products are a fault of the device too
    flop = float(variant.flop_per_round) * TENSOR_ROUNDS * tile_count
    return _launched(bench, TENSOR_CORES, prepare(TENSOR_ROUNDS), block_count, flop=flop, path="tensor", dtype=DataType.FLOAT16)


def _launched(
    bench: CeilingContext,
    name: str,
    launch: PreparedLaunch,
    block_count: int,
    *,
    flop: float | None = None,
    moved_bytes: float | None = None,
    path: str = "",
    dtype: DataType = DataType.FLOAT32,
    timing: Timing = SINGLE_HOT,
) -> CheckedWork:
    configuration = _configuration(name, block_count, flop, moved_bytes, path=path, dtype=dtype)
    return CheckedWork(name, lambda count: bench.session.time(launch, timing, count), configuration, timing)


def _configuration(
    name: str,
    block_count: int = 1,
    flop: float | None = None,
    moved_bytes: float | None = None,
    parameters: Sequence[ParameterValue] = (),
    path: str = "",
    dtype: DataType = DataType.FLOAT32,
) -> Configuration:
    block = Dim3(BLOCK_THREAD_COUNT if not parameters else 1)
    return Configuration(
        0, name, tuple(parameters), block, Dim3(block_count), 0, "other", dtype, flop, moved_bytes, cache_mode=CacheMode.HOT, path=path
    )


def _host_to_device(bench: CeilingContext, stack: ExitStack) -> CheckedWork | None:
    return _host_copy(bench, stack, HOST_TO_DEVICE)


def _device_to_host(bench: CeilingContext, stack: ExitStack) -> CheckedWork | None:
    return _host_copy(bench, stack, DEVICE_TO_HOST)


def _host_copy(bench: CeilingContext, stack: ExitStack, name: str) -> CheckedWork | None:
    """By the clock of the host around copies that wait. None: the backend's copies pass through files."""
    session = bench.session
    if not isinstance(session, HostCopySession):
        return None
    (array,) = stack.enter_context(bench.buffers(HOST_COPY_BYTES))
    values = session.host_array(HOST_COPY_BYTES)
    values[:] = 1  # so that its pages exist
    session.upload(array, values)
    copy = session.upload if name == HOST_TO_DEVICE else session.download

    def take(count: int) -> TimedSamples:
        durations_ns: npt.NDArray[np.float64] = np.empty(count)
        for place in range(count):
            start_ns = time.perf_counter_ns()
            copy(array, values)
            durations_ns[place] = time.perf_counter_ns() - start_ns
        return TimedSamples(durations_ns)

    return CheckedWork(name, take, _configuration(name, parameters=(ParameterValue("bytes", HOST_COPY_BYTES),)))
