"""Logs as JSON."""

from __future__ import annotations

import json
import logging
import sys

from kernalyse.services.core.logs import JsonFormatter, logging_about
from kernalyse.trace_context import carried


def line_of(formatter: JsonFormatter, message: str, *arguments: object, exc_info: object = None) -> dict[str, object]:
    record = logging.LogRecord("kernalyse.x", logging.WARNING, "x.py", 1, message, arguments, exc_info)  # type: ignore[arg-type]
    line = formatter.format(record)
    assert "\n" not in line
    found: dict[str, object] = json.loads(line)
    return found


def test_a_line_has_what_it_is_about() -> None:
    line = line_of(JsonFormatter("profiler", "gpu1"), "Run %s failed:\nline 3", "20261126-184031-21a5791a")
    assert {key: line[key] for key in ("level", "service", "node", "logger", "run_ids")} == {
        "level": "WARNING",
        "service": "profiler",
        "node": "gpu1",
        "logger": "kernalyse.x",
        "run_ids": ["20261126-184031-21a5791a"],
    }
    assert line["message"] == "Run 20261126-184031-21a5791a failed:\nline 3"
    assert str(line["time"]).endswith("+00:00")


def test_an_exception_is_within_the_line() -> None:
    try:
        raise LookupError("nothing")
    except LookupError:
        line = line_of(JsonFormatter("analyzer"), "broken", exc_info=sys.exc_info())
    assert "LookupError: nothing" in str(line["exception"])
    assert "run_ids" not in line
    assert "node" not in line


def test_a_line_has_the_ids_of_what_the_service_works_on_and_of_its_trace() -> None:
    formatter = JsonFormatter("profiler")
    with logging_about(node_id="n"), carried("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"):
        with logging_about(run_id="r"):
            within = line_of(formatter, "measured")
        around = line_of(formatter, "ready")
    assert (within["node_id"], within["run_id"]) == ("n", "r")
    assert (within["trace_id"], within["span_id"]) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert around["node_id"] == "n"
    assert "run_id" not in around
    assert not {"node_id", "trace_id", "span_id"} & set(line_of(formatter, "later"))
