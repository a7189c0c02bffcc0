import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from kernalyse.v1 import device_pb2 as _device_pb2
from kernalyse.v1 import kernel_pb2 as _kernel_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNSPECIFIED: _ClassVar[RunState]
    RUN_STATE_QUEUED: _ClassVar[RunState]
    RUN_STATE_RUNNING: _ClassVar[RunState]
    RUN_STATE_SUCCEEDED: _ClassVar[RunState]
    RUN_STATE_FAILED: _ClassVar[RunState]
    RUN_STATE_CANCELLED: _ClassVar[RunState]
    RUN_STATE_LOST: _ClassVar[RunState]

class CacheMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_MODE_UNSPECIFIED: _ClassVar[CacheMode]
    CACHE_MODE_DEFAULT: _ClassVar[CacheMode]
    CACHE_MODE_COLD: _ClassVar[CacheMode]
    CACHE_MODE_HOT: _ClassVar[CacheMode]
    CACHE_MODE_BOTH: _ClassVar[CacheMode]

class TimingMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIMING_METHOD_UNSPECIFIED: _ClassVar[TimingMethod]
    TIMING_METHOD_AUTO: _ClassVar[TimingMethod]
    TIMING_METHOD_SINGLE: _ClassVar[TimingMethod]
    TIMING_METHOD_BATCHED: _ClassVar[TimingMethod]
    TIMING_METHOD_GRAPH: _ClassVar[TimingMethod]

class StoppingCriterion(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOPPING_CRITERION_UNSPECIFIED: _ClassVar[StoppingCriterion]
    STOPPING_CRITERION_CONFIDENCE: _ClassVar[StoppingCriterion]
    STOPPING_CRITERION_NOISE: _ClassVar[StoppingCriterion]
    STOPPING_CRITERION_ENTROPY: _ClassVar[StoppingCriterion]
    STOPPING_CRITERION_SAMPLE_COUNT: _ClassVar[StoppingCriterion]

class InputDistribution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INPUT_DISTRIBUTION_UNSPECIFIED: _ClassVar[InputDistribution]
    INPUT_DISTRIBUTION_UNIFORM: _ClassVar[InputDistribution]
    INPUT_DISTRIBUTION_NORMAL: _ClassVar[InputDistribution]
    INPUT_DISTRIBUTION_ZEROS: _ClassVar[InputDistribution]

class BusyPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BUSY_POLICY_UNSPECIFIED: _ClassVar[BusyPolicy]
    BUSY_POLICY_RECORD: _ClassVar[BusyPolicy]
    BUSY_POLICY_WAIT: _ClassVar[BusyPolicy]
    BUSY_POLICY_REFUSE: _ClassVar[BusyPolicy]

class ClockMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLOCK_MODE_UNSPECIFIED: _ClassVar[ClockMode]
    CLOCK_MODE_AS_IS: _ClassVar[ClockMode]
    CLOCK_MODE_BASE: _ClassVar[ClockMode]
    CLOCK_MODE_MAX: _ClassVar[ClockMode]

class SearchStrategy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEARCH_STRATEGY_UNSPECIFIED: _ClassVar[SearchStrategy]
    SEARCH_STRATEGY_ALL: _ClassVar[SearchStrategy]
    SEARCH_STRATEGY_RANDOM: _ClassVar[SearchStrategy]
    SEARCH_STRATEGY_HALVING: _ClassVar[SearchStrategy]

class StopReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_REASON_UNSPECIFIED: _ClassVar[StopReason]
    STOP_REASON_CONFIDENCE_REACHED: _ClassVar[StopReason]
    STOP_REASON_NO_IMPROVEMENT: _ClassVar[StopReason]
    STOP_REASON_TIME_LIMIT: _ClassVar[StopReason]
    STOP_REASON_SAMPLE_LIMIT: _ClassVar[StopReason]
    STOP_REASON_NOISE_REACHED: _ClassVar[StopReason]
    STOP_REASON_ENTROPY_SETTLED: _ClassVar[StopReason]
    STOP_REASON_ELIMINATED: _ClassVar[StopReason]
    STOP_REASON_BUDGET_SPENT: _ClassVar[StopReason]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_FASTER: _ClassVar[Verdict]
    VERDICT_SLOWER: _ClassVar[Verdict]
    VERDICT_SAME: _ClassVar[Verdict]
    VERDICT_UNDECIDED: _ClassVar[Verdict]

class VerificationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERIFICATION_STATE_UNSPECIFIED: _ClassVar[VerificationState]
    VERIFICATION_STATE_PASSED: _ClassVar[VerificationState]
    VERIFICATION_STATE_FAILED: _ClassVar[VerificationState]
    VERIFICATION_STATE_NO_REFERENCE: _ClassVar[VerificationState]
    VERIFICATION_STATE_SWITCHED_OFF: _ClassVar[VerificationState]

class LogLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOG_LEVEL_UNSPECIFIED: _ClassVar[LogLevel]
    LOG_LEVEL_DEBUG: _ClassVar[LogLevel]
    LOG_LEVEL_INFO: _ClassVar[LogLevel]
    LOG_LEVEL_WARNING: _ClassVar[LogLevel]
    LOG_LEVEL_ERROR: _ClassVar[LogLevel]
RUN_STATE_UNSPECIFIED: RunState
RUN_STATE_QUEUED: RunState
RUN_STATE_RUNNING: RunState
RUN_STATE_SUCCEEDED: RunState
RUN_STATE_FAILED: RunState
RUN_STATE_CANCELLED: RunState
RUN_STATE_LOST: RunState
CACHE_MODE_UNSPECIFIED: CacheMode
CACHE_MODE_DEFAULT: CacheMode
CACHE_MODE_COLD: CacheMode
CACHE_MODE_HOT: CacheMode
CACHE_MODE_BOTH: CacheMode
TIMING_METHOD_UNSPECIFIED: TimingMethod
TIMING_METHOD_AUTO: TimingMethod
TIMING_METHOD_SINGLE: TimingMethod
TIMING_METHOD_BATCHED: TimingMethod
TIMING_METHOD_GRAPH: TimingMethod
STOPPING_CRITERION_UNSPECIFIED: StoppingCriterion
STOPPING_CRITERION_CONFIDENCE: StoppingCriterion
STOPPING_CRITERION_NOISE: StoppingCriterion
STOPPING_CRITERION_ENTROPY: StoppingCriterion
STOPPING_CRITERION_SAMPLE_COUNT: StoppingCriterion
INPUT_DISTRIBUTION_UNSPECIFIED: InputDistribution
INPUT_DISTRIBUTION_UNIFORM: InputDistribution
INPUT_DISTRIBUTION_NORMAL: InputDistribution
INPUT_DISTRIBUTION_ZEROS: InputDistribution
BUSY_POLICY_UNSPECIFIED: BusyPolicy
BUSY_POLICY_RECORD: BusyPolicy
BUSY_POLICY_WAIT: BusyPolicy
BUSY_POLICY_REFUSE: BusyPolicy
CLOCK_MODE_UNSPECIFIED: ClockMode
CLOCK_MODE_AS_IS: ClockMode
CLOCK_MODE_BASE: ClockMode
CLOCK_MODE_MAX: ClockMode
SEARCH_STRATEGY_UNSPECIFIED: SearchStrategy
SEARCH_STRATEGY_ALL: SearchStrategy
SEARCH_STRATEGY_RANDOM: SearchStrategy
SEARCH_STRATEGY_HALVING: SearchStrategy
STOP_REASON_UNSPECIFIED: StopReason
STOP_REASON_CONFIDENCE_REACHED: StopReason
STOP_REASON_NO_IMPROVEMENT: StopReason
STOP_REASON_TIME_LIMIT: StopReason
STOP_REASON_SAMPLE_LIMIT: StopReason
STOP_REASON_NOISE_REACHED: StopReason
STOP_REASON_ENTROPY_SETTLED: StopReason
STOP_REASON_ELIMINATED: StopReason
STOP_REASON_BUDGET_SPENT: StopReason
VERDICT_UNSPECIFIED: Verdict
VERDICT_FASTER: Verdict
VERDICT_SLOWER: Verdict
VERDICT_SAME: Verdict
VERDICT_UNDECIDED: Verdict
VERIFICATION_STATE_UNSPECIFIED: VerificationState
VERIFICATION_STATE_PASSED: VerificationState
VERIFICATION_STATE_FAILED: VerificationState
VERIFICATION_STATE_NO_REFERENCE: VerificationState
VERIFICATION_STATE_SWITCHED_OFF: VerificationState
LOG_LEVEL_UNSPECIFIED: LogLevel
LOG_LEVEL_DEBUG: LogLevel
LOG_LEVEL_INFO: LogLevel
LOG_LEVEL_WARNING: LogLevel
LOG_LEVEL_ERROR: LogLevel

class Axis(_message.Message):
    __slots__ = ("name", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[int]] = ...) -> None: ...

class Tie(_message.Message):
    __slots__ = ("name", "source_name")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    source_name: str
    def __init__(self, name: _Optional[str] = ..., source_name: _Optional[str] = ...) -> None: ...

class MeasuringOptions(_message.Message):
    __slots__ = ("cache_mode", "min_sample_count", "max_sample_count", "min_duration_ns", "max_duration_ns", "target_half_width_ratio", "warm_up_count", "skip_verification", "seed", "timing_method", "stopping_criterion", "target_noise_ratio", "input_distribution", "busy_policy")
    CACHE_MODE_FIELD_NUMBER: _ClassVar[int]
    MIN_SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MIN_DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    MAX_DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    TARGET_HALF_WIDTH_RATIO_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_COUNT_FIELD_NUMBER: _ClassVar[int]
    SKIP_VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TIMING_METHOD_FIELD_NUMBER: _ClassVar[int]
    STOPPING_CRITERION_FIELD_NUMBER: _ClassVar[int]
    TARGET_NOISE_RATIO_FIELD_NUMBER: _ClassVar[int]
    INPUT_DISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    BUSY_POLICY_FIELD_NUMBER: _ClassVar[int]
    cache_mode: CacheMode
    min_sample_count: int
    max_sample_count: int
    min_duration_ns: int
    max_duration_ns: int
    target_half_width_ratio: float
    warm_up_count: int
    skip_verification: bool
    seed: int
    timing_method: TimingMethod
    stopping_criterion: StoppingCriterion
    target_noise_ratio: float
    input_distribution: InputDistribution
    busy_policy: BusyPolicy
    def __init__(self, cache_mode: _Optional[_Union[CacheMode, str]] = ..., min_sample_count: _Optional[int] = ..., max_sample_count: _Optional[int] = ..., min_duration_ns: _Optional[int] = ..., max_duration_ns: _Optional[int] = ..., target_half_width_ratio: _Optional[float] = ..., warm_up_count: _Optional[int] = ..., skip_verification: _Optional[bool] = ..., seed: _Optional[int] = ..., timing_method: _Optional[_Union[TimingMethod, str]] = ..., stopping_criterion: _Optional[_Union[StoppingCriterion, str]] = ..., target_noise_ratio: _Optional[float] = ..., input_distribution: _Optional[_Union[InputDistribution, str]] = ..., busy_policy: _Optional[_Union[BusyPolicy, str]] = ...) -> None: ...

class Pairing(_message.Message):
    __slots__ = ("block_count",)
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    block_count: int
    def __init__(self, block_count: _Optional[int] = ...) -> None: ...

class Rival(_message.Message):
    __slots__ = ("configuration_index", "duration_median_ns")
    CONFIGURATION_INDEX_FIELD_NUMBER: _ClassVar[int]
    DURATION_MEDIAN_NS_FIELD_NUMBER: _ClassVar[int]
    configuration_index: int
    duration_median_ns: float
    def __init__(self, configuration_index: _Optional[int] = ..., duration_median_ns: _Optional[float] = ...) -> None: ...

class KernelSweep(_message.Message):
    __slots__ = ("kernels", "axes", "ties", "where", "arguments", "blocks", "backend", "device_id", "measuring", "macro_axes", "compiler_options", "order_seed", "strategy", "budget_ns", "process_count", "pairing", "with_counters", "done_configuration_indexes", "rivals", "failed_configuration_indexes", "skip_confirmation", "earlier_budget_ns", "clock_mode")
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    AXES_FIELD_NUMBER: _ClassVar[int]
    TIES_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    MEASURING_FIELD_NUMBER: _ClassVar[int]
    MACRO_AXES_FIELD_NUMBER: _ClassVar[int]
    COMPILER_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ORDER_SEED_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    BUDGET_NS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAIRING_FIELD_NUMBER: _ClassVar[int]
    WITH_COUNTERS_FIELD_NUMBER: _ClassVar[int]
    DONE_CONFIGURATION_INDEXES_FIELD_NUMBER: _ClassVar[int]
    RIVALS_FIELD_NUMBER: _ClassVar[int]
    FAILED_CONFIGURATION_INDEXES_FIELD_NUMBER: _ClassVar[int]
    SKIP_CONFIRMATION_FIELD_NUMBER: _ClassVar[int]
    EARLIER_BUDGET_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MODE_FIELD_NUMBER: _ClassVar[int]
    kernels: _containers.RepeatedCompositeFieldContainer[_kernel_pb2.KernelSelection]
    axes: _containers.RepeatedCompositeFieldContainer[Axis]
    ties: _containers.RepeatedCompositeFieldContainer[Tie]
    where: str
    arguments: _containers.RepeatedCompositeFieldContainer[_kernel_pb2.ArgumentDefinition]
    blocks: _containers.RepeatedCompositeFieldContainer[_device_pb2.Dim3]
    backend: _device_pb2.Backend
    device_id: str
    measuring: MeasuringOptions
    macro_axes: _containers.RepeatedCompositeFieldContainer[Axis]
    compiler_options: _containers.RepeatedScalarFieldContainer[str]
    order_seed: int
    strategy: SearchStrategy
    budget_ns: int
    process_count: int
    pairing: Pairing
    with_counters: bool
    done_configuration_indexes: _containers.RepeatedScalarFieldContainer[int]
    rivals: _containers.RepeatedCompositeFieldContainer[Rival]
    failed_configuration_indexes: _containers.RepeatedScalarFieldContainer[int]
    skip_confirmation: bool
    earlier_budget_ns: int
    clock_mode: ClockMode
    def __init__(self, kernels: _Optional[_Iterable[_Union[_kernel_pb2.KernelSelection, _Mapping]]] = ..., axes: _Optional[_Iterable[_Union[Axis, _Mapping]]] = ..., ties: _Optional[_Iterable[_Union[Tie, _Mapping]]] = ..., where: _Optional[str] = ..., arguments: _Optional[_Iterable[_Union[_kernel_pb2.ArgumentDefinition, _Mapping]]] = ..., blocks: _Optional[_Iterable[_Union[_device_pb2.Dim3, _Mapping]]] = ..., backend: _Optional[_Union[_device_pb2.Backend, str]] = ..., device_id: _Optional[str] = ..., measuring: _Optional[_Union[MeasuringOptions, _Mapping]] = ..., macro_axes: _Optional[_Iterable[_Union[Axis, _Mapping]]] = ..., compiler_options: _Optional[_Iterable[str]] = ..., order_seed: _Optional[int] = ..., strategy: _Optional[_Union[SearchStrategy, str]] = ..., budget_ns: _Optional[int] = ..., process_count: _Optional[int] = ..., pairing: _Optional[_Union[Pairing, _Mapping]] = ..., with_counters: _Optional[bool] = ..., done_configuration_indexes: _Optional[_Iterable[int]] = ..., rivals: _Optional[_Iterable[_Union[Rival, _Mapping]]] = ..., failed_configuration_indexes: _Optional[_Iterable[int]] = ..., skip_confirmation: _Optional[bool] = ..., earlier_budget_ns: _Optional[int] = ..., clock_mode: _Optional[_Union[ClockMode, str]] = ...) -> None: ...

class EnvironmentVariable(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class CommandProfile(_message.Message):
    __slots__ = ("arguments", "collector", "environment", "bundle_digest", "max_duration_ns", "capture_range", "with_cpu_sampling", "kernel_filter", "launch_skip_count", "max_launch_count", "step_count", "start_unix_ns", "network")
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    COLLECTOR_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_RANGE_FIELD_NUMBER: _ClassVar[int]
    WITH_CPU_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FILTER_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_SKIP_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_LAUNCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    STEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    arguments: _containers.RepeatedScalarFieldContainer[str]
    collector: str
    environment: _containers.RepeatedCompositeFieldContainer[EnvironmentVariable]
    bundle_digest: str
    max_duration_ns: int
    capture_range: str
    with_cpu_sampling: bool
    kernel_filter: str
    launch_skip_count: int
    max_launch_count: int
    step_count: int
    start_unix_ns: int
    network: bool
    def __init__(self, arguments: _Optional[_Iterable[str]] = ..., collector: _Optional[str] = ..., environment: _Optional[_Iterable[_Union[EnvironmentVariable, _Mapping]]] = ..., bundle_digest: _Optional[str] = ..., max_duration_ns: _Optional[int] = ..., capture_range: _Optional[str] = ..., with_cpu_sampling: _Optional[bool] = ..., kernel_filter: _Optional[str] = ..., launch_skip_count: _Optional[int] = ..., max_launch_count: _Optional[int] = ..., step_count: _Optional[int] = ..., start_unix_ns: _Optional[int] = ..., network: _Optional[bool] = ...) -> None: ...

class ModelRun(_message.Message):
    __slots__ = ("model_name", "variants", "batch_size", "sequence_length", "backend", "device_id", "bundle_digest", "vocabulary_size", "seed", "measuring", "prompt", "tokenizer_file_name")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    VARIANTS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MEASURING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    variants: _containers.RepeatedScalarFieldContainer[str]
    batch_size: int
    sequence_length: int
    backend: _device_pb2.Backend
    device_id: str
    bundle_digest: str
    vocabulary_size: int
    seed: int
    measuring: MeasuringOptions
    prompt: str
    tokenizer_file_name: str
    def __init__(self, model_name: _Optional[str] = ..., variants: _Optional[_Iterable[str]] = ..., batch_size: _Optional[int] = ..., sequence_length: _Optional[int] = ..., backend: _Optional[_Union[_device_pb2.Backend, str]] = ..., device_id: _Optional[str] = ..., bundle_digest: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., seed: _Optional[int] = ..., measuring: _Optional[_Union[MeasuringOptions, _Mapping]] = ..., prompt: _Optional[str] = ..., tokenizer_file_name: _Optional[str] = ...) -> None: ...

class CeilingMeasurement(_message.Message):
    __slots__ = ("backend", "device_id")
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    backend: _device_pb2.Backend
    device_id: str
    def __init__(self, backend: _Optional[_Union[_device_pb2.Backend, str]] = ..., device_id: _Optional[str] = ...) -> None: ...

class DeviceCheck(_message.Message):
    __slots__ = ("backend", "device_id", "block_count")
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    backend: _device_pb2.Backend
    device_id: str
    block_count: int
    def __init__(self, backend: _Optional[_Union[_device_pb2.Backend, str]] = ..., device_id: _Optional[str] = ..., block_count: _Optional[int] = ...) -> None: ...

class ImportedTrace(_message.Message):
    __slots__ = ("file_name", "digest", "format")
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    file_name: str
    digest: str
    format: str
    def __init__(self, file_name: _Optional[str] = ..., digest: _Optional[str] = ..., format: _Optional[str] = ...) -> None: ...

class RunLimits(_message.Message):
    __slots__ = ("time_limit_ns", "memory_limit_bytes")
    TIME_LIMIT_NS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    time_limit_ns: int
    memory_limit_bytes: int
    def __init__(self, time_limit_ns: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ...) -> None: ...

class Revision(_message.Message):
    __slots__ = ("commit", "is_dirty")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    IS_DIRTY_FIELD_NUMBER: _ClassVar[int]
    commit: str
    is_dirty: bool
    def __init__(self, commit: _Optional[str] = ..., is_dirty: _Optional[bool] = ...) -> None: ...

class RunSpec(_message.Message):
    __slots__ = ("kernel_sweep", "command_profile", "model_run", "ceiling_measurement", "imported_trace", "device_check", "title", "limits", "revision", "continues_run_id")
    KERNEL_SWEEP_FIELD_NUMBER: _ClassVar[int]
    COMMAND_PROFILE_FIELD_NUMBER: _ClassVar[int]
    MODEL_RUN_FIELD_NUMBER: _ClassVar[int]
    CEILING_MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    IMPORTED_TRACE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CHECK_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    kernel_sweep: KernelSweep
    command_profile: CommandProfile
    model_run: ModelRun
    ceiling_measurement: CeilingMeasurement
    imported_trace: ImportedTrace
    device_check: DeviceCheck
    title: str
    limits: RunLimits
    revision: Revision
    continues_run_id: str
    def __init__(self, kernel_sweep: _Optional[_Union[KernelSweep, _Mapping]] = ..., command_profile: _Optional[_Union[CommandProfile, _Mapping]] = ..., model_run: _Optional[_Union[ModelRun, _Mapping]] = ..., ceiling_measurement: _Optional[_Union[CeilingMeasurement, _Mapping]] = ..., imported_trace: _Optional[_Union[ImportedTrace, _Mapping]] = ..., device_check: _Optional[_Union[DeviceCheck, _Mapping]] = ..., title: _Optional[str] = ..., limits: _Optional[_Union[RunLimits, _Mapping]] = ..., revision: _Optional[_Union[Revision, _Mapping]] = ..., continues_run_id: _Optional[str] = ...) -> None: ...

class RunError(_message.Message):
    __slots__ = ("code", "reason", "message", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    code: str
    reason: str
    message: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("run_id", "node_id", "spec", "state", "create_time", "start_time", "end_time", "error", "request_id", "device_id", "completed_configuration_count", "failed_configuration_count", "total_configuration_count", "activity", "tags", "notes", "hostname", "problem", "owner", "traceparent")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_CONFIGURATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_CONFIGURATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_CONFIGURATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    node_id: str
    spec: RunSpec
    state: RunState
    create_time: _timestamp_pb2.Timestamp
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    error: RunError
    request_id: str
    device_id: str
    completed_configuration_count: int
    failed_configuration_count: int
    total_configuration_count: int
    activity: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    notes: str
    hostname: str
    problem: str
    owner: str
    traceparent: str
    def __init__(self, run_id: _Optional[str] = ..., node_id: _Optional[str] = ..., spec: _Optional[_Union[RunSpec, _Mapping]] = ..., state: _Optional[_Union[RunState, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[_Union[RunError, _Mapping]] = ..., request_id: _Optional[str] = ..., device_id: _Optional[str] = ..., completed_configuration_count: _Optional[int] = ..., failed_configuration_count: _Optional[int] = ..., total_configuration_count: _Optional[int] = ..., activity: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., notes: _Optional[str] = ..., hostname: _Optional[str] = ..., problem: _Optional[str] = ..., owner: _Optional[str] = ..., traceparent: _Optional[str] = ...) -> None: ...

class StateChanged(_message.Message):
    __slots__ = ("state", "error")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    state: RunState
    error: RunError
    def __init__(self, state: _Optional[_Union[RunState, str]] = ..., error: _Optional[_Union[RunError, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("completed_configuration_count", "failed_configuration_count", "total_configuration_count", "activity", "device_id", "configuration_index")
    COMPLETED_CONFIGURATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_CONFIGURATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_CONFIGURATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_INDEX_FIELD_NUMBER: _ClassVar[int]
    completed_configuration_count: int
    failed_configuration_count: int
    total_configuration_count: int
    activity: str
    device_id: str
    configuration_index: int
    def __init__(self, completed_configuration_count: _Optional[int] = ..., failed_configuration_count: _Optional[int] = ..., total_configuration_count: _Optional[int] = ..., activity: _Optional[str] = ..., device_id: _Optional[str] = ..., configuration_index: _Optional[int] = ...) -> None: ...

class ParameterValue(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class Configuration(_message.Message):
    __slots__ = ("configuration_index", "kernel_name", "parameters", "block", "grid", "dynamic_shared_memory_bytes", "category", "dtype", "flop", "bytes", "macros", "cache_mode", "process_index", "variant", "path", "layer_path")
    CONFIGURATION_INDEX_FIELD_NUMBER: _ClassVar[int]
    KERNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_SHARED_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    FLOP_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MACROS_FIELD_NUMBER: _ClassVar[int]
    CACHE_MODE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_INDEX_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    LAYER_PATH_FIELD_NUMBER: _ClassVar[int]
    configuration_index: int
    kernel_name: str
    parameters: _containers.RepeatedCompositeFieldContainer[ParameterValue]
    block: _device_pb2.Dim3
    grid: _device_pb2.Dim3
    dynamic_shared_memory_bytes: int
    category: str
    dtype: _kernel_pb2.DataType
    flop: float
    bytes: float
    macros: _containers.RepeatedCompositeFieldContainer[ParameterValue]
    cache_mode: CacheMode
    process_index: int
    variant: str
    path: str
    layer_path: str
    def __init__(self, configuration_index: _Optional[int] = ..., kernel_name: _Optional[str] = ..., parameters: _Optional[_Iterable[_Union[ParameterValue, _Mapping]]] = ..., block: _Optional[_Union[_device_pb2.Dim3, _Mapping]] = ..., grid: _Optional[_Union[_device_pb2.Dim3, _Mapping]] = ..., dynamic_shared_memory_bytes: _Optional[int] = ..., category: _Optional[str] = ..., dtype: _Optional[_Union[_kernel_pb2.DataType, str]] = ..., flop: _Optional[float] = ..., bytes: _Optional[float] = ..., macros: _Optional[_Iterable[_Union[ParameterValue, _Mapping]]] = ..., cache_mode: _Optional[_Union[CacheMode, str]] = ..., process_index: _Optional[int] = ..., variant: _Optional[str] = ..., path: _Optional[str] = ..., layer_path: _Optional[str] = ...) -> None: ...

class SampleBatch(_message.Message):
    __slots__ = ("configuration_index", "first_sample_index", "duration_ns", "measured_unix_ns", "sm_clock_hz", "discarded_positions")
    CONFIGURATION_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    SM_CLOCK_HZ_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    configuration_index: int
    first_sample_index: int
    duration_ns: _containers.RepeatedScalarFieldContainer[float]
    measured_unix_ns: int
    sm_clock_hz: _containers.RepeatedScalarFieldContainer[int]
    discarded_positions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, configuration_index: _Optional[int] = ..., first_sample_index: _Optional[int] = ..., duration_ns: _Optional[_Iterable[float]] = ..., measured_unix_ns: _Optional[int] = ..., sm_clock_hz: _Optional[_Iterable[int]] = ..., discarded_positions: _Optional[_Iterable[int]] = ...) -> None: ...

class KernelResources(_message.Message):
    __slots__ = ("register_count", "static_shared_memory_bytes", "local_memory_bytes", "spill_store_bytes", "spill_load_bytes", "constant_memory_bytes", "max_threads_per_block", "active_block_count", "theoretical_occupancy_ratio")
    REGISTER_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATIC_SHARED_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILL_STORE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILL_LOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_THREADS_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    THEORETICAL_OCCUPANCY_RATIO_FIELD_NUMBER: _ClassVar[int]
    register_count: int
    static_shared_memory_bytes: int
    local_memory_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    constant_memory_bytes: int
    max_threads_per_block: int
    active_block_count: int
    theoretical_occupancy_ratio: float
    def __init__(self, register_count: _Optional[int] = ..., static_shared_memory_bytes: _Optional[int] = ..., local_memory_bytes: _Optional[int] = ..., spill_store_bytes: _Optional[int] = ..., spill_load_bytes: _Optional[int] = ..., constant_memory_bytes: _Optional[int] = ..., max_threads_per_block: _Optional[int] = ..., active_block_count: _Optional[int] = ..., theoretical_occupancy_ratio: _Optional[float] = ...) -> None: ...

class Verification(_message.Message):
    __slots__ = ("state", "max_absolute_error", "max_relative_error", "relative_tolerance", "buffer_name", "message")
    STATE_FIELD_NUMBER: _ClassVar[int]
    MAX_ABSOLUTE_ERROR_FIELD_NUMBER: _ClassVar[int]
    MAX_RELATIVE_ERROR_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    BUFFER_NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    state: VerificationState
    max_absolute_error: float
    max_relative_error: float
    relative_tolerance: float
    buffer_name: str
    message: str
    def __init__(self, state: _Optional[_Union[VerificationState, str]] = ..., max_absolute_error: _Optional[float] = ..., max_relative_error: _Optional[float] = ..., relative_tolerance: _Optional[float] = ..., buffer_name: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Measurement(_message.Message):
    __slots__ = ("configuration_index", "sample_count", "discarded_sample_count", "warm_up_count", "duration_median_ns", "duration_median_low_ns", "duration_median_high_ns", "duration_min_ns", "duration_max_ns", "duration_mean_ns", "duration_lower_quartile_ns", "duration_upper_quartile_ns", "duration_p95_ns", "duration_p99_ns", "duration_standard_deviation_ns", "noise_ratio", "stop_reason", "cache_mode", "verification", "measured_unix_ns", "elapsed_ns", "compile_ns", "input_distribution", "seed", "compiler_options", "driver_version", "toolkit_version", "device_uuid", "sm_clock_hz", "memory_clock_hz", "temperature_celsius", "power_watts", "throttle_reasons", "has_throttle_reasons", "duration_median_absolute_deviation_ns", "timing_method", "launches_per_sample", "is_blocked", "stopping_criterion", "resources", "other_process_count", "host_busy_ratio", "recheck", "device_memory_bytes", "clocks")
    CONFIGURATION_INDEX_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_COUNT_FIELD_NUMBER: _ClassVar[int]
    DURATION_MEDIAN_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MEDIAN_LOW_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MEDIAN_HIGH_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MIN_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MAX_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MEAN_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_LOWER_QUARTILE_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_UPPER_QUARTILE_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_P95_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_P99_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_STANDARD_DEVIATION_NS_FIELD_NUMBER: _ClassVar[int]
    NOISE_RATIO_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    CACHE_MODE_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    MEASURED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_NS_FIELD_NUMBER: _ClassVar[int]
    COMPILE_NS_FIELD_NUMBER: _ClassVar[int]
    INPUT_DISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    COMPILER_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOOLKIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    SM_CLOCK_HZ_FIELD_NUMBER: _ClassVar[int]
    MEMORY_CLOCK_HZ_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_REASONS_FIELD_NUMBER: _ClassVar[int]
    HAS_THROTTLE_REASONS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MEDIAN_ABSOLUTE_DEVIATION_NS_FIELD_NUMBER: _ClassVar[int]
    TIMING_METHOD_FIELD_NUMBER: _ClassVar[int]
    LAUNCHES_PER_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    IS_BLOCKED_FIELD_NUMBER: _ClassVar[int]
    STOPPING_CRITERION_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    OTHER_PROCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    HOST_BUSY_RATIO_FIELD_NUMBER: _ClassVar[int]
    RECHECK_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    configuration_index: int
    sample_count: int
    discarded_sample_count: int
    warm_up_count: int
    duration_median_ns: float
    duration_median_low_ns: float
    duration_median_high_ns: float
    duration_min_ns: float
    duration_max_ns: float
    duration_mean_ns: float
    duration_lower_quartile_ns: float
    duration_upper_quartile_ns: float
    duration_p95_ns: float
    duration_p99_ns: float
    duration_standard_deviation_ns: float
    noise_ratio: float
    stop_reason: StopReason
    cache_mode: CacheMode
    verification: Verification
    measured_unix_ns: int
    elapsed_ns: int
    compile_ns: int
    input_distribution: str
    seed: int
    compiler_options: str
    driver_version: str
    toolkit_version: str
    device_uuid: str
    sm_clock_hz: int
    memory_clock_hz: int
    temperature_celsius: float
    power_watts: float
    throttle_reasons: _containers.RepeatedScalarFieldContainer[str]
    has_throttle_reasons: bool
    duration_median_absolute_deviation_ns: float
    timing_method: TimingMethod
    launches_per_sample: int
    is_blocked: bool
    stopping_criterion: StoppingCriterion
    resources: KernelResources
    other_process_count: int
    host_busy_ratio: float
    recheck: Verification
    device_memory_bytes: int
    clocks: str
    def __init__(self, configuration_index: _Optional[int] = ..., sample_count: _Optional[int] = ..., discarded_sample_count: _Optional[int] = ..., warm_up_count: _Optional[int] = ..., duration_median_ns: _Optional[float] = ..., duration_median_low_ns: _Optional[float] = ..., duration_median_high_ns: _Optional[float] = ..., duration_min_ns: _Optional[float] = ..., duration_max_ns: _Optional[float] = ..., duration_mean_ns: _Optional[float] = ..., duration_lower_quartile_ns: _Optional[float] = ..., duration_upper_quartile_ns: _Optional[float] = ..., duration_p95_ns: _Optional[float] = ..., duration_p99_ns: _Optional[float] = ..., duration_standard_deviation_ns: _Optional[float] = ..., noise_ratio: _Optional[float] = ..., stop_reason: _Optional[_Union[StopReason, str]] = ..., cache_mode: _Optional[_Union[CacheMode, str]] = ..., verification: _Optional[_Union[Verification, _Mapping]] = ..., measured_unix_ns: _Optional[int] = ..., elapsed_ns: _Optional[int] = ..., compile_ns: _Optional[int] = ..., input_distribution: _Optional[str] = ..., seed: _Optional[int] = ..., compiler_options: _Optional[str] = ..., driver_version: _Optional[str] = ..., toolkit_version: _Optional[str] = ..., device_uuid: _Optional[str] = ..., sm_clock_hz: _Optional[int] = ..., memory_clock_hz: _Optional[int] = ..., temperature_celsius: _Optional[float] = ..., power_watts: _Optional[float] = ..., throttle_reasons: _Optional[_Iterable[str]] = ..., has_throttle_reasons: _Optional[bool] = ..., duration_median_absolute_deviation_ns: _Optional[float] = ..., timing_method: _Optional[_Union[TimingMethod, str]] = ..., launches_per_sample: _Optional[int] = ..., is_blocked: _Optional[bool] = ..., stopping_criterion: _Optional[_Union[StoppingCriterion, str]] = ..., resources: _Optional[_Union[KernelResources, _Mapping]] = ..., other_process_count: _Optional[int] = ..., host_busy_ratio: _Optional[float] = ..., recheck: _Optional[_Union[Verification, _Mapping]] = ..., device_memory_bytes: _Optional[int] = ..., clocks: _Optional[str] = ...) -> None: ...

class PairedComparison(_message.Message):
    __slots__ = ("configuration_index", "baseline_configuration_index", "block_count", "duration_ratio", "duration_ratio_low", "duration_ratio_high", "cycle_ratio", "cycle_ratio_low", "cycle_ratio_high", "confidence_ratio", "verdict", "reason", "measured_unix_ns")
    CONFIGURATION_INDEX_FIELD_NUMBER: _ClassVar[int]
    BASELINE_CONFIGURATION_INDEX_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    DURATION_RATIO_FIELD_NUMBER: _ClassVar[int]
    DURATION_RATIO_LOW_FIELD_NUMBER: _ClassVar[int]
    DURATION_RATIO_HIGH_FIELD_NUMBER: _ClassVar[int]
    CYCLE_RATIO_FIELD_NUMBER: _ClassVar[int]
    CYCLE_RATIO_LOW_FIELD_NUMBER: _ClassVar[int]
    CYCLE_RATIO_HIGH_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_RATIO_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MEASURED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    configuration_index: int
    baseline_configuration_index: int
    block_count: int
    duration_ratio: float
    duration_ratio_low: float
    duration_ratio_high: float
    cycle_ratio: float
    cycle_ratio_low: float
    cycle_ratio_high: float
    confidence_ratio: float
    verdict: Verdict
    reason: str
    measured_unix_ns: int
    def __init__(self, configuration_index: _Optional[int] = ..., baseline_configuration_index: _Optional[int] = ..., block_count: _Optional[int] = ..., duration_ratio: _Optional[float] = ..., duration_ratio_low: _Optional[float] = ..., duration_ratio_high: _Optional[float] = ..., cycle_ratio: _Optional[float] = ..., cycle_ratio_low: _Optional[float] = ..., cycle_ratio_high: _Optional[float] = ..., confidence_ratio: _Optional[float] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., reason: _Optional[str] = ..., measured_unix_ns: _Optional[int] = ...) -> None: ...

class CountersStored(_message.Message):
    __slots__ = ("artifact_name", "configuration_indexes", "cache_control", "clock_control", "function_names")
    ARTIFACT_NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_INDEXES_FIELD_NUMBER: _ClassVar[int]
    CACHE_CONTROL_FIELD_NUMBER: _ClassVar[int]
    CLOCK_CONTROL_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_NAMES_FIELD_NUMBER: _ClassVar[int]
    artifact_name: str
    configuration_indexes: _containers.RepeatedScalarFieldContainer[int]
    cache_control: str
    clock_control: str
    function_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, artifact_name: _Optional[str] = ..., configuration_indexes: _Optional[_Iterable[int]] = ..., cache_control: _Optional[str] = ..., clock_control: _Optional[str] = ..., function_names: _Optional[_Iterable[str]] = ...) -> None: ...

class TraceStored(_message.Message):
    __slots__ = ("artifact_names", "collector")
    ARTIFACT_NAMES_FIELD_NUMBER: _ClassVar[int]
    COLLECTOR_FIELD_NUMBER: _ClassVar[int]
    artifact_names: _containers.RepeatedScalarFieldContainer[str]
    collector: str
    def __init__(self, artifact_names: _Optional[_Iterable[str]] = ..., collector: _Optional[str] = ...) -> None: ...

class ConfigurationFailed(_message.Message):
    __slots__ = ("configuration_index", "error")
    CONFIGURATION_INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    configuration_index: int
    error: RunError
    def __init__(self, configuration_index: _Optional[int] = ..., error: _Optional[_Union[RunError, _Mapping]] = ...) -> None: ...

class LogLines(_message.Message):
    __slots__ = ("level", "source", "lines")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    level: LogLevel
    source: str
    lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, level: _Optional[_Union[LogLevel, str]] = ..., source: _Optional[str] = ..., lines: _Optional[_Iterable[str]] = ...) -> None: ...

class CeilingsMeasured(_message.Message):
    __slots__ = ("ceilings",)
    CEILINGS_FIELD_NUMBER: _ClassVar[int]
    ceilings: _containers.RepeatedCompositeFieldContainer[_device_pb2.Ceiling]
    def __init__(self, ceilings: _Optional[_Iterable[_Union[_device_pb2.Ceiling, _Mapping]]] = ...) -> None: ...

class ArtifactStored(_message.Message):
    __slots__ = ("artifact_name", "digest", "size_bytes", "media_type")
    ARTIFACT_NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    artifact_name: str
    digest: str
    size_bytes: int
    media_type: str
    def __init__(self, artifact_name: _Optional[str] = ..., digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., media_type: _Optional[str] = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("event_index", "journal_id", "run_id", "event_unix_ns", "state_changed", "progress", "configuration", "sample_batch", "measurement", "configuration_failed", "log_lines", "telemetry", "ceilings_measured", "artifact_stored", "paired_comparison", "counters_stored", "trace_stored")
    EVENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    STATE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_BATCH_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FAILED_FIELD_NUMBER: _ClassVar[int]
    LOG_LINES_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    CEILINGS_MEASURED_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_STORED_FIELD_NUMBER: _ClassVar[int]
    PAIRED_COMPARISON_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_STORED_FIELD_NUMBER: _ClassVar[int]
    TRACE_STORED_FIELD_NUMBER: _ClassVar[int]
    event_index: int
    journal_id: str
    run_id: str
    event_unix_ns: int
    state_changed: StateChanged
    progress: Progress
    configuration: Configuration
    sample_batch: SampleBatch
    measurement: Measurement
    configuration_failed: ConfigurationFailed
    log_lines: LogLines
    telemetry: _device_pb2.Telemetry
    ceilings_measured: CeilingsMeasured
    artifact_stored: ArtifactStored
    paired_comparison: PairedComparison
    counters_stored: CountersStored
    trace_stored: TraceStored
    def __init__(self, event_index: _Optional[int] = ..., journal_id: _Optional[str] = ..., run_id: _Optional[str] = ..., event_unix_ns: _Optional[int] = ..., state_changed: _Optional[_Union[StateChanged, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., configuration: _Optional[_Union[Configuration, _Mapping]] = ..., sample_batch: _Optional[_Union[SampleBatch, _Mapping]] = ..., measurement: _Optional[_Union[Measurement, _Mapping]] = ..., configuration_failed: _Optional[_Union[ConfigurationFailed, _Mapping]] = ..., log_lines: _Optional[_Union[LogLines, _Mapping]] = ..., telemetry: _Optional[_Union[_device_pb2.Telemetry, _Mapping]] = ..., ceilings_measured: _Optional[_Union[CeilingsMeasured, _Mapping]] = ..., artifact_stored: _Optional[_Union[ArtifactStored, _Mapping]] = ..., paired_comparison: _Optional[_Union[PairedComparison, _Mapping]] = ..., counters_stored: _Optional[_Union[CountersStored, _Mapping]] = ..., trace_stored: _Optional[_Union[TraceStored, _Mapping]] = ...) -> None: ...
