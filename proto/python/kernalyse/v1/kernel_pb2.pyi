from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_FLOAT16: _ClassVar[DataType]
    DATA_TYPE_FLOAT32: _ClassVar[DataType]
    DATA_TYPE_FLOAT64: _ClassVar[DataType]
    DATA_TYPE_INT8: _ClassVar[DataType]
    DATA_TYPE_INT32: _ClassVar[DataType]
    DATA_TYPE_INT64: _ClassVar[DataType]
    DATA_TYPE_UINT8: _ClassVar[DataType]
    DATA_TYPE_UINT32: _ClassVar[DataType]
    DATA_TYPE_UINT64: _ClassVar[DataType]
    DATA_TYPE_BFLOAT16: _ClassVar[DataType]
    DATA_TYPE_TFLOAT32: _ClassVar[DataType]
    DATA_TYPE_FLOAT8: _ClassVar[DataType]

class BufferRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BUFFER_ROLE_UNSPECIFIED: _ClassVar[BufferRole]
    BUFFER_ROLE_INPUT: _ClassVar[BufferRole]
    BUFFER_ROLE_OUTPUT: _ClassVar[BufferRole]
    BUFFER_ROLE_INPUT_OUTPUT: _ClassVar[BufferRole]
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_FLOAT16: DataType
DATA_TYPE_FLOAT32: DataType
DATA_TYPE_FLOAT64: DataType
DATA_TYPE_INT8: DataType
DATA_TYPE_INT32: DataType
DATA_TYPE_INT64: DataType
DATA_TYPE_UINT8: DataType
DATA_TYPE_UINT32: DataType
DATA_TYPE_UINT64: DataType
DATA_TYPE_BFLOAT16: DataType
DATA_TYPE_TFLOAT32: DataType
DATA_TYPE_FLOAT8: DataType
BUFFER_ROLE_UNSPECIFIED: BufferRole
BUFFER_ROLE_INPUT: BufferRole
BUFFER_ROLE_OUTPUT: BufferRole
BUFFER_ROLE_INPUT_OUTPUT: BufferRole

class BufferDefinition(_message.Message):
    __slots__ = ("name", "shape", "dtype", "role")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[str]
    dtype: DataType
    role: BufferRole
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[str]] = ..., dtype: _Optional[_Union[DataType, str]] = ..., role: _Optional[_Union[BufferRole, str]] = ...) -> None: ...

class ParameterDefinition(_message.Message):
    __slots__ = ("name", "default_values", "min_value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUES_FIELD_NUMBER: _ClassVar[int]
    MIN_VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    default_values: _containers.RepeatedScalarFieldContainer[int]
    min_value: int
    def __init__(self, name: _Optional[str] = ..., default_values: _Optional[_Iterable[int]] = ..., min_value: _Optional[int] = ...) -> None: ...

class ArgumentDefinition(_message.Message):
    __slots__ = ("name", "expression")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    expression: str
    def __init__(self, name: _Optional[str] = ..., expression: _Optional[str] = ...) -> None: ...

class LaunchDefinition(_message.Message):
    __slots__ = ("block", "grid", "shared_memory_bytes", "requires")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_FIELD_NUMBER: _ClassVar[int]
    block: _containers.RepeatedScalarFieldContainer[str]
    grid: _containers.RepeatedScalarFieldContainer[str]
    shared_memory_bytes: str
    requires: str
    def __init__(self, block: _Optional[_Iterable[str]] = ..., grid: _Optional[_Iterable[str]] = ..., shared_memory_bytes: _Optional[str] = ..., requires: _Optional[str] = ...) -> None: ...

class KernelDefinition(_message.Message):
    __slots__ = ("kernel_name", "source_file_name", "launch", "parameters", "buffers", "function_name", "description", "category", "dtype", "arguments", "flop", "bytes", "reference", "relative_tolerance", "path")
    KERNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    FLOP_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    kernel_name: str
    source_file_name: str
    launch: LaunchDefinition
    parameters: _containers.RepeatedCompositeFieldContainer[ParameterDefinition]
    buffers: _containers.RepeatedCompositeFieldContainer[BufferDefinition]
    function_name: str
    description: str
    category: str
    dtype: DataType
    arguments: _containers.RepeatedCompositeFieldContainer[ArgumentDefinition]
    flop: str
    bytes: str
    reference: str
    relative_tolerance: float
    path: str
    def __init__(self, kernel_name: _Optional[str] = ..., source_file_name: _Optional[str] = ..., launch: _Optional[_Union[LaunchDefinition, _Mapping]] = ..., parameters: _Optional[_Iterable[_Union[ParameterDefinition, _Mapping]]] = ..., buffers: _Optional[_Iterable[_Union[BufferDefinition, _Mapping]]] = ..., function_name: _Optional[str] = ..., description: _Optional[str] = ..., category: _Optional[str] = ..., dtype: _Optional[_Union[DataType, str]] = ..., arguments: _Optional[_Iterable[_Union[ArgumentDefinition, _Mapping]]] = ..., flop: _Optional[str] = ..., bytes: _Optional[str] = ..., reference: _Optional[str] = ..., relative_tolerance: _Optional[float] = ..., path: _Optional[str] = ...) -> None: ...

class KernelSource(_message.Message):
    __slots__ = ("file_name", "text")
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    file_name: str
    text: str
    def __init__(self, file_name: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class KernelSelection(_message.Message):
    __slots__ = ("kernel_name", "source", "definition", "bundle_digest")
    KERNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    kernel_name: str
    source: KernelSource
    definition: KernelDefinition
    bundle_digest: str
    def __init__(self, kernel_name: _Optional[str] = ..., source: _Optional[_Union[KernelSource, _Mapping]] = ..., definition: _Optional[_Union[KernelDefinition, _Mapping]] = ..., bundle_digest: _Optional[str] = ...) -> None: ...
