"""commands.json and reports through the command and over gRPC: read with a registry, imported with it, and told in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.core.errors import InvalidRequestError, RunNotFoundError
from kernalyse.services.core.rpc import translated_errors
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.command import kernalyse
from tests.integration.analyzer_under_test import connected, running_analyzer, serving
from tests.integration.test_importing import RUN_ID, imported
from tests.unit.analyzer.readers.test_commands import CONFIG, CONV, MM, MUL, SOUND, registry

MINE = {"type": "ID_MY_OP", "name": "mine", "data_type": "FP16", "shape": [3, 4], "time_ns": 5}


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    path = tmp_path / "commands.json"
    path.write_text(json.dumps([CONV, MUL, MM, MINE]))
    (tmp_path / "roofline_config.json").write_text(json.dumps(CONFIG))
    return path


def rows(*arguments: str | Path) -> list[dict[str, Any]]:
    done = kernalyse("show", *arguments, "roofline", "--format", "json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["roofline"]
    return [{name: value for name, value in row.items() if name != "run_id"} for row in found]


@pytest.mark.slow
def test_operations_are_shown_imported_and_reported(private_directories: Path, commands: Path, tmp_path: Path) -> None:
    directory = registry(tmp_path, SOUND)
    shown = rows(commands, "--op-registry", directory)
    assert [(row["label"], row["symbol"]) for row in shown] == [
        ("#1 ID_CONV", "square"),
        ("#2 ID_MUL", "x"),
        ("#3 ID_MM", "circle"),
        ("mine ID_MY_OP", "cross"),
    ]
    assert all(row["efficiency_category"] is not None for row in shown)
    assert [row["symbol"] for row in rows(commands)] == ["square", "triangle-up", "circle", "star"]

    done = kernalyse("import", commands, "--op-registry", directory)
    assert done.returncode == 0, done.stderr
    assert "4 configurations, 0 without a measurement" in done.stdout
    with running_analyzer():
        assert rows("last") == shown

        report = kernalyse("report", "last")
        assert report.returncode == 0, report.stderr
        assert "#1 ID_CONV" in report.stdout
        assert "4 configurations measured, 0 not." in report.stdout
        written = tmp_path / "report.md"
        assert kernalyse("report", "last", "--format", "markdown", "-o", written).returncode == 0
        assert written.read_text().startswith("# Report of commands.json\n")


def test_a_registry_runs_at_the_command_for_an_analyzer_that_runs_already(analyzer_that_runs: None, commands: Path, tmp_path: Path) -> None:
    directory = registry(tmp_path, SOUND)
    done = kernalyse("import", commands, "--op-registry", directory)
    assert done.returncode == 0, done.stderr
    assert [row["symbol"] for row in rows("last")] == ["square", "x", "circle", "cross"]
    (directory / "op_registry.py").write_text("raise ValueError('no formula today')\n")
    done = kernalyse("import", commands, "--op-registry", directory)  # other answers make another run
    assert "ValueError: no formula today" in done.stderr
    assert [row["symbol"] for row in rows("last")] == ["square", "triangle-up", "circle", "star"]


def test_a_registry_is_for_files_and_not_for_runs(private_directories: Path, tmp_path: Path) -> None:
    directory = registry(tmp_path, SOUND)
    of_run = kernalyse("show", "last", "--op-registry", directory)
    assert of_run.returncode == 2
    assert "option --op-registry" in of_run.stderr


@pytest.mark.slow
async def test_a_report_over_grpc_is_a_file_of_its_format(private_directories: Path) -> None:
    async with serving(private_directories) as analyzer, connected(analyzer.endpoint) as stub:

        async def report(run_id: str, report_format: str) -> str:
            with translated_errors():
                parts = [part.chunk async for part in stub.ExportReport(messages.ExportReportRequest(run_id=run_id, format=report_format))]
            return b"".join(parts).decode()

        await imported(stub)
        text = await report("last", "text")
        assert f"Run: {RUN_ID}" in text
        assert "Narrowing conversion." in text
        assert (await report(RUN_ID, "markdown")).startswith("# Report of nightly.json\n")
        with pytest.raises(InvalidRequestError, match="expected text or markdown"):
            await report("last", "")
        with pytest.raises(RunNotFoundError):
            await report("nothing", "text")
