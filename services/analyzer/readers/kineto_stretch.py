"""Stretches of the list of events of a Kineto trace, each scanned by one thread: what the scan needs room for, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.analyzer.readers.json_scan import NULL, Bytes
from services.analyzer.readers.kineto_fields import FIELD_COUNT, TOKEN_FIELDS
from services.analyzer.readers.kineto_scan import FULL, MAX_DROPPED_KINDS, State, scan
from services.analyzer.readers.token_table import TokenTable

Integers = NDArray[np.int64]

CHUNK_ROWS: Final = 65536
"""Of 15 MB: with fewer, more time goes into putting them together; with more, small traces pay for what they do not use."""

FIRST_TOKENS: Final = 4096


@dataclass(frozen=True, slots=True)
class Stretch:
    """What was read of a stretch of the list of events, up to `position`.

    columns: chunks of the rows that are kept, a row of an array for each Field. tokens: start and end of each that they refer to.
    dropped: of what is not kept: token of its category or NULL, phase, count.
    """

    status: int
    position: int
    event_count: int
    columns: tuple[Integers, ...]
    tokens: Integers
    dropped: Integers


def scan_events(data: Bytes, position: int, stop: int) -> Stretch:
    """Reads events from one that starts at `position` (or the end of the list) up to the first that starts at `stop` or later."""
    state = np.zeros(len(State), dtype=np.int64)
    state[State.POSITION] = position
    table = TokenTable(FIRST_TOKENS)
    dropped = np.zeros((MAX_DROPPED_KINDS, 3), dtype=np.int64)
    event = np.full((3, FIELD_COUNT), NULL, dtype=np.int64)
    chunks: list[Integers] = []
    status = FULL
    while status == FULL:
        if state[State.TOKEN_COUNT] + len(TOKEN_FIELDS) > table.tokens.shape[0]:
            table.grow(int(state[State.TOKEN_COUNT]))
        if not chunks or state[State.ROW_COUNT] == CHUNK_ROWS:
            chunks.append(np.empty((FIELD_COUNT, CHUNK_ROWS), dtype=np.int64))
            state[State.ROW_COUNT] = 0
        status = scan(data, stop, state, chunks[-1], table.tokens, table.slots, dropped, *event)
    chunks[-1] = chunks[-1][:, : state[State.ROW_COUNT]]
    return Stretch(
        status,
        int(state[State.POSITION]),
        int(state[State.EVENT_COUNT]),
        tuple(chunks),
        table.tokens[: state[State.TOKEN_COUNT], :2],
        dropped[: state[State.DROPPED_COUNT]],
    )
