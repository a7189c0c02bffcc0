"""The events of a run, as its journal stores them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from kernalyse.services.core.disturbance import disturbances
from kernalyse.services.core.model.devices import Ceiling, Dim3, Telemetry
from kernalyse.services.core.model.kernels import DataType
from kernalyse.services.core.model.runs import CacheMode, Run, RunError, RunState, StoppingCriterion, TimingMethod


class StopReason(StrEnum):
    """Why sampling of a configuration ended."""

    CONFIDENCE_REACHED = "CONFIDENCE_REACHED"  # the interval of the median is narrow enough
    NO_IMPROVEMENT = "NO_IMPROVEMENT"  # more samples no longer narrow the interval
    TIME_LIMIT = "TIME_LIMIT"
    SAMPLE_LIMIT = "SAMPLE_LIMIT"
    NOISE_REACHED = "NOISE_REACHED"  # as small as requested
    ENTROPY_SETTLED = "ENTROPY_SETTLED"  # the distribution of samples no longer changes
    ELIMINATED = "ELIMINATED"  # slower than others of its problem: the search continued without it
    BUDGET_SPENT = "BUDGET_SPENT"  # of the search


class VerificationState(StrEnum):
    """The outcome of comparing a kernel's output with its reference."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    NO_REFERENCE = "NO_REFERENCE"  # nothing to compare with
    SWITCHED_OFF = "SWITCHED_OFF"  # by the request


class Verdict(StrEnum):
    """The outcome of comparing two measurements."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"  # the interval of the ratio lies within the margin of what counts as equal
    UNDECIDED = "UNDECIDED"  # the interval neither excludes 1 nor is narrow enough


class LogLevel(StrEnum):
    """The severity of log lines."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The run has entered another state."""

    state: RunState
    error: RunError | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How many configurations of the run are done, and its status message."""

    completed_configuration_count: int
    failed_configuration_count: int
    total_configuration_count: int
    activity: str
    device_id: str | None = None
    configuration_index: int | None = None  # that is being measured; it has failed if the worker crashes

    def of(self, run: Run) -> Run:
        """Return the run with this progress."""
        return replace(
            run,
            completed_configuration_count=self.completed_configuration_count,
            failed_configuration_count=self.failed_configuration_count,
            total_configuration_count=self.total_configuration_count,
            activity=self.activity,
            device_id=self.device_id or run.device_id,
        )


@dataclass(frozen=True, slots=True)
class ParameterValue:
    """A parameter or macro and its value."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Configuration:
    """One kernel with one set of parameters; it is written before its first sample."""

    configuration_index: int  # within the run, from 0
    kernel_name: str
    parameters: tuple[ParameterValue, ...]
    block: Dim3
    grid: Dim3
    dynamic_shared_memory_bytes: int
    category: str
    dtype: DataType
    flop: float | None  # per launch
    bytes: float | None  # per launch
    macros: tuple[ParameterValue, ...] = ()  # compile-time constants
    cache_mode: CacheMode = CacheMode.DEFAULT
    process_index: int = 0  # of the process that measures it
    variant: str = ""  # distinguishes configurations of the same kernel and parameters, e.g. "TILE=16 block=32x8"
    path: str = ""  # "fma" or "tensor": picks the compute ceiling. Empty: fma
    layer_path: str = ""  # of the ML model's layer, "blocks.3.attn.qkv"; empty: no model, or, with category "model", the entire pass

    @property
    def label(self) -> str:
        """Return kernel and parameters; for a launch of an ML model the layer first, because its kernel and sizes occur in many layers."""
        own = [self.kernel_name, *(f"{parameter.name}={parameter.value}" for parameter in self.parameters)]
        words = [self.layer_path, self.variant, *own] if self.layer_path else [*own, self.variant]
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Consecutive samples of one configuration."""

    configuration_index: int
    first_sample_index: int
    duration_ns: tuple[float, ...] = field(repr=False)  # device time of one launch; events may resolve below 1 ns
    measured_unix_ns: int = 0  # when the last of them was complete
    sm_clock_hz: tuple[int, ...] = field(default=(), repr=False)  # during each; 0 where it could not be read. Empty: no clock
    discarded_positions: tuple[int, ...] = ()  # within this batch, of samples that do not count


@dataclass(frozen=True, slots=True)
class KernelResources:
    """The resources of a multiprocessor that a compiled kernel uses; None: the runtime does not report them."""

    register_count: int | None = None  # per thread
    static_shared_memory_bytes: int | None = None  # per block
    local_memory_bytes: int | None = None  # per thread, spills included
    spill_store_bytes: int | None = None  # per thread
    spill_load_bytes: int | None = None
    constant_memory_bytes: int | None = None
    max_threads_per_block: int | None = None  # of this kernel, by its registers
    active_block_count: int | None = None  # of this launch, resident on one multiprocessor
    theoretical_occupancy_ratio: float | None = None  # their warps over the maximum


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of comparing a kernel's output with its reference."""

    state: VerificationState
    max_absolute_error: float | None = None
    max_relative_error: float | None = None  # max|output - reference| / max|reference|
    relative_tolerance: float | None = None
    buffer_name: str | None = None  # the worst output
    message: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Statistics over the samples of one configuration."""

    configuration_index: int
    sample_count: int
    discarded_sample_count: int
    warm_up_count: int
    duration_median_ns: float
    duration_median_low_ns: float  # 95 % confidence interval, by order statistics
    duration_median_high_ns: float
    duration_min_ns: float
    duration_max_ns: float
    duration_mean_ns: float
    duration_lower_quartile_ns: float
    duration_upper_quartile_ns: float
    duration_p95_ns: float
    duration_p99_ns: float
    duration_standard_deviation_ns: float
    noise_ratio: float  # standard deviation / mean
    stop_reason: StopReason
    cache_mode: CacheMode
    verification: Verification
    measured_unix_ns: int  # when the last sample was complete
    elapsed_ns: int  # wall clock time of the configuration, compile and verification included
    compile_ns: int  # of which compiling; 0 when the program was cached
    input_distribution: str = "uniform"
    seed: int = 0
    compiler_options: str = ""
    driver_version: str | None = None
    toolkit_version: str | None = None
    device_uuid: str | None = None
    sm_clock_hz: int | None = None  # mean while sampling
    memory_clock_hz: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    duration_median_absolute_deviation_ns: float = 0.0  # median of the distances from the median
    timing_method: TimingMethod = TimingMethod.SINGLE
    launches_per_sample: int = 1
    is_blocked: bool = False  # the stream was held while a batch was enqueued: no launch overhead between the events
    stopping_criterion: StoppingCriterion = StoppingCriterion.CONFIDENCE
    resources: KernelResources | None = None
    other_process_count: int | None = None  # that had a context on the device
    host_busy_ratio: float | None = None  # of the host's cores, by other programs meanwhile; CPU devices only
    recheck: Verification | None = None  # with fresh inputs, after timing
    device_memory_bytes: int | None = None  # of the buffers of a launch, or of an ML model's entire pass; None: not known
    clocks: str | None = None  # "SM locked to 1980 MHz, memory as it is", "as it is: no permission to lock clocks"; None: not known

    @property
    def disturbances(self) -> tuple[str, ...]:
        """Return what disturbed the measurement, a phrase for each."""
        return disturbances(self.host_busy_ratio, self.other_process_count, self.throttle_reasons)


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Two configurations measured in alternating blocks of one process."""

    configuration_index: int  # the candidate
    baseline_configuration_index: int
    block_count: int  # of each operand
    duration_ratio: float  # median over the pairs of blocks: candidate over baseline
    duration_ratio_low: float  # interval at confidence_ratio, by bootstrap
    duration_ratio_high: float
    confidence_ratio: float
    verdict: Verdict
    reason: str
    measured_unix_ns: int
    cycle_ratio: float | None = None  # the same in clock cycles; None: the device reports no clock
    cycle_ratio_low: float | None = None
    cycle_ratio_high: float | None = None


@dataclass(frozen=True, slots=True)
class CountersStored:
    """The run has stored a report of ncu with counters of its configurations."""

    artifact_name: str
    configuration_indexes: tuple[int, ...]  # of each profiled launch, in the report's order
    cache_control: str  # "all" or "none"
    clock_control: str  # "base" or "none"
    function_names: tuple[str, ...] = ()  # __global__ function of each of these launches; empty: not known


@dataclass(frozen=True, slots=True)
class TraceStored:
    """The run has stored a trace: files that the analyzer reads into tables of the run."""

    artifact_names: tuple[str, ...]  # of one trace, the one to read first
    collector: str  # "nsys", "ncu", "kineto", "proton", "onnxruntime"


@dataclass(frozen=True, slots=True)
class ConfigurationFailed:
    """This configuration has no measurement, and why; the sweep continues."""

    configuration_index: int
    error: RunError


@dataclass(frozen=True, slots=True)
class LogLines:
    """Lines that the run's work has logged."""

    level: LogLevel
    source: str  # "service", "worker", "compiler", "program"
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CeilingsMeasured:
    """The run has measured ceilings of its device."""

    ceilings: tuple[Ceiling, ...]


@dataclass(frozen=True, slots=True)
class ArtifactStored:
    """The run has stored an artifact."""

    artifact_name: str  # unique within the run, e.g. "saxpy.cl"
    digest: str  # "sha256:…"
    size_bytes: int
    media_type: str


EventPayload = (
    StateChanged
    | Progress
    | Configuration
    | SampleBatch
    | Measurement
    | ConfigurationFailed
    | LogLines
    | Telemetry
    | CeilingsMeasured
    | ArtifactStored
    | PairedComparison
    | CountersStored
    | TraceStored
)


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One entry of the journal. Indexes grow over the entire journal and are never reused; those of one run need not be consecutive."""

    event_index: int
    journal_id: str
    run_id: str
    event_unix_ns: int
    payload: EventPayload
