"""Conversion between the domain model and protobuf, the only module that knows both.

Field names of model and contract are the same, so one rule set converts everything:

- a message is the dataclass of the same name; a oneof is a dataclass field that holds one of its members;
- an unset ``optional`` field or message takes the dataclass's default, and ``None`` is left unset;
- an enum's ``UNSPECIFIED`` takes the dataclass's default; where there is none, the message is rejected;
- Timestamp is an aware UTC datetime, a map is a tuple of pairs, a repeated field is a tuple;
- ``has_X`` next to a repeated field X distinguishes an empty list from an unknown one (``None``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf import json_format
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from kernalyse.services.core import model
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.v1 import analyzer_service_pb2, device_pb2, kernel_pb2, run_pb2, table_pb2

T = TypeVar("T")

_MODULES: Final = (device_pb2, kernel_pb2, run_pb2, table_pb2, analyzer_service_pb2)
_MESSAGES_OF_OTHER_NAME: Final[dict[type, str]] = {model.TableQuery: "GetTableRequest", model.Hardware: "GetHardwareResponse"}

Encoder = Callable[[Any, Message], None]
Decoder = Callable[[Message], Any]

# Computed once per class, at its first conversion: reflection costs a hundred times as much as the conversion itself.
_encoder_plans: dict[type, tuple[tuple[str, Encoder], ...]] = {}
_decoder_plans: dict[type, tuple[tuple[str, Decoder], ...]] = {}


def message_class(cls: type) -> type[Message]:
    """Return the generated class for a dataclass of `kernalyse.services.core.model`.

    Raises:
        LookupError: the contract has no such message.
    """
    name = _MESSAGES_OF_OTHER_NAME.get(cls, cls.__name__)
    for module in _MODULES:
        if name in module.DESCRIPTOR.message_types_by_name:
            found: type[Message] = getattr(module, name)
            return found
    raise LookupError(f"the contract has no message {name}")


def encode(value: Any) -> Any:
    """Return the message for a dataclass instance."""
    message = message_class(type(value))()
    _fill(value, message)
    return message


def decode(message: Message, cls: type[T]) -> T:
    """Return the dataclass for a message.

    Raises:
        InvalidRequestError: the message lacks something that has no default; names message and field.
    """
    return cls(**{name: read(message) for name, read in _decoders(cls)})


def encode_bytes(value: Any) -> bytes:
    """Return the serialized message for a dataclass instance."""
    data: bytes = encode(value).SerializeToString()
    return data


def decode_bytes(data: bytes, cls: type[T]) -> T:
    """Return the dataclass for a serialized message.

    Raises:
        InvalidRequestError: the bytes are not such a message.
    """
    try:
        return decode(message_class(cls).FromString(data), cls)
    except DecodeError as error:
        raise InvalidRequestError(
            f"a {cls.__name__} of {len(data)} bytes", found="bytes that do not parse", expected="a serialized message"
        ) from error


def encode_json(value: Any) -> bytes:
    """Return the message as protobuf's JSON, with the contract's field names."""
    return json_format.MessageToJson(encode(value), preserving_proto_field_name=True).encode()


def decode_json(data: bytes, cls: type[T]) -> T:
    """Return the dataclass for a message in protobuf's JSON.

    Raises:
        InvalidRequestError: the bytes are not such a message in JSON, or one of another version.
    """
    try:
        return decode(json_format.Parse(data, message_class(cls)()), cls)
    except (json_format.ParseError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"a {cls.__name__} in JSON", found=str(error), expected="a message of this version", remedy="Use the version that wrote it."
        ) from error


def _fill(value: Any, message: Message) -> None:
    for name, write in _encoders(type(value)):
        part = getattr(value, name)
        if part is not None:
            write(part, message)


def _fields(cls: type) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    hints = get_type_hints(cls)
    return tuple((field, hints[field.name]) for field in dataclasses.fields(cls))


def _encoders(cls: type) -> tuple[tuple[str, Encoder], ...]:
    if cls not in _encoder_plans:
        descriptor = message_class(cls).DESCRIPTOR
        _encoder_plans[cls] = tuple((field.name, _encoder(field.name, descriptor)) for field, _ in _fields(cls))
    return _encoder_plans[cls]


def _decoders(cls: type) -> tuple[tuple[str, Decoder], ...]:
    if cls not in _decoder_plans:
        descriptor = message_class(cls).DESCRIPTOR
        _decoder_plans[cls] = tuple((field.name, _decoder(field, hint, descriptor)) for field, hint in _fields(cls))
    return _decoder_plans[cls]


# ---------------------------------------------------------------- fields of a message from the model


def _encoder(name: str, descriptor: Any) -> Encoder:
    if name in descriptor.oneofs_by_name:
        members = {member.message_type.name: member.name for member in descriptor.oneofs_by_name[name].fields}
        return lambda value, message: _fill_present(value, getattr(message, members[type(value).__name__]))
    field: FieldDescriptor = descriptor.fields_by_name[name]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return lambda value, message: getattr(message, name).update(dict(value))
    if field.message_type is not None and field.is_repeated:
        return lambda value, message: _add_all(value, getattr(message, name))
    if field.message_type is not None and field.message_type.full_name == Timestamp.DESCRIPTOR.full_name:
        return lambda value, message: getattr(message, name).FromDatetime(value)
    if field.message_type is not None:
        return lambda value, message: _fill_present(value, getattr(message, name))
    if field.enum_type is not None:
        numbers = _enum_numbers(field.enum_type)
        if field.is_repeated:
            return lambda value, message: getattr(message, name).extend(numbers[item.name] for item in value)
        return lambda value, message: setattr(message, name, numbers[value.name])
    if field.is_repeated:
        flag = f"has_{name}"
        if flag in descriptor.fields_by_name:
            return lambda value, message: _fill_known(value, message, name, flag)
        return lambda value, message: getattr(message, name).extend(value)
    return lambda value, message: setattr(message, name, value)


def _fill_present(value: Any, message: Message) -> None:
    message.SetInParent()
    _fill(value, message)


def _fill_known(values: Any, message: Message, name: str, flag: str) -> None:
    setattr(message, flag, True)
    getattr(message, name).extend(values)


def _add_all(values: Any, container: Any) -> None:
    for value in values:
        _fill(value, container.add())


# ---------------------------------------------------------------- fields of the model from a message


def _decoder(field: dataclasses.Field[Any], hint: Any, descriptor: Any) -> Decoder:
    name = field.name
    if name in descriptor.oneofs_by_name:
        return _oneof_decoder(name, hint, descriptor)
    proto: FieldDescriptor = descriptor.fields_by_name[name]
    inner = _without_none(hint)
    if proto.message_type is not None and proto.message_type.GetOptions().map_entry:
        return lambda message: tuple(sorted(getattr(message, name).items()))
    if proto.is_repeated:
        return _repeated_decoder(name, inner, proto, descriptor)
    if proto.message_type is not None and proto.message_type.full_name == Timestamp.DESCRIPTOR.full_name:
        read: Decoder = lambda message: _datetime(getattr(message, name), f"{descriptor.name}.{name}")  # noqa: E731
    elif proto.message_type is not None:
        read = lambda message: decode(getattr(message, name), inner)  # noqa: E731
    elif proto.enum_type is not None:
        return _enum_decoder(field, hint, proto, descriptor)
    else:
        read = lambda message: getattr(message, name)  # noqa: E731
    if not proto.has_presence:
        return read
    return lambda message: read(message) if message.HasField(name) else _default(field, hint, descriptor)


def _datetime(stamp: Timestamp, subject: str) -> datetime:
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(
            subject,
            found=f"{stamp.seconds} s and {stamp.nanos} ns",
            expected="a time of the years 1 to 9999",
            remedy="Correct the time, or leave it unset.",
        ) from error


def _oneof_decoder(name: str, hint: Any, descriptor: Any) -> Decoder:
    classes = {cls.__name__: cls for cls in get_args(hint)}
    members = {member.name: classes[member.message_type.name] for member in descriptor.oneofs_by_name[name].fields}

    def read(message: Message) -> Any:
        member = message.WhichOneof(name)
        if member is None:
            raise InvalidRequestError(f"message {descriptor.name}", found=f"no {name}", expected=f"one of {', '.join(members)}")
        return decode(getattr(message, member), members[member])

    return read


def _repeated_decoder(name: str, hint: Any, proto: FieldDescriptor, descriptor: Any) -> Decoder:
    item = get_args(hint)[0]
    if proto.message_type is not None:
        return lambda message: tuple(decode(part, item) for part in getattr(message, name))
    if proto.enum_type is not None:
        names = _enum_members(item, proto.enum_type)
        return lambda message: tuple(names[number] for number in getattr(message, name) if number in names)
    flag = f"has_{name}"
    if flag in descriptor.fields_by_name:
        return lambda message: tuple(getattr(message, name)) if getattr(message, flag) else None
    return lambda message: tuple(getattr(message, name))


def _enum_decoder(field: dataclasses.Field[Any], hint: Any, proto: FieldDescriptor, descriptor: Any) -> Decoder:
    name, members = field.name, _enum_members(_without_none(hint), proto.enum_type)

    def read(message: Message) -> Any:
        member = members.get(getattr(message, name))
        return _default(field, hint, descriptor) if member is None else member

    return read


def _default(field: dataclasses.Field[Any], hint: Any, descriptor: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if NoneType in get_args(hint):
        return None
    raise InvalidRequestError(
        f"message {descriptor.name}", found=f"no {field.name}", expected=f"a value for {field.name}", remedy="Set the field."
    )


def _without_none(hint: Any) -> Any:
    if get_origin(hint) is UnionType or NoneType in get_args(hint):
        return next(part for part in get_args(hint) if part is not NoneType)
    return hint


@cache
def _enum_numbers(descriptor: EnumDescriptor) -> dict[str, int]:
    prefix = descriptor.values[0].name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix): value.number for value in descriptor.values[1:]}


@cache
def _enum_members(cls: type[StrEnum], descriptor: EnumDescriptor) -> dict[int, StrEnum]:
    return {number: cls[name] for name, number in _enum_numbers(descriptor).items()}


def model_classes() -> Iterator[type]:
    """Yield every dataclass of the model, for tests of completeness."""
    for value in vars(model).values():
        if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__.startswith(f"{model.__name__}."):
            yield value
