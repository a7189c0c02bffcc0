"""kernalyse.services.core.protobuf: every noun of the model crosses the wire and comes back the same."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from kernalyse.services.core import model, protobuf
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import (
    KernelSelection,
    KernelSweep,
    LaunchDefinition,
    MeasuringOptions,
    Node,
    RunSpec,
    SampleBatch,
    StateChanged,
    Telemetry,
)
from kernalyse.v1 import analyzer_service_pb2, device_pb2, kernel_pb2, run_pb2, table_pb2
from tests.examples import examples

CLASSES = list(protobuf.model_classes())
ENUMS = [value for value in vars(model).values() if isinstance(value, type) and issubclass(value, StrEnum) and value is not StrEnum]
UNSIGNED_32 = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


def bounds(field: FieldDescriptor) -> st.SearchStrategy[int]:
    if field.type in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64):
        return UNSIGNED_32
    return st.integers(-(2**31), 2**31 - 1)


def values(hint: Any, field: Any) -> st.SearchStrategy[Any]:
    """Everything that a field of this type can hold. field: the proto field, None for a oneof."""
    if get_origin(hint) in (UnionType, Union):
        return st.one_of(*(st.none() if part is NoneType else values(part, field) for part in get_args(hint)))
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        if get_origin(item) is tuple:
            return st.dictionaries(TEXT, TEXT, max_size=3).map(lambda pairs: tuple(sorted(pairs.items())))
        return st.lists(values(item, field), max_size=3).map(tuple)
    if dataclasses.is_dataclass(hint):
        return instances(hint)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(list(hint))
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXT,
        bytes: st.binary(max_size=8),
        bool: st.booleans(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        datetime: st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC)),
    }
    return bounds(field) if hint is int else simple[hint]


def instances(cls: type[Any]) -> st.SearchStrategy[Any]:
    fields = protobuf.message_class(cls).DESCRIPTOR.fields_by_name
    hints = get_type_hints(cls)
    return st.builds(cls, **{field.name: values(hints[field.name], fields.get(field.name)) for field in dataclasses.fields(cls)})


@pytest.mark.parametrize("cls", CLASSES)
@given(data=st.data())
@examples(10)
def test_round_trip(cls: type[Any], data: st.DataObject) -> None:
    value = data.draw(instances(cls))
    assert protobuf.decode_bytes(protobuf.encode_bytes(value), cls) == value


@pytest.mark.parametrize("cls", CLASSES)
def test_no_field_of_the_contract_is_left_out(cls: type[Any]) -> None:
    descriptor = protobuf.message_class(cls).DESCRIPTOR
    members = {field.name for oneof in descriptor.oneofs if not oneof.name.startswith("_") for field in oneof.fields}
    oneofs = {oneof.name for oneof in descriptor.oneofs if not oneof.name.startswith("_")}
    flags = {f"has_{field.name}" for field in descriptor.fields}
    contract = ({field.name for field in descriptor.fields} - members - flags) | oneofs
    assert contract == {field.name for field in dataclasses.fields(cls)}


@pytest.mark.parametrize("cls", ENUMS)
def test_every_enum_member_is_in_the_contract(cls: type[StrEnum]) -> None:
    modules = (device_pb2, kernel_pb2, run_pb2, table_pb2, analyzer_service_pb2)
    name = {"BackendName": "Backend"}.get(cls.__name__, cls.__name__)
    descriptor = next(module.DESCRIPTOR.enum_types_by_name[name] for module in modules if name in module.DESCRIPTOR.enum_types_by_name)
    prefix = descriptor.values[0].name.removesuffix("UNSPECIFIED")
    assert {value.name.removeprefix(prefix) for value in descriptor.values[1:]} == set(cls.__members__)


def test_unset_fields_take_the_defaults_of_the_model() -> None:
    sweep = protobuf.decode(run_pb2.KernelSweep(), KernelSweep)
    assert sweep == KernelSweep(kernels=())
    assert protobuf.decode(run_pb2.MeasuringOptions(), MeasuringOptions) == MeasuringOptions()


def test_unknown_stays_unknown_and_is_not_zero() -> None:
    telemetry = protobuf.decode_bytes(protobuf.encode_bytes(Telemetry(measured_unix_ns=1)), Telemetry)
    assert telemetry.power_watts is None
    assert protobuf.decode_bytes(protobuf.encode_bytes(Telemetry(measured_unix_ns=1, power_watts=0.0)), Telemetry).power_watts == 0.0


@pytest.mark.parametrize("reasons", [None, (), ("SW_POWER_CAP",)])
def test_no_throttle_reasons_are_told_from_unknown_ones(reasons: tuple[str, ...] | None) -> None:
    telemetry = Telemetry(measured_unix_ns=1, throttle_reasons=reasons)
    assert protobuf.decode_bytes(protobuf.encode_bytes(telemetry), Telemetry).throttle_reasons == reasons


def test_samples_cost_eight_bytes_each() -> None:
    batch = SampleBatch(0, 0, tuple(1000.0 + index for index in range(4096)), 1)
    assert len(protobuf.encode_bytes(batch)) < 4096 * 8 + 40


def test_a_spec_without_work_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="RunSpec: found no work; expected one of kernel_sweep"):
        protobuf.decode(run_pb2.RunSpec(), RunSpec)


def test_a_state_that_is_not_said_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="StateChanged: found no state"):
        protobuf.decode(run_pb2.StateChanged(), StateChanged)


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="do not parse"):
        protobuf.decode_bytes(b"\xff\xff\xff", RunSpec)


def test_a_definition_keeps_expressions_apart() -> None:
    definition = model.KernelDefinition("saxpy", "saxpy.cu", LaunchDefinition(("256",), ("ceil_div(N, block_x)",)), (), ())
    selection = KernelSelection("saxpy", definition=definition)
    assert protobuf.decode_bytes(protobuf.encode_bytes(selection), KernelSelection) == selection


@pytest.mark.parametrize(("seconds", "nanos"), [(2**63 - 1, 0), (-(2**63), 0), (0, 2**31 - 1), (0, -1)])
def test_a_time_that_is_none_is_refused_by_name(seconds: int, nanos: int) -> None:
    message = device_pb2.Node(node_id="n", hostname="h")
    message.start_time.seconds, message.start_time.nanos = seconds, nanos
    with pytest.raises(InvalidRequestError, match=r"Node\.start_time"):
        protobuf.decode(message, Node)


def test_times_are_aware_utc() -> None:
    node = Node("n", "host", "0.1.0", "j", datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC))
    assert protobuf.decode_bytes(protobuf.encode_bytes(node), Node).start_time == node.start_time
