"""The events of a Kineto trace by the plain JSON parser: slow, for what the scan leaves. Answers as the scan would."""

from __future__ import annotations

import json
import re
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any, Final

import numpy as np

from services.analyzer.readers.json_scan import MAX_DIGITS, NULL, Bytes
from services.analyzer.readers.kineto_events import EVENTS_MEMBER, KinetoEvents, Unscanned
from services.analyzer.readers.kineto_fields import (
    ARGUMENTS,
    CATEGORIES,
    FIELD_COUNT,
    MEMBERS,
    METADATA,
    NEVER_MODULE,
    PROCESS_NAME,
    EventKind,
    Field,
    ValueKind,
    is_kept,
)
from services.core.errors import InvalidTraceError, LimitReachedError
from services.core.labels import MODULE_PREFIX

MAX_PLAIN_BYTES: Final = 1024**3
"""Python objects take about six times the size of their JSON: more could end the whole service."""

WHOLE_TEXT: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
SHOWN_BYTES: Final = 60


def plain_events(data: Bytes, file_name: str, unscanned: Unscanned) -> KinetoEvents:
    """unscanned: where the scan gave up, for the errors.

    Raises:
        InvalidTraceError: it is no JSON, broken off, nested too deep, or no trace.
        LimitReachedError: it is too large for this way.
    """
    if data.size > MAX_PLAIN_BYTES:
        raise LimitReachedError(
            f"file {file_name}: byte {unscanned.position}",
            found=f"{_shown(data, unscanned)}, which only the plain parser may take",
            expected=f"at most {MAX_PLAIN_BYTES} bytes for that one",
            remedy="If the file is whole, write it with the profiler's own exporter.",
        )
    try:
        document = json.loads(data.tobytes().decode("utf-8-sig", "replace"), parse_float=Decimal, strict=False)
    except (ValueError, RecursionError) as error:
        raise InvalidTraceError(
            f"file {file_name}: byte {unscanned.position}, after {unscanned.event_count} whole events",
            found=f"{_shown(data, unscanned)}: {error}",
            expected="a whole JSON document",
            remedy="It is damaged or was cut off: write or copy the file again.",
        ) from error
    events = document.get(EVENTS_MEMBER) if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InvalidTraceError(
            f"file {file_name}",
            found=f"JSON without a list {EVENTS_MEMBER}",
            expected="a Kineto or Chrome trace",
            remedy="Give the file that the profiler's export_chrome_trace wrote.",
        )
    members = {key: value for key, value in document.items() if key != EVENTS_MEMBER} if isinstance(document, dict) else {}
    return _Reading().events(events, json.loads(json.dumps(members, default=float)))


def _shown(data: Bytes, unscanned: Unscanned) -> str:
    rest = data[unscanned.position : unscanned.position + SHOWN_BYTES].tobytes()
    return repr(rest.decode("utf-8", "replace")) if rest else "the end of the file"


class _Reading:
    def __init__(self) -> None:
        self._tokens: dict[bytes, int] = {}

    def events(self, events: list[Any], document: dict[str, Any]) -> KinetoEvents:
        rows = []
        dropped: dict[tuple[str | None, str | None], int] = {}
        for event in events:
            row = self._row(event) if isinstance(event, dict) else None
            if row is not None and is_kept(row[Field.KIND], row[Field.PHASE], row[Field.TIME_NS]):
                rows.append(row)
                continue
            category = event.get("cat") if isinstance(event, dict) else None
            phase = None if row is None or row[Field.PHASE] == NULL else chr(row[Field.PHASE])
            key = (None if category is None else str(category), phase)
            dropped[key] = dropped.get(key, 0) + 1
        columns = np.array(rows, dtype=np.int64).reshape(len(rows), FIELD_COUNT).T.copy()
        return KinetoEvents(columns, tuple(self._tokens), len(events), dropped, document)

    def _row(self, event: dict[str, Any]) -> list[int]:
        row = [NULL] * FIELD_COUNT
        arguments = event.get("args")
        for values, fields in ((event, MEMBERS), (arguments if isinstance(arguments, dict) else {}, ARGUMENTS)):
            for name, (field, kind) in fields.items():
                if name in values and kind is not ValueKind.ARGUMENTS:
                    self._take(values[name], kind, field, row)
        row[Field.KIND] = _kind(event.get("cat"), event.get("name"), row[Field.PHASE])
        return row

    def _take(self, value: Any, kind: ValueKind, field: Field, row: list[int]) -> None:
        match kind:
            case ValueKind.PHASE:
                row[field] = ord(value) if isinstance(value, str) and len(value) == 1 else NULL
            case ValueKind.TEXT:
                row[field] = NULL if value is None else self._token(value if isinstance(value, str) else str(value))
            case ValueKind.IDENTITY:
                is_identity = isinstance(value, str | int | Decimal) and not isinstance(value, bool)
                row[field] = self._token(value) if is_identity else NULL
            case ValueKind.TIME:
                row[field] = _time_ns(value)
            case ValueKind.WHOLE:
                row[field] = _whole(value)
            case ValueKind.TOKEN:
                row[field] = NULL if value is None else self._token(value)
            case ValueKind.TRIPLE:
                if isinstance(value, list) and len(value) == 3 and all(_is_whole(item) for item in value):
                    row[field : field + 3] = value

    def _token(self, value: object) -> int:
        token = str(value) if isinstance(value, Decimal) else json.dumps(value, default=float)
        return self._tokens.setdefault(token.encode(), len(self._tokens))


def _kind(category: object, name: object, phase: int) -> EventKind:
    kind = CATEGORIES.get(category, EventKind.OTHER) if isinstance(category, str) else EventKind.OTHER
    if kind in NEVER_MODULE or not isinstance(name, str):
        return kind
    if phase == METADATA:
        return EventKind.PROCESS_NAME if name == PROCESS_NAME else kind
    return EventKind.MODULE if name.startswith(MODULE_PREFIX) else kind


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**MAX_DIGITS


def _whole(value: object) -> int:
    if isinstance(value, str):
        return int(value) if WHOLE_TEXT.fullmatch(value) else NULL
    return value if isinstance(value, int) and _is_whole(value) else NULL


def _time_ns(value: object) -> int:
    if not isinstance(value, str | int | Decimal) or isinstance(value, bool):
        return NULL
    try:
        time_ns = (Decimal(str(value)) * 1000).to_integral_value(ROUND_HALF_EVEN)
        return int(time_ns) if abs(time_ns) < 2**62 else NULL
    except (InvalidOperation, ValueError):
        return NULL
