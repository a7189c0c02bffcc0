"""The events of a Kineto trace as columns of numbers: which members count, and how bytes become columns.

msgspec decodes a range of whole events into Structs that have only the members that count; the range becomes NumPy columns and its
objects are dropped before the next one is decoded. What msgspec refuses (NaN, halves of surrogate pairs, values of types that no
profiler writes) goes through the standard library's json into the same Structs.
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
"""In columns: the event has no such value."""

ABSENT: Final = NULL + 1
"""In columns that are not finished: the member is not there, where null would stand for a value."""

WHOLE_LIMIT: Final = 10**18
"""Whole numbers are less, with either sign: more digits may not fit 64 bits."""

TIME_LIMIT_NS: Final = 2**62
"""Times are less: the sum of two of them fits 64 bits."""

EXACT_LIMIT_US: Final = 2.0**42
"""Below it two decimals that are the same float64 differ by at most 2**-11 µs, less than half a nanosecond."""


class EventKind(IntEnum):
    """What an event is, by its category and name."""

    OTHER = 0  # not kept, unless it is one half of a pair
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
"""Kinds that stay what they are, whatever the name begins with."""

COMPLETE: Final = ord("X")
BEGIN: Final = ord("B")
END: Final = ord("E")
METADATA: Final = ord("M")
FLOW_START: Final = ord("s")
FLOW_END: Final = ord("f")


class Field(IntEnum):
    """A column of int64 over the events that are kept."""

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
    LABEL = auto()  # token: of a process its name, of a collective which it is
    COLLECTIVE_DTYPE = auto()  # token
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
)

# ------------------------------------------------------------ what msgspec decodes

Whole = int | float | str | None
"""A whole number or a string of its digits; whatever else is not known."""

NOTHING: Final = Raw(b"")


class Args(Struct, gc=False):
    """The arguments that count. Where a member has two spellings, the second one holds if both are there."""

    correlation: Whole = NULL
    external_id: Whole = msgspec.field(default=NULL, name="External id")
    external_id_lower: Whole = msgspec.field(default=ABSENT, name="external id")
    device: Whole = NULL
    stream: Whole = NULL
    bytes: Whole = NULL
    registers: Whole = msgspec.field(default=NULL, name="registers per thread")
    shared_memory: Whole = msgspec.field(default=NULL, name="shared memory")
    sequence_number: Whole = msgspec.field(default=NULL, name="Sequence number")
    forward_thread: Whole = msgspec.field(default=NULL, name="Fwd thread id")
    graph_node: Whole = msgspec.field(default=NULL, name="graph node id")
    input_dims: Raw = msgspec.field(default=NOTHING, name="Input Dims")
    input_dims_lower: Raw = msgspec.field(default=NOTHING, name="Input dims")
    input_type: Raw = msgspec.field(default=NOTHING, name="Input type")
    concrete_inputs: Raw = msgspec.field(default=NOTHING, name="Concrete Inputs")
    flops: Raw = NOTHING
    name: Raw = NOTHING
    collective_name: Raw = msgspec.field(default=NOTHING, name="Collective name")
    dtype: Raw = NOTHING
    grid: Raw = NOTHING
    block: Raw = NOTHING


class _Event(Struct, gc=False):
    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    id: Whole = NULL
    args: Args | None = None


class FloatEvent(_Event, gc=False):
    """An event with its times as float64, for traces whose times that holds exactly."""

    ts: float = float("nan")
    dur: float = float("nan")


class Event(_Event, gc=False):
    """An event with its times as they stand in the file."""

    ts: Raw = NOTHING
    dur: Raw = NOTHING


_WHOLE_ARGUMENTS: Final = (
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
)
_TRIPLE_ARGUMENTS: Final = ((Field.GRID_X, "grid"), (Field.BLOCK_X, "block"))
_NO_ARGUMENTS: Final = Args()
_FLOAT_DECODER: Final = msgspec.json.Decoder(list[FloatEvent])
_EXACT_DECODER: Final = msgspec.json.Decoder(list[Event])


# ------------------------------------------------------------ columns


@dataclass(frozen=True)
class KinetoEvents:
    """Events that tables are made of.

    columns: by Field, a value for each event, NULL for what it has not.
    tokens: what values of TOKEN_FIELDS refer to by index: a text, a number, or (bytes) the JSON of any value.
    dropped_counts: of all other events, by category (None: it has none) and phase.
    document: the members of the trace beside its events.
    chosen: indexes of the events that count; None: all.
    """

    columns: Sequence[Integers]
    tokens: tuple[Token, ...]
    event_count: int
    dropped_counts: DroppedCounts
    document: Mapping[str, Any]
    chosen: Integers | None = None

    @property
    def size(self) -> int:
        """Number of the events that tables are made of."""
        return int(self.columns[0].size if self.chosen is None else self.chosen.size)

    def column(self, field: Field) -> Integers:
        """Return the values of a field; not to be changed, for it may be a part of `columns`."""
        values = self.columns[field]
        return values if self.chosen is None else values[self.chosen]

    def where(self, indexes: Integers) -> KinetoEvents:
        """Return the events at these indexes."""
        return replace(self, chosen=indexes if self.chosen is None else self.chosen[indexes])

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The tokens as text: strings without quotes, everything else as it stands."""
        return tuple(text_of(token) for token in self.tokens)


def text_of(token: Token) -> str:
    """Return a token as text: a string without quotes, everything else as it stands."""
    if isinstance(token, bytes):
        token = decoded(token) if token.startswith(b'"') else token.decode("utf-8", "replace")
    return whole_characters(str(token))


def decoded(token: bytes) -> Any:
    """Return the value of a JSON token."""
    return json.loads(token.decode("utf-8", "replace"), strict=False)


def whole_characters(text: str) -> str:
    """Replace halves of characters, which escapes can bring and no table takes."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass(frozen=True, slots=True)
class EventColumns:
    """The events of a part of a trace: as those of KinetoEvents, with tokens of its own."""

    columns: list[Integers]
    tokens: tuple[Token, ...]
    event_count: int
    dropped_counts: Counter[tuple[str | None, str | None]]


def joined(parts: list[EventColumns], document: Mapping[str, Any]) -> KinetoEvents:
    """Put the parts of a trace together; takes their columns out of them, so that no column is there twice for long."""
    indexes: dict[Token, int] = {}
    tables = [np.array([*(indexes.setdefault(token, len(indexes)) for token in part.tokens), NULL], dtype=np.int64) for part in parts]
    columns: list[Integers] = []
    for field in reversed(Field):
        pieces = [part.columns.pop() for part in parts]
        if field in TOKEN_FIELDS:  # those of the first part keep their indexes
            pieces[1:] = [table[np.where(piece == NULL, -1, piece)] for piece, table in zip(pieces[1:], tables[1:], strict=True)]
        columns.append(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))
    dropped: Counter[tuple[str | None, str | None]] = Counter()
    for part in parts:
        dropped.update(part.dropped_counts)
    return KinetoEvents(columns[::-1], tuple(indexes), sum(part.event_count for part in parts), dropped, document)


class _Tokens(dict[Any, int]):
    """Index of each token, in order of first use."""

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
    """Code of each value, from 0 in order of first use."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        return code


class EventDecoder:
    """Turns ranges of events into columns, one range after the other."""

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
            Whether it is that, from the first byte to the last. If not, nothing is added.
        """
        text = b"".join((b"[", text, b"]"))
        if self._are_floats_exact:
            with suppress(ValueError, RecursionError):  # msgspec refuses it, or its UTF-8 is broken
                if self._add(_FLOAT_DECODER.decode(text), _float_times):
                    return True
        with suppress(ValueError, RecursionError):
            self._add(_EXACT_DECODER.decode(text), _exact_times)
            self._are_floats_exact = False  # nor are those of the next range, as a rule
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
        """Return all events so far; nothing can be added after."""
        ranges = self._ranges or [[np.empty(0, dtype=np.int64) for _ in Field]]
        columns = [np.concatenate([columns.pop() for columns in ranges]) for _ in Field]
        return EventColumns(columns[::-1], self._tokens.tokens, self.event_count, self._dropped)

    def _add(self, events: Sequence[Any], times: Callable[[Iterable[Any], int], Integers | None]) -> bool:
        """Whether the times are exact; if not, nothing is added."""
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
            Field.FLOW_ID: _wholes([event.id for event in kept]),
            **self._arguments([_NO_ARGUMENTS if event.args is None else event.args for event in kept]),
        }
        self._ranges.append([columns[field] for field in Field])
        self.event_count += count
        self._count_dropped(category_codes[~is_kept] * len(phases) + phase_codes[~is_kept], tuple(categories), tuple(phases))
        return True

    def _count_dropped(self, pairs: Integers, categories: tuple[str | None, ...], phases: tuple[str | None, ...]) -> None:
        """pairs: of each event the code of its category, times the number of phases, and that of its phase."""
        found, first_rows, counts = np.unique(pairs, return_index=True, return_counts=True)
        for index in np.argsort(first_rows).tolist():  # in order of first appearance
            category, phase = categories[found[index] // len(phases)], phases[found[index] % len(phases)]
            self._dropped[category, phase if _letter(phase) != NULL else None] += int(counts[index])

    def _arguments(self, arguments: list[Args]) -> dict[Field, Integers]:
        columns: dict[Field, Integers] = {}

        def put(field: Field, values: Integers) -> None:
            columns[field] = np.where(values == ABSENT, columns.get(field, NULL), values)

        for field, name in _WHOLE_ARGUMENTS:
            put(field, _wholes(list(map(attrgetter(name), arguments))))
        for field, name in _TOKEN_ARGUMENTS:
            put(field, _raw_codes(list(map(attrgetter(name), arguments)), self._tokens))
        for field, name in _TRIPLE_ARGUMENTS:
            codes = _raw_codes(list(map(attrgetter(name), arguments)), self._triples)
            values = np.array([*map(_triple, self._triples), (NULL, NULL, NULL)], dtype=np.int64)[np.where(codes == ABSENT, -1, codes)]
            for place in range(3):
                columns[Field(field + place)] = values[:, place].copy()
        return columns


_TIME: Final = attrgetter("ts")
_DURATION: Final = attrgetter("dur")


def _codes(values: list[Any], table: Mapping[Any, int]) -> Integers:
    return np.fromiter(map(table.__getitem__, values), dtype=np.int64, count=len(values))


def _raw_codes(values: list[Raw], table: Mapping[Any, int]) -> Integers:
    """Most events have few of the arguments: those that they have not are no tokens to look up."""
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
    """Which events tables are made of if they have a time: complete ones of known kinds, links, halves of pairs of any kind.

    Names of processes need no time.
    """
    is_complete = (phase == COMPLETE) & (kind != EventKind.OTHER)
    is_flow = (phase == FLOW_START) | (phase == FLOW_END)
    is_half = (phase == BEGIN) | (phase == END)
    may_be: Flags = (kind == EventKind.PROCESS_NAME) | is_half | np.where(kind == EventKind.FORWARD_LINK, is_flow, is_complete)
    return may_be


# ------------------------------------------------------------ values


def _float_times(times_us: Iterable[float], count: int) -> Integers | None:
    """Nanoseconds; None where a float64 does not tell them exactly.

    A decimal d and n thousandths that have the same float64 are so close together (see EXACT_LIMIT_US) that d rounds to n.
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
    """Return decimal microseconds as nanoseconds, rounded half to even; NULL for what is no number and for what is too large."""
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


def _wholes(values: list[Whole]) -> Integers:
    if set(map(type, values)) <= {int}:
        with suppress(OverflowError):
            column = np.array(values, dtype=np.int64)
            is_large = (column >= WHOLE_LIMIT) | ((column <= -WHOLE_LIMIT) & (column > ABSENT))
            return np.where(is_large, NULL, column) if is_large.any() else column
    return np.array([_whole(value) for value in values], dtype=np.int64)


def _whole(value: Whole) -> int:
    if isinstance(value, str):
        digits = value.removeprefix("-")
        return int(value) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else NULL
    is_known = isinstance(value, int) and (abs(value) < WHOLE_LIMIT or value in (NULL, ABSENT))
    return int(value) if is_known and value is not None else NULL


def _triple(token: bytes) -> tuple[int, int, int]:
    values = decoded(token)
    if isinstance(values, list) and len(values) == 3 and all(type(value) is int and abs(value) < WHOLE_LIMIT for value in values):
        return values[0], values[1], values[2]
    return NULL, NULL, NULL


# ------------------------------------------------------------ events of any JSON


def _event(value: Any) -> Event:
    """An event that json has decoded, whatever it is."""
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
        field.name: _number(value[field.encode_name]) if field.type == Whole else _raw(value[field.encode_name])
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


def _number(value: Any) -> Whole:
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _raw(value: Any) -> Raw:
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, default=float)
    return Raw(text.encode())
