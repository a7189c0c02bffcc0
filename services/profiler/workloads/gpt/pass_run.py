"""Complete passes of one variant, without events between their launches: the model's latency."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from services.core.model import Device, StopReason, TimingMethod, Verification
from services.profiler.backends.base import PreparedLaunch, TimedSamples, Timing
from services.profiler.backends.passes import LaunchPass, PassSession
from services.profiler.measuring.benchmark import Batch, Benchmark, Observer
from services.profiler.measuring.busy import DeviceUse
from services.profiler.measuring.stopping import StoppingRule
from services.profiler.measuring.verification import joined
from services.profiler.workloads.configuration_run import ActivitySink
from services.profiler.workloads.gpt.loading import LoadedPass
from services.profiler.workloads.gpt.pass_bench import INPUT_DISTRIBUTION, PassContext

FIRST_PASS_COUNT: Final = 3  # before the launches are timed: enough for a latency to look at, soon over in a large model


class PassRun:
    """Call `start`; then `sample`, or let `Turns` alternate two of them; then `finish`."""

    def __init__(self, loaded: LoadedPass, verification: Verification, pass_context: PassContext, on_activity: ActivitySink) -> None:
        self._planned = loaded.planned
        self.verification: Final = verification
        self._pass_context = pass_context
        observer = Observer(on_activity=lambda activity: on_activity(f"{activity} {self.label}"), on_batch=self._report_batch)
        self.benchmark: Final = Benchmark(
            _PassTimer(pass_context.session), loaded.launches, pass_context.method, pass_context.clock_meter, observer
        )

    @property
    def label(self) -> str:
        return self._planned.name

    @property
    def configuration_index(self) -> int:
        return self._planned.pass_configuration.configuration_index

    @property
    def device(self) -> Device:
        return self._pass_context.session.device

    @property
    def rule(self) -> StoppingRule:
        return self._pass_context.method.rule

    def start(self) -> None:
        self.benchmark.start(lambda: self.verification)
        count = min(FIRST_PASS_COUNT, self.rule.max_sample_count - 1)
        self.benchmark.keep_blocks([self.benchmark.take_block(count)])

    def sample(self) -> StopReason:
        """Take passes until there are enough."""
        return self.benchmark.sample()

    def finish(self, stop_reason: StopReason, recheck: Verification | None, use: DeviceUse) -> None:
        """Report the measurement. recheck: with fresh tokens. use: of the device by others, meanwhile."""
        pass_context, result = self._pass_context, self.benchmark.result(stop_reason)
        measured = result.measurement(self.configuration_index, pass_context.method, self.device, use)
        pass_context.sink.write(
            replace(
                measured,
                verification=joined(self.verification, recheck),
                recheck=recheck,
                seed=pass_context.seed,
                input_distribution=INPUT_DISTRIBUTION,
                device_memory_bytes=self._planned.device_memory_bytes,
            )
        )

    def _report_batch(self, batch: Batch) -> None:
        self._pass_context.sink.write(batch.event(self.configuration_index))


class _PassTimer:
    """A session whose launches are passes. Each is a sample of its own: a pass is no kernel too short for an event."""

    timing_methods: Final = frozenset({TimingMethod.SINGLE})

    def __init__(self, session: PassSession) -> None:
        self._session = session

    def run(self, launch: PreparedLaunch) -> None:
        assert isinstance(launch, LaunchPass)
        self._session.run_pass(launch)

    def time(self, launch: PreparedLaunch, timing: Timing, count: int) -> TimedSamples:
        assert isinstance(launch, LaunchPass)
        return self._session.time_passes(launch, timing.cache_mode, count)
