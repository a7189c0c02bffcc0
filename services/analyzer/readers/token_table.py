"""Stretches of bytes by index, equal ones by the same: a hash table for machine code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.analyzer.compiled import compiled
from services.analyzer.readers.json_scan import Bytes

Integers = NDArray[np.int64]


@compiled
def _hash(data: Bytes, start: int, end: int) -> int:
    mixed = np.uint64(14695981039346656037)
    for position in range(start, end):
        mixed = (mixed ^ np.uint64(data[position])) * np.uint64(1099511628211)
    return int((mixed ^ (mixed >> np.uint64(29))) & np.uint64(0x7FFFFFFFFFFFFFFF))


@compiled
def free_slot(slots: Integers, hashed: int) -> int:
    """The first free slot for a token of that hash."""
    slot = hashed & (slots.size - 1)
    while slots[slot] >= 0:
        slot = (slot + 1) & (slots.size - 1)
    return slot


@compiled
def token_index(data: Bytes, start: int, end: int, slots: Integers, tokens: Integers, count: int) -> int:
    """Index of the token; `count` if it is a new one, which then stands in the table.

    tokens: of each its start, its end, its hash.
    """
    hashed = _hash(data, start, end)
    slot = hashed & (slots.size - 1)
    while slots[slot] >= 0:
        index = slots[slot]
        if tokens[index, 2] == hashed and tokens[index, 1] - tokens[index, 0] == end - start:
            same = True
            other = tokens[index, 0]
            for offset in range(end - start):
                if data[other + offset] != data[start + offset]:
                    same = False
                    break
            if same:
                return int(index)
        slot = (slot + 1) & (slots.size - 1)
    slots[slot] = count
    tokens[count, 0] = start
    tokens[count, 1] = end
    tokens[count, 2] = hashed
    return count
