"""`pytest -p tests.gpu.records`: every outcome goes to $OUT/records.jsonl when it is known.

A line names a test of the part that KERNALYSE_TESTS_PART says, and the last one of a test counts: "not run" when it is collected,
"not ended" when it begins, then what became of it. So a part that is killed leaves what it has found, and what it owes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

FILE_NAME: Final = "records.jsonl"
PART_VARIABLE: Final = "KERNALYSE_TESTS_PART"
MAX_MESSAGE_LENGTH: Final = 400

# Read here and now: tests take variables of that prefix away.
PART: Final = os.environ.get(PART_VARIABLE, "")
DIRECTORY: Final = Path(os.environ["OUT"]) if os.environ.get("OUT") else None


def write_record(directory: Path, **fields: object) -> None:
    """Append a line to the directory's records; one write, for several parts write side by side."""
    with (directory / FILE_NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(fields) + "\n")


def read_records(directory: Path) -> list[dict[str, Any]]:
    """Return the directory's records, without a last line that was cut short."""
    file = directory / FILE_NAME
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _tell(node_id: str, outcome: str, seconds: float | None = None, message: str = "") -> None:
    if DIRECTORY is not None:
        name = node_id.rpartition("::")[2]
        write_record(DIRECTORY, record="test", part=PART, test=name, outcome=outcome, seconds=seconds, message=message[:MAX_MESSAGE_LENGTH])


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        _tell(item.nodeid, "not run", message="the time of its part was over")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _tell(report.nodeid, "error", message=_last_line(report.longreprtext))


def pytest_runtest_logstart(nodeid: str, location: Sequence[object]) -> None:
    _tell(nodeid, "not ended", message="its part was killed meanwhile")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:
        outcome = report.outcome if report.when == "call" or report.skipped else "error"
        _tell(report.nodeid, outcome, round(report.duration, 3), _message(report))


def _message(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash is not None else _last_line(report.longreprtext)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
