"""JSON files whose structure is checked while they are read: what is missing or of another kind is refused by its place."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeGuard

from services.analyzer.readers.trace import TraceFiles
from services.analyzer.table import COUNT, FLAG, TEXT
from services.core.errors import InvalidTraceError

MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1
MAX_JSON_BYTES: Final = 256 * 1024 * 1024
"""A document is held as Python objects while it is read, about ten times its size: more could end the whole service."""

KINDS: Final[dict[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}
SHOWN_LENGTH: Final = 60


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object of a document and its place there, for errors: "benchmark saxpy, state 3".

    remedy: what errors advise about a field that is missing or does not fit, where that is known better than here.
    """

    place: str
    members: dict[str, Any]
    remedy: str = ""

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Raise InvalidTraceError about one member; one that is not there is told as missing."""
        if name in self.members:
            found, remedy = shown(self.members[name]), self.remedy or "The file is damaged or of another format: write it again."
        else:
            found, remedy = "nothing", f"The field {name} is missing. {self.remedy or 'Add it, or write the file again.'}"
        raise InvalidTraceError(f"{self.place}: {name}", found=found, expected=expected, remedy=remedy)

    def text(self, name: str) -> str:
        value = self.members.get(name)
        return value if isinstance(value, str) else self.refuse(name, KINDS[str])

    def optional_text(self, name: str) -> str | None:
        return None if self.members.get(name) is None else self.text(name)

    def count(self, name: str) -> int:
        value = self.members.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else self.refuse(name, KINDS[int])

    def optional_count(self, name: str) -> int | None:
        return None if self.members.get(name) is None else self.count(name)

    def optional_number(self, name: str) -> float | None:
        """Any finite number; its unit is the caller's to know."""
        value = self.members.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            self.refuse(name, KINDS[float])
        return float(value)

    def optional_flag(self, name: str) -> bool | None:
        value = self.members.get(name)
        return value if value is None or isinstance(value, bool) else self.refuse(name, KINDS[bool])

    def object(self, name: str) -> JsonObject:
        value = self.members.get(name)
        return JsonObject(f"{self.place}: {name}", value) if isinstance(value, dict) else self.refuse(name, KINDS[dict])

    def objects(self, name: str) -> list[JsonObject]:
        """A list of objects."""
        return [
            JsonObject(f"{self.place}: {name}[{index}]", item) if isinstance(item, dict) else self.refuse(name, "a list of objects")
            for index, item in enumerate(self.values(name))
        ]

    def optional_objects(self, name: str) -> list[JsonObject]:
        return [] if self.members.get(name) is None else self.objects(name)

    def values(self, name: str) -> list[Any]:
        """A list of whatever."""
        value = self.members.get(name)
        return value if isinstance(value, list) else self.refuse(name, KINDS[list])


def read_document(files: TraceFiles) -> JsonObject:
    """The whole file as one object.

    Raises:
        InvalidTraceError: as `_read_json`, or not an object.
    """
    subject = f"file {files.file_name}"
    value = _read_json(files, subject)
    if not isinstance(value, dict):
        raise InvalidTraceError(subject, found=KINDS[type(value)], expected=KINDS[dict])
    return JsonObject(subject, value)


def read_list(files: TraceFiles) -> list[Any]:
    """The whole file as a list. Raises InvalidTraceError as `_read_json`, or not a list."""
    subject = f"file {files.file_name}"
    value = _read_json(files, subject)
    if not isinstance(value, list):
        raise InvalidTraceError(subject, found=KINDS[type(value)], expected=KINDS[list])
    return value


def read_objects(files: TraceFiles) -> list[JsonObject]:
    """The whole file as a list of objects, with their places from 0.

    Raises:
        InvalidTraceError: as `_read_json`, or not a list of objects.
    """
    subject = f"file {files.file_name}"
    value = read_list(files)
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise InvalidTraceError(f"{subject}, item {index}", found=shown(item), expected=KINDS[dict])
    return [JsonObject(f"{subject}, item {index}", item) for index, item in enumerate(value)]


def _read_json(files: TraceFiles, subject: str) -> Any:
    """NaN and Infinity, which JSON has not but some writers write, are read as null.

    Raises:
        InvalidTraceError: too large, no UTF-8, no JSON, or broken off.
    """
    size_bytes = files.path.stat().st_size
    if size_bytes > MAX_JSON_BYTES:
        raise InvalidTraceError(
            subject, found=f"{size_bytes} bytes of JSON", expected=f"at most {MAX_JSON_BYTES}", remedy="Export fewer configurations a file."
        )
    try:
        return json.loads(files.path.read_bytes(), parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise InvalidTraceError(
            subject, found=f"JSON that cannot be read: {error}", expected="a whole JSON document", remedy="Write or copy the file again."
        ) from error


def well_formed(text: str) -> str:
    """The text with a replacement character for each half of a character, which JSON can hold and tables cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def fits(value: object, dtype: object) -> bool:
    """Whether a column of that type can hold a value of a document as it is; null is no value."""
    if dtype is TEXT:
        return isinstance(value, str)
    if dtype is FLAG:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    return is_count(value) if dtype is COUNT else isinstance(value, int | float) and abs(value) <= sys.float_info.max


def is_count(value: object) -> TypeGuard[int]:
    """A whole number of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and MIN_INT64 <= value <= MAX_INT64


def shown(value: object) -> str:
    """A value as errors show it."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"
