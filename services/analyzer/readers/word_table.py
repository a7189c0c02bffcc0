"""Words of several sets found in bytes, by machine code: a hash that has no two of them in one place."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.core.errors import InternalError

Words = NDArray[np.uint64]

WORD_BYTES: Final = 8
MAX_WORD_LENGTH: Final = 3 * WORD_BYTES

PLACE_BITS: Final = 10
MAX_SEARCH_COUNT: Final = 1000
"""Trials of factors. One of three suits fifty words; that none does means the same word twice."""

LENGTH_STEP: Final = 256
"""Between the tags of sets; longer than any word."""


class WordTable:
    """places: by hash, the entry's index or -1. entries: of each word its bytes as three numbers, filled up with zeros, and its
    tag: LENGTH_STEP times the index of its set, and its length. factors: of the hash, one for each of these.
    """

    def __init__(self, *word_sets: Sequence[str]) -> None:
        self.entries: Words = np.array(
            [[*_numbers(word.encode()), index * LENGTH_STEP + len(word)] for index, words in enumerate(word_sets) for word in words],
            dtype=np.uint64,
        )
        random = np.random.default_rng(seed=0)
        for _ in range(MAX_SEARCH_COUNT):
            self.factors: Words = random.integers(0, 2**63, size=4, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
            hashes = (self.entries * self.factors).sum(axis=1, dtype=np.uint64) >> np.uint64(64 - PLACE_BITS)
            if np.unique(hashes).size == hashes.size:
                self.places = np.full(2**PLACE_BITS, -1, dtype=np.int64)
                self.places[hashes] = np.arange(hashes.size)
                return
        raise InternalError("words to look up", found="some that this hash cannot tell apart", expected="a place for each")


def _numbers(word: bytes) -> Iterable[int]:
    filled = word.ljust(MAX_WORD_LENGTH, b"\0")
    return (int.from_bytes(filled[start : start + WORD_BYTES], sys.byteorder) for start in range(0, MAX_WORD_LENGTH, WORD_BYTES))
