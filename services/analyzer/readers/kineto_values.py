"""What members of a Kineto trace's events say, from the JSON that stands there: None for what has another type."""

from __future__ import annotations

import json
from typing import Final

from services.analyzer.readers.kineto_document import text
from services.analyzer.readers.kineto_events import decoded

DIRECTIONS: Final = {
    "HtoD": "host_to_device",
    "DtoH": "device_to_host",
    "DtoD": "device_to_device",
    "HtoH": "host_to_host",
    "PtoP": "peer_to_peer",
    "HtoA": "host_to_array",
    "AtoH": "array_to_host",
    "AtoA": "array_to_array",
    "AtoD": "array_to_device",
    "DtoA": "device_to_array",
}
"""By the second word of a copy's name: "Memcpy HtoD (Pageable -> Device)"."""


def number(token: bytes) -> float | None:
    value = decoded(token)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def compact(token: bytes) -> str:
    return json.dumps(decoded(token), separators=(",", ":"))


def text_of(token: bytes) -> str | None:
    return text(decoded(token))


def direction(token: bytes) -> str | None:
    words = token.strip(b'"').decode("utf-8", "replace").split()
    return DIRECTIONS.get(words[1]) if len(words) > 1 else None
