"""Reports of ncu through the command: alone, and beside a trace of the same program, shown and imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import kernalyse
from tests.unit.ncu_report import launch, write_report
from tests.unit.nsys_export import call, kernel, write_export

TABLES = ("kernels", "launch_work", "counter_coverage")


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return write_report(tmp_path / "report.csv", [launch("saxpy(float *)", ffma=50, bytes=640, duration=900)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    kernels = [kernel(500, 900, 1), kernel(950, 1000, 2)]
    return write_export(tmp_path / "nightly.sqlite", kernels=kernels, calls=[call(1, 2, 1)], gpus=[{}])


def answers(*arguments: str | Path, tables: tuple[str, ...] = TABLES) -> dict[str, list[dict[str, Any]]]:
    done = kernalyse("show", *arguments, *tables, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return {name: [{key: value for key, value in row.items() if key != "run_id"} for row in rows] for name, rows in found.items()}


@pytest.mark.slow
@pytest.mark.usefixtures("analyzer_that_runs")
def test_a_trace_with_a_report_is_shown_and_imported_alike(private_directories: Path, trace: Path, report: Path) -> None:
    shown = answers(trace, "--counters", report)
    assert [(row["launch_index"], row["flop"], row["bytes"], row["work_source"]) for row in shown["launch_work"]] == [
        (0, 100.0, 640.0, "counters"),
        (1, 100.0, 640.0, "counters of the same launch configuration"),
    ]
    assert [row["duration_sum_ns"] for row in shown["counter_coverage"]] == [400, 50]

    plain = kernalyse("import", trace).stdout.split()[0]
    done = kernalyse("import", trace, "--counters", report)
    assert done.returncode == 0, done.stderr
    assert "report.csv: 2 of 2 kernels (100.0%, 100.0% of their time) have counters" in done.stderr
    run_id = done.stdout.split()[0]
    assert run_id != plain
    assert answers(run_id) == shown
    assert answers(plain)["launch_work"] == []


@pytest.mark.usefixtures("analyzer_that_runs")
def test_kernels_of_a_counted_trace_are_placed_at_every_level_that_was_counted(
    private_directories: Path, trace: Path, tmp_path: Path
) -> None:
    report = write_report(tmp_path / "caches.csv", [launch("saxpy(float *)", ffma=50, bytes=640, l2_bytes=1280, l1_bytes=4000)])
    tables = ("counted_roofline", "counted_layer_roofline")
    shown = answers(trace, "--counters", report, tables=tables)
    columns = ("label", "memory_level", "launch_count", "flop", "bytes", "intensity_flop_per_byte", "duration_sum_ns")
    assert [tuple(row[name] for name in columns) for row in shown["counted_roofline"]] == [
        ("saxpy(float *) float32", "dram", 2, 100.0, 640.0, 100 / 640, 450),
        ("saxpy(float *) float32", "l2", 2, 100.0, 1280.0, 100 / 1280, 450),
        ("saxpy(float *) float32", "l1", 2, 100.0, 4000.0, 100 / 4000, 450),
    ]
    layers = shown["counted_layer_roofline"]
    assert [(row["memory_level"], row["bytes"], row["duration_sum_ns"]) for row in layers] == [
        ("dram", 640.0, 450),
        ("l2", 1280.0, 450),
        ("l1", 4000.0, 450),
    ]
    done = kernalyse("import", trace, "--counters", report)
    assert done.returncode == 0, done.stderr
    assert answers(done.stdout.split()[0], tables=tables) == shown
    assert answers(trace, tables=tables) == {name: [] for name in tables}


@pytest.mark.usefixtures("analyzer_that_runs")
def test_a_report_alone_is_shown_and_imported_alike(private_directories: Path, report: Path) -> None:
    tables = (*TABLES, "counted_work", "counters", "breakdown")
    shown = answers(report, tables=tables)
    assert shown["kernels"][0]["duration_sum_ns"] == 900
    assert (shown["counted_work"][0]["flop"], shown["counted_work"][0]["dram_bytes"]) == (100.0, 640.0)
    assert shown["breakdown"] == []
    done = kernalyse("import", report)
    assert done.returncode == 0, done.stderr
    assert answers(done.stdout.split()[0], tables=tables) == shown


@pytest.mark.usefixtures("analyzer_that_runs")
def test_reports_that_fit_nothing_are_refused(private_directories: Path, trace: Path, report: Path, tmp_path: Path) -> None:
    other = write_report(tmp_path / "other.csv", [launch("elsewhere()", ffma=1)])
    for command in ("show", "import"):
        tables = ("launch_work",) if command == "show" else ()
        unrelated = kernalyse(command, trace, *tables, "--counters", other)
        assert unrelated.returncode == 1
        assert "report other.csv: found counters of elsewhere()" in unrelated.stderr
        no_report = kernalyse(command, trace, *tables, "--counters", trace)
        assert no_report.returncode == 2
        assert "a file of another kind" in no_report.stderr
    several = kernalyse("import", trace, report, "--counters", report)
    assert several.returncode == 2
    assert "Import them apart" in several.stderr
    of_run = kernalyse("show", "last", "--counters", report)
    assert of_run.returncode == 2
    assert "Import the trace anew" in of_run.stderr
