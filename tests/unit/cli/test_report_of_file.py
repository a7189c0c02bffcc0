"""kernalyse.services.cli.file_tables.report_of_file: a report of a file that nobody has imported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kernalyse.services.cli.file_tables import report_of_file
from kernalyse.services.core.errors import InvalidTraceError
from tests.unit.nsys_export import call, kernel, write_export


def test_a_trace_tells_its_devices_kernels_and_layers(tmp_path: Path) -> None:
    export = write_export(tmp_path / "a.sqlite", kernels=[kernel(500, 900, 1), kernel(950, 1000, 2)], calls=[call(1, 2, 1)], gpus=[{}])
    text = report_of_file(export, "text").decode()
    assert f"Run: {export}" in text
    assert "read as nsys-sqlite" in text
    assert re.search(r"^saxpy\(float \*\) +2 +450 ns +100 %", text.split("Kernels by device time")[1], re.MULTILINE)
    assert "| device |" in report_of_file(export, "markdown").decode()


def test_results_tell_what_was_measured(tmp_path: Path) -> None:
    operations = tmp_path / "commands.json"
    operations.write_text(json.dumps([{"type": "ID_MM", "name": "a", "data_type": "fp16", "time_us": 3.0}]))
    assert "1 configurations measured, 0 not." in report_of_file(operations, "text").decode()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "a.txt"
    other.write_text("nothing of the kind")
    with pytest.raises(InvalidTraceError, match=r"file a\.txt"):
        report_of_file(other, "text")
