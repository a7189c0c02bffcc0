"""Events of a Kineto trace scanned from bytes into columns of numbers, as machine code.

A scan starts where an event starts and ends between two events. It gives up (status LEFT) at what is no JSON, and at what the
plain parser has to judge: members that occur twice or are written with escapes, values of unexpected types.

The first run ever waits for the compiler: what allocates, slices or calls NumPy stands outside of what is compiled.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.analyzer.compiled import compiled, inlined, word
from services.analyzer.readers.json_scan import (
    BACKSLASH,
    BROKEN,
    CLOSE_LIST,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    MINUS,
    NINE,
    NULL,
    OPEN_LIST,
    OPEN_OBJECT,
    QUOTE,
    ZERO,
    Bytes,
    after_scalar,
    after_space,
    after_string,
    after_value,
    has_escape,
    thousandths,
    whole_number,
)
from services.analyzer.readers.kineto_fields import (
    ARGUMENTS,
    CATEGORIES,
    FIELD_COUNT,
    MEMBERS,
    METADATA,
    NEVER_MODULE,
    PROCESS_NAME,
    TOKEN_FIELDS,
    EventKind,
    Field,
    ValueKind,
    is_kept,
)
from services.analyzer.readers.lanes import byte
from services.analyzer.readers.token_table import is_token, token_index
from services.analyzer.readers.word_table import LENGTH_STEP, MAX_WORD_LENGTH, PLACE_BITS, WORD_BYTES, WordTable
from services.core.labels import MODULE_PREFIX

Integers = NDArray[np.int64]

STOPPED: Final = 0  # between two events, at the position asked for or after it
ENDED: Final = 1  # after the bracket that closes the list of events
LEFT: Final = 2  # at an event that is left to the plain parser, or broken
FULL: Final = 3  # between two events, with no room for another row or its tokens

MAX_DROPPED_KINDS: Final = 512
"""Different (category, phase) of events that are not kept. Profilers know two dozen."""

MEMBER_LEVEL: Final = 0
ARGUMENT_LEVEL: Final = 1
CATEGORY_LEVEL: Final = 2
NAME_LEVEL: Final = 3
_TABLE: Final = WordTable(tuple(MEMBERS), tuple(ARGUMENTS), tuple(CATEGORIES), (PROCESS_NAME,))
_PLACES, _ENTRIES = _TABLE.places, _TABLE.entries
_FACTOR_0, _FACTOR_1, _FACTOR_2, _FACTOR_3 = _TABLE.factors
_SHIFT: Final = np.uint64(64 - PLACE_BITS)
_MASKS: Final = np.array(
    [
        [2 ** (8 * min(max(length - start, 0), WORD_BYTES)) - 1 for start in range(0, MAX_WORD_LENGTH, WORD_BYTES)]
        for length in range(MAX_WORD_LENGTH + 1)
    ],
    dtype=np.uint64,
)
"""By length of a word: what of each of its numbers belongs to it."""
_NO_WORD: Final = np.uint64(0)
_FIELDS: Final = np.array([field for field, _ in (*MEMBERS.values(), *ARGUMENTS.values())], dtype=np.int64)
_KINDS: Final = np.array([kind for _, kind in (*MEMBERS.values(), *ARGUMENTS.values())], dtype=np.int64)
_FIRST_CATEGORY: Final = len(_FIELDS)
_CATEGORY_KINDS: Final = np.array(list(CATEGORIES.values()), dtype=np.int64)
_TOKEN_FIELDS: Final = np.array(TOKEN_FIELDS, dtype=np.int64)

_PREFIX: Final = MODULE_PREFIX.encode()
_PREFIX_LENGTH: Final = len(_PREFIX)
_PREFIX_START, _PREFIX_END = np.frombuffer(_PREFIX[:WORD_BYTES] + _PREFIX[-WORD_BYTES:], dtype=np.uint64)

_PHASE: Final = int(Field.PHASE)
_KIND: Final = int(Field.KIND)
_CATEGORY: Final = int(Field.CATEGORY)
_NAME: Final = int(Field.NAME)
_TIME: Final = int(Field.TIME_NS)
_IS_PHASE: Final = int(ValueKind.PHASE)
_IS_TEXT: Final = int(ValueKind.TEXT)
_IS_TIME: Final = int(ValueKind.TIME)
_IS_WHOLE: Final = int(ValueKind.WHOLE)
_IS_TOKEN: Final = int(ValueKind.TOKEN)
_IS_TRIPLE: Final = int(ValueKind.TRIPLE)
_IS_ARGUMENTS: Final = int(ValueKind.ARGUMENTS)
_OTHER: Final = int(EventKind.OTHER)
_NEVER_MODULE: Final = np.isin(np.arange(len(EventKind)), NEVER_MODULE)
_MODULE: Final = int(EventKind.MODULE)
_PROCESS_NAME: Final = int(EventKind.PROCESS_NAME)
_FIRST_BEYOND_ASCII: Final = 128
_LETTER_N: Final = ord("n")


class State(IntEnum):
    """Places of what one call of the scan leaves to the next."""

    POSITION = 0
    EVENT_COUNT = auto()
    ROW_COUNT = auto()
    TOKEN_COUNT = auto()
    DROPPED_COUNT = auto()
    IS_DUE = auto()  # 1: an event has to follow, for a comma was read


_POSITION: Final = int(State.POSITION)
_EVENT_COUNT: Final = int(State.EVENT_COUNT)
_ROW_COUNT: Final = int(State.ROW_COUNT)
_TOKEN_COUNT: Final = int(State.TOKEN_COUNT)
_DROPPED_COUNT: Final = int(State.DROPPED_COUNT)
_IS_DUE: Final = int(State.IS_DUE)


@inlined
def _word_index(data: Bytes, start: int, end: int, level: int) -> int:
    """Index of the word of that level that the bytes are, or -1."""
    length = end - start
    if length > MAX_WORD_LENGTH:
        return -1
    first = second = third = _NO_WORD
    if start + MAX_WORD_LENGTH > data.size:
        for position in range(end - 1, start - 1, -1):
            bits = np.uint64(8 * ((position - start) % WORD_BYTES))
            if position - start < WORD_BYTES:
                first |= np.uint64(byte(data, position)) << bits
            elif position - start < 2 * WORD_BYTES:
                second |= np.uint64(byte(data, position)) << bits
            else:
                third |= np.uint64(byte(data, position)) << bits
    else:
        first = word(data, start) & _MASKS[np.uint64(length), 0]
        second = word(data, start + WORD_BYTES) & _MASKS[np.uint64(length), 1]
        third = word(data, start + 2 * WORD_BYTES) & _MASKS[np.uint64(length), 2]
    tag = np.uint64(level * LENGTH_STEP + length)
    index = _PLACES[np.int64((first * _FACTOR_0 + second * _FACTOR_1 + third * _FACTOR_2 + tag * _FACTOR_3) >> _SHIFT)]
    if (
        index >= 0
        and _ENTRIES[index, 0] == first
        and _ENTRIES[index, 1] == second
        and _ENTRIES[index, 2] == third
        and _ENTRIES[index, 3] == tag
    ):
        return int(index)
    return -1


@compiled
def _triple(data: Bytes, position: int, row: Integers, field: int) -> None:
    """Reads [x, y, z] of whole numbers; leaves the row as it is if there is anything else."""
    if byte(data, position) != OPEN_LIST:
        return
    position += 1
    first = second = third = NULL
    for index in range(3):
        position = after_space(data, position)
        token_end = after_scalar(data, position)
        if token_end == BROKEN or byte(data, position) == QUOTE:
            return
        first, second, third = second, third, whole_number(data, position, token_end)
        if third == NULL:
            return
        position = after_space(data, token_end)
        if byte(data, position) != (COMMA if index < 2 else CLOSE_LIST):
            return
        position += 1
    row[field], row[field + 1], row[field + 2] = first, second, third


@compiled
def _take(data: Bytes, position: int, end: int, kind: int, field: int, row: Integers, ends: Integers) -> bool:
    """Puts a value into the row; tokens as their start, with the end in `ends`. False: left to the plain parser."""
    letter = byte(data, position)
    is_text = letter == QUOTE
    if kind == _IS_WHOLE:
        row[field] = whole_number(data, position, end)
        return not is_text or not has_escape(data, position + 1, end - 1)
    if kind == _IS_TIME:
        row[field] = NULL if is_text else thousandths(data, position, end)
        return bool(row[field] != NULL)
    if kind == _IS_PHASE:
        row[field] = byte(data, position + 1) if is_text else NULL
        return is_text and end - position == 3 and row[field] < _FIRST_BEYOND_ASCII
    if kind == _IS_TRIPLE:
        _triple(data, position, row, field)
        return True
    if kind == _IS_TOKEN and letter == _LETTER_N:  # null
        return True
    row[field] = position
    ends[field] = end
    return is_text or kind == _IS_TOKEN or (kind != _IS_TEXT and (letter == MINUS or ZERO <= letter <= NINE))


@compiled
def _event(data: Bytes, position: int, row: Integers, ends: Integers) -> int:
    """Reads an event and its arguments into the row. Position after it, or BROKEN."""
    size = data.size
    if position >= size or byte(data, position) != OPEN_OBJECT:
        return BROKEN
    for field in range(FIELD_COUNT):
        row[field] = NULL
    level = MEMBER_LEVEL
    seen = 0
    is_first = True  # of its object
    while True:
        position = after_space(data, position + 1)  # behind a bracket or a comma
        if position >= size:
            return BROKEN
        if byte(data, position) == QUOTE:
            key_start = position + 1
            position = after_string(data, position)
            if position == BROKEN:
                return BROKEN
            member = _word_index(data, key_start, position - 1, level)
            if member < 0 and has_escape(data, key_start, position - 1):
                return BROKEN
            position = after_space(data, position)
            if position >= size or byte(data, position) != COLON:
                return BROKEN
            position = after_space(data, position + 1)
            kind = -1
            if member >= 0:
                field, kind = _FIELDS[member], _KINDS[member]
                if seen >> field & 1:
                    return BROKEN
                seen |= 1 << field
                if kind == _IS_ARGUMENTS and position < size and byte(data, position) == OPEN_OBJECT:
                    level = ARGUMENT_LEVEL
                    is_first = True
                    continue
            end = after_value(data, position)
            if end == BROKEN:
                return BROKEN
            if kind >= 0 and kind != _IS_ARGUMENTS and not _take(data, position, end, kind, field, row, ends):
                return BROKEN
            position = after_space(data, end)
        elif not is_first or byte(data, position) != CLOSE_OBJECT:
            return BROKEN
        is_first = False
        if position < size and byte(data, position) == CLOSE_OBJECT and level == ARGUMENT_LEVEL:
            level = MEMBER_LEVEL
            position = after_space(data, position + 1)
        if position >= size:
            return BROKEN
        letter = byte(data, position)
        if letter == CLOSE_OBJECT and level == MEMBER_LEVEL:
            return position + 1
        if letter != COMMA:
            return BROKEN


@compiled
def _kind(data: Bytes, row: Integers, ends: Integers) -> int:
    """The event's kind by category and name; BROKEN where either is written with escapes that could hide it."""
    kind = _OTHER
    start = row[_CATEGORY]
    if start != NULL:
        category = _word_index(data, start + 1, ends[_CATEGORY] - 1, CATEGORY_LEVEL)
        if category >= 0:
            kind = int(_CATEGORY_KINDS[category - _FIRST_CATEGORY])
        elif has_escape(data, start + 1, ends[_CATEGORY] - 1):
            return BROKEN
    if _NEVER_MODULE[kind] or row[_NAME] == NULL:
        return kind
    start, end = row[_NAME] + 1, ends[_NAME] - 1
    if row[_PHASE] == METADATA:
        if has_escape(data, start, end):
            return BROKEN
        return _PROCESS_NAME if _word_index(data, start, end, NAME_LEVEL) >= 0 else kind
    if end - start >= _PREFIX_LENGTH and (
        word(data, start) == _PREFIX_START and word(data, start + _PREFIX_LENGTH - WORD_BYTES) == _PREFIX_END
    ):
        return _MODULE
    letter = byte(data, start)
    if (letter == BACKSLASH or letter == _LETTER_N) and has_escape(data, start, min(end, start + 6 * _PREFIX_LENGTH)):  # noqa: PLR1714, SIM109
        return BROKEN
    return kind


_keeps: Final = compiled(is_kept)


@compiled
def scan(
    data: Bytes,
    stop: int,
    state: Integers,
    columns: Integers,
    tokens: Integers,
    slots: Integers,
    dropped: Integers,
    row: Integers,
    ends: Integers,
    last: Integers,
) -> int:
    """Scans on from the state, and leaves there how far it came. Answers with a status.

    row, ends: of the event that is read. last: of each field the token that it had before, or less than 0.
    """
    size = data.size
    position, event_count, row_count = state[_POSITION], state[_EVENT_COUNT], state[_ROW_COUNT]
    token_count, dropped_count, is_due = state[_TOKEN_COUNT], state[_DROPPED_COUNT], state[_IS_DUE]
    status = LEFT
    while True:
        position = after_space(data, position)
        if position >= size:
            break
        if byte(data, position) == CLOSE_LIST:
            if is_due == 0:
                status = ENDED
                position += 1
            break
        if position >= stop:
            status = STOPPED
            break
        if row_count == columns.shape[1] or token_count + _TOKEN_FIELDS.size > tokens.shape[0]:
            status = FULL
            break
        end = _event(data, position, row, ends)
        if end == BROKEN:
            break
        kind = _kind(data, row, ends)
        if kind == BROKEN:
            break
        row[_KIND] = kind
        phase = row[_PHASE]
        is_event_kept = _keeps(kind, phase, row[_TIME])
        for place in range(_TOKEN_FIELDS.size):
            field = _TOKEN_FIELDS[place]
            start = row[field]
            if start != NULL and (is_event_kept or field == _CATEGORY):
                index = last[field]
                if index < 0 or not is_token(data, start, ends[field], tokens, index):
                    index = token_index(data, start, ends[field], slots, tokens, token_count)
                    token_count += index == token_count
                    last[field] = index
                row[field] = index
        if is_event_kept:
            for field in range(FIELD_COUNT):
                columns[field, row_count] = row[field]
            row_count += 1
        else:
            index = 0
            while index < dropped_count and (dropped[index, 0] != row[_CATEGORY] or dropped[index, 1] != phase):
                index += 1
            if index == MAX_DROPPED_KINDS:
                break
            if index == dropped_count:
                dropped[index, 0] = row[_CATEGORY]
                dropped[index, 1] = phase
                dropped_count += 1
            dropped[index, 2] += 1
        event_count += 1
        is_due = 0
        position = after_space(data, end)
        if position >= size:
            break
        if byte(data, position) == CLOSE_LIST:
            status = ENDED
            position += 1
            break
        if byte(data, position) != COMMA:
            break
        position += 1
        is_due = 1
    state[_POSITION], state[_EVENT_COUNT], state[_ROW_COUNT] = position, event_count, row_count
    state[_TOKEN_COUNT], state[_DROPPED_COUNT], state[_IS_DUE] = token_count, dropped_count, is_due
    return status
