from kernalyse.v1 import device_pb2 as _device_pb2
from kernalyse.v1 import kernel_pb2 as _kernel_pb2
from kernalyse.v1 import run_pb2 as _run_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetNodeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetNodeResponse(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: _device_pb2.Node
    def __init__(self, node: _Optional[_Union[_device_pb2.Node, _Mapping]] = ...) -> None: ...

class ProfilerServiceStartRunRequest(_message.Message):
    __slots__ = ("spec", "request_id", "validate_only")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    spec: _run_pb2.RunSpec
    request_id: str
    validate_only: bool
    def __init__(self, spec: _Optional[_Union[_run_pb2.RunSpec, _Mapping]] = ..., request_id: _Optional[str] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class ProfilerServiceStartRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ...) -> None: ...

class ProfilerServiceGetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ProfilerServiceGetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ...) -> None: ...

class ProfilerServiceListRunsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ProfilerServiceListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[_run_pb2.Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[_run_pb2.Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ProfilerServiceCancelRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ProfilerServiceCancelRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: _run_pb2.Run
    def __init__(self, run: _Optional[_Union[_run_pb2.Run, _Mapping]] = ...) -> None: ...

class ProfilerServiceWatchRunRequest(_message.Message):
    __slots__ = ("run_id", "next_event_index")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_EVENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    next_event_index: int
    def __init__(self, run_id: _Optional[str] = ..., next_event_index: _Optional[int] = ...) -> None: ...

class ProfilerServiceWatchRunResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[_run_pb2.RunEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[_run_pb2.RunEvent, _Mapping]]] = ...) -> None: ...

class WatchNodeRequest(_message.Message):
    __slots__ = ("next_event_index", "journal_id")
    NEXT_EVENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ID_FIELD_NUMBER: _ClassVar[int]
    next_event_index: int
    journal_id: str
    def __init__(self, next_event_index: _Optional[int] = ..., journal_id: _Optional[str] = ...) -> None: ...

class WatchNodeResponse(_message.Message):
    __slots__ = ("events", "idle_telemetry", "node")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    IDLE_TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[_run_pb2.RunEvent]
    idle_telemetry: _containers.RepeatedCompositeFieldContainer[_device_pb2.Telemetry]
    node: _device_pb2.Node
    def __init__(self, events: _Optional[_Iterable[_Union[_run_pb2.RunEvent, _Mapping]]] = ..., idle_telemetry: _Optional[_Iterable[_Union[_device_pb2.Telemetry, _Mapping]]] = ..., node: _Optional[_Union[_device_pb2.Node, _Mapping]] = ...) -> None: ...

class ProfilerServiceUploadBundleRequest(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class ProfilerServiceUploadBundleResponse(_message.Message):
    __slots__ = ("digest", "size_bytes", "file_count")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size_bytes: int
    file_count: int
    def __init__(self, digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., file_count: _Optional[int] = ...) -> None: ...

class ProfilerServiceReadArtifactRequest(_message.Message):
    __slots__ = ("run_id", "artifact_name", "offset")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    artifact_name: str
    offset: int
    def __init__(self, run_id: _Optional[str] = ..., artifact_name: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class ProfilerServiceReadArtifactResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class ProfilerServiceListKernelsRequest(_message.Message):
    __slots__ = ("source",)
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    source: _kernel_pb2.KernelSource
    def __init__(self, source: _Optional[_Union[_kernel_pb2.KernelSource, _Mapping]] = ...) -> None: ...

class ProfilerServiceListKernelsResponse(_message.Message):
    __slots__ = ("kernels", "notices")
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    kernels: _containers.RepeatedCompositeFieldContainer[_kernel_pb2.KernelDefinition]
    notices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kernels: _Optional[_Iterable[_Union[_kernel_pb2.KernelDefinition, _Mapping]]] = ..., notices: _Optional[_Iterable[str]] = ...) -> None: ...
