import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Backend(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BACKEND_UNSPECIFIED: _ClassVar[Backend]
    BACKEND_AUTO: _ClassVar[Backend]
    BACKEND_PYCUDA: _ClassVar[Backend]
    BACKEND_NVCC: _ClassVar[Backend]
    BACKEND_OPENCL: _ClassVar[Backend]

class DeviceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_KIND_UNSPECIFIED: _ClassVar[DeviceKind]
    DEVICE_KIND_GPU: _ClassVar[DeviceKind]
    DEVICE_KIND_CPU: _ClassVar[DeviceKind]
    DEVICE_KIND_ACCELERATOR: _ClassVar[DeviceKind]
BACKEND_UNSPECIFIED: Backend
BACKEND_AUTO: Backend
BACKEND_PYCUDA: Backend
BACKEND_NVCC: Backend
BACKEND_OPENCL: Backend
DEVICE_KIND_UNSPECIFIED: DeviceKind
DEVICE_KIND_GPU: DeviceKind
DEVICE_KIND_CPU: DeviceKind
DEVICE_KIND_ACCELERATOR: DeviceKind

class Dim3(_message.Message):
    __slots__ = ("x", "y", "z")
    X_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    Z_FIELD_NUMBER: _ClassVar[int]
    x: int
    y: int
    z: int
    def __init__(self, x: _Optional[int] = ..., y: _Optional[int] = ..., z: _Optional[int] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("device_id", "name", "kind", "backends", "runtime", "driver_version", "toolkit_version", "uuid", "compute_capability", "compute_unit_count", "memory_bytes", "l2_cache_bytes", "max_clock_hz", "max_threads_per_block", "max_block", "max_grid", "max_shared_memory_bytes", "max_buffer_bytes", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOOLKIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_UNIT_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    L2_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CLOCK_HZ_FIELD_NUMBER: _ClassVar[int]
    MAX_THREADS_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCK_FIELD_NUMBER: _ClassVar[int]
    MAX_GRID_FIELD_NUMBER: _ClassVar[int]
    MAX_SHARED_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    name: str
    kind: DeviceKind
    backends: _containers.RepeatedScalarFieldContainer[Backend]
    runtime: str
    driver_version: str
    toolkit_version: str
    uuid: str
    compute_capability: str
    compute_unit_count: int
    memory_bytes: int
    l2_cache_bytes: int
    max_clock_hz: int
    max_threads_per_block: int
    max_block: Dim3
    max_grid: Dim3
    max_shared_memory_bytes: int
    max_buffer_bytes: int
    settings: _containers.ScalarMap[str, str]
    def __init__(self, device_id: _Optional[str] = ..., name: _Optional[str] = ..., kind: _Optional[_Union[DeviceKind, str]] = ..., backends: _Optional[_Iterable[_Union[Backend, str]]] = ..., runtime: _Optional[str] = ..., driver_version: _Optional[str] = ..., toolkit_version: _Optional[str] = ..., uuid: _Optional[str] = ..., compute_capability: _Optional[str] = ..., compute_unit_count: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., l2_cache_bytes: _Optional[int] = ..., max_clock_hz: _Optional[int] = ..., max_threads_per_block: _Optional[int] = ..., max_block: _Optional[_Union[Dim3, _Mapping]] = ..., max_grid: _Optional[_Union[Dim3, _Mapping]] = ..., max_shared_memory_bytes: _Optional[int] = ..., max_buffer_bytes: _Optional[int] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class NodePolicy(_message.Message):
    __slots__ = ("allow_inline_source", "allow_commands", "allow_catalog_only", "observe_only")
    ALLOW_INLINE_SOURCE_FIELD_NUMBER: _ClassVar[int]
    ALLOW_COMMANDS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_CATALOG_ONLY_FIELD_NUMBER: _ClassVar[int]
    OBSERVE_ONLY_FIELD_NUMBER: _ClassVar[int]
    allow_inline_source: bool
    allow_commands: bool
    allow_catalog_only: bool
    observe_only: bool
    def __init__(self, allow_inline_source: _Optional[bool] = ..., allow_commands: _Optional[bool] = ..., allow_catalog_only: _Optional[bool] = ..., observe_only: _Optional[bool] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("node_id", "hostname", "version", "journal_id", "start_time", "devices", "operating_system", "cpu_model", "cpu_count", "memory_bytes", "python_version", "policy", "running_run_ids", "queued_run_ids", "notices", "storage_problem", "sandbox")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ID_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    OPERATING_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    CPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    CPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_RUN_IDS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_RUN_IDS_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    hostname: str
    version: str
    journal_id: str
    start_time: _timestamp_pb2.Timestamp
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    operating_system: str
    cpu_model: str
    cpu_count: int
    memory_bytes: int
    python_version: str
    policy: NodePolicy
    running_run_ids: _containers.RepeatedScalarFieldContainer[str]
    queued_run_ids: _containers.RepeatedScalarFieldContainer[str]
    notices: _containers.RepeatedScalarFieldContainer[str]
    storage_problem: str
    sandbox: str
    def __init__(self, node_id: _Optional[str] = ..., hostname: _Optional[str] = ..., version: _Optional[str] = ..., journal_id: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., operating_system: _Optional[str] = ..., cpu_model: _Optional[str] = ..., cpu_count: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., python_version: _Optional[str] = ..., policy: _Optional[_Union[NodePolicy, _Mapping]] = ..., running_run_ids: _Optional[_Iterable[str]] = ..., queued_run_ids: _Optional[_Iterable[str]] = ..., notices: _Optional[_Iterable[str]] = ..., storage_problem: _Optional[str] = ..., sandbox: _Optional[str] = ...) -> None: ...

class ErrorCount(_message.Message):
    __slots__ = ("name", "count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    count: int
    def __init__(self, name: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Telemetry(_message.Message):
    __slots__ = ("measured_unix_ns", "device_id", "utilization_ratio", "memory_used_bytes", "memory_total_bytes", "clock_hz", "memory_clock_hz", "temperature_celsius", "power_watts", "throttle_reasons", "has_throttle_reasons", "load_average", "other_processes", "has_other_processes", "error_counts")
    MEASURED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_RATIO_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOCK_HZ_FIELD_NUMBER: _ClassVar[int]
    MEMORY_CLOCK_HZ_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_REASONS_FIELD_NUMBER: _ClassVar[int]
    HAS_THROTTLE_REASONS_FIELD_NUMBER: _ClassVar[int]
    LOAD_AVERAGE_FIELD_NUMBER: _ClassVar[int]
    OTHER_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    HAS_OTHER_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    ERROR_COUNTS_FIELD_NUMBER: _ClassVar[int]
    measured_unix_ns: int
    device_id: str
    utilization_ratio: float
    memory_used_bytes: int
    memory_total_bytes: int
    clock_hz: int
    memory_clock_hz: int
    temperature_celsius: float
    power_watts: float
    throttle_reasons: _containers.RepeatedScalarFieldContainer[str]
    has_throttle_reasons: bool
    load_average: float
    other_processes: _containers.RepeatedScalarFieldContainer[str]
    has_other_processes: bool
    error_counts: _containers.RepeatedCompositeFieldContainer[ErrorCount]
    def __init__(self, measured_unix_ns: _Optional[int] = ..., device_id: _Optional[str] = ..., utilization_ratio: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., memory_total_bytes: _Optional[int] = ..., clock_hz: _Optional[int] = ..., memory_clock_hz: _Optional[int] = ..., temperature_celsius: _Optional[float] = ..., power_watts: _Optional[float] = ..., throttle_reasons: _Optional[_Iterable[str]] = ..., has_throttle_reasons: _Optional[bool] = ..., load_average: _Optional[float] = ..., other_processes: _Optional[_Iterable[str]] = ..., has_other_processes: _Optional[bool] = ..., error_counts: _Optional[_Iterable[_Union[ErrorCount, _Mapping]]] = ...) -> None: ...

class Ceiling(_message.Message):
    __slots__ = ("device_id", "ceiling_name", "unit", "value", "path", "source", "confidence", "note", "clock_hz", "measured_unix_ns", "host_busy_ratio")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    CEILING_NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_HZ_FIELD_NUMBER: _ClassVar[int]
    MEASURED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    HOST_BUSY_RATIO_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    ceiling_name: str
    unit: str
    value: float
    path: str
    source: str
    confidence: str
    note: str
    clock_hz: int
    measured_unix_ns: int
    host_busy_ratio: float
    def __init__(self, device_id: _Optional[str] = ..., ceiling_name: _Optional[str] = ..., unit: _Optional[str] = ..., value: _Optional[float] = ..., path: _Optional[str] = ..., source: _Optional[str] = ..., confidence: _Optional[str] = ..., note: _Optional[str] = ..., clock_hz: _Optional[int] = ..., measured_unix_ns: _Optional[int] = ..., host_busy_ratio: _Optional[float] = ...) -> None: ...
