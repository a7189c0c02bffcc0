"""Events of a Kineto trace scanned from bytes into rows of numbers, as machine code.

A scan starts where an event starts and ends between two events. It gives up (status LEFT) at what is no JSON, and at what the
plain parser has to judge: members that occur twice or are written with escapes, values of unexpected types.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.analyzer.compiled import compiled
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
    MODULE_PREFIX,
    NEVER_MODULE,
    PLACE_COUNT,
    TOKEN_FIELDS,
    EventKind,
    Field,
    ValueKind,
    is_kept,
    word_table,
)
from services.analyzer.readers.token_table import free_slot, token_index

Integers = NDArray[np.int64]

STOPPED: Final = 0  # between two events, at the position asked for or after it
ENDED: Final = 1  # after the bracket that closes the list of events
LEFT: Final = 2  # at an event that is left to the plain parser, or broken

MAX_DROPPED_KINDS: Final = 512
"""Different (category, phase) of events that are not kept. Profilers know two dozen."""

_MEMBERS: Final = word_table(tuple(MEMBERS))
_ARGUMENTS: Final = word_table(tuple(ARGUMENTS))
_CATEGORIES: Final = word_table(tuple(CATEGORIES))
_MEMBER_PLACES, _MEMBER_WORDS, _MEMBER_LENGTHS, _MEMBER_FACTORS = _MEMBERS.places, _MEMBERS.words, _MEMBERS.lengths, _MEMBERS.factors
_ARGUMENT_PLACES, _ARGUMENT_WORDS = _ARGUMENTS.places, _ARGUMENTS.words
_ARGUMENT_LENGTHS, _ARGUMENT_FACTORS = _ARGUMENTS.lengths, _ARGUMENTS.factors
_CATEGORY_PLACES, _CATEGORY_WORDS = _CATEGORIES.places, _CATEGORIES.words
_CATEGORY_LENGTHS, _CATEGORY_FACTORS = _CATEGORIES.lengths, _CATEGORIES.factors
_MEMBER_FIELDS: Final = np.array([field for field, _ in MEMBERS.values()], dtype=np.int64)
_MEMBER_KINDS: Final = np.array([kind for _, kind in MEMBERS.values()], dtype=np.int64)
_ARGUMENT_FIELDS: Final = np.array([field for field, _ in ARGUMENTS.values()], dtype=np.int64)
_ARGUMENT_KINDS: Final = np.array([kind for _, kind in ARGUMENTS.values()], dtype=np.int64)
_CATEGORY_KINDS: Final = np.array(list(CATEGORIES.values()), dtype=np.int64)
_PREFIX: Final = np.frombuffer(MODULE_PREFIX.encode(), dtype=np.uint8).copy()
_TOKEN_FIELDS: Final = np.array(TOKEN_FIELDS, dtype=np.int64)

_PHASE: Final = int(Field.PHASE)
_KIND: Final = int(Field.KIND)
_CATEGORY: Final = int(Field.CATEGORY)
_NAME: Final = int(Field.NAME)
_TIME: Final = int(Field.TIME_NS)
_IS_PHASE: Final = int(ValueKind.PHASE)
_IS_TEXT: Final = int(ValueKind.TEXT)
_IS_IDENTITY: Final = int(ValueKind.IDENTITY)
_IS_TIME: Final = int(ValueKind.TIME)
_IS_WHOLE: Final = int(ValueKind.WHOLE)
_IS_TOKEN: Final = int(ValueKind.TOKEN)
_IS_TRIPLE: Final = int(ValueKind.TRIPLE)
_IS_ARGUMENTS: Final = int(ValueKind.ARGUMENTS)
_OTHER: Final = int(EventKind.OTHER)
_NEVER_MODULE: Final = np.isin(np.arange(len(EventKind)), NEVER_MODULE)
_MODULE: Final = int(EventKind.MODULE)
_LETTER_N: Final = ord("n")


@compiled
def _place(
    data: Bytes, start: int, end: int, places: NDArray[np.int16], words: NDArray[np.uint8], lengths: Integers, factors: Integers
) -> int:
    """Index of the word that the bytes are, or -1."""
    length = end - start
    if length == 0 or length > words.shape[1]:
        return -1
    mixed = length * factors[0] + data[start] * factors[1] + data[end - 1] * factors[2] + data[start + length * 3 // 5] * factors[3]
    word = int(places[mixed & (PLACE_COUNT - 1)])
    if word < 0 or lengths[word] != length:
        return -1
    for index in range(length):
        if data[start + index] != words[word, index]:
            return -1
    return word


@compiled
def _is_module(data: Bytes, start: int, end: int) -> bool:
    if end - start < _PREFIX.size:
        return False
    index = 0
    while index < _PREFIX.size and data[start + index] == _PREFIX[index]:
        index += 1
    return index == _PREFIX.size


@compiled
def _triple(data: Bytes, position: int, end: int, row: Integers, field: int) -> None:
    """Reads [x, y, z] of whole numbers; leaves the row as it is if there is anything else."""
    if data[position] != OPEN_LIST:
        return
    position = after_space(data, position + 1)
    found = np.empty(3, dtype=np.int64)
    for index in range(3):
        token_end = after_scalar(data, position)
        if token_end == BROKEN or data[position] == QUOTE:
            return
        found[index] = whole_number(data, position, token_end)
        if found[index] == NULL:
            return
        position = after_space(data, token_end)
        if data[position] != (COMMA if index < 2 else CLOSE_LIST):
            return
        position = after_space(data, position + 1) if index < 2 else position
    for index in range(3):
        row[field + index] = found[index]


@compiled
def _take(data: Bytes, position: int, end: int, kind: int, field: int, row: Integers, ends: Integers) -> bool:
    """Puts a value into the row; tokens as their start, with the end in `ends`. False: left to the plain parser."""
    is_text = data[position] == QUOTE
    if kind == _IS_TIME:
        row[field] = thousandths(data, position, end) if not is_text else NULL
        return bool(row[field] != NULL)
    if kind == _IS_WHOLE:
        row[field] = whole_number(data, position, end)
        return not is_text or not has_escape(data, position, end)
    if kind == _IS_TRIPLE:
        _triple(data, position, end, row, field)
        return True
    if kind == _IS_PHASE:
        row[field] = data[position + 1]
        return bool(is_text and end - position == 3)
    if kind == _IS_TOKEN:
        if data[position] != _LETTER_N:  # null
            row[field] = position
            ends[field] = end
        return True
    row[field] = position
    ends[field] = end
    if kind == _IS_TEXT:
        return bool(is_text)
    return bool(is_text or data[position] == MINUS or ZERO <= data[position] <= NINE)


@compiled
def _arguments(data: Bytes, position: int, row: Integers, ends: Integers) -> int:
    """Reads the object of arguments into the row. Position after it, or BROKEN."""
    position = after_space(data, position + 1)
    if position < data.size and data[position] == CLOSE_OBJECT:
        return position + 1
    seen = 0
    while True:
        if position >= data.size or data[position] != QUOTE:
            return BROKEN
        key_end = after_string(data, position)
        if key_end == BROKEN:
            return BROKEN
        argument = _place(data, position + 1, key_end - 1, _ARGUMENT_PLACES, _ARGUMENT_WORDS, _ARGUMENT_LENGTHS, _ARGUMENT_FACTORS)
        if argument < 0 and has_escape(data, position, key_end):
            return BROKEN
        position = after_space(data, key_end)
        if position >= data.size or data[position] != COLON:
            return BROKEN
        position = after_space(data, position + 1)
        end = after_value(data, position)
        if end == BROKEN:
            return BROKEN
        if argument >= 0:
            field = int(_ARGUMENT_FIELDS[argument])
            if seen & (1 << field) or not _take(data, position, end, int(_ARGUMENT_KINDS[argument]), field, row, ends):
                return BROKEN
            seen |= 1 << field
        position = after_space(data, end)
        if position >= data.size:
            return BROKEN
        if data[position] == CLOSE_OBJECT:
            return position + 1
        if data[position] != COMMA:
            return BROKEN
        position = after_space(data, position + 1)


@compiled
def _event(data: Bytes, position: int, row: Integers, ends: Integers) -> int:
    """Reads an event into the row. Position after it, or BROKEN."""
    if position >= data.size or data[position] != OPEN_OBJECT:
        return BROKEN
    row[:] = NULL
    position = after_space(data, position + 1)
    if position < data.size and data[position] == CLOSE_OBJECT:
        return position + 1
    seen = 0
    while True:
        if position >= data.size or data[position] != QUOTE:
            return BROKEN
        key_end = after_string(data, position)
        if key_end == BROKEN:
            return BROKEN
        member = _place(data, position + 1, key_end - 1, _MEMBER_PLACES, _MEMBER_WORDS, _MEMBER_LENGTHS, _MEMBER_FACTORS)
        if member < 0 and has_escape(data, position, key_end):
            return BROKEN
        position = after_space(data, key_end)
        if position >= data.size or data[position] != COLON:
            return BROKEN
        position = after_space(data, position + 1)
        if member >= 0:
            field = int(_MEMBER_FIELDS[member])
            if seen & (1 << field):
                return BROKEN
            seen |= 1 << field
        if member >= 0 and _MEMBER_KINDS[member] == _IS_ARGUMENTS and position < data.size and data[position] == OPEN_OBJECT:
            end = _arguments(data, position, row, ends)
        else:
            end = after_value(data, position)
            is_taken = end != BROKEN and member >= 0 and _MEMBER_KINDS[member] != _IS_ARGUMENTS
            if is_taken and not _take(data, position, end, int(_MEMBER_KINDS[member]), int(_MEMBER_FIELDS[member]), row, ends):
                return BROKEN
        if end == BROKEN:
            return BROKEN
        position = after_space(data, end)
        if position >= data.size:
            return BROKEN
        if data[position] == CLOSE_OBJECT:
            return position + 1
        if data[position] != COMMA:
            return BROKEN
        position = after_space(data, position + 1)


@compiled
def _kind(data: Bytes, row: Integers, ends: Integers) -> int:
    """The event's kind by category and name; BROKEN where either is written with escapes that could hide it."""
    kind = _OTHER
    start = row[_CATEGORY]
    if start != NULL:
        end = ends[_CATEGORY]
        category = _place(data, start + 1, end - 1, _CATEGORY_PLACES, _CATEGORY_WORDS, _CATEGORY_LENGTHS, _CATEGORY_FACTORS)
        if category >= 0:
            kind = int(_CATEGORY_KINDS[category])
        elif has_escape(data, start, end):
            return BROKEN
    if _NEVER_MODULE[kind] or row[_NAME] == NULL:
        return kind
    start, end = row[_NAME] + 1, ends[_NAME] - 1
    if _is_module(data, start, end):
        return _MODULE
    if has_escape(data, start, min(end, start + 6 * _PREFIX.size)):
        return BROKEN if data[start] == BACKSLASH or data[start] == _LETTER_N else kind
    return kind


_keeps: Final = compiled(is_kept)


@compiled
def scan_events(data: Bytes, position: int, stop: int) -> tuple[int, int, int, Integers, Integers, Integers]:
    """Reads events from one that starts at `position` (or the end of the list) up to the first that starts at `stop` or later.

    Returns:
        status, the position reached, the number of events, the rows of those that are kept, the tokens that the rows refer to
        (start and end each), and what is not kept (token of its category or NULL, phase, count).
    """
    rows = np.empty((4096, FIELD_COUNT), dtype=np.int64)
    row_count = 0
    tokens = np.empty((1024, 3), dtype=np.int64)
    slots = np.full(4096, -1, dtype=np.int64)
    token_count = 0
    dropped = np.zeros((MAX_DROPPED_KINDS, 3), dtype=np.int64)
    dropped_count = 0
    ends = np.zeros(FIELD_COUNT, dtype=np.int64)
    event_count = 0
    status = LEFT
    is_due = False  # an event has to follow: a comma was read
    while True:
        position = after_space(data, position)
        if position >= data.size:
            break
        if data[position] == CLOSE_LIST:
            if not is_due:
                status = ENDED
                position += 1
            break
        if position >= stop:
            status = STOPPED
            break
        if row_count == rows.shape[0]:
            more = np.empty((2 * row_count, FIELD_COUNT), dtype=np.int64)
            more[:row_count] = rows
            rows = more
        if token_count + _TOKEN_FIELDS.size > tokens.shape[0]:
            more = np.empty((2 * tokens.shape[0], 3), dtype=np.int64)
            more[:token_count] = tokens[:token_count]
            tokens = more
            slots = np.full(4 * tokens.shape[0], -1, dtype=np.int64)
            for index in range(token_count):
                slots[free_slot(slots, tokens[index, 2])] = index
        row = rows[row_count]
        end = _event(data, position, row, ends)
        if end == BROKEN:
            break
        kind = _kind(data, row, ends)
        if kind == BROKEN:
            break
        row[_KIND] = kind
        event_count += 1
        phase = row[_PHASE]
        if _keeps(kind, phase, row[_TIME]):
            for field in _TOKEN_FIELDS:
                if row[field] != NULL:
                    index = token_index(data, row[field], ends[field], slots, tokens, token_count)
                    token_count += index == token_count
                    row[field] = index
            row_count += 1
        else:
            category = row[_CATEGORY]
            if category != NULL:
                index = token_index(data, category, ends[_CATEGORY], slots, tokens, token_count)
                token_count += index == token_count
                category = index
            index = 0
            while index < dropped_count and (dropped[index, 0] != category or dropped[index, 1] != phase):
                index += 1
            if index == MAX_DROPPED_KINDS:
                break
            if index == dropped_count:
                dropped[index, 0] = category
                dropped[index, 1] = phase
                dropped_count += 1
            dropped[index, 2] += 1
        position = after_space(data, end)
        if position >= data.size:
            break
        if data[position] == CLOSE_LIST:
            status = ENDED
            position += 1
            break
        if data[position] != COMMA:
            break
        position += 1
        is_due = True
    return status, position, event_count, rows[:row_count].copy(), tokens[:token_count, :2].copy(), dropped[:dropped_count].copy()
