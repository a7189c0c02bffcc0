"""The decoding of Kineto events from JSON to columns of numbers.

msgspec decodes a range of complete events into Structs that have only the required members. The range becomes NumPy columns, and its
objects are released before the next range is decoded. What msgspec rejects (NaN, lone surrogates, values of types that no profiler
writes) is decoded by the standard library's json into the same Structs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from enum import IntEnum, auto
from functools import cached_property
from itertools import compress
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

from kernalyse.services.core.formatting import MODULE_PREFIX

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Token = str | int | bytes
DroppedCounts = Mapping[tuple[str | None, str | None], int]

NULL: Final = -(2**63)
"""Null in columns: the event has no such value."""

ABSENT: Final = NULL + 1
"""In unfinished columns: the member is missing, while NULL stands for a JSON null."""

INTEGER_LIMIT: Final = 10**18
"""Integers are less, with either sign: more digits may not fit 64 bits."""

TIME_LIMIT_NS: Final = 2**62
"""Times are less, so that the sum of two fits 64 bits."""

EXACT_LIMIT_US: Final = 2.0**42
"""Below it two decimals that are the same float64 differ by at most 2**-11 µs, less than half a nanosecond."""


class EventKind(IntEnum):
    """What an event is, by its category and name."""

    OTHER = 0  # dropped, unless it is a begin or end event
    KERNEL = auto()
    CALL = auto()
    OPERATOR = auto()
    ANNOTATION = auto()
    COPY = auto()
    SET = auto()
    FORWARD_LINK = auto()
    MODULE = auto()
    PROCESS_NAME = auto()


CATEGORIES: Final = {
    "kernel": EventKind.KERNEL,
    "Kernel": EventKind.KERNEL,  # names with capitals: until 2021
    "cuda_runtime": EventKind.CALL,  # of HIP too
    "cuda_driver": EventKind.CALL,
    "hip_runtime": EventKind.CALL,
    "hip_driver": EventKind.CALL,
    "Runtime": EventKind.CALL,
    "cpu_op": EventKind.OPERATOR,
    "Operator": EventKind.OPERATOR,
    "user_annotation": EventKind.ANNOTATION,
    "gpu_memcpy": EventKind.COPY,
    "Memcpy": EventKind.COPY,
    "gpu_memset": EventKind.SET,
    "Memset": EventKind.SET,
    "fwdbwd": EventKind.FORWARD_LINK,
    "forward_backward": EventKind.FORWARD_LINK,
}
PROCESS_NAME: Final = "process_name"  # of a metadata event, whose argument "name" names the process
_NEVER_MODULE: Final = np.isin(np.arange(len(EventKind)), (EventKind.KERNEL, EventKind.CALL, EventKind.FORWARD_LINK))
"""Kinds that the prefix of a module's name does not change."""

COMPLETE: Final = ord("X")
BEGIN: Final = ord("B")
END: Final = ord("E")
METADATA: Final = ord("M")
FLOW_START: Final = ord("s")
FLOW_END: Final = ord("f")


class Field(IntEnum):
    """A column of int64 values, one for each retained event."""

    PHASE = 0  # the letter's code
    KIND = auto()
    NAME = auto()  # token
    PROCESS = auto()  # token
    THREAD = auto()  # token
    TIME_NS = auto()
    DURATION_NS = auto()
    FLOW_ID = auto()
    CORRELATION_ID = auto()
    EXTERNAL_ID = auto()
    DEVICE_INDEX = auto()
    STREAM_INDEX = auto()
    BYTES = auto()
    REGISTERS = auto()
    SHARED_BYTES = auto()
    SEQUENCE_NUMBER = auto()
    FORWARD_THREAD = auto()
    GRAPH_NODE_ID = auto()
    INPUT_SHAPES = auto()  # token
    INPUT_DTYPES = auto()  # token
    INPUT_VALUES = auto()  # token
    FLOP = auto()  # token
    LABEL = auto()  # token: the name of a process or of a collective
    COLLECTIVE_DTYPE = auto()  # token
    PROCESS_GROUP = auto()  # token: of a collective
    GRID_X = auto()
    GRID_Y = auto()
    GRID_Z = auto()
    BLOCK_X = auto()
    BLOCK_Y = auto()
    BLOCK_Z = auto()


TOKEN_FIELDS: Final = (
    Field.NAME,
    Field.PROCESS,
    Field.THREAD,
    Field.INPUT_SHAPES,
    Field.INPUT_DTYPES,
    Field.INPUT_VALUES,
    Field.FLOP,
    Field.LABEL,
    Field.COLLECTIVE_DTYPE,
    Field.PROCESS_GROUP,
)

# ------------------------------------------------------------ Structs for msgspec

IntegerValue = int | float | str | None
"""An integer or a string of its digits; other values become null."""

NOTHING: Final = Raw(b"")


class Args(Struct, gc=False):
    """The required arguments of an event. If a member is there in two spellings, the second one wins."""

    correlation: IntegerValue = NULL
    external_id: IntegerValue = msgspec.field(default=NULL, name="External id")
    external_id_lower: IntegerValue = msgspec.field(default=ABSENT, name="external id")
    device: IntegerValue = NULL
    stream: IntegerValue = NULL
    bytes: IntegerValue = NULL
    registers: IntegerValue = msgspec.field(default=NULL, name="registers per thread")
    shared_memory: IntegerValue = msgspec.field(default=NULL, name="shared memory")
    sequence_number: IntegerValue = msgspec.field(default=NULL, name="Sequence number")
    forward_thread: IntegerValue = msgspec.field(default=NULL, name="Fwd thread id")
    graph_node: IntegerValue = msgspec.field(default=NULL, name="graph node id")
    input_dims: Raw = msgspec.field(default=NOTHING, name="Input Dims")
    input_dims_lower: Raw = msgspec.field(default=NOTHING, name="Input dims")
    input_type: Raw = msgspec.field(default=NOTHING, name="Input type")
    concrete_inputs: Raw = msgspec.field(default=NOTHING, name="Concrete Inputs")
    flops: Raw = NOTHING
    name: Raw = NOTHING
    collective_name: Raw = msgspec.field(default=NOTHING, name="Collective name")
    dtype: Raw = NOTHING
    process_group: Raw = msgspec.field(default=NOTHING, name="Process Group Name")
    grid: Raw = NOTHING
    block: Raw = NOTHING


class _Event(Struct, gc=False):
    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    id: IntegerValue = NULL
    args: Args | None = None


class FloatEvent(_Event, gc=False):
    """An event with its times as float64, for traces whose times float64 represents exactly."""

    ts: float = float("nan")
    dur: float = float("nan")


class Event(_Event, gc=False):
    """An event with its times as text, for exact conversion."""

    ts: Raw = NOTHING
    dur: Raw = NOTHING


_INTEGER_ARGUMENTS: Final = (
    (Field.CORRELATION_ID, "correlation"),
    (Field.EXTERNAL_ID, "external_id"),
    (Field.EXTERNAL_ID, "external_id_lower"),
    (Field.DEVICE_INDEX, "device"),
    (Field.STREAM_INDEX, "stream"),
    (Field.BYTES, "bytes"),
    (Field.REGISTERS, "registers"),
    (Field.SHARED_BYTES, "shared_memory"),
    (Field.SEQUENCE_NUMBER, "sequence_number"),
    (Field.FORWARD_THREAD, "forward_thread"),
    (Field.GRAPH_NODE_ID, "graph_node"),
)
_TOKEN_ARGUMENTS: Final = (
    (Field.INPUT_SHAPES, "input_dims"),
    (Field.INPUT_SHAPES, "input_dims_lower"),
    (Field.INPUT_DTYPES, "input_type"),
    (Field.INPUT_VALUES, "concrete_inputs"),
    (Field.FLOP, "flops"),
    (Field.LABEL, "name"),
    (Field.LABEL, "collective_name"),
    (Field.COLLECTIVE_DTYPE, "dtype"),
    (Field.PROCESS_GROUP, "process_group"),
)
_TRIPLE_ARGUMENTS: Final = ((Field.GRID_X, "grid"), (Field.BLOCK_X, "block"))
_NO_ARGUMENTS: Final = Args()
_FLOAT_DECODER: Final = msgspec.json.Decoder(list[FloatEvent])
_EXACT_DECODER: Final = msgspec.json.Decoder(list[Event])


# ------------------------------------------------------------ columns


@dataclass(frozen=True)
class KinetoEvents:
    """The retained events of a trace.

    columns: arrays by Field with a value for each event, NULL where it has none.
    tokens: the distinct values of TOKEN_FIELDS, whose columns hold indexes: a string, a number, or (bytes) the JSON of any value.
    event_count: number of all events, including the dropped ones.
    dropped_counts: numbers of dropped events by category (None: without category) and phase.
    document: the other members of the document.
    selected: indexes of the selected events; None: all.
    """

    columns: Sequence[Integers]
    tokens: tuple[Token, ...]
    event_count: int
    dropped_counts: DroppedCounts
    document: Mapping[str, Any]
    selected: Integers | None = None

    @property
    def size(self) -> int:
        """Number of selected events."""
        return int(self.columns[0].size if self.selected is None else self.selected.size)

    def column(self, field: Field) -> Integers:
        """Return the values of a field. They must not be modified, since they may be a view of `columns`."""
        values = self.columns[field]
        return values if self.selected is None else values[self.selected]

    def where(self, indexes: Integers) -> KinetoEvents:
        """Return the events at these indexes."""
        return replace(self, selected=indexes if self.selected is None else self.selected[indexes])

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The tokens as text: strings without quotes, other values as they are written."""
        return tuple(token_text(token) for token in self.tokens)


def token_text(token: Token) -> str:
    """Return a token as text: a string without quotes, other values as they are written."""
    if isinstance(token, bytes):
        token = decoded(token) if token.startswith(b'"') else token.decode("utf-8", "replace")
    return replace_surrogates(str(token))


def decoded(token: bytes) -> Any:
    """Return the value of a JSON token."""
    return json.loads(token.decode("utf-8", "replace"), strict=False)


def replace_surrogates(text: str) -> str:
    """Return the text with lone surrogates replaced, which JSON escapes can produce and no table can hold."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass(frozen=True, slots=True)
class EventColumns:
    """The events of one chunk of a trace, see KinetoEvents; its tokens are its own."""

    columns: list[Integers]
    tokens: tuple[Token, ...]
    event_count: int
    dropped_counts: Counter[tuple[str | None, str | None]]


def join_chunks(parts: list[EventColumns], document: Mapping[str, Any]) -> KinetoEvents:
    """Join the chunks of a trace. It removes their columns one by one, to limit the peak memory."""
    indexes: dict[Token, int] = {}
    tables = [np.array([*(indexes.setdefault(token, len(indexes)) for token in part.tokens), NULL], dtype=np.int64) for part in parts]
    columns: list[Integers] = []
    for field in reversed(Field):
        pieces = [part.columns.pop() for part in parts]
        if field in TOKEN_FIELDS:  # the tokens of the first chunk keep their indexes
            pieces[1:] = [table[np.where(piece == NULL, -1, piece)] for piece, table in zip(pieces[1:], tables[1:], strict=True)]
        columns.append(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))
    dropped: Counter[tuple[str | None, str | None]] = Counter()
    for part in parts:
        dropped.update(part.dropped_counts)
    return KinetoEvents(columns[::-1], tuple(indexes), sum(part.event_count for part in parts), dropped, document)


class _Tokens(dict[Any, int]):
    """The index of each token, in order of first use."""

    _KNOWN: Final = {None: NULL, b"null": NULL}

    def __init__(self) -> None:
        super().__init__(self._KNOWN)

    def __missing__(self, token: Token) -> int:
        index = self[token] = len(self) - len(self._KNOWN)
        return index

    @property
    def tokens(self) -> tuple[Token, ...]:
        return tuple(self)[len(self._KNOWN) :]


class _Codes(dict[Any, int]):
    """The code of each value, from 0 in order of first use."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        return code


class EventDecoder:
    """A decoder of ranges of events into columns, one range after the other."""

    def __init__(self) -> None:
        self.event_count = 0
        self._tokens = _Tokens()
        self._triples = _Codes()
        self._ranges: list[list[Integers]] = []
        self._dropped: Counter[tuple[str | None, str | None]] = Counter()
        self._are_floats_exact = True

    def decode(self, text: bytes | memoryview) -> bool:
        """Add the events of a range.

        Args:
            text: JSON of the events and the commas between them.

        Returns:
            Whether the complete text is that. If not, nothing is added.
        """
        text = b"".join((b"[", text, b"]"))
        if self._are_floats_exact:
            with suppress(ValueError, RecursionError):  # msgspec rejects it, or its UTF-8 is invalid
                if self._add(_FLOAT_DECODER.decode(text), _float_times):
                    return True
        with suppress(ValueError, RecursionError):
            self._add(_EXACT_DECODER.decode(text), _exact_times)
            self._are_floats_exact = False  # usually those of the next range are not exact either
            return True
        try:
            values = json.loads(text.decode("utf-8", "replace"), parse_float=Decimal, strict=False)
        except (ValueError, RecursionError):
            return False
        return self.add_values(values)

    def add_values(self, values: Iterable[Any]) -> bool:
        """Add events that json has decoded, with decimals as Decimal."""
        return self._add([_event(value) for value in values], _exact_times)

    def columns(self) -> EventColumns:
        """Return all events; nothing can be added afterwards."""
        ranges = self._ranges or [[np.empty(0, dtype=np.int64) for _ in Field]]
        columns = [np.concatenate([columns.pop() for columns in ranges]) for _ in Field]
        return EventColumns(columns[::-1], self._tokens.tokens, self.event_count, self._dropped)

    def _add(self, events: Sequence[Any], times: Callable[[Iterable[Any], int], Integers | None]) -> bool:
        """Add events and return True; return False and add nothing if the times are not exact."""
        count = len(events)
        categories, phases = _Codes(), _Codes()
        category_codes = _codes([event.cat for event in events], categories)
        phase_codes = _codes([event.ph for event in events], phases)
        kind = np.array([CATEGORIES.get(category, EventKind.OTHER) for category in categories], dtype=np.int64)[category_codes]
        phase = np.array([_letter(text) for text in phases], dtype=np.int64)[phase_codes]
        _set_kinds_by_name(kind, phase, [event.name for event in events])
        is_kept = _may_be_kept(kind, phase)
        kept = list(compress(events, is_kept.tolist()))
        time_ns = times(map(_TIME, kept), len(kept))
        if time_ns is None:
            return False
        is_timed = (time_ns != NULL) | (kind[is_kept] == EventKind.PROCESS_NAME)
        if not is_timed.all():
            is_kept[is_kept] = is_timed
            kept = list(compress(kept, is_timed.tolist()))
            time_ns = time_ns[is_timed]
        duration_ns = times(map(_DURATION, kept), len(kept))
        if duration_ns is None:
            return False
        columns = {
            Field.PHASE: phase[is_kept],
            Field.KIND: kind[is_kept],
            Field.TIME_NS: time_ns,
            Field.DURATION_NS: duration_ns,
            Field.NAME: _codes([event.name for event in kept], self._tokens),
            Field.PROCESS: _codes([event.pid for event in kept], self._tokens),
            Field.THREAD: _codes([event.tid for event in kept], self._tokens),
            Field.FLOW_ID: _integer_column([event.id for event in kept]),
            **self._arguments([_NO_ARGUMENTS if event.args is None else event.args for event in kept]),
        }
        self._ranges.append([columns[field] for field in Field])
        self.event_count += count
        self._count_dropped(category_codes[~is_kept] * len(phases) + phase_codes[~is_kept], tuple(categories), tuple(phases))
        return True

    def _count_dropped(self, pairs: Integers, categories: tuple[str | None, ...], phases: tuple[str | None, ...]) -> None:
        """Count the dropped events. pairs: code of the category times the number of phases, plus the code of the phase."""
        found, first_rows, counts = np.unique(pairs, return_index=True, return_counts=True)
        for index in np.argsort(first_rows).tolist():  # in order of first appearance
            category, phase = categories[found[index] // len(phases)], phases[found[index] % len(phases)]
            self._dropped[category, phase if _letter(phase) != NULL else None] += int(counts[index])

    def _arguments(self, arguments: list[Args]) -> dict[Field, Integers]:
        columns: dict[Field, Integers] = {}

        def put(field: Field, values: Integers) -> None:
            columns[field] = np.where(values == ABSENT, columns.get(field, NULL), values)

        for field, name in _INTEGER_ARGUMENTS:
            put(field, _integer_column(list(map(attrgetter(name), arguments))))
        for field, name in _TOKEN_ARGUMENTS:
            put(field, _raw_codes(list(map(attrgetter(name), arguments)), self._tokens))
        for field, name in _TRIPLE_ARGUMENTS:
            codes = _raw_codes(list(map(attrgetter(name), arguments)), self._triples)
            values = np.array([*map(_triple, self._triples), (NULL, NULL, NULL)], dtype=np.int64)[np.where(codes == ABSENT, -1, codes)]
            for axis in range(3):
                columns[Field(field + axis)] = values[:, axis].copy()
        return columns


_TIME: Final = attrgetter("ts")
_DURATION: Final = attrgetter("dur")


def _codes(values: list[Any], table: Mapping[Any, int]) -> Integers:
    return np.fromiter(map(table.__getitem__, values), dtype=np.int64, count=len(values))


def _raw_codes(values: list[Raw], table: Mapping[Any, int]) -> Integers:
    """Return the code of each value. Most events lack most arguments, so only the present ones are looked up."""
    codes = np.full(len(values), ABSENT, dtype=np.int64)
    rows = [row for row, value in enumerate(values) if value is not NOTHING]
    codes[rows] = [table[bytes(values[row])] for row in rows]
    return codes


def _letter(phase: str | None) -> int:
    return ord(phase) if phase is not None and len(phase) == 1 else NULL


def _set_kinds_by_name(kind: Integers, phase: Integers, names: list[str | None]) -> None:
    has_prefix = np.array([name is not None and name.startswith(MODULE_PREFIX) for name in names], dtype=np.bool_)
    may_change = ~_NEVER_MODULE[kind]
    for row in np.flatnonzero(may_change & (phase == METADATA)).tolist():
        if names[row] == PROCESS_NAME:
            kind[row] = EventKind.PROCESS_NAME
    kind[may_change & has_prefix & (phase != METADATA)] = EventKind.MODULE


def _may_be_kept(kind: Integers, phase: Integers) -> Flags:
    """Return which events are retained if they have a time: complete ones of known kinds, links, and all begins and ends.

    Events that name processes need no time.
    """
    is_complete = (phase == COMPLETE) & (kind != EventKind.OTHER)
    is_flow = (phase == FLOW_START) | (phase == FLOW_END)
    is_half = (phase == BEGIN) | (phase == END)
    may_be: Flags = (kind == EventKind.PROCESS_NAME) | is_half | np.where(kind == EventKind.FORWARD_LINK, is_flow, is_complete)
    return may_be


# ------------------------------------------------------------ values


def _float_times(times_us: Iterable[float], count: int) -> Integers | None:
    """Return the times in nanoseconds; None if a float64 does not represent them exactly.

    A decimal d and n thousandths with the same float64 are so close (see EXACT_LIMIT_US) that d rounds to n thousandths.
    """
    time_us = np.fromiter(times_us, dtype=np.float64, count=count)
    is_known = ~np.isnan(time_us)
    known_us = time_us[is_known]
    thousandths = np.rint(known_us * 1000)
    if (np.abs(known_us) >= EXACT_LIMIT_US).any() or (thousandths / 1000 != known_us).any():
        return None
    time_ns = np.full(count, NULL, dtype=np.int64)
    time_ns[is_known] = thousandths.astype(np.int64)
    return time_ns


def _exact_times(times_us: Iterable[Raw], count: int) -> Integers:
    return np.fromiter((NULL if time is NOTHING else nanoseconds(bytes(time)) for time in times_us), dtype=np.int64, count=count)


def nanoseconds(token: bytes) -> int:
    """Return decimal microseconds as nanoseconds, rounded half to even; NULL if it is no number or too large."""
    if token.isdigit() and len(token) < 16:
        return int(token) * 1000
    if token[-4:-3] == b"." and len(token) < 20:
        with suppress(ValueError):  # as of 1.5e3
            return int(token[:-4] + token[-3:])
    try:
        time_us = Decimal(decoded(token) if token.startswith(b'"') else token.decode())
        time_ns = (time_us * 1000).to_integral_value(ROUND_HALF_EVEN)
        return int(time_ns) if abs(time_ns) < TIME_LIMIT_NS else NULL
    except (InvalidOperation, ValueError):
        return NULL


def _integer_column(values: list[IntegerValue]) -> Integers:
    if set(map(type, values)) <= {int}:
        with suppress(OverflowError):
            column = np.array(values, dtype=np.int64)
            is_large = (column >= INTEGER_LIMIT) | ((column <= -INTEGER_LIMIT) & (column > ABSENT))
            return np.where(is_large, NULL, column) if is_large.any() else column
    return np.array([_integer(value) for value in values], dtype=np.int64)


def _integer(value: IntegerValue) -> int:
    if isinstance(value, str):
        digits = value.removeprefix("-")
        return int(value) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else NULL
    is_known = isinstance(value, int) and (abs(value) < INTEGER_LIMIT or value in (NULL, ABSENT))
    return int(value) if is_known and value is not None else NULL


def _triple(token: bytes) -> tuple[int, int, int]:
    values = decoded(token)
    if isinstance(values, list) and len(values) == 3 and all(type(value) is int and abs(value) < INTEGER_LIMIT for value in values):
        return values[0], values[1], values[2]
    return NULL, NULL, NULL


# ------------------------------------------------------------ fallback: events decoded by json


def _event(value: Any) -> Event:
    """Return any value that json has decoded as an event."""
    if not isinstance(value, dict):
        return Event()
    arguments = value.get("args")
    return Event(
        ph=value["ph"] if isinstance(value.get("ph"), str) else None,
        cat=_text(value.get("cat")),
        name=_text(value.get("name")),
        pid=_identity(value.get("pid")),
        tid=_identity(value.get("tid")),
        id=_number(value.get("id")),
        ts=_raw(value.get("ts")),
        dur=_raw(value.get("dur")),
        args=_args(arguments) if isinstance(arguments, dict) else None,
    )


def _args(value: dict[str, Any]) -> Args:
    found: dict[str, Any] = {
        field.name: _number(value[field.encode_name]) if field.type == IntegerValue else _raw(value[field.encode_name])
        for field in msgspec.structs.fields(Args)
        if field.encode_name in value
    }
    return Args(**found)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _identity(value: Any) -> int | str | None:
    if isinstance(value, bool):
        return None
    return str(value) if isinstance(value, Decimal) else value if isinstance(value, int | str) else None


def _number(value: Any) -> IntegerValue:
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _raw(value: Any) -> Raw:
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, default=float)
    return Raw(text.encode())
