"""What all measurements of one model run share, and how they are told."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from services.core.model import (
    Configuration,
    KernelResources,
    Measurement,
    MeasuringOptions,
    Progress,
    SampleBatch,
    StopReason,
    Verification,
)
from services.core.statistics import SampleSummary
from services.profiler.backends.passes import PassSession
from services.profiler.measuring.benchmark import Method
from services.profiler.measuring.busy import Neighbours
from services.profiler.measuring.clocks import ClockMeter, ClockReading
from services.profiler.workloads.events import EventSink


@dataclass(frozen=True, slots=True)
class PassBench:
    session: PassSession
    sink: EventSink
    clock_meter: ClockMeter
    neighbours: Neighbours
    method: Method
    options: MeasuringOptions


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the samples of one configuration come to."""

    summary: SampleSummary
    discarded_count: int
    stop_reason: StopReason
    clocks: ClockReading
    measured_unix_ns: int
    elapsed_ns: int
    compile_ns: int = 0
    compiler_options: str = ""
    resources: KernelResources | None = None
    is_blocked: bool = False


def tell_samples(
    bench: PassBench,
    configuration: Configuration,
    first_sample_index: int,
    durations_ns: npt.NDArray[np.float64],
    measured_unix_ns: int,
    discarded_positions: tuple[int, ...] = (),
    sm_clock_hz: npt.NDArray[np.float64] | None = None,
) -> None:
    """durations_ns: consecutive samples, shape (n,)."""
    bench.sink.write(
        SampleBatch(
            configuration_index=configuration.configuration_index,
            first_sample_index=first_sample_index,
            duration_ns=tuple(durations_ns.tolist()),
            measured_unix_ns=measured_unix_ns,
            sm_clock_hz=() if sm_clock_hz is None else tuple(np.nan_to_num(sm_clock_hz).astype(np.int64).tolist()),
            discarded_positions=discarded_positions,
        )
    )


def tell_measurement(bench: PassBench, configuration: Configuration, sampled: Sampled, verification: Verification) -> None:
    device, use = bench.session.device, bench.neighbours.read()
    bench.sink.write(
        Measurement(
            configuration_index=configuration.configuration_index,
            **asdict(sampled.summary),
            discarded_sample_count=sampled.discarded_count,
            warm_up_count=bench.method.warm_up_count,
            stop_reason=sampled.stop_reason,
            cache_mode=bench.method.cache_mode,
            verification=verification,
            measured_unix_ns=sampled.measured_unix_ns,
            elapsed_ns=sampled.elapsed_ns,
            compile_ns=sampled.compile_ns,
            input_distribution="normal",
            seed=bench.options.seed,
            compiler_options=sampled.compiler_options,
            driver_version=device.driver_version,
            toolkit_version=device.toolkit_version,
            device_uuid=device.uuid,
            is_blocked=sampled.is_blocked,
            stopping_criterion=bench.method.rule.criterion,
            resources=sampled.resources,
            other_process_count=use.other_process_count,
            host_busy_ratio=use.host_busy_ratio,
            **asdict(sampled.clocks),
        )
    )


class PassProgress:
    """Counts configurations that are done, and tells it."""

    def __init__(self, sink: EventSink, total_count: int, device_id: str | None = None) -> None:
        self._sink = sink
        self.total_count = total_count
        self._device_id = device_id
        self._completed_count = 0

    def tell(self, activity: str) -> None:
        self._sink.write(Progress(self._completed_count, 0, self.total_count, activity, self._device_id))

    def complete(self, count: int) -> None:
        self._completed_count += count
        self.tell("")
