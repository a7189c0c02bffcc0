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

class StopReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_REASON_UNSPECIFIED: _ClassVar[StopReason]
    STOP_REASON_CONFIDENCE_REACHED: _ClassVar[StopReason]
    STOP_REASON_NO_IMPROVEMENT: _ClassVar[StopReason]
    STOP_REASON_TIME_LIMIT: _ClassVar[StopReason]
    STOP_REASON_SAMPLE_LIMIT: _ClassVar[StopReason]

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
STOP_REASON_UNSPECIFIED: StopReason
STOP_REASON_CONFIDENCE_REACHED: StopReason
STOP_REASON_NO_IMPROVEMENT: StopReason
STOP_REASON_TIME_LIMIT: StopReason
STOP_REASON_SAMPLE_LIMIT: StopReason
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
    __slots__ = ("cache_mode", "min_sample_count", "max_sample_count", "min_duration_ns", "max_duration_ns", "target_half_width_ratio", "warm_up_count", "skip_verification", "seed")
    CACHE_MODE_FIELD_NUMBER: _ClassVar[int]
    MIN_SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MIN_DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    MAX_DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    TARGET_HALF_WIDTH_RATIO_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_COUNT_FIELD_NUMBER: _ClassVar[int]
    SKIP_VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    cache_mode: CacheMode
    min_sample_count: int
    max_sample_count: int
    min_duration_ns: int
    max_duration_ns: int
    target_half_width_ratio: float
    warm_up_count: int
    skip_verification: bool
    seed: int
    def __init__(self, cache_mode: _Optional[_Union[CacheMode, str]] = ..., min_sample_count: _Optional[int] = ..., max_sample_count: _Optional[int] = ..., min_duration_ns: _Optional[int] = ..., max_duration_ns: _Optional[int] = ..., target_half_width_ratio: _Optional[float] = ..., warm_up_count: _Optional[int] = ..., skip_verification: _Optional[bool] = ..., seed: _Optional[int] = ...) -> None: ...

class KernelSweep(_message.Message):
    __slots__ = ("kernels", "axes", "ties", "where", "arguments", "block", "backend", "device_id", "measuring")
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    AXES_FIELD_NUMBER: _ClassVar[int]
    TIES_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    MEASURING_FIELD_NUMBER: _ClassVar[int]
    kernels: _containers.RepeatedCompositeFieldContainer[_kernel_pb2.KernelSelection]
    axes: _containers.RepeatedCompositeFieldContainer[Axis]
    ties: _containers.RepeatedCompositeFieldContainer[Tie]
    where: str
    arguments: _containers.RepeatedCompositeFieldContainer[_kernel_pb2.ArgumentDefinition]
    block: _device_pb2.Dim3
    backend: _device_pb2.Backend
    device_id: str
    measuring: MeasuringOptions
    def __init__(self, kernels: _Optional[_Iterable[_Union[_kernel_pb2.KernelSelection, _Mapping]]] = ..., axes: _Optional[_Iterable[_Union[Axis, _Mapping]]] = ..., ties: _Optional[_Iterable[_Union[Tie, _Mapping]]] = ..., where: _Optional[str] = ..., arguments: _Optional[_Iterable[_Union[_kernel_pb2.ArgumentDefinition, _Mapping]]] = ..., block: _Optional[_Union[_device_pb2.Dim3, _Mapping]] = ..., backend: _Optional[_Union[_device_pb2.Backend, str]] = ..., device_id: _Optional[str] = ..., measuring: _Optional[_Union[MeasuringOptions, _Mapping]] = ...) -> None: ...

class EnvironmentVariable(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class CommandProfile(_message.Message):
    __slots__ = ("arguments", "collector", "environment", "bundle_digest", "max_duration_ns")
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    COLLECTOR_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    arguments: _containers.RepeatedScalarFieldContainer[str]
    collector: str
    environment: _containers.RepeatedCompositeFieldContainer[EnvironmentVariable]
    bundle_digest: str
    max_duration_ns: int
    def __init__(self, arguments: _Optional[_Iterable[str]] = ..., collector: _Optional[str] = ..., environment: _Optional[_Iterable[_Union[EnvironmentVariable, _Mapping]]] = ..., bundle_digest: _Optional[str] = ..., max_duration_ns: _Optional[int] = ...) -> None: ...

class ModelRun(_message.Message):
    __slots__ = ("model_name", "variant", "batch_size", "sequence_length", "backend", "device_id", "bundle_digest")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    VARIANT_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    variant: str
    batch_size: int
    sequence_length: int
    backend: _device_pb2.Backend
    device_id: str
    bundle_digest: str
    def __init__(self, model_name: _Optional[str] = ..., variant: _Optional[str] = ..., batch_size: _Optional[int] = ..., sequence_length: _Optional[int] = ..., backend: _Optional[_Union[_device_pb2.Backend, str]] = ..., device_id: _Optional[str] = ..., bundle_digest: _Optional[str] = ...) -> None: ...

class CeilingMeasurement(_message.Message):
    __slots__ = ("backend", "device_id")
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    backend: _device_pb2.Backend
    device_id: str
    def __init__(self, backend: _Optional[_Union[_device_pb2.Backend, str]] = ..., device_id: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("kernel_sweep", "command_profile", "model_run", "ceiling_measurement", "title", "limits", "revision")
    KERNEL_SWEEP_FIELD_NUMBER: _ClassVar[int]
    COMMAND_PROFILE_FIELD_NUMBER: _ClassVar[int]
    MODEL_RUN_FIELD_NUMBER: _ClassVar[int]
    CEILING_MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    kernel_sweep: KernelSweep
    command_profile: CommandProfile
    model_run: ModelRun
    ceiling_measurement: CeilingMeasurement
    title: str
    limits: RunLimits
    revision: Revision
    def __init__(self, kernel_sweep: _Optional[_Union[KernelSweep, _Mapping]] = ..., command_profile: _Optional[_Union[CommandProfile, _Mapping]] = ..., model_run: _Optional[_Union[ModelRun, _Mapping]] = ..., ceiling_measurement: _Optional[_Union[CeilingMeasurement, _Mapping]] = ..., title: _Optional[str] = ..., limits: _Optional[_Union[RunLimits, _Mapping]] = ..., revision: _Optional[_Union[Revision, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("run_id", "node_id", "spec", "state", "create_time", "start_time", "end_time", "error", "request_id", "device_id", "completed_configuration_count", "failed_configuration_count", "total_configuration_count", "activity", "tags", "notes")
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
    def __init__(self, run_id: _Optional[str] = ..., node_id: _Optional[str] = ..., spec: _Optional[_Union[RunSpec, _Mapping]] = ..., state: _Optional[_Union[RunState, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., error: _Optional[_Union[RunError, _Mapping]] = ..., request_id: _Optional[str] = ..., device_id: _Optional[str] = ..., completed_configuration_count: _Optional[int] = ..., failed_configuration_count: _Optional[int] = ..., total_configuration_count: _Optional[int] = ..., activity: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., notes: _Optional[str] = ...) -> None: ...

class StateChanged(_message.Message):
    __slots__ = ("state", "error")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    state: RunState
    error: RunError
    def __init__(self, state: _Optional[_Union[RunState, str]] = ..., error: _Optional[_Union[RunError, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("completed_configuration_count", "failed_configuration_count", "total_configuration_count", "activity", "device_id")
    COMPLETED_CONFIGURATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_CONFIGURATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_CONFIGURATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    completed_configuration_count: int
    failed_configuration_count: int
    total_configuration_count: int
    activity: str
    device_id: str
    def __init__(self, completed_configuration_count: _Optional[int] = ..., failed_configuration_count: _Optional[int] = ..., total_configuration_count: _Optional[int] = ..., activity: _Optional[str] = ..., device_id: _Optional[str] = ...) -> None: ...

class ParameterValue(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class Configuration(_message.Message):
    __slots__ = ("configuration_index", "kernel_name", "parameters", "block", "grid", "dynamic_shared_memory_bytes", "category", "dtype", "flop", "bytes")
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
    def __init__(self, configuration_index: _Optional[int] = ..., kernel_name: _Optional[str] = ..., parameters: _Optional[_Iterable[_Union[ParameterValue, _Mapping]]] = ..., block: _Optional[_Union[_device_pb2.Dim3, _Mapping]] = ..., grid: _Optional[_Union[_device_pb2.Dim3, _Mapping]] = ..., dynamic_shared_memory_bytes: _Optional[int] = ..., category: _Optional[str] = ..., dtype: _Optional[_Union[_kernel_pb2.DataType, str]] = ..., flop: _Optional[float] = ..., bytes: _Optional[float] = ...) -> None: ...

class SampleBatch(_message.Message):
    __slots__ = ("configuration_index", "first_sample_index", "duration_ns", "measured_unix_ns")
    CONFIGURATION_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    configuration_index: int
    first_sample_index: int
    duration_ns: _containers.RepeatedScalarFieldContainer[float]
    measured_unix_ns: int
    def __init__(self, configuration_index: _Optional[int] = ..., first_sample_index: _Optional[int] = ..., duration_ns: _Optional[_Iterable[float]] = ..., measured_unix_ns: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("configuration_index", "sample_count", "discarded_sample_count", "warm_up_count", "duration_median_ns", "duration_median_low_ns", "duration_median_high_ns", "duration_min_ns", "duration_max_ns", "duration_mean_ns", "duration_lower_quartile_ns", "duration_upper_quartile_ns", "duration_p95_ns", "duration_p99_ns", "duration_standard_deviation_ns", "noise_ratio", "stop_reason", "cache_mode", "verification", "measured_unix_ns", "elapsed_ns", "compile_ns", "input_distribution", "seed", "compiler_options", "driver_version", "toolkit_version", "device_uuid", "sm_clock_hz", "memory_clock_hz", "temperature_celsius", "power_watts", "throttle_reasons", "has_throttle_reasons")
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
    def __init__(self, configuration_index: _Optional[int] = ..., sample_count: _Optional[int] = ..., discarded_sample_count: _Optional[int] = ..., warm_up_count: _Optional[int] = ..., duration_median_ns: _Optional[float] = ..., duration_median_low_ns: _Optional[float] = ..., duration_median_high_ns: _Optional[float] = ..., duration_min_ns: _Optional[float] = ..., duration_max_ns: _Optional[float] = ..., duration_mean_ns: _Optional[float] = ..., duration_lower_quartile_ns: _Optional[float] = ..., duration_upper_quartile_ns: _Optional[float] = ..., duration_p95_ns: _Optional[float] = ..., duration_p99_ns: _Optional[float] = ..., duration_standard_deviation_ns: _Optional[float] = ..., noise_ratio: _Optional[float] = ..., stop_reason: _Optional[_Union[StopReason, str]] = ..., cache_mode: _Optional[_Union[CacheMode, str]] = ..., verification: _Optional[_Union[Verification, _Mapping]] = ..., measured_unix_ns: _Optional[int] = ..., elapsed_ns: _Optional[int] = ..., compile_ns: _Optional[int] = ..., input_distribution: _Optional[str] = ..., seed: _Optional[int] = ..., compiler_options: _Optional[str] = ..., driver_version: _Optional[str] = ..., toolkit_version: _Optional[str] = ..., device_uuid: _Optional[str] = ..., sm_clock_hz: _Optional[int] = ..., memory_clock_hz: _Optional[int] = ..., temperature_celsius: _Optional[float] = ..., power_watts: _Optional[float] = ..., throttle_reasons: _Optional[_Iterable[str]] = ..., has_throttle_reasons: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("event_index", "journal_id", "run_id", "event_unix_ns", "state_changed", "progress", "configuration", "sample_batch", "measurement", "configuration_failed", "log_lines", "telemetry", "ceilings_measured", "artifact_stored")
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
    def __init__(self, event_index: _Optional[int] = ..., journal_id: _Optional[str] = ..., run_id: _Optional[str] = ..., event_unix_ns: _Optional[int] = ..., state_changed: _Optional[_Union[StateChanged, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., configuration: _Optional[_Union[Configuration, _Mapping]] = ..., sample_batch: _Optional[_Union[SampleBatch, _Mapping]] = ..., measurement: _Optional[_Union[Measurement, _Mapping]] = ..., configuration_failed: _Optional[_Union[ConfigurationFailed, _Mapping]] = ..., log_lines: _Optional[_Union[LogLines, _Mapping]] = ..., telemetry: _Optional[_Union[_device_pb2.Telemetry, _Mapping]] = ..., ceilings_measured: _Optional[_Union[CeilingsMeasured, _Mapping]] = ..., artifact_stored: _Optional[_Union[ArtifactStored, _Mapping]] = ...) -> None: ...
