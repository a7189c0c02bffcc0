"""Columns straight from the b-tree pages of an SQLite file: ten times faster than through its own reader.

Source of the layout: https://www.sqlite.org/fileformat2.html, sections 1.5 to 2.1. Only what it says of tables with row ids
is decoded. Whatever is unusual (a damaged page, a real number among integers) ends with a status below zero; who asked
then reads the table through SQLite, which knows more and says what is wrong.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from services.analyzer.compiled import compiled
from services.analyzer.readers.interning import Bytes, Codes, Integers

NULL_INTEGER: Final = -(2**63)
"""Stands for null among decoded integers. A file that holds this very number is unusual: it is read through SQLite."""

DAMAGED: Final = -1
UNUSUAL: Final = -2
TOO_MANY_SPILLED: Final = -3

_TABLE_INTERIOR: Final = 5
_TABLE_LEAF: Final = 13
_MAX_DEPTH: Final = 24  # SQLite's own limit is 20
_MAX_SERIAL_TYPE: Final = 2**32  # of a text of 2 GiB, SQLite's own limit: larger ones would overflow sums of sizes


@compiled
def _varint(data: Bytes, offset: int, end: int) -> tuple[int, int]:
    """A number of one to nine bytes and the place after it; -1 when it would go past the end."""
    value = 0
    for index in range(8):
        if offset + index >= end:
            return -1, end
        byte = int(data[offset + index])
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, offset + index + 1
    if offset + 8 >= end:
        return -1, end
    return (value << 8) | int(data[offset + 8]), offset + 9


@compiled
def _unsigned_2(data: Bytes, offset: int) -> int:
    return (int(data[offset]) << 8) | int(data[offset + 1])


@compiled
def _unsigned_4(data: Bytes, offset: int) -> int:
    return (_unsigned_2(data, offset) << 16) | _unsigned_2(data, offset + 2)


@compiled
def _integer(data: Bytes, offset: int, kind: int) -> int:
    """The value of an integer of serial type 1 to 6, two's complement."""
    first = int(data[offset])
    if first >= 0x80:
        first -= 0x100
    if kind == 1:
        return first
    if kind == 2:
        return (first << 8) | int(data[offset + 1])
    if kind == 3:
        return (first << 16) | _unsigned_2(data, offset + 1)
    if kind == 4:
        return (first << 24) | (_unsigned_2(data, offset + 1) << 8) | int(data[offset + 3])
    if kind == 5:
        return (first << 40) | (_unsigned_4(data, offset + 1) << 8) | int(data[offset + 5])
    return (first << 56) | (_unsigned_4(data, offset + 1) << 24) | (_unsigned_2(data, offset + 5) << 8) | int(data[offset + 7])


@compiled
def leaf_pages(data: Bytes, page_size: int, page_count: int, root_page: int, leaves: Integers) -> int:
    """Fills `leaves` with the numbers, from 1, of the pages that hold a table's rows, in order; answers how many.

    Args:
        leaves: room for page_count. DAMAGED when the tree cannot be walked, UNUSUAL when it is no table with row ids.
    """
    pages = np.zeros(_MAX_DEPTH, dtype=np.int64)
    cells = np.zeros(_MAX_DEPTH, dtype=np.int64)
    depth, count, visited = 0, 0, 0
    pages[0] = root_page
    while depth >= 0:
        page = pages[depth]
        if page < 1 or page > page_count:
            return DAMAGED
        base = (page - 1) * page_size
        header = base + (100 if page == 1 else 0)
        kind = data[header]
        cell_count = _unsigned_2(data, header + 3)
        # A root alone may be empty, and no cell takes less than six bytes: SQLite refuses anything else.
        if (cell_count == 0 and (depth > 0 or kind == _TABLE_INTERIOR)) or cell_count > (page_size - 8) // 6:
            return DAMAGED
        if kind == _TABLE_LEAF:
            if count >= leaves.size:
                return DAMAGED
            leaves[count] = page
            count += 1
            depth -= 1
            continue
        if kind != _TABLE_INTERIOR:
            return UNUSUAL if depth == 0 else DAMAGED
        cell = cells[depth]
        if cell == 0:
            visited += 1
            if visited > page_count or header + 12 + 2 * cell_count > base + page_size:
                return DAMAGED
        if cell > cell_count:
            depth -= 1
            continue
        cells[depth] = cell + 1
        if cell == cell_count:
            child = _unsigned_4(data, header + 8)
        else:
            place = _unsigned_2(data, header + 12 + 2 * cell)
            if place + 4 > page_size:
                return DAMAGED
            child = _unsigned_4(data, base + place)
        depth += 1
        if depth >= _MAX_DEPTH:
            return DAMAGED
        pages[depth] = child
        cells[depth] = 0
    return count


@compiled
def count_rows(data: Bytes, page_size: int, leaves: Integers, row_counts: Integers) -> None:
    """Rows of each leaf."""
    for index in range(leaves.size):
        header = (leaves[index] - 1) * page_size + (100 if leaves[index] == 1 else 0)
        row_counts[index] = _unsigned_2(data, header + 3)


@compiled
def decode_rows(
    data: Bytes,
    page_size: int,
    usable_size: int,
    leaves: Integers,
    positions: Integers,
    is_text: npt.NDArray[np.bool_],
    rowid_position: int,
    columns: Integers,
    text_offsets: Integers,
    text_lengths: Codes,
    spilled_rows: Integers,
    spilled_ids: Integers,
) -> int:
    """Decodes the rows of the leaves into `columns`; answers how many rows spilled, or a status below zero.

    Args:
        usable_size: page_size less what is reserved at the end of each page.
        positions: of the wanted columns in the table, ascending.
        rowid_position: position of the column that is the row's id; -1: there is none.
        columns: one row per wanted column of integers, one place per table row.
        text_offsets, text_lengths: the same for texts: where they begin in `data`, and their bytes; -1: null.
        spilled_rows, spilled_ids: places and ids of rows of which a wanted column lies beyond the page. Their values are unset.
    """
    wanted_count = positions.size
    last_position = positions[wanted_count - 1]
    number_of = np.full(last_position + 1, -1, dtype=np.int64)  # row of `columns`
    text_of = np.full(last_position + 1, -1, dtype=np.int64)  # row of `text_offsets`
    number_count = text_count = 0
    for index in range(wanted_count):
        if is_text[index]:
            text_of[positions[index]] = text_count
            text_count += 1
        else:
            number_of[positions[index]] = number_count
            number_count += 1
    row, spilled_count = 0, 0
    last_id, is_ascending = 0, True
    for leaf_index in range(leaves.size):
        page = leaves[leaf_index]
        base = (page - 1) * page_size
        end = base + usable_size
        header = base + (100 if page == 1 else 0)
        cell_count = _unsigned_2(data, header + 3)
        if header + 8 + 2 * cell_count > end:
            return DAMAGED
        for cell in range(cell_count):
            place = base + _unsigned_2(data, header + 8 + 2 * cell)
            if place < header:
                return DAMAGED
            payload_size, place = _varint(data, place, end)
            row_id, place = _varint(data, place, end)
            local_size = payload_size
            if payload_size > usable_size - 35:
                minimum = (usable_size - 12) * 32 // 255 - 23
                local_size = minimum + (payload_size - minimum) % (usable_size - 4)
                if local_size > usable_size - 35:
                    local_size = minimum
            local_end = place + local_size
            if payload_size < 1 or local_end > end:
                return DAMAGED
            header_size, type_place = _varint(data, place, local_end)
            body = place + header_size
            if header_size < 1 or header_size > payload_size:
                return DAMAGED
            is_spilled = body > local_end
            offset = body
            position = 0
            while position <= last_position and not is_spilled:
                # A row may have fewer values than the table has columns: those added since are missing.
                if type_place >= body:
                    return UNUSUAL
                kind = int(data[type_place])
                type_place += 1
                if kind >= 0x80:
                    kind, type_place = _varint(data, type_place - 1, body)
                if kind >= 12:
                    if kind > _MAX_SERIAL_TYPE:
                        return DAMAGED
                    size = (kind - 12) >> 1
                elif kind <= 4:
                    size = kind
                elif kind == 5:
                    size = 6
                elif kind <= 7:
                    size = 8
                else:
                    size = 0
                if kind < 0 or 10 <= kind <= 11:
                    return DAMAGED
                number, text = number_of[position], text_of[position]
                if number >= 0:
                    if offset + size > local_end:
                        is_spilled = True
                    elif kind == 0:
                        columns[number, row] = row_id if position == rowid_position else NULL_INTEGER
                    elif kind < 7:
                        value = _integer(data, offset, kind)
                        if value == NULL_INTEGER:
                            return UNUSUAL
                        columns[number, row] = value
                    elif 8 <= kind <= 9:
                        columns[number, row] = kind - 8
                    else:
                        return UNUSUAL
                elif text >= 0:
                    if offset + size > local_end:
                        is_spilled = True
                    elif kind == 0:
                        text_lengths[text, row] = -1
                    elif kind >= 13 and kind % 2 == 1:
                        text_offsets[text, row], text_lengths[text, row] = offset, size
                    else:
                        return UNUSUAL
                offset += size
                position += 1
            # SQLite refuses a row whose values end past it, or, when all of them were looked at, before its end.
            payload_end = place + payload_size
            if not is_spilled and (offset > payload_end or (type_place >= body and (type_place > body or offset != payload_end))):
                return DAMAGED
            if is_spilled and local_end == payload_end:
                return DAMAGED
            is_ascending &= row == 0 or row_id > last_id
            last_id = row_id
            if is_spilled:
                if spilled_count >= spilled_rows.size:
                    return TOO_MANY_SPILLED
                spilled_rows[spilled_count], spilled_ids[spilled_count] = row, row_id
                spilled_count += 1
                for index in range(text_count):
                    text_lengths[index, row] = -1
            row += 1
    # A row that spilled is looked up by its id, which finds another one in a tree that is out of order.
    return spilled_count if spilled_count == 0 or is_ascending else UNUSUAL
