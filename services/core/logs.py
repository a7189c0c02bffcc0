"""Logs of a service: lines for people, or a JSON object a line for programs that collect them, with what they are about."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from kernalyse.trace_context import current_traceparent, trace_ids

TEXT_FORMAT: Final = "%(asctime)s {service} %(levelname)s %(message)s"
RUN_ID: Final = re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{8}\b")


_subject: Final[ContextVar[Mapping[str, str]]] = ContextVar("subject of log lines", default=MappingProxyType({}))


@contextmanager
def logging_about(**ids: str) -> Iterator[None]:
    """Have lines that the block logs say what it is about. ids: run_id, node_id; those around it stay."""
    token = _subject.set({**_subject.get(), **ids})
    try:
        yield
    finally:
        _subject.reset(token)


class JsonFormatter(logging.Formatter):
    """Each record as a JSON object: time, level, service, node, logger, message, what it is about, exception.

    That is the run and the node that the service works on, the runs that the message names, and ids of trace and span.

    Args:
        service: that writes the logs.
        node: its name among others, of a profiler; empty: it has none.
    """

    def __init__(self, service: str, node: str = "") -> None:
        super().__init__()
        self._service = service
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        message = record.getMessage()
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": message,
        }
        if self._node:
            line["node"] = self._node
        line.update(_subject.get())
        if ids := trace_ids(current_traceparent()):
            line["trace_id"], line["span_id"] = ids
        if run_ids := list(dict.fromkeys(RUN_ID.findall(message))):
            line["run_ids"] = run_ids
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def begin_logs(service: str, level: str, *, is_json: bool, node: str = "") -> None:
    """Write the logs of this process to standard error from now on.

    Args:
        service: that writes them.
        level: the lowest that is written.
        is_json: an object a line; else text.
        node: name of the node, of a profiler.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service, node) if is_json else logging.Formatter(TEXT_FORMAT.format(service=service)))
    logging.basicConfig(level=level, handlers=[handler])
