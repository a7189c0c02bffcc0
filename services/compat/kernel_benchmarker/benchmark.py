"""KernelBenchmarker: benchmarks of kernels, with counters, on a device opened in the calling process."""

from __future__ import annotations

import re
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kernalyse.services.compat.kernel_benchmarker.checks import MeasuredKernel, device_ceilings, implausible_reason, with_compared_outputs
from kernalyse.services.compat.kernel_benchmarker.kernels import KernelConfig, ParameterRanges, Range, load_kernel
from kernalyse.services.compat.kernel_benchmarker.progress import LOGGER, CallProgress, log_notice, log_notice_once, save_on_interrupt
from kernalyse.services.compat.kernel_benchmarker.results import (
    INTERRUPTED_FILE,
    REPORT_FILE,
    RESULTS_FILE,
    BenchmarkResult,
    alarms,
    build_result,
    report_text,
    write_results,
)
from kernalyse.services.core.errors import (
    BackendUnavailableError,
    DeviceNotFoundError,
    InvalidParameterError,
    KernalyseError,
    NotBuiltYetError,
)
from kernalyse.services.core.model import (
    BackendName,
    Ceiling,
    Configuration,
    ConfigurationFailed,
    CountersStored,
    Device,
    EventPayload,
    KernelSelection,
    KernelSweep,
    LogLevel,
    LogLines,
    Measurement,
    MeasuringOptions,
    Progress,
    RunSpec,
    StoppingCriterion,
    VerificationState,
)
from kernalyse.services.core.protobuf import encode_bytes
from kernalyse.services.profiler.backends.base import Backend, DeviceSession
from kernalyse.services.profiler.backends.discovery import open_backend
from kernalyse.services.profiler.kernel_sources.catalog import Catalog
from kernalyse.services.profiler.workloads.counters import CounterCollector, CounterFiles, MeasurementRecorder, prepare_counting
from kernalyse.services.profiler.workloads.counters import count_launches as count_measured
from kernalyse.services.profiler.workloads.events import ARTIFACTS_DIRECTORY, EventSink
from kernalyse.services.profiler.workloads.sweeps.plan import SweepPlan, plan_sweep
from kernalyse.services.profiler.workloads.sweeps.run import run_sweep

# ---------------------------------------------------------------- benchmarker
# Each kernel is one sweep of the profiler's engine, in the calling process.

DEFAULT_ITERATIONS: Final = 100
DEFAULT_ARCHITECTURE: Final = "sm_86"
MIN_ITERATIONS: Final = 2  # one sample has no spread, and therefore no interval
NO_CATALOG: Final = Catalog({}, {})  # every kernel brings its own source and definition
NO_TIME_LIMIT_NS: Final = sys.maxsize  # the number of iterations ends the sampling, however long one takes


class KernelBenchmarker:
    """A benchmark of kernels on one device, which is opened by the first call of `benchmark`.

    Args:
        use_pycuda: run kernels through PyCUDA; False: as programs compiled by nvcc. Without an NVIDIA GPU both mean OpenCL.
        compute_capability: architecture to compile for. Kernels are compiled for the device they run on; a notice says so
            where it is another one.
    """

    load_kernel = staticmethod(load_kernel)

    def __init__(self, use_pycuda: bool = True, compute_capability: str = DEFAULT_ARCHITECTURE) -> None:
        self.use_pycuda = use_pycuda
        self.compute_capability = compute_capability
        self.results: list[BenchmarkResult] = []  # of every benchmark so far
        self._interrupted_file = INTERRUPTED_FILE
        self._opened: OpenedDevice | None = None
        self._ceilings: tuple[Ceiling, ...] | None = None  # of the device, once they were needed
        self._close: weakref.finalize[..., Any] | None = None

    def benchmark(
        self,
        kernels: Sequence[KernelConfig],
        *param_ranges: Range,
        iterations: int = DEFAULT_ITERATIONS,
        profile: bool | str = True,
        **keyword_ranges: Range,
    ) -> list[BenchmarkResult]:
        """Measure every kernel at every combination of parameters.

        A configuration that cannot be measured is left out, and a notice says why.

        Args:
            kernels: results of `load_kernel`.
            param_ranges: values of the kernels' integer parameters, in their order. A parameter without a range copies the
                last one given, value by value.
            iterations: samples of each configuration.
            profile: also read counters with ncu, if it is installed. Other names, such as "nsys", are rejected.
            keyword_ranges: values by parameter name.

        Raises:
            InvalidRequestError: an argument that cannot be used.
            BackendUnavailableError: no device.
            NotBuiltYetError: `profile` names a profiler that is not available here.
            KernalyseError: the error of the first configuration, if none could be measured.
        """
        is_counted = _is_counted(profile)
        _check_kernels(kernels)
        ranges = ParameterRanges.read(param_ranges, keyword_ranges)
        ranges.check(kernels)
        sweeps = [_plan(kernel, ranges, _measuring(iterations)) for kernel in kernels]
        first, errors = len(self.results), list[KernalyseError]()
        measured = list[MeasuredKernel]()
        progress = CallProgress(sum(sweep.plan.configuration_count for sweep in sweeps))
        with save_on_interrupt(lambda: self._keep(len(self.results) - first, progress.total_count)):
            opened = self._device()
            for kernel, sweep in zip(kernels, sweeps, strict=True):
                if kernel.assumptions:
                    log_notice_once(f"{kernel.kernel_name} of {kernel.source_file}: {kernel.assumptions}.")
                begin = len(self.results)
                try:
                    self._measure(sweep, opened, is_counted, progress)
                except KernalyseError as error:  # nothing of this kernel could be measured
                    errors.append(error)
                measured.append(MeasuredKernel(kernel, sweep.plan, self.results[begin:]))
                progress.end_kernel(sweep.plan.configuration_count)
            if not opened.session.is_lost:
                self.results[first:] = with_compared_outputs(measured, opened.session)
        if errors and len(self.results) == first:
            raise errors[0]
        for failure in errors:
            log_notice(f"Not measured: {failure.message}")
        for alarm in alarms(self.results[first:]):
            log_notice(alarm)
        return self.results[first:]

    def save_results(self, file: str | Path = RESULTS_FILE) -> None:
        """Write all results so far as JSON; what was not measured is null."""
        write_results(self.results, Path(file))

    def generate_report(self, file: str | Path = REPORT_FILE) -> None:
        """Write all results so far as text tables."""
        Path(file).write_text(report_text(self.results), encoding="utf-8")

    def cleanup(self) -> None:
        """Close the device. Results stay, and a further benchmark opens the device again."""
        if self._close is not None:
            self._close()
        self._opened = self._close = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cleanup()

    def _keep(self, measured_count: int, total_count: int) -> str:
        """Save the results of a script that is interrupted, and return a sentence about it."""
        if not self.results:
            return "Nothing had been measured."
        self.save_results(self._interrupted_file)
        return f"{measured_count} of {total_count} configurations had been measured; all results so far are in {self._interrupted_file}."

    def _measure(self, planned: _PlannedSweep, opened: OpenedDevice, is_counted: bool, progress: CallProgress) -> None:
        """Append to the results, also those measured before a sweep ends early."""
        events, counters = CollectedEvents(call_progress=progress), dict[int, Mapping[str, float]]()
        try:
            with tempfile.TemporaryDirectory(prefix="kernalyse-benchmark-") as directory:
                run_sweep(planned.sweep, planned.plan, opened.session, events, Path(directory))
            if is_counted:
                counters.update(count_launches(planned.sweep, planned.plan, opened, events))
        finally:
            for notice in events.notices():
                log_notice(notice)
            self.results += [
                build_result(
                    events.configurations[index],
                    measurement,
                    counters.get(index, {}),
                    opened.session.device,
                    opened.backend,
                    implausible_reason(events.configurations[index], measurement, self._ceilings_for(events.configurations[index], opened)),
                )
                for index, measurement in sorted(events.measurements.items())
            ]

    def _ceilings_for(self, configuration: Configuration, opened: OpenedDevice) -> tuple[Ceiling, ...]:
        """Return the device's ceilings, measured once, and only for a configuration whose rates can be compared with them."""
        if not (configuration.flop or configuration.bytes) or opened.session.is_lost:
            return ()
        if self._ceilings is None:
            self._ceilings = device_ceilings(opened.session)
        return self._ceilings

    def _device(self) -> OpenedDevice:
        if self._opened is None:
            self._opened = open_device(self.use_pycuda, self.compute_capability)
            # Scripts often end without cleanup, and PyCUDA aborts a process that still has a context at its end.
            self._close = weakref.finalize(self, self._opened.session.close)
            for notice in self._opened.notices:
                log_notice_once(notice)
        return self._opened


def benchmark(
    kernels: Sequence[KernelConfig],
    *param_ranges: Range,
    iterations: int = DEFAULT_ITERATIONS,
    profile: bool | str = True,
    **keyword_ranges: Range,
) -> list[BenchmarkResult]:
    """Run KernelBenchmarker().benchmark, and write benchmark_results.json and benchmark_report.txt to the working directory."""
    with KernelBenchmarker() as benchmarker:
        benchmarker._interrupted_file = RESULTS_FILE  # this file is written in any case
        try:
            return benchmarker.benchmark(kernels, *param_ranges, iterations=iterations, profile=profile, **keyword_ranges)
        finally:  # also after Ctrl-C; if nothing was measured, the files of an earlier benchmark stay
            if benchmarker.results:
                benchmarker.save_results()
                benchmarker.generate_report()


def _is_counted(profile: bool | str) -> bool:
    if isinstance(profile, bool):
        return profile
    if profile == "ncu":
        return True
    raise NotBuiltYetError(
        f"profile={profile!r}",
        found="a profiler that cannot be used for benchmarks here",
        expected='True or "ncu" for counters of Nsight Compute, False for times alone',
        remedy="A timeline covers an entire program: run your script under that profiler.",
    )


def _check_kernels(kernels: Any) -> None:
    if not isinstance(kernels, Sequence) or not kernels or not all(isinstance(kernel, KernelConfig) for kernel in kernels):
        raise InvalidParameterError(
            "kernels", found=repr(kernels)[:80], expected="a list of what load_kernel returns", remedy="Write benchmark([kernel], …)."
        )


def _measuring(iterations: int) -> MeasuringOptions:
    if iterations < 1:
        raise InvalidParameterError("iterations", found=str(iterations), expected="at least 2", remedy="Choose a larger number.")
    if iterations < MIN_ITERATIONS:
        log_notice_once(f"iterations={iterations}: {MIN_ITERATIONS} samples are taken, for one has no spread.")
    count = max(iterations, MIN_ITERATIONS)
    return MeasuringOptions(
        stopping_criterion=StoppingCriterion.SAMPLE_COUNT,
        min_sample_count=count,
        max_sample_count=count,
        min_duration_ns=0,
        max_duration_ns=NO_TIME_LIMIT_NS,
    )


@dataclass(frozen=True, slots=True)
class _PlannedSweep:
    sweep: KernelSweep
    plan: SweepPlan


def _plan(kernel: KernelConfig, ranges: ParameterRanges, measuring: MeasuringOptions) -> _PlannedSweep:
    """Return the sweep of one kernel: ties and axes go by parameter name, which may mean something else in another kernel."""
    axes, ties = ranges.of(kernel)
    selection = KernelSelection(kernel.kernel_name, kernel.source, kernel.definition)
    sweep = KernelSweep(kernels=(selection,), axes=axes, ties=ties, measuring=measuring, skip_confirmation=True)
    plan = plan_sweep(sweep, NO_CATALOG, sys.maxsize)
    return _PlannedSweep(sweep, replace(plan, kernels=tuple(replace(one, callables=kernel.callables) for one in plan.kernels)))


# ---------------------------------------------------------------- collected events

REPORTED_LEVELS: Final = (LogLevel.WARNING, LogLevel.ERROR)


@dataclass(slots=True)
class CollectedEvents:
    """An event sink in memory; single samples and artifacts are discarded."""

    configurations: dict[int, Configuration] = field(default_factory=dict)
    measurements: dict[int, Measurement] = field(default_factory=dict)
    failures: list[ConfigurationFailed] = field(default_factory=list)
    call_progress: CallProgress | None = None

    def write(self, payload: EventPayload) -> None:
        """Store an event, or report it to the user."""
        if self.call_progress is not None:
            self.call_progress.tick()
        match payload:
            case Configuration():
                self.configurations[payload.configuration_index] = payload
            case Measurement():
                self.measurements[payload.configuration_index] = payload
            case ConfigurationFailed():
                self.failures.append(payload)
            case LogLines(level=level) if level in REPORTED_LEVELS:
                log_notice_once(f"{payload.source}: " + "\n".join(payload.lines))
            case Progress(activity=activity):
                if self.call_progress is not None:
                    self.call_progress.update(payload.completed_configuration_count, activity)
                if activity:
                    LOGGER.info("%d of %d: %s", payload.completed_configuration_count + 1, payload.total_configuration_count, activity)
            case _:
                pass

    def notices(self) -> list[str]:
        """Return what went wrong with single configurations; if none was measured, the sweep's own error says it."""
        return [*self._failures(), *self._wrong_results()] if self.measurements else []

    def _failures(self) -> list[str]:
        """Return one sentence for each message: the first configuration that had it, and how many more."""
        indexes_by_message: dict[str, list[int]] = {}
        for failure in self.failures:
            indexes_by_message.setdefault(failure.error.message, []).append(failure.configuration_index)
        return [
            f"Not measured: {self._label(indexes[0])}{f' and {len(indexes) - 1} more' if len(indexes) > 1 else ''}: {message}"
            for message, indexes in indexes_by_message.items()
        ]

    def _wrong_results(self) -> list[str]:
        return [
            f"WRONG RESULTS: {self._label(index)}: {measurement.verification.message}"
            for index, measurement in self.measurements.items()
            if measurement.verification.state is VerificationState.FAILED
        ]

    def _label(self, index: int) -> str:
        """Return the configuration's label; one whose launch could not be computed has none."""
        return self.configurations[index].label if index in self.configurations else f"configuration {index}"


# ---------------------------------------------------------------- device
# The device is opened in this process; notices report where it differs from the request.

PREFERRED_BACKENDS: Final = {
    True: (BackendName.PYCUDA, BackendName.NVCC, BackendName.OPENCL),
    False: (BackendName.NVCC, BackendName.OPENCL),
}
"""Backends by use_pycuda, in the order in which they are tried."""

SHOWN: Final = {
    BackendName.PYCUDA: "PyCUDA",
    BackendName.NVCC: "programs that nvcc compiles",
    BackendName.OPENCL: "OpenCL",
}
ARCHITECTURE: Final = re.compile(r"sm_(\d+)(\d)[a-z]?")


@dataclass(frozen=True, slots=True)
class OpenedDevice:
    """An open device, its backend, and notices for the user."""

    backend: BackendName
    session: DeviceSession
    notices: tuple[str, ...]


def open_device(use_pycuda: bool, compute_capability: str) -> OpenedDevice:
    """Open the first device of the first backend that has one.

    Raises:
        BackendUnavailableError: there is none; gives the reason for each backend.
        InvalidParameterError: compute_capability is no architecture of NVIDIA's.
    """
    if not ARCHITECTURE.fullmatch(compute_capability):
        raise InvalidParameterError(
            "compute_capability", found=compute_capability, expected="an architecture such as sm_86", remedy="Correct it."
        )
    backend, problems = _first_with_device(PREFERRED_BACKENDS[use_pycuda])
    session = backend.open()
    notices = [*_backend_notice(backend.name, session.device, use_pycuda, problems)]
    notices += _architecture_notice(backend.name, session.device, compute_capability)
    return OpenedDevice(backend.name, session, tuple(notices))


def _first_with_device(names: tuple[BackendName, ...]) -> tuple[Backend, list[str]]:
    problems: list[str] = []
    for name in names:
        try:
            backend = open_backend(name)
            if backend.devices():
                return backend, problems
        except (BackendUnavailableError, DeviceNotFoundError) as error:
            problems.append(error.message)
        else:
            problems.append(f"Backend {name.value}: no device.")
    raise BackendUnavailableError(
        "this machine", found="no device that kernels can run on", remedy=" ".join(problems) or "`kernalyse doctor` says what it needs."
    )


def _backend_notice(backend: BackendName, device: Device, use_pycuda: bool, problems: list[str]) -> list[str]:
    """Return a notice if the backend is not the preferred one."""
    preferred = PREFERRED_BACKENDS[use_pycuda][0]
    if backend is preferred:
        return []
    return [f"use_pycuda={use_pycuda}: kernels run through {SHOWN[backend]} on {device.name}, because: {' '.join(problems)}"]


def _architecture_notice(backend: BackendName, device: Device, compute_capability: str) -> list[str]:
    """Return a notice if another architecture was requested than the device's, for which kernels are always compiled."""
    if device.compute_capability is None:
        own = f"{device.name} by its {SHOWN[backend]} runtime"
    elif compute_capability == architecture_name(device.compute_capability):
        return []
    else:
        own = f"{architecture_name(device.compute_capability)}, the architecture of {device.name}"
    return [f"compute_capability={compute_capability}: kernels are compiled for {own}."]


def architecture_name(compute_capability: str) -> str:
    """Return the compiler's name of an architecture: "sm_90" for "9.0"."""
    return f"sm_{compute_capability.replace('.', '')}"


# ---------------------------------------------------------------- counters
# Hardware counters need a second execution of the launches, under ncu.


@dataclass(slots=True)
class _Reports:
    """An event sink that stores reports and forwards everything else."""

    events: EventSink
    stored: list[CountersStored] = field(default_factory=list)

    def write(self, payload: EventPayload) -> None:
        if isinstance(payload, CountersStored):
            self.stored.append(payload)
        else:
            self.events.write(payload)


def count_launches(sweep: KernelSweep, plan: SweepPlan, opened: OpenedDevice, events: CollectedEvents) -> Mapping[int, Mapping[str, float]]:
    """Run the launches of a sweep again under ncu, and return counters by configuration index and ncu's own names.

    The result is empty if nothing was counted; a notice says why.

    Args:
        sweep: the sweep that was measured.
        plan: of the sweep.
        opened: the device.
        events: of the sweep, with its measurements; receives the events of this execution.
    """
    counting = open_counting(opened.session.device, events)
    if counting is None:
        return {}
    sweep = replace(sweep, backend=opened.backend, device_id=opened.session.device.device_id)
    reports = _Reports(events)
    measured = MeasurementRecorder(reports)
    for measurement in events.measurements.values():
        measured.indexes.setdefault(measurement.cache_mode, []).append(measurement.configuration_index)
    with tempfile.TemporaryDirectory(prefix="kernalyse-counters-") as directory:
        spec_file = Path(directory) / "spec"
        spec_file.write_bytes(encode_bytes(RunSpec(sweep)))
        count_measured(counting, plan, measured, CounterFiles(spec_file, Path(directory)))
        counted: dict[int, Mapping[str, float]] = {}
        for stored in reports.stored:
            counted.update(_read(stored, (Path(directory) / ARTIFACTS_DIRECTORY / stored.artifact_name).read_bytes()))
    return counted


def open_counting(device: Device, events: EventSink) -> CounterCollector | None:
    """Return how to count on this device, or None after a notice that says why it is not possible."""
    if device.compute_capability is None:
        log_notice_once(f"profile: Nsight Compute reads no counters of {device.name}; throughput, occupancy and SM efficiency are NaN.")
        return None
    return prepare_counting(device, events)


def _read(stored: CountersStored, data: bytes) -> dict[int, Mapping[str, float]]:
    """Return the counters of each configuration in the report."""
    try:
        from kernalyse.services.analyzer.readers.ncu.csv_report import read_ncu_report
        from kernalyse.services.analyzer.readers.ncu.run_counters import match_configurations
    except ModuleNotFoundError as error:
        log_notice_once(f"profile: reading the report of ncu needs the Python module {error.name}: pip install 'kernalyse[analyzer]'.")
        return {}
    try:
        report = read_ncu_report(data)
    except KernalyseError as error:  # the times remain valid without the counters
        log_notice(f"profile: {error.message}")
        return {}
    indexes, problems = match_configurations(report.launches["kernel_name"].to_list(), stored)
    for problem in (*problems, *report.notes):
        log_notice(f"profile: {problem}")
    counted: dict[int, dict[str, float]] = {}
    for launch_index, metric_name, value in report.counters.select("launch_index", "metric_name", "value").iter_rows():
        configuration_index = indexes[launch_index]
        if configuration_index is not None and value is not None:
            counted.setdefault(configuration_index, {})[metric_name] = value
    return dict(counted)
