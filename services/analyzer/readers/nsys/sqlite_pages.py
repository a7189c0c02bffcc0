"""The decoding of columns from the b-tree pages of an SQLite file, ten times faster than through SQLite.

Source of the layout: https://www.sqlite.org/fileformat2.html, sections 1.5 to 2.1. Only tables with row ids are decoded. Anything
unusual (a damaged page, a real number among integers) ends the decoding with a negative status; the caller then reads the table
through SQLite, which handles all cases and reports errors.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from kernalyse.services.analyzer.numeric import jit

# ---------------------------------------------------------------- interning of texts

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint64]

FIRST_SLOT_COUNT: Final = 4096  # a power of two
WORD_BYTES: Final = 8
PRIME: Final = np.uint64(1099511628211)


class InternedTexts:
    """Distinct texts by code, from 0 in order of first appearance. They are references into the bytes of a file."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._slots = np.full(FIRST_SLOT_COUNT, -1, dtype=np.int32)
        self._hashes = np.zeros(FIRST_SLOT_COUNT, dtype=np.uint64)
        self._offsets = np.empty(FIRST_SLOT_COUNT, dtype=np.int64)
        self._lengths = np.empty(FIRST_SLOT_COUNT, dtype=np.int32)
        self._count = 0

    def add(self, offsets: Integers, lengths: Codes, codes: Codes) -> None:
        """Write the code of each text. lengths: in bytes; negative for null, whose code is -1."""
        row = 0
        while True:
            row, self._count = _intern(
                self._data, offsets, lengths, row, codes, self._slots, self._hashes, self._offsets, self._lengths, self._count
            )
            if row == offsets.size:
                return
            self._grow()

    def texts(self) -> list[str]:
        """Return the distinct texts, by code."""
        data = self._data.data
        spans = zip(self._offsets[: self._count].tolist(), self._lengths[: self._count].tolist(), strict=True)
        return [str(data[offset : offset + length], "utf-8", "replace") for offset, length in spans]

    def _grow(self) -> None:
        slot_count = 4 * self._slots.size
        slots, hashes = np.full(slot_count, -1, dtype=np.int32), np.zeros(slot_count, dtype=np.uint64)
        _move(self._slots, self._hashes, slots, hashes)
        self._slots, self._hashes = slots, hashes
        self._offsets, self._lengths = np.resize(self._offsets, slot_count), np.resize(self._lengths, slot_count)


@jit
def _word(data: Bytes, offset: int) -> np.uint64:
    """Return the eight bytes at an offset as a little-endian number, without bounds check; LLVM compiles it to one load."""
    at = np.uint64(offset)  # for a signed index numba would add the handling of negative ones
    return (
        np.uint64(data[at])
        | np.uint64(data[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
        | np.uint64(data[at + np.uint64(4)]) << np.uint64(32)
        | np.uint64(data[at + np.uint64(5)]) << np.uint64(40)
        | np.uint64(data[at + np.uint64(6)]) << np.uint64(48)
        | np.uint64(data[at + np.uint64(7)]) << np.uint64(56)
    )


@jit
def hash_text(data: Bytes, offset: int, length: int) -> np.uint64:
    """Return a hash of the text: FNV-1a over words of eight bytes instead of bytes; the last word may overlap the one before."""
    value = np.uint64(14695981039346656037) ^ np.uint64(length)
    if length < WORD_BYTES:
        for index in range(offset, offset + length):
            value = (value ^ np.uint64(data[index])) * PRIME
    else:
        for index in range(offset, offset + length - WORD_BYTES, WORD_BYTES):
            value = (value ^ _word(data, index)) * PRIME
            value ^= value >> np.uint64(32)
        value = (value ^ _word(data, offset + length - WORD_BYTES)) * PRIME
    return value ^ (value >> np.uint64(29))


@jit
def are_equal(data: Bytes, one: int, other: int, length: int) -> bool:
    """Return whether the texts at two offsets are equal."""
    if length < WORD_BYTES:
        index = 0
        while index < length and data[one + index] == data[other + index]:
            index += 1
        return index == length
    for index in range(0, length - WORD_BYTES, WORD_BYTES):
        if _word(data, one + index) != _word(data, other + index):
            return False
    return bool(_word(data, one + length - WORD_BYTES) == _word(data, other + length - WORD_BYTES))


@jit
def _intern(
    data: Bytes,
    offsets: Integers,
    lengths: Codes,
    first_row: int,
    codes: Codes,
    slots: Codes,
    hashes: Hashes,
    known_offsets: Integers,
    known_lengths: Codes,
    count: int,
) -> tuple[int, int]:
    """Write codes for the rows from first_row on until the slots are half full; return the row reached and the count of texts."""
    mask = np.uint64(slots.size - 1)
    for row in range(first_row, offsets.size):
        length = lengths[row]
        if length < 0:
            codes[row] = -1
            continue
        if 2 * count >= slots.size:
            return row, count
        offset = offsets[row]
        value = hash_text(data, offset, length)
        slot = value & mask
        while True:
            code = slots[slot]
            if code < 0:
                slots[slot], hashes[slot] = count, value
                known_offsets[count], known_lengths[count] = offset, length
                code = count
                count += 1
                break
            if hashes[slot] == value and known_lengths[code] == length and are_equal(data, known_offsets[code], offset, length):
                break
            slot = (slot + np.uint64(1)) & mask
        codes[row] = code
    return offsets.size, count


@jit
def _move(old_slots: Codes, old_hashes: Hashes, slots: Codes, hashes: Hashes) -> None:
    mask = np.uint64(slots.size - 1)
    for old in range(old_slots.size):
        if old_slots[old] >= 0:
            slot = old_hashes[old] & mask
            while slots[slot] >= 0:
                slot = (slot + np.uint64(1)) & mask
            slots[slot], hashes[slot] = old_slots[old], old_hashes[old]


# ---------------------------------------------------------------- b-tree pages

NULL_INTEGER: Final = -(2**63)
"""Stands for null among decoded integers. A file that contains this number is unusual and is read through SQLite."""

DAMAGED: Final = -1
UNUSUAL: Final = -2
TOO_MANY_SPILLED: Final = -3
TOO_MANY_KEYS: Final = -4

SKIPPED: Final = 0
NUMBER: Final = 1
TEXT: Final = 2
CODE: Final = 3
"""How a column is decoded."""

_TABLE_INTERIOR: Final = 5
_TABLE_LEAF: Final = 13
_MAX_DEPTH: Final = 24  # SQLite's own limit is 20
_SIZES: Final = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, -1, -1, *((kind - 12) // 2 for kind in range(12, 128))], dtype=np.int64)
"""Size in bytes of a value by its serial type, up to 127; -1: there is no such type."""

_MAX_SERIAL_TYPE: Final = 2**32  # a text of 2 GiB, SQLite's own limit: larger ones would overflow sums of sizes


class UnusualPagesError(Exception):
    """Pages have to be read through SQLite."""


def leaf_pages(data: Bytes, page_size: int, root_page: int) -> Integers:
    """Return the numbers, from 1, of a table's leaf pages, in order.

    Raises:
        UnusualPagesError: it is no intact table with row ids.
    """
    page_count = data.size // page_size
    level, visited = np.array([root_page], dtype=np.int64), 0
    for _depth in range(_MAX_DEPTH):
        visited += level.size
        if visited > page_count or int(level.min()) < 1 or int(level.max()) > page_count:
            raise UnusualPagesError
        if data[_header(int(level[0]), page_size)] == _TABLE_LEAF:
            return level
        below, count = [], 0
        for page in level.tolist():
            below.append(_children(data, page_size, page))
            count += below[-1].size
            if visited + count > page_count:  # in a damaged tree a page may be its own descendant
                raise UnusualPagesError
        level = np.concatenate(below)
    raise UnusualPagesError


def _children(data: Bytes, page_size: int, page: int) -> Integers:
    """Return the pages below an interior page, in order."""
    start, header = (page - 1) * page_size, _header(page, page_size)
    cell_count = (int(data[header + 3]) << 8) | int(data[header + 4])
    cells = header + 12
    if data[header] != _TABLE_INTERIOR or not 0 < cell_count <= _most_cells(page_size) or cells + 2 * cell_count > start + page_size:
        raise UnusualPagesError
    offsets = data[cells : cells + 2 * cell_count].view(">u2").astype(np.int64)
    if int(offsets.max()) + 4 > page_size:
        raise UnusualPagesError
    offsets = np.append(offsets + start, header + 8)
    found: Integers = data[offsets[:, np.newaxis] + np.arange(4)].view(">u4").ravel().astype(np.int64)
    return found


def _header(page: int, page_size: int) -> int:
    return (page - 1) * page_size + (100 if page == 1 else 0)


def _most_cells(page_size: int) -> int:
    """Return the largest number of cells in a page. A cell takes at least six bytes; SQLite rejects pages with more cells."""
    return (page_size - 8) // 6


def row_counts(data: Bytes, page_size: int, leaves: Integers) -> Integers:
    """Return the number of rows of each leaf.

    Raises:
        UnusualPagesError: a page is no leaf, or has more rows than fit.
    """
    headers = (leaves - 1) * page_size + np.where(leaves == 1, 100, 0)
    counts: Integers = data[headers + 3].astype(np.int64) << 8
    counts |= data[headers + 4]
    if bool((data[headers] != _TABLE_LEAF).any()) or int(counts.max(initial=0)) > _most_cells(page_size):
        raise UnusualPagesError
    return counts


@jit
def _varint(data: Bytes, offset: int, end: int) -> tuple[int, int]:
    """Return a number of one to nine bytes and the offset after it; the number is -1 if it would extend past the end."""
    if offset < end and data[offset] < 0x80:
        return int(data[offset]), offset + 1
    return _long_varint(data, offset, end)


@jit
def _long_varint(data: Bytes, offset: int, end: int) -> tuple[int, int]:
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


@jit
def _unsigned_2(data: Bytes, offset: int) -> int:
    return (int(data[offset]) << 8) | int(data[offset + 1])


@jit
def _big_endian_word(data: Bytes, offset: int) -> int:
    """Return the eight bytes at an offset as a signed big-endian number, without bounds check; LLVM compiles it to one load."""
    at = np.uint64(offset)  # for a signed index numba would add the handling of negative ones
    return np.int64(  # type: ignore[return-value]
        np.uint64(data[at]) << np.uint64(56)
        | np.uint64(data[at + np.uint64(1)]) << np.uint64(48)
        | np.uint64(data[at + np.uint64(2)]) << np.uint64(40)
        | np.uint64(data[at + np.uint64(3)]) << np.uint64(32)
        | np.uint64(data[at + np.uint64(4)]) << np.uint64(24)
        | np.uint64(data[at + np.uint64(5)]) << np.uint64(16)
        | np.uint64(data[at + np.uint64(6)]) << np.uint64(8)
        | np.uint64(data[at + np.uint64(7)])
    )


@jit
def _integer(data: Bytes, offset: int, size: int) -> int:
    """Return the two's complement value of `size` bytes. The page's header precedes them, so that eight bytes can always be read."""
    unused = 64 - 8 * size
    return (_big_endian_word(data, offset + size - 8) << unused) >> unused


@jit
def _intern_key(key: int, table: int, slots: Codes, slot_keys: Integers, keys: Integers, counts: Integers) -> int:
    """Return the code of a key in one of the hash tables, which adds it if it is new; TOO_MANY_KEYS if there is no room."""
    mask = slots.shape[1] - 1
    slot = (key ^ (key >> 29) ^ (key >> 47)) & mask
    while slots[table, slot] >= 0:
        if slot_keys[table, slot] == key:
            return int(slots[table, slot])
        slot = (slot + 1) & mask
    code = counts[table]
    if code >= keys.shape[1]:
        return TOO_MANY_KEYS
    slots[table, slot], slot_keys[table, slot], keys[table, code] = code, key, key
    counts[table] = code + 1
    return int(code)


@jit
def decode_rows(
    data: Bytes,
    page_size: int,
    usable_size: int,
    leaves: Integers,
    kinds: Integers,
    output_rows: Integers,
    rowid_position: int,
    first_row: int,
    numbers: Integers,
    codes: Codes,
    slots: Codes,
    slot_keys: Integers,
    keys: Integers,
    key_counts: Integers,
    text_offsets: Integers,
    text_lengths: Codes,
    spilled_rows: Integers,
    spilled_ids: Integers,
) -> int:
    """Decode the rows of the leaves; return the number of overflowing rows, or a negative status.

    Args:
        data: the bytes of the file.
        page_size: size of a page.
        usable_size: page_size less the bytes reserved at the end of each page.
        leaves: numbers of the leaf pages.
        kinds: by column of the table, up to the last requested one: SKIPPED, NUMBER, TEXT or CODE.
        output_rows: by column: its row of `numbers`, of the texts or of `codes`.
        rowid_position: index of the column that is the row's id; -1: there is none.
        first_row: row of `numbers` and `codes` that the first decoded row is written to.
        numbers: output of integer columns.
        codes: output of factorized integer columns.
        slots, slot_keys, keys, key_counts: a hash table for each row of `codes`: code and key of each slot, and keys by code;
            more slots than keys, a power of two.
        text_offsets, text_lengths: offsets of texts in `data` and their lengths in bytes, -1 for null; from the first decoded row.
        spilled_rows, spilled_ids: rows and row ids of which a requested column lies beyond the page. Their values are unset.
    """
    sizes = _SIZES
    row, spilled_count = first_row, 0
    last_id, is_ascending = 0, True
    for leaf_index in range(leaves.size):
        page = leaves[leaf_index]
        base = (page - 1) * page_size
        end = base + usable_size
        header = base + (100 if page == 1 else 0)
        cell_count = _unsigned_2(data, header + 3)
        if data[header] != _TABLE_LEAF or header + 8 + 2 * cell_count > end:
            return DAMAGED
        for cell in range(cell_count):
            cell_offset = base + _unsigned_2(data, header + 8 + 2 * cell)
            if cell_offset < header + 8:
                return DAMAGED
            payload_size, cell_offset = _varint(data, cell_offset, end)
            row_id, cell_offset = _varint(data, cell_offset, end)
            local_size = payload_size
            if payload_size > usable_size - 35:
                minimum = (usable_size - 12) * 32 // 255 - 23
                local_size = minimum + (payload_size - minimum) % (usable_size - 4)
                if local_size > usable_size - 35:
                    local_size = minimum
            local_end = cell_offset + local_size
            if payload_size < 1 or local_end > end:
                return DAMAGED
            header_size, type_offset = _varint(data, cell_offset, local_end)
            body = cell_offset + header_size
            if header_size < 1 or header_size > payload_size:
                return DAMAGED
            is_spilled = body > local_end
            offset = body
            position = 0
            while position < kinds.size and not is_spilled:
                # A row may have fewer values than the table has columns: those added since are missing.
                if type_offset >= body:
                    return UNUSUAL
                stored = int(data[type_offset])
                type_offset += 1
                if stored >= 0x80:
                    stored, type_offset = _varint(data, type_offset - 1, body)
                    if stored < 0x80 or stored > _MAX_SERIAL_TYPE:
                        return UNUSUAL  # as a small number in more bytes than it needs
                    size = (stored - 12) >> 1
                else:
                    size = sizes[stored]
                    if size < 0:
                        return DAMAGED
                kind = kinds[position]
                if kind != SKIPPED:
                    if offset + size > local_end:
                        is_spilled = True
                    elif kind == TEXT:
                        if stored == 0:
                            text_lengths[output_rows[position], row - first_row] = -1
                        elif stored >= 13 and stored % 2 == 1:
                            text_offsets[output_rows[position], row - first_row] = offset
                            text_lengths[output_rows[position], row - first_row] = size
                        else:
                            return UNUSUAL
                    else:
                        if stored == 0:
                            value = row_id if position == rowid_position else NULL_INTEGER
                        elif stored < 7:
                            value = _integer(data, offset, size)
                            if value == NULL_INTEGER:
                                return UNUSUAL
                        elif 8 <= stored <= 9:
                            value = stored - 8
                        else:
                            return UNUSUAL
                        if kind == NUMBER:
                            numbers[output_rows[position], row] = value
                        else:
                            code = _intern_key(value, output_rows[position], slots, slot_keys, keys, key_counts)
                            if code < 0:
                                return code
                            codes[output_rows[position], row] = code
                offset += size
                position += 1
            # SQLite rejects a row whose values end after the row, or, when all of them were read, before its end.
            payload_end = cell_offset + payload_size
            if not is_spilled and (offset > payload_end or (type_offset >= body and (type_offset > body or offset != payload_end))):
                return DAMAGED
            if is_spilled and local_end == payload_end:
                return DAMAGED
            is_ascending &= row == first_row or row_id > last_id
            last_id = row_id
            if is_spilled:
                if spilled_count >= spilled_rows.size:
                    return TOO_MANY_SPILLED
                spilled_rows[spilled_count], spilled_ids[spilled_count] = row, row_id
                spilled_count += 1
                for index in range(text_lengths.shape[0]):
                    text_lengths[index, row - first_row] = -1
                for index in range(codes.shape[0]):
                    codes[index, row] = 0
            row += 1
    # An overflowing row is looked up by its id, which would find another row if the ids are not in order.
    return spilled_count if spilled_count == 0 or is_ascending else UNUSUAL
