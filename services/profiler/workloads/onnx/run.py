"""An ONNX model on ONNX Runtime: complete passes by the host's clock, interleaved with passes under the runtime's profile.

The profile slows passes down and is written when its session ends, so each turn of it loads the model anew. The layers' samples
come with each turn, less what the profile adds to them; the last turn's profile stays as the run's trace.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from kernalyse.services.core.costs.onnx import onnx_category, onnx_cost
from kernalyse.services.core.costs.operator import OperatorCost
from kernalyse.services.core.file_formats import FORMAT, LAUNCHING_PROVIDERS, NS_PER_US
from kernalyse.services.core.model import (
    CacheMode,
    Configuration,
    DataType,
    Device,
    Dim3,
    LogLevel,
    LogLines,
    Measurement,
    ModelRun,
    ParameterValue,
    StopReason,
    TimingMethod,
    TraceStored,
    Verification,
    VerificationState,
)
from kernalyse.services.core.statistics import Samples
from kernalyse.services.profiler.backends.base import TimedSamples, Timing
from kernalyse.services.profiler.measuring.benchmark import Method, Recorder
from kernalyse.services.profiler.measuring.device_state import ContentionCheck, DeviceUse, open_use_meter
from kernalyse.services.profiler.measuring.stopping import MIN_SPREAD_COUNT, StoppingRule
from kernalyse.services.profiler.measuring.verification import worse_verification
from kernalyse.services.profiler.workloads.ceilings import load_sources, report_ceilings_after_sweep, report_ceilings_before_sweep
from kernalyse.services.profiler.workloads.events import EventSink, ModelContext, ProgressReporter, store_artifact
from kernalyse.services.profiler.workloads.onnx.inputs import PreparedModel, fresh_feeds, prepare, takes_tokens
from kernalyse.services.profiler.workloads.onnx.session import (
    MIN_NODE_NS,
    NOT_VERIFIED,
    RESOLUTION_NS,
    OnnxSession,
    ProfiledNode,
    Provider,
    ResidentPeak,
    layer_paths,
    profile_cost_ns,
    read_nodes,
    verify,
)

# ---------------------------------------------------------------- configurations
# The complete pass is one configuration, and each node with a layer of its own is another.

PASS_INDEX: Final = 0
MODEL_CATEGORY: Final = "model"
SHORT_NS: Final = 30 * RESOLUTION_NS
"""Nodes below are averaged over GROUP_COUNT passes: the profile cuts times off to whole microseconds, and some ten are its own."""
GROUP_COUNT: Final = 10


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node that is measured as a layer. launches_per_sample: passes whose mean is one sample."""

    configuration: Configuration
    name: str
    launches_per_sample: int


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """The complete pass and its layers. notices: which parts of the model are not shown, and why."""

    configuration: Configuration
    nodes: tuple[PlannedNode, ...]
    notices: tuple[str, ...]


def plan_pass(model: PreparedModel, nodes: Sequence[ProfiledNode], paths: Mapping[str, str]) -> PlannedPass:
    """Plan the configurations of a model. nodes: of the first profile. paths: of layers, by node name."""
    parameters = _parameters(model)
    work = {node.name: _work(node) for node in nodes}
    computing = [node for node in nodes if node.provider not in LAUNCHING_PROVIDERS]
    planned = tuple(
        PlannedNode(
            _configuration(index, node.operator, parameters, onnx_category(node.operator), work[node.name], paths[node.name]),
            node.name,
            GROUP_COUNT if float(np.median(node.durations)) < SHORT_NS else 1,
        )
        for index, node in enumerate(computing, start=PASS_INDEX + 1)
    )
    facts = (*parameters, ParameterValue("parameter_count", model.file.parameter_count))
    whole = _configuration(PASS_INDEX, model.name, facts, MODEL_CATEGORY, _sum(list(work.values())), "")
    return PlannedPass(whole, planned, tuple(_notices(nodes, work)))


def _parameters(model: PreparedModel) -> tuple[ParameterValue, ...]:
    """Return parameters by the names that all models have for them; a model without tokens has no sequence."""
    batch = ParameterValue("batch_size", model.dimensions.batch)
    return (batch, ParameterValue("sequence_length", model.dimensions.sequence)) if takes_tokens(model.file) else (batch,)


def _work(node: ProfiledNode) -> OperatorCost | None:
    """Return the cost of all calls of one pass."""
    return _sum([None if call is None else onnx_cost(call) for call in node.calls])


def _sum(parts: Sequence[OperatorCost | None]) -> OperatorCost | None:
    """Return the sum, known only where all terms are. dtype: that of most of the flop."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    flop, moved = [part.flop for part in known], [part.bytes for part in known]
    heaviest = max(known, key=lambda part: (part.weight, part.flop or 0.0))
    return OperatorCost(
        heaviest.weight,
        None if None in flop else sum(value for value in flop if value is not None),
        None if None in moved else sum(value for value in moved if value is not None),
        heaviest.dtype,
    )


def _configuration(
    index: int,
    kernel_name: str,
    parameters: tuple[ParameterValue, ...],
    category: str,
    work: OperatorCost | None,
    layer_path: str,
) -> Configuration:
    # An operator that neither computes nor moves data, such as a reshape, has no point in a roofline.
    has_cost = work is not None and bool(work.flop or work.bytes)
    return Configuration(
        configuration_index=index,
        kernel_name=kernel_name,
        parameters=parameters,
        block=Dim3(1),
        grid=Dim3(1),
        dynamic_shared_memory_bytes=0,
        category=category,
        dtype=_dtype(work),
        flop=work.flop if work is not None and has_cost else None,
        bytes=work.bytes if work is not None and has_cost else None,
        cache_mode=CacheMode.HOT,
        layer_path=layer_path,
    )


def _dtype(work: OperatorCost | None) -> DataType:
    """Return the data type; float32 for types that the project has no name for."""
    known = {dtype.value: dtype for dtype in DataType}
    return known.get("" if work is None or work.dtype is None else work.dtype, DataType.FLOAT32)


def _notices(nodes: Sequence[ProfiledNode], work: Mapping[str, OperatorCost | None]) -> Iterator[str]:
    unknown = Counter(node.operator for node in nodes if work[node.name] is None)
    if unknown:
        names = ", ".join(f"{count} {name}" for name, count in unknown.items())
        yield f"No cost model knows {names}: the model's flop and bytes are not known either."
    launching = Counter(node.provider for node in nodes if node.provider in LAUNCHING_PROVIDERS)
    for provider, count in launching.items():
        yield f"{count} nodes run on {provider}, which launches kernels: their own times need nsys. The pass's are exact."


# ---------------------------------------------------------------- interleaved measurement

TRIAL_NS: Final = 100_000_000
"""Duration of the timed passes of a turn. Shorter turns load the model more often than they run it, in longer ones layers move seldom."""
MAX_TRIAL_COUNT: Final = 4096  # passes: 32 KiB of samples in an event
MAX_PROFILED_EVENTS: Final = 3000  # a profile of some 3 MB
MIN_TRIAL_COUNT: Final = 2  # a layer needs two samples
COLD_COUNT: Final = 1  # passes at the beginning of each profile: a fresh session allocates
TRACE_FILE: Final = "profile.json"


def run_onnx(work: ModelRun, context: ModelContext) -> None:
    """Measure an ONNX model. Raises KernalyseError, with ONNX Runtime's message, for a model, prompt or device that cannot be used."""
    sink = context.sink
    progress = ProgressReporter(sink, total_count=1)
    progress.report(f"preparing {work.model_name}")
    model = prepare(work, context.directory, context.cache_directory, sink)
    device_session = context.open_session()
    device = device_session.device
    with tempfile.TemporaryDirectory(dir=context.directory) as name:
        passes = _Passes(model, Provider.of(device), Path(name))
        progress.device_id = device.device_id
        progress.report(f"loading {work.model_name}")
        plan = passes.plan(max(work.measuring.warm_up_count, 1))
        progress.total_count += len(plan.nodes)
        are_complete = report_ceilings_before_sweep(device_session, load_sources(), sink, context.ceilings_file, progress.total_count)
        _Run(work, context, device, passes, plan, progress).measure()
    if not are_complete:
        report_ceilings_after_sweep(device_session, load_sources(), sink, context.ceilings_file)
    with suppress(Exception):  # the measurements are reported already, so errors at the runtime's end do not matter
        device_session.close()


@dataclass(slots=True)
class _Passes:
    """Runs of the model, with and without a profile."""

    model: PreparedModel
    provider: Provider
    directory: Path
    session: OnnxSession = field(init=False)
    memory_bytes: int | None = None  # of the host, that the model takes at most, loaded and run; None: not known, or on another device
    profiled_count: int = GROUP_COUNT

    def plan(self, warm_up_count: int) -> PlannedPass:
        """Run the model under a profile for the first time; return its nodes as they are executed, and record the memory used."""
        peak = ResidentPeak.begin()  # before anything else has been loaded and freed: memory that is used again would not count
        self.session = OnnxSession(self.model.file.path, self.model.name, self.provider)
        for _ in range(warm_up_count):
            self.session.run(self.model.feeds)
        self.memory_bytes = peak.grown_bytes() if self.provider.is_host else None
        optimized = self.directory / "optimized.onnx"
        nodes = self.profiled(GROUP_COUNT, optimized)[0]
        plan = plan_pass(self.model, nodes, layer_paths(self.model.file, optimized, nodes))
        self.profiled_count = max(MIN_TRIAL_COUNT, MAX_PROFILED_EVENTS // max(len(nodes), 1))
        return plan

    def profiled(self, count: int, optimized: Path | None = None) -> tuple[tuple[ProfiledNode, ...], Path]:
        """Run `count` passes under a profile of their own; return their nodes and the profile."""
        session = OnnxSession(self.model.file.path, self.model.name, self.provider, profile=self.directory / "profile", optimized=optimized)
        for _ in range(COLD_COUNT + count):
            session.run(self.model.feeds)
        profile = session.end_profile()
        return read_nodes(profile, COLD_COUNT), profile


@dataclass(slots=True)
class _ConfigurationSamples:
    """Samples of one configuration, the complete pass or a layer."""

    configuration: Configuration
    launches_per_sample: int
    method: Method
    recorder: Recorder = field(init=False)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.method.rule)

    def report(self, durations_ns: Samples, sink: EventSink) -> None:
        sink.write(self.recorder.record(TimedSamples(durations_ns)).event(self.configuration.configuration_index))

    @property
    def timing(self) -> Timing:
        """Return the timing method: the profile times each launch by itself, even where a sample is a mean of several."""
        return Timing(TimingMethod.SINGLE, self.configuration.cache_mode, self.launches_per_sample)


class _Run:
    """Interleaved measurement of passes and layers, until the pass is known well enough."""

    def __init__(
        self, work: ModelRun, context: ModelContext, device: Device, passes: _Passes, plan: PlannedPass, progress: ProgressReporter
    ) -> None:
        self._work = work
        self._context = context
        self._sink = context.sink
        self._device = device
        self._passes = passes
        self._plan = plan
        self._progress = progress
        rule = StoppingRule.of(work.measuring, device.kind)
        self._contention = ContentionCheck(open_use_meter(device))
        pass_method = Method(plan.configuration.cache_mode, TimingMethod.SINGLE, max(work.measuring.warm_up_count, 1), rule)
        layer_method = replace(pass_method, warm_up_count=COLD_COUNT)
        self._pass = _ConfigurationSamples(plan.configuration, 1, pass_method)
        self._layers = {node.name: _ConfigurationSamples(node.configuration, node.launches_per_sample, layer_method) for node in plan.nodes}
        self._verification = NOT_VERIFIED
        self._recheck: Verification | None = None
        self._start_ns = time.perf_counter_ns()
        self._profile_costs_ns: list[float] = []
        self._profiled_ns = 0  # in trials under the profile, loading the model and reading the profile included

    def measure(self) -> None:
        self._contention.ensure_idle(self._work.measuring.busy_policy, self._progress.report)
        self._sink.write(self._plan.configuration)
        for node in self._plan.nodes:
            self._sink.write(node.configuration)
        if self._plan.notices:
            self._sink.write(LogLines(LogLevel.INFO, "worker", self._plan.notices))
        model, session = self._passes.model, self._passes.session
        self._verification = verify(self._work, model, session, model.feeds)
        stop_reason = self._take_turns()
        if self._verification.state is VerificationState.PASSED:
            self._progress.report(f"checking {model.name} with fresh inputs")
            self._recheck = verify(self._work, model, session, fresh_feeds(self._work, model))
        self._report_measurements(stop_reason)

    def _take_turns(self) -> StopReason:
        criterion = self._pass.recorder.criterion
        turn_count, profile = 0, None
        while True:
            self._progress.report(f"pass {self._pass.recorder.taken_count + 1} of {self._passes.model.name}")
            criterion.resume()
            samples = self._passes.session.time(self._passes.model.feeds, TRIAL_NS, self._max_pass_count())
            self._pass.report(samples, self._sink)
            reason = criterion.add(samples)
            criterion.pause()
            # A profile that takes longer than the passes between profiles would make the run as many times as long.
            if turn_count < MIN_TRIAL_COUNT or self._profiled_ns <= criterion.elapsed_ns:
                profile = self._profile(float(np.median(samples)))
                turn_count += 1
            if reason is not None and profile is not None and turn_count >= MIN_TRIAL_COUNT:
                self._store(profile)
                return reason

    def _max_pass_count(self) -> int:
        """Return the maximum number of passes in the next trial."""
        left = self._pass.method.rule.max_sample_count - self._pass.recorder.taken_count
        return max(1, min(MAX_TRIAL_COUNT, left))

    def _profile(self, pass_ns: float) -> Path:
        """Run a profiled trial, with as many passes as one without profile; return the profile."""
        start_ns = time.perf_counter_ns()
        count = int(min(max(TRIAL_NS / pass_ns, 1), self._passes.profiled_count))
        if any(layer.launches_per_sample > 1 for layer in self._layers.values()):
            count = max(count // GROUP_COUNT, 1) * GROUP_COUNT
        nodes, profile = self._passes.profiled(count)
        nodes = tuple(node for node in nodes if node.name in self._layers)
        cost_ns = profile_cost_ns(nodes, pass_ns)
        for node in nodes:
            layer = self._layers[node.name]
            samples = node.durations.reshape(-1, layer.launches_per_sample).mean(axis=1) - cost_ns
            samples = np.maximum(samples, MIN_NODE_NS)
            layer.report(samples, self._sink)
            layer.recorder.criterion.keep(samples)
        self._profile_costs_ns.append(cost_ns)
        self._profiled_ns += time.perf_counter_ns() - start_ns
        return profile

    def _store(self, profile: Path) -> None:
        """Store the trace of the last trial."""
        self._sink.write(store_artifact(self._context.directory, TRACE_FILE, profile.read_bytes()))
        self._sink.write(TraceStored((TRACE_FILE,), FORMAT))

    def _report_measurements(self, stop_reason: StopReason) -> None:
        use = self._contention.read()
        measured = [part for part in (self._pass, *self._layers.values()) if part.recorder.taken_count >= MIN_SPREAD_COUNT]
        for part in measured:
            part.recorder.elapsed_ns = time.perf_counter_ns() - self._start_ns
            self._sink.write(self._measurement(part, stop_reason, use))
        if self._layers:
            cost_us = float(np.median(self._profile_costs_ns)) / NS_PER_US
            text = f"ONNX Runtime's profile makes each node {cost_us:.1f} us longer; layer times exclude that, the trace includes it."
            self._sink.write(LogLines(LogLevel.INFO, "worker", (text,)))
        self._progress.complete(len(measured))

    def _measurement(self, part: _ConfigurationSamples, stop_reason: StopReason, use: DeviceUse) -> Measurement:
        is_pass = part is self._pass
        verification = worse_verification(self._verification, self._recheck) if is_pass else NOT_VERIFIED
        result = part.recorder.result(stop_reason, verification, part.timing)
        return replace(
            result.measurement(part.configuration.configuration_index, part.method, self._device, use),
            recheck=self._recheck if is_pass else None,
            device_memory_bytes=self._passes.memory_bytes if is_pass else None,
            compile_ns=self._passes.session.load_ns if is_pass else 0,
            input_distribution="tokens" if self._work.prompt else "random",
            seed=self._work.seed,
        )
