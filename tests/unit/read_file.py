"""Content of a file to import, through the reader that takes it by its content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.registry import select_reader

ARRIVED_UNIX_NS = 1_777_000_000_000_000_000


def files_of(
    directory: Path,
    content: bytes | str | list[Any] | dict[str, Any],
    companions: Mapping[str, Any] | None = None,
    registry: Path | None = None,
) -> TraceFiles:
    """content: lists and objects as JSON. companions: JSON by name."""
    path = directory / "given"
    path.write_bytes(content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content)).encode())
    beside = {}
    for name, value in (companions or {}).items():
        beside[name] = directory / f"beside-{name}"
        beside[name].write_text(value if isinstance(value, str) else json.dumps(value))
    return TraceFiles("given", path, ARRIVED_UNIX_NS, beside, registry)


def read_as(expected_format: str, files: TraceFiles) -> ReadResult:
    reader = select_reader(files)
    assert reader.format == expected_format
    return reader.read(files)


def rows_of(tables: ReadResult, table_name: str) -> list[dict[str, Any]]:
    return tables.frames[table_name].to_dicts()
