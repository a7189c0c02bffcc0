"""Events of Kineto traces by the reader and by the plain parser, side by side."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from kernalyse.services.analyzer.readers.kineto import workers
from kernalyse.services.analyzer.readers.kineto.decompress import UnpackedBytes
from kernalyse.services.analyzer.readers.kineto.document import read_events
from kernalyse.services.analyzer.readers.kineto.events import NULL, TOKEN_FIELDS, Field, KinetoEvents, Token, decoded
from kernalyse.services.core.errors import InvalidTraceError
from tests.unit.kineto_plain import Content, plain_content

RANGE_BYTES = (200, 1500, workers.RANGE_BYTES)


def source(text: bytes) -> UnpackedBytes:
    return UnpackedBytes(np.frombuffer(text, dtype=np.uint8))


def content(events: KinetoEvents) -> Content:
    """As plain_content."""

    def value(field: Field, number: int) -> Any:
        return number if field not in TOKEN_FIELDS or number == NULL else meaning(events.tokens[number])

    columns = [[value(field, number) for number in events.columns[field].tolist()] for field in Field]
    return [list(row) for row in zip(*columns, strict=True)], events.event_count, dict(events.dropped_counts), repr(events.document)


def meaning(token: Token) -> str:
    return repr(decoded(token)) if isinstance(token, bytes) else str(token)


def assert_alike(text: bytes, range_bytes: tuple[int, ...] = RANGE_BYTES) -> bool:
    """Whether the plain parser takes it; the reader does the same with the same answer, whatever the ranges."""
    try:
        expected, error = plain_content(text), ""
    except (ValueError, RecursionError) as refusal:
        expected, error = None, str(refusal)
    except LookupError:
        expected, error = None, "JSON without a list traceEvents"
    for byte_count in range_bytes:
        with mock.patch.object(workers, "RANGE_BYTES", byte_count):
            found = _found(text)
        if isinstance(found, InvalidTraceError):
            assert expected is None, found
            assert str(found.found).endswith(error)
            assert found.subject.startswith("file t.json")
        else:
            assert found == expected
    return expected is not None


def _found(text: bytes) -> Content | InvalidTraceError:
    try:
        return content(read_events(source(text), "t.json"))
    except InvalidTraceError as error:
        return error
