"""Stretches of bytes by index, equal ones by the same: a hash table for machine code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.analyzer.compiled import compiled
from services.analyzer.readers.interning import are_equal, hash_of
from services.analyzer.readers.json_scan import Bytes

Integers = NDArray[np.int64]


class TokenTable:
    """tokens: of each its start, its end, its hash. slots: by hash, the index of a token or -1; at most half of them are used."""

    def __init__(self, capacity: int) -> None:
        self.tokens: Integers = np.empty((capacity, 3), dtype=np.int64)
        self.slots: Integers = np.full(2 * capacity, -1, dtype=np.int64)

    def grow(self, count: int) -> None:
        """To four times its size. count: of the tokens in it."""
        old = self.tokens[:count]
        self.tokens = np.empty((4 * self.tokens.shape[0], 3), dtype=np.int64)
        self.tokens[:count] = old
        self.slots = np.full(2 * self.tokens.shape[0], -1, dtype=np.int64)
        _fill(self.slots, self.tokens, count)


@compiled
def _fill(slots: Integers, tokens: Integers, count: int) -> None:
    for index in range(count):
        slot = tokens[index, 2] & (slots.size - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (slots.size - 1)
        slots[slot] = index


@compiled
def token_index(data: Bytes, start: int, end: int, slots: Integers, tokens: Integers, count: int) -> int:
    """Index of the token; `count` if it is a new one, which then stands in the table."""
    hashed = np.int64(hash_of(data, start, end - start))
    slot = hashed & (slots.size - 1)
    while slots[slot] >= 0:
        index = slots[slot]
        if tokens[index, 2] == hashed and is_token(data, start, end, tokens, index):
            return int(index)
        slot = (slot + 1) & (slots.size - 1)
    slots[slot] = count
    tokens[count, 0] = start
    tokens[count, 1] = end
    tokens[count, 2] = hashed
    return count


@compiled
def is_token(data: Bytes, start: int, end: int, tokens: Integers, index: int) -> bool:
    """Whether the bytes are those of the token."""
    return tokens[index, 1] - tokens[index, 0] == end - start and are_equal(data, tokens[index, 0], start, end - start)
