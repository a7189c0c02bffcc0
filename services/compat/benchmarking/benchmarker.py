"""The benchmark itself: each kernel as one sweep of the profiler's engine, in the calling process."""

from __future__ import annotations

import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from services.compat.benchmarking.call_progress import CallProgress
from services.compat.benchmarking.collected_events import CollectedEvents
from services.compat.benchmarking.counters import count_launches
from services.compat.benchmarking.interruption import kept_when_ended
from services.compat.benchmarking.kernel_config import KernelConfig, load_kernel
from services.compat.benchmarking.notices import tell, tell_once
from services.compat.benchmarking.opened_device import OpenedDevice, open_device
from services.compat.benchmarking.parameter_ranges import ParameterRanges, Range
from services.compat.benchmarking.result_files import INTERRUPTED_FILE, REPORT_FILE, RESULTS_FILE, report_text, write_results
from services.compat.benchmarking.results import BenchmarkResult, result_of
from services.core.errors import InvalidParameterError, KernalyseError, NotBuiltYetError
from services.core.model import KernelSelection, KernelSweep, MeasuringOptions, StoppingCriterion
from services.profiler.catalog import Catalog
from services.profiler.workloads.sweep import run_sweep
from services.profiler.workloads.sweep_plan import SweepPlan, plan_sweep

DEFAULT_ITERATIONS: Final = 100
DEFAULT_ARCHITECTURE: Final = "sm_86"
MIN_ITERATIONS: Final = 2  # one sample has no spread, and the engine no interval for it
NO_CATALOG: Final = Catalog({}, {})  # every kernel brings its own source and definition
NO_TIME_LIMIT_NS: Final = sys.maxsize  # the number of iterations ends the sampling, however long one takes


class KernelBenchmarker:
    """Benchmarks kernels on one device, which is opened at the first benchmark.

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
        self._close: weakref.finalize[..., Any] | None = None

    def benchmark(
        self,
        kernels: Sequence[KernelConfig],
        *param_ranges: Range,
        iterations: int = DEFAULT_ITERATIONS,
        profile: bool | str = True,
        **keyword_ranges: Range,
    ) -> list[BenchmarkResult]:
        """Measures every kernel at every combination of parameters.

        A configuration that cannot be measured is left out, and a notice says why.

        Args:
            param_ranges: values of the kernels' integer parameters, in their order. A parameter without a range copies the
                last one given, value by value.
            iterations: samples of each configuration.
            profile: count with ncu too, where it is there. "nsys" and others are refused by name.
            keyword_ranges: values by parameter name.

        Raises:
            InvalidRequestError: an argument that cannot be used.
            BackendUnavailableError: no device.
            NotBuiltYetError: `profile` names a profiler that is not available here.
            KernalyseError: the first configuration's, when not a single one could be measured.
        """
        is_counted = _is_counted(profile)
        _check_kernels(kernels)
        ranges = ParameterRanges.read(param_ranges, keyword_ranges)
        ranges.check(kernels)
        sweeps = [_plan(kernel, ranges, _measuring(iterations)) for kernel in kernels]
        first, errors = len(self.results), list[KernalyseError]()
        progress = CallProgress(sum(sweep.plan.configuration_count for sweep in sweeps))
        with kept_when_ended(lambda: self._keep(len(self.results) - first, progress.total_count)):
            opened = self._device()
            for kernel, sweep in zip(kernels, sweeps, strict=True):
                if kernel.assumptions:
                    tell_once(f"{kernel.kernel_name} of {kernel.source_file}: {kernel.assumptions}.")
                try:
                    self._measure(sweep, opened, is_counted, progress)
                except KernalyseError as error:  # nothing of this kernel could be measured
                    errors.append(error)
                progress.end_kernel(sweep.plan.configuration_count)
        if errors and len(self.results) == first:
            raise errors[0]
        for failure in errors:
            tell(f"Not measured: {failure.message}")
        return self.results[first:]

    def save_results(self, file: str | Path = RESULTS_FILE) -> None:
        """Writes every result so far as JSON; what was not measured is null."""
        write_results(self.results, Path(file))

    def generate_report(self, file: str | Path = REPORT_FILE) -> None:
        """Writes every result so far as tables that people read."""
        Path(file).write_text(report_text(self.results), encoding="utf-8")

    def cleanup(self) -> None:
        """Gives the device back. Results stay; a further benchmark opens it again."""
        if self._close is not None:
            self._close()
        self._opened = self._close = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cleanup()

    def _keep(self, measured_count: int, total_count: int) -> str:
        """Write what there is, for a script that ends now; answers with what it did."""
        if not self.results:
            return "Nothing had been measured."
        self.save_results(self._interrupted_file)
        return f"{measured_count} of {total_count} configurations had been measured; all results so far are in {self._interrupted_file}."

    def _measure(self, planned: _PlannedSweep, opened: OpenedDevice, is_counted: bool, progress: CallProgress) -> None:
        """Adds to the results, also where the sweep ends early: what was measured until then is kept."""
        events, counters = CollectedEvents(call_progress=progress), dict[int, Mapping[str, float]]()
        try:
            with tempfile.TemporaryDirectory(prefix="kernalyse-benchmark-") as folder:
                run_sweep(planned.sweep, planned.plan, opened.session, events, Path(folder))
            if is_counted:
                counters.update(count_launches(planned.sweep, planned.plan, opened, events))
        finally:
            for notice in events.notices():
                tell(notice)
            self.results += [
                result_of(events.configurations[index], measurement, counters.get(index, {}), opened.session.device, opened.backend)
                for index, measurement in sorted(events.measurements.items())
            ]

    def _device(self) -> OpenedDevice:
        if self._opened is None:
            self._opened = open_device(self.use_pycuda, self.compute_capability)
            # Scripts end without cleanup; PyCUDA aborts a process that still has a context then.
            self._close = weakref.finalize(self, self._opened.session.close)
            for notice in self._opened.notices:
                tell_once(notice)
        return self._opened


def benchmark(
    kernels: Sequence[KernelConfig],
    *param_ranges: Range,
    iterations: int = DEFAULT_ITERATIONS,
    profile: bool | str = True,
    **keyword_ranges: Range,
) -> list[BenchmarkResult]:
    """As KernelBenchmarker().benchmark, with benchmark_results.json and benchmark_report.txt written to the working folder."""
    with KernelBenchmarker() as benchmarker:
        benchmarker._interrupted_file = RESULTS_FILE  # which is written in any case
        try:
            return benchmarker.benchmark(kernels, *param_ranges, iterations=iterations, profile=profile, **keyword_ranges)
        finally:  # also after Ctrl-C; but files of an earlier benchmark stay where nothing was measured
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
        found="a profiler that benchmarks cannot be run under here",
        expected='True or "ncu" for counters of Nsight Compute, False for times alone',
        remedy="A timeline is of a whole program: run your script under that profiler.",
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
        tell_once(f"iterations={iterations}: {MIN_ITERATIONS} samples are taken, for one has no spread.")
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
    """Of one kernel alone: ties and axes go by name, and another kernel may use the names otherwise."""
    axes, ties = ranges.of(kernel)
    selection = KernelSelection(kernel.kernel_name, kernel.source, kernel.definition)
    sweep = KernelSweep(kernels=(selection,), axes=axes, ties=ties, measuring=measuring, skip_confirmation=True)
    plan = plan_sweep(sweep, NO_CATALOG, sys.maxsize)
    return _PlannedSweep(sweep, replace(plan, kernels=tuple(replace(one, callables=kernel.callables) for one in plan.kernels)))
