from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FilterOperator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FILTER_OPERATOR_UNSPECIFIED: _ClassVar[FilterOperator]
    FILTER_OPERATOR_EQUAL: _ClassVar[FilterOperator]
    FILTER_OPERATOR_NOT_EQUAL: _ClassVar[FilterOperator]
    FILTER_OPERATOR_LESS: _ClassVar[FilterOperator]
    FILTER_OPERATOR_LESS_EQUAL: _ClassVar[FilterOperator]
    FILTER_OPERATOR_GREATER: _ClassVar[FilterOperator]
    FILTER_OPERATOR_GREATER_EQUAL: _ClassVar[FilterOperator]
    FILTER_OPERATOR_CONTAINS: _ClassVar[FilterOperator]
FILTER_OPERATOR_UNSPECIFIED: FilterOperator
FILTER_OPERATOR_EQUAL: FilterOperator
FILTER_OPERATOR_NOT_EQUAL: FilterOperator
FILTER_OPERATOR_LESS: FilterOperator
FILTER_OPERATOR_LESS_EQUAL: FilterOperator
FILTER_OPERATOR_GREATER: FilterOperator
FILTER_OPERATOR_GREATER_EQUAL: FilterOperator
FILTER_OPERATOR_CONTAINS: FilterOperator

class Filter(_message.Message):
    __slots__ = ("column", "operator", "value")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    column: str
    operator: FilterOperator
    value: str
    def __init__(self, column: _Optional[str] = ..., operator: _Optional[_Union[FilterOperator, str]] = ..., value: _Optional[str] = ...) -> None: ...

class SortKey(_message.Message):
    __slots__ = ("column", "descending")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    column: str
    descending: bool
    def __init__(self, column: _Optional[str] = ..., descending: _Optional[bool] = ...) -> None: ...

class TableChunk(_message.Message):
    __slots__ = ("table_name", "arrow_ipc")
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    ARROW_IPC_FIELD_NUMBER: _ClassVar[int]
    table_name: str
    arrow_ipc: bytes
    def __init__(self, table_name: _Optional[str] = ..., arrow_ipc: _Optional[bytes] = ...) -> None: ...
