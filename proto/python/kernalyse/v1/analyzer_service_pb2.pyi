import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from kernalyse.v1 import device_pb2 as _device_pb2
from kernalyse.v1 import kernel_pb2 as _kernel_pb2
from kernalyse.v1 import run_pb2 as _run_pb2
from kernalyse.v1 import table_pb2 as _table_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeHealth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_HEALTH_UNSPECIFIED: _ClassVar[NodeHealth]
    NODE_HEALTH_CONNECTING: _ClassVar[NodeHealth]
    NODE_HEALTH_SERVING: _ClassVar[NodeHealth]
    NODE_HEALTH_UNREACHABLE: _ClassVar[NodeHealth]

class NodeOrigin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_ORIGIN_UNSPECIFIED: _ClassVar[NodeOrigin]
    NODE_ORIGIN_ADDED: _ClassVar[NodeOrigin]
    NODE_ORIGIN_JOINED: _ClassVar[NodeOrigin]
    NODE_ORIGIN_TUNNEL: _ClassVar[NodeOrigin]
    NODE_ORIGIN_FILE: _ClassVar[NodeOrigin]
    NODE_ORIGIN_DNS: _ClassVar[NodeOrigin]

class ImportStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IMPORT_STAGE_UNSPECIFIED: _ClassVar[ImportStage]
    IMPORT_STAGE_RECEIVING: _ClassVar[ImportStage]
    IMPORT_STAGE_READING: _ClassVar[ImportStage]
    IMPORT_STAGE_STORING: _ClassVar[ImportStage]
NODE_HEALTH_UNSPECIFIED: NodeHealth
NODE_HEALTH_CONNECTING: NodeHealth
NODE_HEALTH_SERVING: NodeHealth
NODE_HEALTH_UNREACHABLE: NodeHealth
NODE_ORIGIN_UNSPECIFIED: NodeOrigin
NODE_ORIGIN_ADDED: NodeOrigin
NODE_ORIGIN_JOINED: NodeOrigin
NODE_ORIGIN_TUNNEL: NodeOrigin
NODE_ORIGIN_FILE: NodeOrigin
NODE_ORIGIN_DNS: NodeOrigin
IMPORT_STAGE_UNSPECIFIED: ImportStage
IMPORT_STAGE_RECEIVING: ImportStage
IMPORT_STAGE_READING: ImportStage
IMPORT_STAGE_STORING: ImportStage

class NodeStatus(_message.Message):
    __slots__ = ("address", "health", "node", "problem", "origin", "unreachable_since_time", "version_note")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_SINCE_TIME_FIELD_NUMBER: _ClassVar[int]
    VERSION_NOTE_FIELD_NUMBER: _ClassVar[int]
    address: str
    health: NodeHealth
    node: _device_pb2.Node
    problem: str
    origin: NodeOrigin
    unreachable_since_time: _timestamp_pb2.Timestamp
    version_note: str
    def __init__(self, address: _Optional[str] = ..., health: _Optional[_Union[NodeHealth, str]] = ..., node: _Optional[_Union[_device_pb2.Node, _Mapping]] = ..., problem: _Optional[str] = ..., origin: _Optional[_Union[NodeOrigin, str]] = ..., unreachable_since_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., version_note: _Optional[str] = ...) -> None: ...

class CreateJoinTokenRequest(_message.Message):
    __slots__ = ("use_count", "lifetime_s")
    USE_COUNT_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_S_FIELD_NUMBER: _ClassVar[int]
    use_count: int
    lifetime_s: float
    def __init__(self, use_count: _Optional[int] = ..., lifetime_s: _Optional[float] = ...) -> None: ...

class CreateJoinTokenResponse(_message.Message):
    __slots__ = ("join_token", "token_id")
    JOIN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    join_token: str
    token_id: str
    def __init__(self, join_token: _Optional[str] = ..., token_id: _Optional[str] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("node", "address", "token", "ca_certificate")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CA_CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    node: _device_pb2.Node
    address: str
    token: str
    ca_certificate: bytes
    def __init__(self, node: _Optional[_Union[_device_pb2.Node, _Mapping]] = ..., address: _Optional[str] = ..., token: _Optional[str] = ..., ca_certificate: _Optional[bytes] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("node", "node_token", "certificates")
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    node: NodeStatus
    node_token: str
    certificates: bytes
    def __init__(self, node: _Optional[_Union[NodeStatus, _Mapping]] = ..., node_token: _Optional[str] = ..., certificates: _Optional[bytes] = ...) -> None: ...

class TunnelBytes(_message.Message):
    __slots__ = ("connection", "data")
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    connection: int
    data: bytes
    def __init__(self, connection: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class TunnelRequest(_message.Message):
    __slots__ = ("join", "bytes")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    join: JoinRequest
    bytes: TunnelBytes
    def __init__(self, join: _Optional[_Union[JoinRequest, _Mapping]] = ..., bytes: _Optional[_Union[TunnelBytes, _Mapping]] = ...) -> None: ...

class TunnelResponse(_message.Message):
    __slots__ = ("joined", "bytes")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    joined: JoinResponse
    bytes: TunnelBytes
    def __init__(self, joined: _Optional[_Union[JoinResponse, _Mapping]] = ..., bytes: _Optional[_Union[TunnelBytes, _Mapping]] = ...) -> None: ...

class AddNodeRequest(_message.Message):
    __slots__ = ("address", "token", "ca_certificate", "client_certificate", "client_key")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CA_CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_KEY_FIELD_NUMBER: _ClassVar[int]
    address: str
    token: str
    ca_certificate: bytes
    client_certificate: bytes
    client_key: bytes
    def __init__(self, address: _Optional[str] = ..., token: _Optional[str] = ..., ca_certificate: _Optional[bytes] = ..., client_certificate: _Optional[bytes] = ..., client_key: _Optional[bytes] = ...) -> None: ...

class AddNodeResponse(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: NodeStatus
    def __init__(self, node: _Optional[_Union[NodeStatus, _Mapping]] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("nodes", "telemetry")
    NODES_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    telemetry: _containers.RepeatedCompositeFieldContainer[NodeTelemetry]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., telemetry: _Optional[_Iterable[_Union[NodeTelemetry, _Mapping]]] = ...) -> None: ...

class WatchNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchNodesResponse(_message.Message):
    __slots__ = ("nodes", "runs", "telemetry", "changed_hardware", "removed_addresses", "deleted_run_ids")
    NODES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    CHANGED_HARDWARE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    DELETED_RUN_IDS_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    runs: _containers.RepeatedCompositeFieldContainer[_run_pb2.Run]
    telemetry: _containers.RepeatedCompositeFieldContainer[NodeTelemetry]
    changed_hardware: _containers.RepeatedCompositeFieldContainer[HardwareKey]
    removed_addresses: _containers.RepeatedScalarFieldContainer[str]
    deleted_run_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[_run_pb2.Run, _Mapping]]] = ..., telemetry: _Optional[_Iterable[_Union[NodeTelemetry, _Mapping]]] = ..., changed_hardware: _Optional[_Iterable[_Union[HardwareKey, _Mapping]]] = ..., removed_addresses: _Optional[_Iterable[str]] = ..., deleted_run_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class HardwareKey(_message.Message):
    __slots__ = ("node_id", "device_id", "run_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    device_id: str
    run_id: str
    def __init__(self, node_id: _Optional[str] = ..., device_id: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class NodeTelemetry(_message.Message):
    __slots__ = ("node_id", "telemetry")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    telemetry: _device_pb2.Telemetry
    def __init__(self, node_id: _Optional[str] = ..., telemetry: _Optional[_Union[_device_pb2.Telemetry, _Mapping]] = ...) -> None: ...

class RemoveNodeRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class RemoveNodeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AnalyzerServiceStartRunRequest(_message.Message):
    __slots__ = ("node_id", "spec", "request_id", "validate_only")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    spec: _run_pb2.RunSpec
    request_id: str
    validate_only: bool
    def __init__(self, node_id: _Optional[str] = ..., spec: _Optional[_Union[_run_pb2.RunSpec, _Mapping]] = ..., request_id: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class AnalyzerServiceStartRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ...) -> None: ...

class AnalyzerServiceCancelRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class AnalyzerServiceCancelRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ...) -> None: ...

class AnalyzerServiceUploadBundleRequest(_message.Message):
    __slots__ = ("node_id", "chunk")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    chunk: bytes
    def __init__(self, node_id: _Optional[str] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class AnalyzerServiceUploadBundleResponse(_message.Message):
    __slots__ = ("digest", "size_bytes", "file_count")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size_bytes: int
    file_count: int
    def __init__(self, digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., file_count: _Optional[int] = ...) -> None: ...

class AnalyzerServiceReadArtifactRequest(_message.Message):
    __slots__ = ("run_id", "artifact_name", "offset")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    artifact_name: str
    offset: int
    def __init__(self, run_id: _Optional[str] = ..., artifact_name: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class AnalyzerServiceReadArtifactResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class AnalyzerServiceListKernelsRequest(_message.Message):
    __slots__ = ("node_id", "source")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    source: _kernel_pb2.KernelSource
    def __init__(self, node_id: _Optional[str] = ..., source: _Optional[_Union[_kernel_pb2.KernelSource, _Mapping]] = ...) -> None: ...

class AnalyzerServiceListKernelsResponse(_message.Message):
    __slots__ = ("kernels", "notices")
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    kernels: _containers.RepeatedCompositeFieldContainer[_kernel_pb2.KernelDefinition]
    notices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kernels: _Optional[_Iterable[_Union[_kernel_pb2.KernelDefinition, _Mapping]]] = ..., notices: _Optional[_Iterable[str]] = ...) -> None: ...

class AnalyzerServiceGetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class AnalyzerServiceGetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ...) -> None: ...

class AnalyzerServiceListRunsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class AnalyzerServiceListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[_run_pb2.Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[_run_pb2.Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateRunRequest(_message.Message):
    __slots__ = ("run_id", "tags", "notes")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    notes: str
    def __init__(self, run_id: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., notes: _Optional[str] = ...) -> None: ...

class UpdateRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ...) -> None: ...

class DeleteRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class DeleteRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ImportTraceRequest(_message.Message):
    __slots__ = ("file_name", "chunk", "digest", "upload_id", "offset_bytes", "is_last", "is_further_trace", "source_id")
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    IS_FURTHER_TRACE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    file_name: str
    chunk: bytes
    digest: str
    upload_id: str
    offset_bytes: int
    is_last: bool
    is_further_trace: bool
    source_id: str
    def __init__(self, file_name: _Optional[str] = ..., chunk: _Optional[bytes] = ..., digest: _Optional[str] = ..., upload_id: _Optional[str] = ..., offset_bytes: _Optional[int] = ..., is_last: _Optional[bool] = ..., is_further_trace: _Optional[bool] = ..., source_id: _Optional[str] = ...) -> None: ...

class ImportTraceResponse(_message.Message):
    __slots__ = ("run", "is_known")
    RUN_FIELD_NUMBER: _ClassVar[int]
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    is_known: bool
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ..., is_known: _Optional[bool] = ...) -> None: ...

class ResumeUploadRequest(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    def __init__(self, upload_id: _Optional[str] = ...) -> None: ...

class ResumeUploadResponse(_message.Message):
    __slots__ = ("whole_file_count", "offset_bytes")
    WHOLE_FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    whole_file_count: int
    offset_bytes: int
    def __init__(self, whole_file_count: _Optional[int] = ..., offset_bytes: _Optional[int] = ...) -> None: ...

class ImportProgress(_message.Message):
    __slots__ = ("stage", "trace_count", "read_trace_count")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TRACE_COUNT_FIELD_NUMBER: _ClassVar[int]
    READ_TRACE_COUNT_FIELD_NUMBER: _ClassVar[int]
    stage: ImportStage
    trace_count: int
    read_trace_count: int
    def __init__(self, stage: _Optional[_Union[ImportStage, str]] = ..., trace_count: _Optional[int] = ..., read_trace_count: _Optional[int] = ...) -> None: ...

class WatchImportRequest(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    def __init__(self, upload_id: _Optional[str] = ...) -> None: ...

class WatchImportResponse(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: ImportProgress
    def __init__(self, progress: _Optional[_Union[ImportProgress, _Mapping]] = ...) -> None: ...

class CancelImportRequest(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    def __init__(self, upload_id: _Optional[str] = ...) -> None: ...

class CancelImportResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AnalyzerServiceWatchRunRequest(_message.Message):
    __slots__ = ("run_id", "next_event_index")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_EVENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    next_event_index: int
    def __init__(self, run_id: _Optional[str] = ..., next_event_index: _Optional[int] = ...) -> None: ...

class AnalyzerServiceWatchRunResponse(_message.Message):
    __slots__ = ("next_event_index", "run", "tables")
    NEXT_EVENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    next_event_index: int
    run: _run_pb2.Run
    tables: _containers.RepeatedCompositeFieldContainer[_table_pb2.TableChunk]
    def __init__(self, next_event_index: _Optional[int] = ..., run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[_table_pb2.TableChunk, _Mapping]]] = ...) -> None: ...

class GetTableRequest(_message.Message):
    __slots__ = ("table_name", "run_ids", "filters", "order_by", "offset", "limit", "columns", "allowed_differences", "depth", "window_start_ns", "window_end_ns", "pixel_count")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    RUN_IDS_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    ORDER_BY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    WINDOW_START_NS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_END_NS_FIELD_NUMBER: _ClassVar[int]
    PIXEL_COUNT_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    run_ids: _containers.RepeatedScalarFieldContainer[str]
    filters: _containers.RepeatedCompositeFieldContainer[_table_pb2.Filter]
    order_by: _containers.RepeatedCompositeFieldContainer[_table_pb2.SortKey]
    offset: int
    limit: int
    columns: _containers.RepeatedScalarFieldContainer[str]
    allowed_differences: _containers.RepeatedScalarFieldContainer[str]
    depth: int
    window_start_ns: int
    window_end_ns: int
    pixel_count: int
    def __init__(self, table_name: _Optional[str] = ..., run_ids: _Optional[_Iterable[str]] = ..., filters: _Optional[_Iterable[_Union[_table_pb2.Filter, _Mapping]]] = ..., order_by: _Optional[_Iterable[_Union[_table_pb2.SortKey, _Mapping]]] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ..., columns: _Optional[_Iterable[str]] = ..., allowed_differences: _Optional[_Iterable[str]] = ..., depth: _Optional[int] = ..., window_start_ns: _Optional[int] = ..., window_end_ns: _Optional[int] = ..., pixel_count: _Optional[int] = ...) -> None: ...

class GetTableResponse(_message.Message):
    __slots__ = ("chunk", "total_row_count")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    chunk: _table_pb2.TableChunk
    total_row_count: int
    def __init__(self, chunk: _Optional[_Union[_table_pb2.TableChunk, _Mapping]] = ..., total_row_count: _Optional[int] = ...) -> None: ...

class Thresholds(_message.Message):
    __slots__ = ("memory_inefficient_ratio", "compute_inefficient_ratio")
    MEMORY_INEFFICIENT_RATIO_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_INEFFICIENT_RATIO_FIELD_NUMBER: _ClassVar[int]
    memory_inefficient_ratio: float
    compute_inefficient_ratio: float
    def __init__(self, memory_inefficient_ratio: _Optional[float] = ..., compute_inefficient_ratio: _Optional[float] = ...) -> None: ...

class GetHardwareRequest(_message.Message):
    __slots__ = ("node_id", "device_id", "run_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    device_id: str
    run_id: str
    def __init__(self, node_id: _Optional[str] = ..., device_id: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class GetHardwareResponse(_message.Message):
    __slots__ = ("device", "ceilings", "thresholds", "etag")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CEILINGS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLDS_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    device: _device_pb2.Device
    ceilings: _containers.RepeatedCompositeFieldContainer[_device_pb2.Ceiling]
    thresholds: Thresholds
    etag: str
    def __init__(self, device: _Optional[_Union[_device_pb2.Device, _Mapping]] = ..., ceilings: _Optional[_Iterable[_Union[_device_pb2.Ceiling, _Mapping]]] = ..., thresholds: _Optional[_Union[Thresholds, _Mapping]] = ..., etag: _Optional[str] = ...) -> None: ...

class UpdateHardwareRequest(_message.Message):
    __slots__ = ("node_id", "device_id", "ceilings", "thresholds", "etag", "run_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    CEILINGS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLDS_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    device_id: str
    ceilings: _containers.RepeatedCompositeFieldContainer[_device_pb2.Ceiling]
    thresholds: Thresholds
    etag: str
    run_id: str
    def __init__(self, node_id: _Optional[str] = ..., device_id: _Optional[str] = ..., ceilings: _Optional[_Iterable[_Union[_device_pb2.Ceiling, _Mapping]]] = ..., thresholds: _Optional[_Union[Thresholds, _Mapping]] = ..., etag: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class UpdateHardwareResponse(_message.Message):
    __slots__ = ("ceilings", "thresholds", "etag")
    CEILINGS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLDS_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    ceilings: _containers.RepeatedCompositeFieldContainer[_device_pb2.Ceiling]
    thresholds: Thresholds
    etag: str
    def __init__(self, ceilings: _Optional[_Iterable[_Union[_device_pb2.Ceiling, _Mapping]]] = ..., thresholds: _Optional[_Union[Thresholds, _Mapping]] = ..., etag: _Optional[str] = ...) -> None: ...

class ExportReportRequest(_message.Message):
    __slots__ = ("run_id", "format", "baseline_run_id", "allowed_differences", "further_formats")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    BASELINE_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FORMATS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    format: str
    baseline_run_id: str
    allowed_differences: _containers.RepeatedScalarFieldContainer[str]
    further_formats: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run_id: _Optional[str] = ..., format: _Optional[str] = ..., baseline_run_id: _Optional[str] = ..., allowed_differences: _Optional[_Iterable[str]] = ..., further_formats: _Optional[_Iterable[str]] = ...) -> None: ...

class ExportReportResponse(_message.Message):
    __slots__ = ("chunk", "format")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    format: str
    def __init__(self, chunk: _Optional[bytes] = ..., format: _Optional[str] = ...) -> None: ...

class SignInRequest(_message.Message):
    __slots__ = ("token", "password", "id_token")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    ID_TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    password: Password
    id_token: str
    def __init__(self, token: _Optional[str] = ..., password: _Optional[_Union[Password, _Mapping]] = ..., id_token: _Optional[str] = ...) -> None: ...

class Password(_message.Message):
    __slots__ = ("name", "password")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    name: str
    password: str
    def __init__(self, name: _Optional[str] = ..., password: _Optional[str] = ...) -> None: ...

class SignedIn(_message.Message):
    __slots__ = ("name", "scope", "short_token", "end_time", "session_end_time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    SHORT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    SESSION_END_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    scope: str
    short_token: str
    end_time: _timestamp_pb2.Timestamp
    session_end_time: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., scope: _Optional[str] = ..., short_token: _Optional[str] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., session_end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SignInResponse(_message.Message):
    __slots__ = ("signed_in",)
    SIGNED_IN_FIELD_NUMBER: _ClassVar[int]
    signed_in: SignedIn
    def __init__(self, signed_in: _Optional[_Union[SignedIn, _Mapping]] = ...) -> None: ...

class RenewTokenRequest(_message.Message):
    __slots__ = ("short_token",)
    SHORT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    short_token: str
    def __init__(self, short_token: _Optional[str] = ...) -> None: ...

class RenewTokenResponse(_message.Message):
    __slots__ = ("signed_in",)
    SIGNED_IN_FIELD_NUMBER: _ClassVar[int]
    signed_in: SignedIn
    def __init__(self, signed_in: _Optional[_Union[SignedIn, _Mapping]] = ...) -> None: ...
