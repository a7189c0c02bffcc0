"""JSON read from bytes without making objects of it: positions in, positions out.

Each function takes a position where a value begins and answers with the position after it, or BROKEN where the bytes are not
JSON, or are JSON of a kind that is left to the plain parser. What passes here passes `json.loads(text, strict=False)` too:
control characters inside of strings are taken, and so are NaN and Infinity.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.analyzer.compiled import compiled, inlined
from services.analyzer.readers.lanes import LANE_COUNT, byte, first_lane, spaces, string_ends

Bytes = NDArray[np.uint8]

BROKEN: Final = -1
MAX_DEPTH: Final = 63
"""Of nested values, one bit each. No profiler nests more than a dozen; what nests deeper is left to the plain parser."""

MAX_NUMBER_LENGTH: Final = 300
"""Characters. The plain parser refuses whole numbers of more than 4300 digits; no profiler writes more than 25."""

MAX_DIGITS: Final = 18
"""Of whole numbers that are taken as such: what has more may not fit 64 bits."""

MAX_DECIMAL_LENGTH: Final = 26
"""Characters of a number in decimals: Decimal, which the plain parser counts with, is exact up to 28 digits."""

MAX_WHOLE_DIGITS: Final = 16
MAX_WHOLE: Final = 4 * 10**15
"""Before the point: 1000 times as many are less than 2**62, up to where times are taken. As microseconds: until the year 2096."""

NULL: Final = -(2**63)

QUOTE: Final = ord('"')
BACKSLASH: Final = ord("\\")
COMMA: Final = ord(",")
COLON: Final = ord(":")
MINUS: Final = ord("-")
POINT: Final = ord(".")
ZERO: Final = ord("0")
NINE: Final = ord("9")
OPEN_OBJECT: Final = ord("{")
CLOSE_OBJECT: Final = ord("}")
OPEN_LIST: Final = ord("[")
CLOSE_LIST: Final = ord("]")
LOWER_U: Final = ord("u")

ESCAPED: Final = np.zeros(256, dtype=np.bool_)
ESCAPED[[ord(letter) for letter in '"\\/bfnrt']] = True
HEXADECIMAL: Final = np.zeros(256, dtype=np.bool_)
HEXADECIMAL[[ord(digit) for digit in "0123456789abcdefABCDEF"]] = True

WORDS: Final = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
WORD_LENGTHS: Final = np.array([len(word) for word in WORDS], dtype=np.int64)
WORD_BYTES: Final = np.zeros((len(WORDS), 16), dtype=np.uint8)
for _index, _word in enumerate(WORDS):
    WORD_BYTES[_index, : len(_word)] = np.frombuffer(_word.encode(), dtype=np.uint8)

SPACES: Final = sum(1 << ord(letter) for letter in " \n\r\t")  # a bit each
_CASE: Final = OPEN_OBJECT ^ OPEN_LIST  # one bit
_LAST_SPACE: Final = ord(" ")
_ALL_LANES: Final = 2**LANE_COUNT - 1


@compiled
def _after_spaces(data: Bytes, position: int) -> int:
    size = data.size
    while position + LANE_COUNT < size:
        others = spaces(data, position) ^ _ALL_LANES
        if others != 0:
            return position + first_lane(others)
        position += LANE_COUNT
    while position < size and byte(data, position) <= 32 and (SPACES >> byte(data, position)) & 1:
        position += 1
    return position


@inlined
def after_space(data: Bytes, position: int) -> int:
    """The next position that holds no white space, at most the length of the data."""
    if position + 1 >= data.size:
        return _after_spaces(data, position)
    letter = byte(data, position)
    if letter > _LAST_SPACE:
        return position
    if letter == _LAST_SPACE and byte(data, position + 1) > _LAST_SPACE:
        return position + 1
    return _after_spaces(data, position)


@compiled
def after_string(data: Bytes, position: int) -> int:
    """position: of the opening quote."""
    size = data.size
    position += 1
    while position < size:
        if position + LANE_COUNT <= size:
            ends = string_ends(data, position)
            if ends == 0:
                position += LANE_COUNT
                continue
            position += first_lane(ends)
        letter = byte(data, position)
        if letter == QUOTE:
            return position + 1
        if letter != BACKSLASH:
            position += 1
            continue
        if position + 1 >= size:
            return BROKEN
        if ESCAPED[data[position + 1]]:
            position += 2
            continue
        if data[position + 1] != LOWER_U or position + 6 > size:
            return BROKEN
        for digit in range(position + 2, position + 6):
            if not HEXADECIMAL[data[digit]]:
                return BROKEN
        position += 6
    return BROKEN


@compiled
def _after_digits(data: Bytes, position: int) -> int:
    size = data.size
    while position < size and ZERO <= byte(data, position) <= NINE:
        position += 1
    return position


@compiled
def after_number(data: Bytes, position: int) -> int:
    """BROKEN too for one that is longer than any that a profiler writes."""
    size = data.size
    start = position
    if position < size and byte(data, position) == MINUS:
        position += 1
    first = position
    position = _after_digits(data, position)
    if position == first or (byte(data, first) == ZERO and position - first > 1):
        return BROKEN
    if position < size and byte(data, position) == POINT:
        end = _after_digits(data, position + 1)
        if end == position + 1:
            return BROKEN
        position = end
    if position < size and (byte(data, position) == 101 or byte(data, position) == 69):  # e, E
        position += 1
        if position < size and (byte(data, position) == 43 or byte(data, position) == MINUS):
            position += 1
        end = _after_digits(data, position)
        if end == position:
            return BROKEN
        position = end
    return position if position - start <= MAX_NUMBER_LENGTH else BROKEN


@compiled
def _after_word(data: Bytes, position: int) -> int:
    for word in range(WORD_LENGTHS.size):
        length = WORD_LENGTHS[word]
        if position + length > data.size:
            continue
        index = 0
        while index < length and data[position + index] == WORD_BYTES[word, index]:
            index += 1
        if index == length:
            return position + int(length)
    return BROKEN


@inlined
def after_scalar(data: Bytes, position: int) -> int:
    """After a string, a number or a word."""
    if position >= data.size:
        return BROKEN
    letter = byte(data, position)
    if letter == QUOTE:
        return after_string(data, position)
    if ZERO <= letter <= NINE:
        return after_number(data, position)
    end = _after_word(data, position)
    return after_number(data, position) if end == BROKEN and letter == MINUS else end


@compiled
def after_value(data: Bytes, position: int) -> int:
    """After a value of any kind, nested at most MAX_DEPTH deep."""
    if position >= data.size:
        return BROKEN
    letter = byte(data, position)
    if letter | _CASE != OPEN_OBJECT:
        return after_scalar(data, position)
    objects = 0  # a bit for each value around, the innermost lowest: set for objects, clear for lists
    depth = 0
    is_value_due = True
    while True:
        position = after_space(data, position)
        if position >= data.size:
            return BROKEN
        letter = byte(data, position)
        if is_value_due:
            if letter | _CASE == OPEN_OBJECT:
                if depth == MAX_DEPTH:
                    return BROKEN
                objects = 2 * objects + (letter == OPEN_OBJECT)
                depth += 1
                position = after_space(data, position + 1)
                if position >= data.size:
                    return BROKEN
                if byte(data, position) == (CLOSE_OBJECT if objects & 1 else CLOSE_LIST):
                    is_value_due = False
                elif letter == OPEN_OBJECT:
                    position = after_key(data, position)
                    if position == BROKEN:
                        return BROKEN
                continue
            position = after_scalar(data, position)
            if position == BROKEN:
                return BROKEN
            is_value_due = False
            continue
        if letter == (CLOSE_OBJECT if objects & 1 else CLOSE_LIST):
            objects >>= 1
            depth -= 1
            position += 1
            if depth == 0:
                return position
        elif letter == COMMA:
            is_value_due = True
            position += 1
            if objects & 1:
                position = after_key(data, after_space(data, position))
                if position == BROKEN:
                    return BROKEN
        else:
            return BROKEN


@compiled
def after_key(data: Bytes, position: int) -> int:
    """After a key and its colon."""
    if position >= data.size or byte(data, position) != QUOTE:
        return BROKEN
    position = after_string(data, position)
    if position == BROKEN:
        return BROKEN
    position = after_space(data, position)
    if position >= data.size or byte(data, position) != COLON:
        return BROKEN
    return position + 1


@compiled
def has_escape(data: Bytes, start: int, end: int) -> bool:
    """Of a string without its closing quote."""
    position = start
    while position + LANE_COUNT <= data.size and position < end:
        ends = string_ends(data, position)
        if ends != 0:
            return position + first_lane(ends) < end
        position += LANE_COUNT
    while position < end and byte(data, position) != BACKSLASH:
        position += 1
    return position < end


@compiled
def whole_number(data: Bytes, start: int, end: int) -> int:
    """The value of a token that is a whole number, or a string of digits that may have a minus; else NULL."""
    if byte(data, start) == QUOTE:
        start += 1
        end -= 1
    is_negative = start < end and byte(data, start) == MINUS
    if is_negative:
        start += 1
    if not 0 < end - start <= MAX_DIGITS:
        return NULL
    value = 0
    for position in range(start, end):
        if not ZERO <= byte(data, position) <= NINE:
            return NULL
        value = value * 10 + (byte(data, position) - ZERO)
    return -value if is_negative else value


@compiled
def thousandths(data: Bytes, start: int, end: int) -> int:
    """A decimal number token times 1000, rounded half to even; NULL for one with an exponent, too long, or too large for 64 bits."""
    if end - start > MAX_DECIMAL_LENGTH:
        return NULL
    is_negative = byte(data, start) == MINUS
    if is_negative:
        start += 1
    value = 0
    position = start
    while position < end and ZERO <= byte(data, position) <= NINE:
        value = value * 10 + (byte(data, position) - ZERO)
        position += 1
    if not 0 < position - start <= MAX_WHOLE_DIGITS or value > MAX_WHOLE:
        return NULL
    value *= 1000
    if position < end and byte(data, position) == POINT:
        position += 1
        scale = 100
        while position < end and scale > 0 and ZERO <= byte(data, position) <= NINE:
            value += (byte(data, position) - ZERO) * scale
            scale //= 10
            position += 1
        if position < end and ZERO <= byte(data, position) <= NINE:
            first = byte(data, position) - ZERO
            is_more = False
            position += 1
            while position < end and ZERO <= byte(data, position) <= NINE:
                is_more = is_more or byte(data, position) != ZERO
                position += 1
            if first > 5 or (first == 5 and (is_more or value % 2 == 1)):
                value += 1
    if position != end:
        return NULL
    return -value if is_negative else value
