"""Hostile messages of the contract: made at random from its descriptors, or valid ones with a field changed, and none that does harm."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

MAX_DEPTH: Final = 6
MANY: Final = 3000
"""Items of a repeated field now and then: what is worse than linear in them takes longer than a test waits."""

LONG: Final = 200_000
"""Letters of a long text; far below the limit of a request."""

INTEGERS: Final = (0, 1, 2, 3, 7, 64, 1000, 1024, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS: Final = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 5e-324, 1e300, math.inf, -math.inf, math.nan)
ENUM_NUMBERS: Final = (0, 1, 2, 3, 4, 5, 7, 99, -1, 2**31 - 1, -(2**31))
TEXTS: Final = (
    *("", " ", "a", "N", "0", "1", "-1", "saxpy", "matmul", "last", "nan", "1e999", "inf", "true", "default", "cuda:0", "opencl:pocl:0"),
    *("../../../etc/passwd", "/", ".", "..", "/dev/zero", "a/b", "C:\\a", "~", "a\0b", "a\nb", "\x1b[31m", "é", "\u202eabc", "😀" * 30),
    *("'; DROP TABLE runs; --", "%s%n", "{0}", "${HOME}", "$(id)", "<script>", "[", "(((((", "(a+)+$", "*", "N**N**N", "9**9**9**9"),
    *("1/0", "N +", "block_x == 16", "1 if N else", "__import__('os')", "sha256:", "sha256:" + "0" * 64, "9" * 400, "२", "١٢"),
    *("kernel_launches", "duration_ns", "run_id", "event_index", "text", "pdf", "device", "nsys", "kineto", "gpt-nano", "bert-tiny"),
    *('extern "C" __global__ void f(float* a) {}', "__global__ void f(", '#include "/etc/passwd"', "x.cu", "m.onnx", "a.json"),
)
SILENT_ADDRESSES: Final = ("127.0.0.1:1", "unix:/nowhere/p.sock", "unix:", "unix:../../x", "nowhere", ":", "a:b", "127.0.0.1:99999", "")
"""Where nobody answers, or no address at all: a service that is fuzzed must not call others."""

HARMLESS_PROGRAMS: Final = ("/bin/true", "no-such-program-of-kernalyse", "/nowhere/program", "")


def random_message(random: Random, descriptor: Descriptor, ids: Sequence[str], depth: int = 0) -> Message:
    """A message with hostile values in some of its fields. ids: of real things, taken for texts now and then."""
    message = GetMessageClass(descriptor)()
    share = random.choice((0.2, 0.5, 0.9)) / (1 + depth / 2)
    for field in descriptor.fields:
        if random.random() < share:
            set_random(random, message, field, ids, depth)
    return message


def set_random(random: Random, message: Message, field: FieldDescriptor, ids: Sequence[str], depth: int = 0) -> None:
    """Give a field a hostile value."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value_field = field.message_type.fields_by_name["value"]
        if value_field.message_type is None:
            getattr(message, field.name)[_text(random, ids)] = _scalar(random, value_field, ids)
        return
    if field.is_repeated:
        _fill_repeated(random, message, field, ids, depth)
    elif field.message_type is None:
        setattr(message, field.name, _scalar(random, field, ids))
    elif depth < MAX_DEPTH:
        getattr(message, field.name).CopyFrom(random_message(random, field.message_type, ids, depth + 1))


def _fill_repeated(random: Random, message: Message, field: FieldDescriptor, ids: Sequence[str], depth: int) -> None:
    items = getattr(message, field.name)
    count = MANY if random.random() < 0.02 and depth < 2 else random.randrange(4)
    if field.message_type is None:
        values = [_scalar(random, field, ids) for _ in range(min(count, 3))]
        items.extend(values * (count // max(len(values), 1)))
    elif depth < MAX_DEPTH:
        made = [random_message(random, field.message_type, ids, depth + 1) for _ in range(min(count, 3))]
        items.extend(made * (count // max(len(made), 1)) if sum(item.ByteSize() for item in made) < 1000 else made)


def _scalar(random: Random, field: FieldDescriptor, ids: Sequence[str]) -> Any:
    if field.enum_type is not None:
        return random.choice(ENUM_NUMBERS)
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return random.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = _text(random, ids)
        return text.encode() + random.randbytes(3) if field.type == FieldDescriptor.TYPE_BYTES else text
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return random.choice(FLOATS)
    low, high = {
        FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
        FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
        FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    }[kind]
    return max(low, min(high, random.choice(INTEGERS) * random.choice((1, 1, -1))))


def _text(random: Random, ids: Sequence[str]) -> str:
    chosen = random.random()
    if chosen < 0.35 and ids:
        text = random.choice(ids)
        return text if chosen < 0.3 else text[: random.randrange(len(text) + 1)]
    if chosen < 0.38:
        return random.choice("a/(9 é") * LONG
    if chosen < 0.45:
        return "".join(map(chr, random.choices(range(1, 0x2FF), k=random.randrange(1, 40))))
    return random.choice(TEXTS)


# ---------------------------------------------------------------- valid messages with a field changed


def mutated(random: Random, message: Message, ids: Sequence[str]) -> Message:
    """A copy in which one field, however deep, is another, is gone or is there twice."""
    copy = type(message)()
    copy.CopyFrom(message)
    place, depth = copy, 0
    while True:
        inner = [
            value for field, value in place.ListFields() if field.message_type is not None and not field.message_type.GetOptions().map_entry
        ]
        below = [item for value in inner for item in ([value] if isinstance(value, Message) else list(value))]
        if not below or random.random() < 0.3:
            break
        place, depth = random.choice(below), depth + 1
    fields: Sequence[Any] = list(place.DESCRIPTOR.fields)
    if not fields:
        return copy
    present: list[Any] = [field for field, _ in place.ListFields()]
    field: Any = random.choice(present if present and random.random() < 0.7 else fields)
    if random.random() < 0.2:
        place.ClearField(field.name)
    elif field.is_repeated and len(getattr(place, field.name)) and random.random() < 0.3 and field in present:
        _repeat(getattr(place, field.name))
    else:
        if not field.is_repeated or random.random() < 0.5:
            place.ClearField(field.name)
        set_random(random, place, field, ids, depth)
    return copy


def _repeat(items: Any) -> None:
    if isinstance(items, dict) or hasattr(items, "keys"):
        return
    items.extend(list(items))


def broken_bytes(random: Random, data: bytes) -> bytes:
    """Bytes that are hardly a message: noise, a message with bits turned, cut off, or with lengths that lie."""
    match random.randrange(5):
        case 0:
            return random.randbytes(random.randrange(1, 200))
        case 1:
            return data[: random.randrange(len(data) + 1)] + b"\xff" * random.randrange(1, 12)
        case 2:
            return b"\x0a\xff\xff\xff\xff\x07" + data
        case 3:
            return b"\x0a" * random.choice((10, 100_000)) + data
    broken = bytearray(data or b"\x0a\x01")
    for _ in range(random.randrange(1, 6)):
        broken[random.randrange(len(broken))] ^= 1 << random.randrange(8)
    return bytes(broken)


# ---------------------------------------------------------------- streams


def disturbed(random: Random, stream: Sequence[Message], ids: Sequence[str]) -> list[Message]:
    """The messages in another order, repeated, left out, cut off, or with fields of one changed."""
    messages = list(stream)
    for _ in range(random.randrange(1, 4)):
        if not messages:
            break
        place = random.randrange(len(messages))
        match random.randrange(6):
            case 0:
                random.shuffle(messages)
            case 1:
                messages.insert(place, messages[random.randrange(len(messages))])
            case 2:
                del messages[place]
            case 3:
                del messages[place:]
            case 4:
                messages[place] = random_message(random, cast(Any, messages[place].DESCRIPTOR), ids)
            case _:
                messages[place] = mutated(random, messages[place], ids)
    return messages


# ---------------------------------------------------------------- harm


def harmless(random: Random, descriptor: Descriptor, data: bytes, kept: Collection[str]) -> bytes:
    """The bytes, but for what would call other services, start programs or delete what the other cases need.

    Args:
        kept: ids and addresses that no case may delete.
    """
    message = GetMessageClass(descriptor)()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return data
    changed = _defuse(random, message)
    name = descriptor.name
    if name in ("DeleteRunRequest", "RemoveNodeRequest"):
        field = "run_id" if name == "DeleteRunRequest" else "address"
        named = getattr(message, field)
        if named in ("", "last") or any(one.startswith(named) for one in kept):
            setattr(message, field, "none-" + named[:20])
            changed = True
    return message.SerializeToString() if changed else data


def _defuse(random: Random, message: Message) -> bool:
    """Make a message and all within it harmless, and answer whether anything was to be done."""
    found = _DEFUSED.get(message.DESCRIPTOR.name)
    changed = found is not None and found(random, message)
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for item in [value] if isinstance(value, Message) else value:
                changed |= _defuse(random, item)
    return changed


def _without_address(random: Random, message: Any) -> bool:
    if not message.address or message.address in SILENT_ADDRESSES:
        return False
    message.address = random.choice(SILENT_ADDRESSES)
    return True


def _without_program(random: Random, message: Any) -> bool:
    if not message.arguments or message.arguments[0] in HARMLESS_PROGRAMS:
        return False
    message.arguments[0] = random.choice(HARMLESS_PROGRAMS)
    return True


_DEFUSED: Final[dict[str, Callable[[Random, Any], bool]]] = {
    "AddNodeRequest": _without_address,
    "JoinRequest": _without_address,
    "CommandProfile": _without_program,
}
