"""What happens in a run, as its journal has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from services.core.model.devices import Ceiling, Dim3, Telemetry
from services.core.model.kernels import DataType
from services.core.model.runs import CacheMode, RunError, RunState


class StopReason(StrEnum):
    CONFIDENCE_REACHED = "CONFIDENCE_REACHED"  # the interval of the median is narrow enough
    NO_IMPROVEMENT = "NO_IMPROVEMENT"  # more samples no longer narrow the interval
    TIME_LIMIT = "TIME_LIMIT"
    SAMPLE_LIMIT = "SAMPLE_LIMIT"


class VerificationState(StrEnum):
    PASSED = "PASSED"
    FAILED = "FAILED"
    NO_REFERENCE = "NO_REFERENCE"  # nothing to compare with
    SWITCHED_OFF = "SWITCHED_OFF"  # the request said not to


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class StateChanged:
    state: RunState
    error: RunError | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    completed_configuration_count: int
    failed_configuration_count: int
    total_configuration_count: int
    activity: str
    device_id: str | None = None


@dataclass(frozen=True, slots=True)
class ParameterValue:
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Configuration:
    """One kernel with one set of parameters; announced before its first sample."""

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

    @property
    def label(self) -> str:
        values = " ".join(f"{p.name}={p.value}" for p in self.parameters)
        return f"{self.kernel_name} {values}".rstrip()


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Consecutive samples of one configuration."""

    configuration_index: int
    first_sample_index: int
    duration_ns: tuple[float, ...] = field(repr=False)  # device time of one launch; events may resolve below 1 ns
    measured_unix_ns: int = 0  # when the worker had taken the last of them


@dataclass(frozen=True, slots=True)
class Verification:
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
    measured_unix_ns: int  # when the last sample had been taken
    elapsed_ns: int  # wall clock of the whole configuration, compile and verification included
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


@dataclass(frozen=True, slots=True)
class ConfigurationFailed:
    """This configuration has no measurement, and why; the sweep goes on."""

    configuration_index: int
    error: RunError


@dataclass(frozen=True, slots=True)
class LogLines:
    level: LogLevel
    source: str  # "service", "worker", "compiler", "program"
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CeilingsMeasured:
    ceilings: tuple[Ceiling, ...]


@dataclass(frozen=True, slots=True)
class ArtifactStored:
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
)


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One entry of the journal. Indexes grow without reuse over the whole journal; one run's need not be dense."""

    event_index: int
    journal_id: str
    run_id: str
    event_unix_ns: int
    payload: EventPayload
