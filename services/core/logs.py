"""Logs of a service: lines for people, or a JSON object a line for programs that collect them."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final

TEXT_FORMAT: Final = "%(asctime)s {service} %(levelname)s %(message)s"
RUN_ID: Final = re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{8}\b")


class JsonFormatter(logging.Formatter):
    """Each record as a JSON object: time, level, service, node, logger, message, the runs that it names, exception.

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
