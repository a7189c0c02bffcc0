"""The nouns of kernalyse, free of any transport.

Every dataclass is frozen; field names equal the proto field names and the table column names. ``None`` means unknown or
not applicable, never zero. Times that belong to a resource are aware UTC datetimes (``*_time``); times inside bulk data
are integer nanoseconds since the Unix epoch (``*_unix_ns``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class RunState(StrEnum):
    QUEUED = "QUEUED"  # accepted, waiting for its device
    RUNNING = "RUNNING"  # a worker process is at it
    SUCCEEDED = "SUCCEEDED"  # finished; some configurations may still carry an error of their own
    FAILED = "FAILED"  # ended by an error; what was measured before it is kept
    CANCELLED = "CANCELLED"  # ended on request
    LOST = "LOST"  # the profiler died under it; what was measured before is kept

    @property
    def is_final(self) -> bool:
        return self not in (RunState.QUEUED, RunState.RUNNING)


class BackendName(StrEnum):
    AUTO = "AUTO"  # pycuda where an NVIDIA device answers, else opencl
    PYCUDA = "PYCUDA"
    NVCC = "NVCC"
    OPENCL = "OPENCL"


class CacheMode(StrEnum):
    DEFAULT = "DEFAULT"  # cold on GPUs, hot on CPU devices
    COLD = "COLD"  # the last-level cache is overwritten before every sample
    HOT = "HOT"  # samples follow each other


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


class DeviceKind(StrEnum):
    GPU = "GPU"
    CPU = "CPU"
    ACCELERATOR = "ACCELERATOR"


class DataType(StrEnum):
    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT8 = "int8"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT32 = "uint32"
    UINT64 = "uint64"


class BufferRole(StrEnum):
    INPUT = "INPUT"  # filled with random values, read by the kernel
    OUTPUT = "OUTPUT"  # filled with a poison value, written by the kernel
    INPUT_OUTPUT = "INPUT_OUTPUT"  # filled with random values, read and written; restored before verification


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class NodeHealth(StrEnum):
    CONNECTING = "CONNECTING"
    SERVING = "SERVING"
    UNREACHABLE = "UNREACHABLE"


@dataclass(frozen=True, slots=True)
class Dim3:
    x: int
    y: int = 1
    z: int = 1

    @property
    def count(self) -> int:
        return self.x * self.y * self.z

    def __str__(self) -> str:
        return f"{self.x}x{self.y}x{self.z}"


# ---------------------------------------------------------------- devices and nodes


@dataclass(frozen=True, slots=True)
class Device:
    device_id: str  # stable on its node: "cuda:0", "opencl:intel:0", "opencl:pocl:0"
    name: str  # as the runtime reports it
    kind: DeviceKind
    backends: tuple[BackendName, ...]  # those that can drive it
    runtime: str | None = None  # OpenCL platform, or "CUDA"
    driver_version: str | None = None
    toolkit_version: str | None = None  # CUDA toolkit; None for OpenCL
    uuid: str | None = None
    compute_capability: str | None = None  # "9.0"; None off NVIDIA
    compute_unit_count: int | None = None  # streaming multiprocessors, or cores of a CPU device
    memory_bytes: int | None = None
    l2_cache_bytes: int | None = None  # the last-level cache that a cold sample must flush
    max_clock_hz: int | None = None
    max_threads_per_block: int | None = None
    max_block: Dim3 | None = None
    max_grid: Dim3 | None = None
    max_shared_memory_bytes: int | None = None  # per block
    max_buffer_bytes: int | None = None  # largest single allocation


@dataclass(frozen=True, slots=True)
class NodePolicy:
    allow_inline_source: bool = True
    allow_commands: bool = True
    allow_catalog_only: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    node_id: str  # stable over restarts; made at first start
    hostname: str
    version: str  # of kernalyse
    journal_id: str
    start_time: datetime
    devices: tuple[Device, ...] = ()
    operating_system: str | None = None
    cpu_model: str | None = None
    cpu_count: int | None = None
    memory_bytes: int | None = None
    python_version: str | None = None
    policy: NodePolicy = NodePolicy()
    running_run_ids: tuple[str, ...] = ()
    queued_run_ids: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()  # what this node lacks and the remedy, one sentence each


# ---------------------------------------------------------------- kernels


@dataclass(frozen=True, slots=True)
class BufferDefinition:
    """One pointer parameter of a kernel."""

    name: str
    shape: tuple[str, ...]  # expressions over the parameters, outermost dimension first
    dtype: DataType
    role: BufferRole


@dataclass(frozen=True, slots=True)
class ParameterDefinition:
    """One integer parameter that a sweep may vary."""

    name: str
    default_values: tuple[int, ...]
    min_value: int = 1


@dataclass(frozen=True, slots=True)
class ArgumentDefinition:
    """One scalar argument with a value of its own, e.g. alpha = 2.0."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class LaunchDefinition:
    """Launch configuration as expressions over the parameters and block_x, block_y, block_z."""

    block: tuple[str, ...]  # 1 to 3 expressions
    grid: tuple[str, ...]
    shared_memory_bytes: str = "0"  # dynamic shared memory
    requires: str = ""  # condition that the source sets on its launch; other launches are refused. Empty: none


@dataclass(frozen=True, slots=True)
class KernelDefinition:
    """What the catalogue knows of a kernel, and what a request may say of one outside it."""

    kernel_name: str  # unique name, also that of the __global__ function unless function_name says otherwise
    source_file_name: str
    launch: LaunchDefinition
    parameters: tuple[ParameterDefinition, ...]
    buffers: tuple[BufferDefinition, ...]
    function_name: str = ""  # the __global__ function; empty: kernel_name
    description: str = ""
    category: str = "other"  # matmul, elementwise, stream, transpose, reduction, normalization, other
    dtype: DataType = DataType.FLOAT32  # of the arithmetic; picks the compute ceiling
    arguments: tuple[ArgumentDefinition, ...] = ()
    flop: str | None = None  # floating-point operations of one launch; an FMA counts two
    bytes: str | None = None  # bytes one launch must move to and from device memory, each element once
    reference: str | None = None  # name of a NumPy reference in services.profiler.measuring.references
    relative_tolerance: float = 1e-5  # allowed max|output - reference| / max|reference|

    @property
    def function(self) -> str:
        return self.function_name or self.kernel_name


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Source text that travels with a request, for kernels outside the catalogue."""

    file_name: str
    text: str


@dataclass(frozen=True, slots=True)
class KernelSelection:
    """A kernel to run: by catalogue name alone, or with source and definition of its own."""

    kernel_name: str
    source: KernelSource | None = None  # None: the catalogue's
    definition: KernelDefinition | None = None  # None: the catalogue's, or derived from the source when there is one
    bundle_digest: str | None = None  # uploaded folder with headers that the source includes


# ---------------------------------------------------------------- what to run


@dataclass(frozen=True, slots=True)
class Axis:
    """Values of one integer parameter, in the order given."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tie:
    """Parameter ``name`` always takes the value of ``source_name``."""

    name: str
    source_name: str


@dataclass(frozen=True, slots=True)
class MeasuringOptions:
    """When to stop and how to time. None: the default of the device kind (design: stopping)."""

    cache_mode: CacheMode = CacheMode.DEFAULT
    min_sample_count: int = 10
    max_sample_count: int | None = None
    min_duration_ns: int = 500_000_000
    max_duration_ns: int = 15_000_000_000
    target_half_width_ratio: float | None = None  # of the median's 95 % interval; None: 0.005 GPU, 0.02 CPU
    warm_up_count: int = 1
    skip_verification: bool = False
    seed: int = 0  # of the input data


@dataclass(frozen=True, slots=True)
class KernelSweep:
    """Every kernel over the cartesian product of the axes, first axis slowest."""

    kernels: tuple[KernelSelection, ...]
    axes: tuple[Axis, ...] = ()
    ties: tuple[Tie, ...] = ()
    where: str = ""  # expression; configurations for which it is false are left out. Empty: all
    arguments: tuple[ArgumentDefinition, ...] = ()  # override those of the definitions
    block: Dim3 | None = None  # None: the definition's
    backend: BackendName = BackendName.AUTO
    device_id: str | None = None  # None: the backend's first device
    measuring: MeasuringOptions = MeasuringOptions()


@dataclass(frozen=True, slots=True)
class EnvironmentVariable:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class CommandProfile:
    """A command under a collector."""

    arguments: tuple[str, ...]  # program first
    collector: str  # "nsys", "ncu", "kineto", "proton"
    environment: tuple[EnvironmentVariable, ...] = ()
    bundle_digest: str | None = None
    max_duration_ns: int | None = None


@dataclass(frozen=True, slots=True)
class ModelRun:
    """A whole model on the project's own kernels, or an ONNX file."""

    model_name: str
    variant: str = ""
    batch_size: int = 1
    sequence_length: int = 64
    backend: BackendName = BackendName.AUTO
    device_id: str | None = None
    bundle_digest: str | None = None


@dataclass(frozen=True, slots=True)
class CeilingMeasurement:
    """Measures what the device reaches on copies and fused multiply-adds."""

    backend: BackendName = BackendName.AUTO
    device_id: str | None = None


Work = KernelSweep | CommandProfile | ModelRun | CeilingMeasurement


@dataclass(frozen=True, slots=True)
class RunLimits:
    """None: the node's own limit, which a request may lower but not raise."""

    time_limit_ns: int | None = None
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Revision:
    """State of the git checkout that a run was submitted from."""

    commit: str
    is_dirty: bool


@dataclass(frozen=True, slots=True)
class RunSpec:
    work: Work
    title: str = ""
    limits: RunLimits = RunLimits()
    revision: Revision | None = None


@dataclass(frozen=True, slots=True)
class RunError:
    """An error of the work, as opposed to one of the request."""

    code: str  # name of a gRPC status code
    reason: str
    message: str
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    run_id: str
    node_id: str
    spec: RunSpec
    state: RunState
    create_time: datetime
    start_time: datetime | None = None
    end_time: datetime | None = None
    error: RunError | None = None
    request_id: str | None = None
    device_id: str | None = None  # known once the worker has chosen
    completed_configuration_count: int = 0  # measured or failed
    failed_configuration_count: int = 0
    total_configuration_count: int | None = None  # None until the sweep is expanded
    activity: str = ""  # what the worker does now
    tags: tuple[str, ...] = ()
    notes: str = ""


# ---------------------------------------------------------------- events of a run


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
class Telemetry:
    """One reading of one device, or of the host when device_id is None."""

    measured_unix_ns: int
    device_id: str | None = None
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    clock_hz: int | None = None  # SM clock, or the CPU's current frequency
    memory_clock_hz: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    load_average: float | None = None  # host, 1 minute


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What a device can do at most, on one path.

    unit is ``flop_per_s`` or ``bytes_per_s``; path is "fma" or "tensor" for compute, "copy" for memory.
    """

    device_id: str
    ceiling_name: str  # "dram", "l2", "l1" for memory; the dtype for compute: "float32"
    unit: str
    value: float
    path: str
    source: str  # "datasheet", "clock", "measured"
    confidence: str = ""  # of a datasheet figure: high, medium, low
    note: str = ""


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


# ---------------------------------------------------------------- what the analyzer adds


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node as the analyzer sees it."""

    address: str
    health: NodeHealth
    node: Node | None = None  # what it last said of itself
    problem: str = ""  # why it is unreachable


@dataclass(frozen=True, slots=True)
class NodeTelemetry:
    node_id: str
    telemetry: Telemetry


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Efficiencies below which a kernel counts as inefficient."""

    memory_inefficient_ratio: float = 0.5
    compute_inefficient_ratio: float = 0.5


class FilterOperator(StrEnum):
    EQUAL = "EQUAL"
    NOT_EQUAL = "NOT_EQUAL"
    LESS = "LESS"
    LESS_EQUAL = "LESS_EQUAL"
    GREATER = "GREATER"
    GREATER_EQUAL = "GREATER_EQUAL"
    CONTAINS = "CONTAINS"


@dataclass(frozen=True, slots=True)
class Filter:
    column: str
    value: str
    operator: FilterOperator = FilterOperator.EQUAL


@dataclass(frozen=True, slots=True)
class SortKey:
    column: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class TableChunk:
    table_name: str
    arrow_ipc: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class TableQuery:
    """What GetTable asks for. limit 0: all rows; columns empty: all columns; run_ids empty: all runs."""

    table_name: str
    run_ids: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()
    order_by: tuple[SortKey, ...] = ()
    offset: int = 0
    limit: int = 0
    columns: tuple[str, ...] = ()
