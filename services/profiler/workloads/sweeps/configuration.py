"""The measurement of one configuration of a sweep, and the sweep's progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from kernalyse.services.core.errors import InvalidParameterError, KernalyseError, MemoryLimitError
from kernalyse.services.core.model import CacheMode, Device, KernelSweep, Measurement, StopReason, Verification, VerificationState
from kernalyse.services.core.statistics import Samples
from kernalyse.services.profiler.backends.base import CompiledKernel, DeviceBuffer, DeviceSession, PreparedLaunch, check_launch
from kernalyse.services.profiler.kernel_sources.functions import parse_kernel_source
from kernalyse.services.profiler.measuring.benchmark import Batch, Benchmark, Method, Observer, default_cache_mode
from kernalyse.services.profiler.measuring.buffers import Array, BufferPlan, DeviceBuffers, bind_arguments, input_values, poison_values
from kernalyse.services.profiler.measuring.device_state import ClockMeter, ContentionCheck, DeviceUse
from kernalyse.services.profiler.measuring.references import Reference, compute_reference
from kernalyse.services.profiler.measuring.stopping import StoppingRule
from kernalyse.services.profiler.measuring.verification import NO_REFERENCE, SWITCHED_OFF, ReferenceResults, compare, worse_verification
from kernalyse.services.profiler.workloads.events import EventSink, ProgressReporter
from kernalyse.services.profiler.workloads.sweeps.launches import (
    LaunchPlan,
    SweepCompiler,
    check_device_memory,
    check_requirement,
    plan_launch,
)
from kernalyse.services.profiler.workloads.sweeps.plan import PlannedConfiguration

# ---------------------------------------------------------------- one configuration

RECHECK_SEED_STEP: Final = 1_000_003  # to the seed of the fresh inputs: any other seed would do

ActivitySink = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MeasurementContext:
    """State that all configurations of one process share."""

    sweep: KernelSweep
    session: DeviceSession
    sink: EventSink
    directory: Path  # of the run
    clock_meter: ClockMeter
    contention: ContentionCheck
    buffers: DeviceBuffers
    compiler: SweepCompiler
    clocks: str | None = None  # what has been made of the device's clocks; None: not known
    references: ReferenceResults = field(default_factory=ReferenceResults)


class ConfigurationRun:
    """The measurement of one configuration.

    Call `report_configuration` first; then `measure` or, where others share the device, `start`, `sample` and `finish`.
    """

    def __init__(self, planned: PlannedConfiguration, context: MeasurementContext) -> None:
        self.planned = planned
        self._context = context
        self._method = Method.of(context.sweep.measuring, context.session.device)
        wanted = default_cache_mode(context.session.device) if planned.cache_mode is CacheMode.DEFAULT else planned.cache_mode
        self._method = self._method.with_cache(wanted)
        self._plan: LaunchPlan | None = None
        self._kernel: CompiledKernel | None = None
        self._benchmark: Benchmark | None = None
        self._loaded: _Loaded | None = None
        self._further_ns = 0  # wall clock outside the benchmark
        self.measurement: Measurement | None = None  # when finished
        self.companions: tuple[BufferPlan, ...] = ()  # of a configuration that keeps its buffers while this one has its own

    @property
    def configuration_index(self) -> int:
        """Return the index of the configuration in its run."""
        return self.planned.configuration_index

    @property
    def label(self) -> str:
        """Return the name of the configuration for people."""
        return self.plan.configuration.label

    @property
    def plan(self) -> LaunchPlan:
        """Return the plan of the launch. Raises what `plan_launch` raises."""
        if self._plan is None:
            plan = plan_launch(self.planned)
            self._plan = replace(plan, configuration=replace(plan.configuration, cache_mode=self._method.cache_mode))
        return self._plan

    def report_configuration(self) -> None:
        """Report the configuration. Raises KernalyseError where it cannot be launched."""
        self._context.sink.write(self.plan.configuration)
        check_requirement(self.plan)
        check_launch(self._context.session.device, self.plan.definition.kernel_name, self.plan.launch)
        check_device_memory(self.planned, self._context.session.device)

    def measure(self, on_activity: ActivitySink) -> Measurement:
        """Start, sample and finish."""
        self.start(on_activity)
        return self.finish(self.sample())

    def start(self, on_activity: ActivitySink) -> None:
        """Compile, fill buffers, verify, warm up and choose how to time."""
        start_ns = time.perf_counter_ns()
        self._context.contention.ensure_idle(self._context.sweep.measuring.busy_policy, on_activity)
        on_activity(f"compiling {self.label}")
        launch = self.prepare()
        observer = Observer(on_activity=lambda activity: on_activity(f"{activity} {self.label}"), on_batch=self._report_batch)
        self._benchmark = Benchmark(self._context.session, launch, self._method, self._context.clock_meter, observer)
        self._further_ns += time.perf_counter_ns() - start_ns
        self._benchmark.start(lambda: self._verify(self._context.sweep.measuring.seed))

    def prepare(self) -> PreparedLaunch:
        """Compile, fill buffers and return the launch, for callers that launch it without a benchmark."""
        self._kernel = self._context.compiler.compile(self.planned)
        return self._load()

    def reload(self) -> None:
        """Fill the buffers again before a further `sample` or `finish`, if another configuration has used them."""
        assert self._benchmark is not None
        start_ns = time.perf_counter_ns()
        launch = self._load()
        self._context.session.run(launch)  # the first touch of fresh buffers is no sample
        self._benchmark.reload(launch)
        self._further_ns += time.perf_counter_ns() - start_ns

    def unload(self) -> None:
        """Drop the inputs before another configuration uses the buffers: those of many waiting ones would fill the host's memory."""
        self._loaded = None

    @property
    def is_wrong(self) -> bool:
        """Return whether the results were compared with the reference, and differ."""
        verification = self.benchmark.verification
        return verification is not None and verification.state is VerificationState.FAILED

    def sample(self, rule: StoppingRule | None = None) -> StopReason:
        """Take samples until the rule has enough, the earlier ones included."""
        return self.benchmark.sample(rule)

    @property
    def benchmark(self) -> Benchmark:
        """Return the benchmark, which `start` has made."""
        assert self._benchmark is not None
        return self._benchmark

    @property
    def device(self) -> Device:
        """Return the device that it is measured on."""
        return self._context.session.device

    @property
    def is_session_lost(self) -> bool:
        """Return whether a kernel has destroyed the device session."""
        return self._context.session.is_lost

    @property
    def rule(self) -> StoppingRule:
        """Return the rule by which sampling stops."""
        return self._method.rule

    def samples(self) -> Samples:
        """Return all samples that count so far, in ns, shape (n,)."""
        return self.benchmark.samples()

    def finish(self, stop_reason: StopReason, use: DeviceUse | None = None) -> Measurement:
        """Check again with fresh inputs, and write the measurement.

        use: by others, of two configurations that were measured at once; None: asked for here.
        """
        start_ns = time.perf_counter_ns()
        recheck = self._recheck()
        self._further_ns += time.perf_counter_ns() - start_ns
        self.measurement = self._measurement(stop_reason, recheck, self._context.contention.read() if use is None else use)
        self._context.sink.write(self.measurement)
        return self.measurement

    # ------------------------------------------------------------ steps

    def _load(self) -> PreparedLaunch:
        """Return a launch on buffers with their first contents."""
        assert self._kernel is not None
        plans = self.plan.buffers()
        try:
            buffers = self._context.buffers.take(plans, self.companions)
            self._loaded = _Loaded(plans, buffers, self._inputs(plans, self._context.sweep.measuring.seed))
            self._fill(self._loaded)
        except MemoryError as error:
            raise _host_memory_error(plans) from error
        function = parse_kernel_source(self.planned.kernel.source).kernel(self.plan.definition.function)
        arguments = bind_arguments(self.plan.definition.kernel_name, function.parameters, buffers, self.plan.scalars)
        self._launch = self._context.session.prepare(self._kernel, arguments, self.plan.launch)
        return self._launch

    def _fill(self, loaded: _Loaded) -> None:
        """Fill all buffers with their first contents."""
        self._upload(loaded)
        for plan in loaded.plans:
            if not plan.is_read:
                self._context.session.upload(loaded.buffers[plan.name], poison_values(plan))

    def _upload(self, loaded: _Loaded) -> None:
        """Fill the buffers that the kernel reads."""
        for name, values in loaded.inputs.items():
            self._context.session.upload(loaded.buffers[name], values)

    def _inputs(self, plans: tuple[BufferPlan, ...], seed: int) -> dict[str, Array]:
        """Return the contents of the buffers that the kernel reads, by name."""
        distribution = self._context.sweep.measuring.input_distribution
        return {plan.name: input_values(plan, seed, distribution) for plan in plans if plan.is_read}

    def _verify(self, seed: int) -> Verification:
        """Run the kernel once on untouched buffers and compare what it wrote."""
        definition, loaded = self.plan.definition, self._loaded
        assert loaded is not None
        if self._context.sweep.measuring.skip_verification:
            return SWITCHED_OFF
        reference = self._reference
        if reference is None:
            return NO_REFERENCE
        self._context.session.run(self._launch)
        outputs: dict[str, Array] = {}
        for plan in loaded.plans:
            if plan.is_written:
                outputs[plan.name] = np.empty(plan.shape, plan.array_type)
                self._context.session.download(loaded.buffers[plan.name], outputs[plan.name])
        distribution = self._context.sweep.measuring.input_distribution
        key = (reference, tuple(sorted(self.plan.scalars.items())), loaded.plans, seed, distribution)
        try:
            expected = self._context.references.get(key, lambda: self._expected(loaded.inputs))
        except (ValueError, IndexError) as error:  # NumPy's word on shapes that do not go together
            raise InvalidParameterError(
                f"buffers of kernel {definition.kernel_name}",
                found=f"shapes that the reference {definition.reference or 'given'} cannot take ({error})",
                expected="the shapes named in kernalyse.services.profiler.measuring.references",
                remedy="Correct the shapes, or choose another reference.",
            ) from error
        return compare(outputs, expected, definition.relative_tolerance)

    @property
    def _reference(self) -> Reference | str | None:
        """Return the identity of the reference: the caller's function, or its name in the definition."""
        return self.planned.kernel.callables.reference or self.plan.definition.reference

    def _expected(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        reference = self._reference
        assert reference is not None
        if isinstance(reference, str):
            return compute_reference(reference, inputs, self.plan.scalars)
        return reference(inputs, self.plan.scalars)

    def _recheck(self) -> Verification | None:
        """Verify once more with new inputs.

        The outputs still hold the results of the old ones, so results that the kernel cached or did not write are wrong now.
        """
        if self._context.sweep.measuring.skip_verification or self._reference is None:
            return None
        loaded, seed = self._loaded, self._context.sweep.measuring.seed
        assert loaded is not None
        self._fill(loaded)  # another configuration may have had the buffers
        self._context.session.run(self._launch)
        self._loaded = replace(loaded, inputs=self._inputs(loaded.plans, seed + RECHECK_SEED_STEP))
        self._upload(self._loaded)
        return self._verify(seed + RECHECK_SEED_STEP)

    # ------------------------------------------------------------ events

    def _report_batch(self, batch: Batch) -> None:
        self._context.sink.write(batch.event(self.planned.configuration_index))

    def _measurement(self, stop_reason: StopReason, recheck: Verification | None, use: DeviceUse) -> Measurement:
        assert self._kernel is not None
        context, result = self._context, self.benchmark.result(stop_reason)
        measured = result.measurement(self.planned.configuration_index, self._method, context.session.device, use, self._further_ns)
        return replace(
            measured,
            verification=worse_verification(result.verification, recheck),
            recheck=recheck,
            compile_ns=self._kernel.compile_ns,
            input_distribution=context.sweep.measuring.input_distribution.lower(),
            seed=context.sweep.measuring.seed,
            compiler_options=self._kernel.compiler_options,
            resources=context.session.resources(self._kernel, self.plan.launch),
            clocks=context.clocks,
        )


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Buffers on the device for one configuration."""

    plans: tuple[BufferPlan, ...]
    buffers: Mapping[str, DeviceBuffer]
    inputs: Mapping[str, Array]  # on the host, those that the kernel reads


def _host_memory_error(plans: tuple[BufferPlan, ...]) -> MemoryLimitError:
    largest = max(plans, key=lambda plan: plan.size_bytes)
    return MemoryLimitError(
        f"buffer {largest.name} of shape {largest.shape}",
        found=f"{largest.size_bytes} bytes that this host's memory does not have",
        expected="room for every buffer on the host too, for inputs and verification",
        remedy="Choose smaller parameters.",
    )


# ---------------------------------------------------------------- sweep progress


class SweepProgress:
    """The attempts of a sweep's configurations, and their counts.

    reporter: earlier processes and an earlier run of the sweep are counted in.
    """

    def __init__(self, reporter: ProgressReporter) -> None:
        self._reporter = reporter
        self._has_measured = False
        self._first_error: KernalyseError | None = None

    def report(self, activity: str) -> None:
        """Report the counts with a status message."""
        self._reporter.report(activity)

    def complete(self) -> None:
        """Count one configuration as measured."""
        self._has_measured = True
        self._reporter.complete()

    def fail(self, planned: PlannedConfiguration, error: KernalyseError) -> None:
        """Report a configuration that could not be measured, and count it as done."""
        self._first_error = self._first_error or error
        self._reporter.fail(planned.configuration_index, error)

    def attempt(self, run: ConfigurationRun, action: Callable[[], object]) -> bool:
        """Return whether the action succeeded; an error is reported as the configuration's failure and not raised.

        Raises:
            KernalyseError: the session is lost with it, so nothing can be measured after it in this process.
        """
        self._reporter.configuration_index = run.configuration_index
        try:
            action()
        except KernalyseError as error:
            self._reporter.configuration_index = None
            self.fail(run.planned, error)
            if run.is_session_lost:
                raise
            return False
        self._reporter.configuration_index = None
        return True

    def raise_if_nothing_was_measured(self) -> None:
        """Raise the first configuration's error if not a single one was measured."""
        if self._first_error is not None and not self._has_measured:
            raise self._first_error


def measure_configuration(planned: PlannedConfiguration, context: MeasurementContext, progress: SweepProgress) -> Measurement | None:
    """Measure one configuration. Returns None where it failed, which is reported and not raised."""
    run = ConfigurationRun(planned, context)

    def measure() -> None:
        run.report_configuration()
        run.measure(progress.report)

    if progress.attempt(run, measure):
        progress.complete()
    return run.measurement
