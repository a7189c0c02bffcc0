"""Runs a sweep: one configuration after the other, each measured or failed for a reason of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from services.core.errors import InvalidParameterError, KernalyseError, MemoryLimitError
from services.core.model import (
    CacheMode,
    ConfigurationFailed,
    Dim3,
    KernelSource,
    KernelSweep,
    LogLevel,
    LogLines,
    Measurement,
    Progress,
    SampleBatch,
    Verification,
)
from services.profiler.backends.base import CompiledKernel, DeviceBuffer, DeviceSession, PreparedLaunch, check_launch
from services.profiler.backends.kernel_source import parse_kernel_source
from services.profiler.measuring.arguments import bind_arguments
from services.profiler.measuring.benchmark import Batch, Benchmark, BenchmarkResult, Method, Observer
from services.profiler.measuring.clocks import open_clock_meter
from services.profiler.measuring.device_buffers import DeviceBuffers
from services.profiler.measuring.inputs import INPUT_DISTRIBUTION, Array, BufferPlan, check_fits, poison_values, random_values
from services.profiler.measuring.references import compute_reference
from services.profiler.measuring.verification import NO_REFERENCE, SWITCHED_OFF, ReferenceResults, compare
from services.profiler.workloads.events import EventSink, run_error, store_artifact
from services.profiler.workloads.launch_plan import LaunchPlan, check_requirement, plan_launch
from services.profiler.workloads.sweep_plan import PlannedConfiguration, SweepPlan


def run_sweep(sweep: KernelSweep, plan: SweepPlan, session: DeviceSession, sink: EventSink, folder: Path) -> None:
    """Measures every configuration of `plan` on an open session and writes what happens to `sink`.

    A configuration that cannot be measured is told as ConfigurationFailed, and the sweep goes on.

    Raises:
        KernalyseError: the first configuration's, when not a single one could be measured.
    """
    SweepRun(sweep, plan, session, sink, folder).run()


class SweepRun:
    """A sweep under way."""

    def __init__(self, sweep: KernelSweep, plan: SweepPlan, session: DeviceSession, sink: EventSink, folder: Path) -> None:
        self._options = sweep.measuring
        self._plan = plan
        self._session = session
        self._sink = sink
        self._folder = folder
        self._method = Method.of(sweep.measuring, session.device)
        self._clock_meter = open_clock_meter(session.device)
        self._buffers = DeviceBuffers(session)
        self._references = ReferenceResults()
        self._refusals: dict[tuple[KernelSource, str, Dim3], KernalyseError] = {}
        self._told: set[tuple[str, str]] = set()  # compiler logs and generated sources that were written already
        self._completed_count = 0
        self._failed_count = 0

    def run(self) -> None:
        first_error: KernalyseError | None = None
        for planned in self._plan.configurations():
            try:
                self._measure(planned)
            except KernalyseError as error:
                first_error = first_error or error
                self._sink.write(ConfigurationFailed(planned.configuration_index, run_error(error)))
                self._failed_count += 1
            self._completed_count += 1
            self._tell_progress("")
        self._buffers.release()
        if first_error is not None and self._failed_count == self._plan.configuration_count:
            raise first_error

    def _measure(self, planned: PlannedConfiguration) -> None:
        start_ns = time.perf_counter_ns()
        plan = plan_launch(planned)
        self._sink.write(plan.configuration)
        check_requirement(plan)
        check_launch(self._session.device, plan.definition.kernel_name, plan.launch)
        buffer_plans = plan.buffers()
        check_fits(buffer_plans, self._session.device)
        self._tell_progress(f"compiling {plan.configuration.label}")
        kernel = self._compile(planned)
        try:
            buffers, inputs = self._fill_buffers(buffer_plans)
            launch = self._prepare(plan, kernel, buffers)
            benchmark = Benchmark(self._session, launch, self._method, self._clock_meter, self._observer(plan))
            result = benchmark.run(lambda: self._verify(plan, launch, buffer_plans, buffers, inputs))
        except MemoryError as error:
            raise _host_memory_error(buffer_plans) from error
        self._sink.write(self._measurement(plan, kernel, result, time.perf_counter_ns() - start_ns))

    # ------------------------------------------------------------ steps of one configuration

    def _compile(self, planned: PlannedConfiguration) -> CompiledKernel:
        kernel = planned.kernel
        key = (kernel.source, kernel.definition.function, planned.block)
        if key in self._refusals:  # a kernel that does not compile costs its compiler's time once
            raise self._refusals[key]
        try:
            compiled = self._session.compile(*key)
        except KernalyseError as error:
            self._refusals[key] = error
            raise
        self._keep_compiler_output(compiled, planned.block)
        return compiled

    def _keep_compiler_output(self, compiled: CompiledKernel, block: Dim3) -> None:
        log, generated = compiled.compiler_log.strip(), compiled.generated_source
        if log and ("log", log) not in self._told:
            self._told.add(("log", log))
            self._sink.write(LogLines(LogLevel.WARNING, "compiler", tuple(log.splitlines())))
        if generated is not None and ("source", generated) not in self._told:
            is_first = not any(kind == compiled.function_name for kind, _ in self._told)
            self._told |= {("source", generated), (compiled.function_name, generated)}
            artifact_name = f"{compiled.function_name}.cl" if is_first else f"{compiled.function_name}.{block}.cl"
            self._sink.write(store_artifact(self._folder, artifact_name, generated.encode()))

    def _fill_buffers(self, plans: tuple[BufferPlan, ...]) -> tuple[dict[str, DeviceBuffer], dict[str, Array]]:
        """Device buffers with their first contents, and on the host those that the kernel reads; both by name."""
        buffers = self._buffers.take(plans)
        inputs = {plan.name: random_values(plan, self._options.seed) for plan in plans if plan.is_read}
        for plan in plans:
            self._session.upload(buffers[plan.name], inputs[plan.name] if plan.is_read else poison_values(plan))
        return buffers, inputs

    def _prepare(self, plan: LaunchPlan, kernel: CompiledKernel, buffers: Mapping[str, DeviceBuffer]) -> PreparedLaunch:
        function = parse_kernel_source(plan.planned.kernel.source).kernel(plan.definition.function)
        arguments = bind_arguments(plan.definition.kernel_name, function.parameters, buffers, plan.scalars)
        return self._session.prepare(kernel, arguments, plan.launch)

    def _verify(
        self,
        plan: LaunchPlan,
        launch: PreparedLaunch,
        buffer_plans: tuple[BufferPlan, ...],
        buffers: Mapping[str, DeviceBuffer],
        inputs: Mapping[str, Array],
    ) -> Verification:
        """Runs the kernel once on untouched buffers and compares what it wrote."""
        definition = plan.definition
        if self._options.skip_verification:
            return SWITCHED_OFF
        if definition.reference is None:
            return NO_REFERENCE
        reference = definition.reference
        self._session.run(launch)
        outputs: dict[str, Array] = {}
        for buffer in buffer_plans:
            if buffer.is_written:
                outputs[buffer.name] = np.empty(buffer.shape, buffer.dtype.value)
                self._session.download(buffers[buffer.name], outputs[buffer.name])
        key = (reference, tuple(sorted(plan.scalars.items())), buffer_plans, self._options.seed)
        try:
            expected = self._references.get(key, lambda: compute_reference(reference, inputs, plan.scalars))
        except (ValueError, IndexError) as error:  # NumPy's word on shapes that do not go together
            raise InvalidParameterError(
                f"buffers of kernel {definition.kernel_name}",
                found=f"shapes that the reference {reference} cannot take ({error})",
                expected="the shapes named in services.profiler.measuring.references",
                remedy="Correct the shapes, or choose another reference.",
            ) from error
        return compare(outputs, expected, definition.relative_tolerance)

    def _observer(self, plan: LaunchPlan) -> Observer:
        index, label = plan.configuration.configuration_index, plan.configuration.label

        def tell_batch(batch: Batch) -> None:
            durations_ns = tuple(batch.duration_ns.tolist())
            self._sink.write(SampleBatch(index, batch.first_sample_index, durations_ns, batch.measured_unix_ns))

        return Observer(on_activity=lambda activity: self._tell_progress(f"{activity} {label}"), on_batch=tell_batch)

    # ------------------------------------------------------------ what is told

    def _tell_progress(self, activity: str) -> None:
        self._sink.write(
            Progress(
                completed_configuration_count=self._completed_count,
                failed_configuration_count=self._failed_count,
                total_configuration_count=self._plan.configuration_count,
                activity=activity,
                device_id=self._session.device.device_id,
            )
        )

    def _measurement(self, plan: LaunchPlan, kernel: CompiledKernel, result: BenchmarkResult, elapsed_ns: int) -> Measurement:
        device, cache_mode = self._session.device, self._method.cache_mode
        assert cache_mode is not CacheMode.DEFAULT
        return Measurement(
            configuration_index=plan.configuration.configuration_index,
            **asdict(result.summary),
            discarded_sample_count=result.discarded_sample_count,
            warm_up_count=self._method.warm_up_count,
            stop_reason=result.stop_reason,
            cache_mode=cache_mode,
            verification=result.verification,
            measured_unix_ns=result.measured_unix_ns,
            elapsed_ns=elapsed_ns,
            compile_ns=kernel.compile_ns,
            input_distribution=INPUT_DISTRIBUTION,
            seed=self._options.seed,
            compiler_options=kernel.compiler_options,
            driver_version=device.driver_version,
            toolkit_version=device.toolkit_version,
            device_uuid=device.uuid,
            **asdict(result.clocks),
        )


def _host_memory_error(plans: tuple[BufferPlan, ...]) -> MemoryLimitError:
    largest = max(plans, key=lambda plan: plan.size_bytes)
    return MemoryLimitError(
        f"buffer {largest.name} of shape {largest.shape}",
        found=f"{largest.size_bytes} bytes that this host's memory does not have",
        expected="room for every buffer on the host too, for inputs and verification",
        remedy="Choose smaller parameters.",
    )
