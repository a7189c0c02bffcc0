"""Events of Kineto traces by the scan and by the plain parser, side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from services.analyzer.readers.json_scan import NULL
from services.analyzer.readers.kineto_events import KinetoEvents, Unscanned, decoded, scanned_events
from services.analyzer.readers.kineto_fields import TOKEN_FIELDS, Field
from services.analyzer.readers.kineto_plain import plain_events

NOT_SCANNED = Unscanned(event_count=0, position=0)


def array(text: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(text, dtype=np.uint8)


def content(events: KinetoEvents) -> list[object]:
    """Everything that tables are made of, by the name of the column; tokens by what they say, as a number for it."""
    meanings = np.array([hash(repr(decoded(token))) for token in events.tokens], dtype=np.int64)
    columns = events.columns.copy()
    for field in TOKEN_FIELDS:
        known = columns[field] != NULL
        columns[field][known] = meanings[columns[field][known]]
    named = {field.name: column for field, column in zip(Field, columns.tolist(), strict=True)}
    return [named, events.event_count, dict(events.dropped_counts), repr(events.document)]


def assert_alike(text: bytes) -> bool:
    """Whether the scan read it; then the plain parser reads the same."""
    scanned = scanned_events(array(text))
    if isinstance(scanned, Unscanned):
        return False
    assert content(scanned) == content(plain_events(array(text), "t.json", NOT_SCANNED))
    return True
