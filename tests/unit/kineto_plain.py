"""The events of a Kineto trace by the standard library's JSON parser and one event at a time: the judge of the reader."""

from __future__ import annotations

import json
import re
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from enum import Enum, auto
from typing import Any

from kernalyse.services.analyzer.readers.kineto.events import CATEGORIES, NULL, EventKind, Field
from kernalyse.services.core.formatting import MODULE_PREFIX

WHOLE_TEXT = re.compile(r"-?[0-9]{1,18}", re.ASCII)
NEVER_MODULE = (EventKind.KERNEL, EventKind.CALL, EventKind.FORWARD_LINK)


class ValueKind(Enum):
    """How the value of a member is read."""

    PHASE = auto()  # a string of one letter
    TEXT = auto()  # whatever it is, as text
    IDENTITY = auto()  # a string or a number
    TIME = auto()  # decimal microseconds, to whole nanoseconds
    WHOLE = auto()  # a whole number, or a string of its digits; whatever else is null
    ANY = auto()
    TRIPLE = auto()  # three whole numbers; whatever else is null


MEMBERS = {
    "ph": (Field.PHASE, ValueKind.PHASE),
    "name": (Field.NAME, ValueKind.TEXT),
    "pid": (Field.PROCESS, ValueKind.IDENTITY),
    "tid": (Field.THREAD, ValueKind.IDENTITY),
    "ts": (Field.TIME_NS, ValueKind.TIME),
    "dur": (Field.DURATION_NS, ValueKind.TIME),
    "id": (Field.FLOW_ID, ValueKind.WHOLE),
}
ARGUMENTS = {
    "correlation": (Field.CORRELATION_ID, ValueKind.WHOLE),
    "External id": (Field.EXTERNAL_ID, ValueKind.WHOLE),
    "external id": (Field.EXTERNAL_ID, ValueKind.WHOLE),
    "device": (Field.DEVICE_INDEX, ValueKind.WHOLE),
    "stream": (Field.STREAM_INDEX, ValueKind.WHOLE),
    "bytes": (Field.BYTES, ValueKind.WHOLE),
    "registers per thread": (Field.REGISTERS, ValueKind.WHOLE),
    "shared memory": (Field.SHARED_BYTES, ValueKind.WHOLE),
    "Sequence number": (Field.SEQUENCE_NUMBER, ValueKind.WHOLE),
    "Fwd thread id": (Field.FORWARD_THREAD, ValueKind.WHOLE),
    "graph node id": (Field.GRAPH_NODE_ID, ValueKind.WHOLE),
    "Input Dims": (Field.INPUT_SHAPES, ValueKind.ANY),
    "Input dims": (Field.INPUT_SHAPES, ValueKind.ANY),
    "Input type": (Field.INPUT_DTYPES, ValueKind.ANY),
    "Concrete Inputs": (Field.INPUT_VALUES, ValueKind.ANY),
    "flops": (Field.FLOP, ValueKind.ANY),
    "name": (Field.LABEL, ValueKind.ANY),
    "Collective name": (Field.LABEL, ValueKind.ANY),
    "dtype": (Field.COLLECTIVE_DTYPE, ValueKind.ANY),
    "Process Group Name": (Field.PROCESS_GROUP, ValueKind.ANY),
    "grid": (Field.GRID_X, ValueKind.TRIPLE),
    "block": (Field.BLOCK_X, ValueKind.TRIPLE),
}
MEMBER_NAMES = (*MEMBERS, "cat", "args")

Row = list[Any]
Content = tuple[list[Row], int, dict[tuple[str | None, str | None], int], str]


def plain_content(text: bytes) -> Content:
    """Return the values of the events that are kept, the number of all, the others by category and phase, and the document.

    Raises ValueError, RecursionError (it is no JSON), LookupError (no trace).
    """
    document = json.loads(text.decode("utf-8-sig", "replace"), parse_float=Decimal, strict=False)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise LookupError("traceEvents")
    members = {key: value for key, value in document.items() if key != "traceEvents"} if isinstance(document, dict) else {}
    rows = []
    dropped: dict[tuple[str | None, str | None], int] = {}
    for event in events:
        row = _row(event) if isinstance(event, dict) else None
        if row is not None and _is_kept(row[Field.KIND], row[Field.PHASE], row[Field.TIME_NS]):
            rows.append(row)
            continue
        category = event.get("cat") if isinstance(event, dict) else None
        phase = None if row is None or row[Field.PHASE] == NULL else chr(row[Field.PHASE])
        key = (None if category is None else str(category), phase)
        dropped[key] = dropped.get(key, 0) + 1
    return rows, len(events), dropped, repr(json.loads(json.dumps(members, default=float)))


def _row(event: dict[str, Any]) -> Row:
    row: Row = [NULL] * len(Field)
    arguments = event.get("args")
    for values, fields in ((event, MEMBERS), (arguments if isinstance(arguments, dict) else {}, ARGUMENTS)):
        for name, (field, kind) in fields.items():
            if name in values:
                _take(values[name], kind, field, row)
    row[Field.KIND] = _kind(event.get("cat"), event.get("name"), row[Field.PHASE])
    return row


def _take(value: Any, kind: ValueKind, field: Field, row: Row) -> None:
    match kind:
        case ValueKind.PHASE:
            row[field] = ord(value) if isinstance(value, str) and len(value) == 1 else NULL
        case ValueKind.TEXT:
            row[field] = NULL if value is None else str(value)
        case ValueKind.IDENTITY:
            is_identity = isinstance(value, str | int | Decimal) and not isinstance(value, bool)
            row[field] = str(value) if is_identity else NULL
        case ValueKind.TIME:
            row[field] = _time_ns(value)
        case ValueKind.WHOLE:
            row[field] = _whole(value)
        case ValueKind.ANY:
            row[field] = NULL if value is None else repr(json.loads(json.dumps(value, default=float)))
        case ValueKind.TRIPLE:
            if isinstance(value, list) and len(value) == 3 and all(_is_whole(item) for item in value):
                row[field : field + 3] = value


def _kind(category: object, name: object, phase: int) -> EventKind:
    kind = CATEGORIES.get(category, EventKind.OTHER) if isinstance(category, str) else EventKind.OTHER
    if kind in NEVER_MODULE or not isinstance(name, str):
        return kind
    if phase == ord("M"):
        return EventKind.PROCESS_NAME if name == "process_name" else kind
    return EventKind.MODULE if name.startswith(MODULE_PREFIX) else kind


def _is_kept(kind: int, phase: int, time_ns: int) -> bool:
    if kind == EventKind.PROCESS_NAME:
        return True
    if time_ns == NULL:
        return False
    if phase in (ord("B"), ord("E")):
        return True
    return phase in (ord("s"), ord("f")) if kind == EventKind.FORWARD_LINK else phase == ord("X") and kind != EventKind.OTHER


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18


def _whole(value: object) -> int:
    if isinstance(value, str):
        return int(value) if WHOLE_TEXT.fullmatch(value) else NULL
    return value if isinstance(value, int) and _is_whole(value) else NULL


def _time_ns(value: object) -> int:
    if not isinstance(value, str | int | Decimal) or isinstance(value, bool):
        return NULL
    try:
        time_ns = (Decimal(str(value)) * 1000).to_integral_value(ROUND_HALF_EVEN)
        return int(time_ns) if abs(time_ns) < 2**62 else NULL
    except (InvalidOperation, ValueError):
        return NULL
