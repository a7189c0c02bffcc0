"""Texts of a file by number: equal ones are kept once, however many rows have them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from services.analyzer.numeric import jit

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint64]

FIRST_SLOT_COUNT: Final = 4096  # a power of two
WORD_BYTES: Final = 8
PRIME: Final = np.uint64(1099511628211)


class InternedTexts:
    """Texts by code, from 0 in order of first appearance. They stay where they are, in the bytes of a file."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._slots = np.full(FIRST_SLOT_COUNT, -1, dtype=np.int32)
        self._hashes = np.zeros(FIRST_SLOT_COUNT, dtype=np.uint64)
        self._offsets = np.empty(FIRST_SLOT_COUNT, dtype=np.int64)
        self._lengths = np.empty(FIRST_SLOT_COUNT, dtype=np.int32)
        self._count = 0

    def add(self, offsets: Integers, lengths: Codes, codes: Codes) -> None:
        """Fills in the code of each text. lengths: bytes; below zero for no text, whose code is -1."""
        row = 0
        while True:
            row, self._count = _intern(
                self._data, offsets, lengths, row, codes, self._slots, self._hashes, self._offsets, self._lengths, self._count
            )
            if row == offsets.size:
                return
            self._grow()

    def texts(self) -> list[str]:
        data = self._data.data
        places = zip(self._offsets[: self._count].tolist(), self._lengths[: self._count].tolist(), strict=True)
        return [str(data[offset : offset + length], "utf-8", "replace") for offset, length in places]

    def _grow(self) -> None:
        slot_count = 4 * self._slots.size
        slots, hashes = np.full(slot_count, -1, dtype=np.int32), np.zeros(slot_count, dtype=np.uint64)
        _move(self._slots, self._hashes, slots, hashes)
        self._slots, self._hashes = slots, hashes
        self._offsets, self._lengths = np.resize(self._offsets, slot_count), np.resize(self._lengths, slot_count)


@jit
def _word(data: Bytes, offset: int) -> np.uint64:
    """Return the eight bytes at an offset as one number, the first byte lowest; LLVM makes one load of it. Nothing is checked."""
    at = np.uint64(offset)  # numba takes a signed place for one that may count from the end
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
def hash_of(data: Bytes, offset: int, length: int) -> np.uint64:
    """FNV-1a over words of eight bytes instead of bytes; the last one overlaps the one before."""
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
    """Codes for the rows from first_row on until the slots are half full; answers the row reached and the count of texts."""
    mask = np.uint64(slots.size - 1)
    for row in range(first_row, offsets.size):
        length = lengths[row]
        if length < 0:
            codes[row] = -1
            continue
        if 2 * count >= slots.size:
            return row, count
        offset = offsets[row]
        value = hash_of(data, offset, length)
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
