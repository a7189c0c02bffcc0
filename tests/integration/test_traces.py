"""Traces of other tools through the command: shown without being stored, imported, and the same answers from the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.services.core.settings import data_directory
from tests.command import kernalyse
from tests.integration.analyzer_under_test import running_analyzer
from tests.unit.nsys_directory import write_directory
from tests.unit.nsys_export import STRINGS, call, kernel, nvtx, write_export

TABLES = (
    *("kernels", "layers", "breakdown", "gaps", "gap_reasons", "launches", "memory", "occupancy", "collectives", "ranks", "timeline"),
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_export(
        tmp_path / "nightly.sqlite",
        kernels=[kernel(500, 900, 1), kernel(950, 1000, 2), kernel(2000, 2010)],
        calls=[call(150, 160, 1), call(250, 260, 2)],
        ranges=[nvtx(0, 1000, "step"), nvtx(100, 200, None, textId=3)],
        copies=[kernel(910, 940, 3, bytes=64)],
        gpus=[{}],
    )


def answers(*arguments: str | Path) -> dict[str, list[dict[str, Any]]]:
    done = kernalyse("show", *arguments, *TABLES, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_file_is_shown_and_not_stored_and_the_imported_run_says_the_same(private_directories: Path, trace: Path, tmp_path: Path) -> None:
    shown = answers(trace)
    assert shown["kernels"] == [
        {
            "kernel_name": "saxpy(float *)",
            "launch_count": 3,
            "duration_sum_ns": 460,
            "share_ratio": 1.0,
            "duration_min_ns": 10,
            "duration_median_ns": 50.0,
            "duration_max_ns": 400,
            "category": None,
        }
    ]
    assert [(row["layer"], row["launch_count"], row["duration_sum_ns"], row["source"]) for row in shown["layers"]] == [
        ("forward", 1, 400, "range"),
        ("step", 1, 50, "range"),
        (None, 1, 10, None),
    ]
    (device,) = shown["breakdown"]
    assert (device["process_id"], device["device_index"], device["busy_ns"], device["idle_ns"]) == (77, 0, 460, 1050)
    assert not (data_directory() / "store").exists()

    with running_analyzer():
        imported_run_says_the_same(trace, shown, tmp_path)


def imported_run_says_the_same(trace: Path, shown: dict[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    done = kernalyse("import", trace)
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.split()[0]
    assert done.stdout.strip().endswith("nightly.sqlite: trace")
    assert "3 kernels, 2 calls, 2 ranges, 1 memory operations" in done.stderr
    assert "1 of 3 kernels have no runtime call" in done.stderr
    stored = answers(run_id)
    for name in TABLES:
        assert [{key: value for key, value in row.items() if key != "run_id"} for row in stored[name]] == shown[name], name

    again = kernalyse("import", trace)
    assert (again.returncode, again.stdout.split()[0]) == (0, run_id)
    assert "imported before" in again.stdout

    for table_format, read in (("parquet", pl.read_parquet), ("csv", pl.read_csv)):
        sources: tuple[tuple[str | Path, str], ...] = ((trace, "of_file"), (run_id, "of_run"))
        for source, name in sources:
            directory = tmp_path / f"{name}_{table_format}"
            assert kernalyse("show", source, *TABLES, "ranges", "--format", table_format, "-o", directory).returncode == 0
            assert read(directory / f"kernels.{table_format}")["duration_sum_ns"].to_list() == [460]
            assert read(directory / f"ranges.{table_format}").height == 2


def without_file_name(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [{key: value for key, value in row.items() if key != "file_name"} for row in rows] for name, rows in tables.items()}


@pytest.mark.slow
@pytest.mark.usefixtures("analyzer_that_runs")
def test_a_directory_of_tables_is_one_trace(private_directories: Path, trace: Path, tmp_path: Path) -> None:
    directory = write_directory(trace, tmp_path / "traces", "parquetdir")
    (directory / "0-readme.txt").write_text("sorts before every table")
    shown = answers(directory)
    assert without_file_name(shown) == without_file_name(answers(trace))
    done = kernalyse("import", directory)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("traces: trace")
    assert "no tables are skipped: 0-readme.txt" in done.stderr
    stored = answers(done.stdout.split()[0])
    for name in TABLES:
        assert [{key: value for key, value in row.items() if key != "run_id"} for row in stored[name]] == shown[name], name
    around = kernalyse("import", tmp_path)
    assert "imported before" in around.stdout
    assert [line.split()[1] for line in around.stdout.splitlines()] == ["nightly.sqlite:", "traces:"]


def test_a_directory_without_a_trace_says_so(private_directories: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    shown = kernalyse("show", tmp_path)
    assert (shown.returncode, "no tables of an export" in shown.stderr) == (1, True)
    imported = kernalyse("import", tmp_path)
    assert (imported.returncode, "no file that could be imported" in imported.stderr) == (2, True)


def test_the_terminal_has_kernels_first_and_what_the_reader_says(private_directories: Path, trace: Path) -> None:
    done = kernalyse("show", trace)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kernels: 1 rows")
    assert "schema 3.25.0" in done.stderr
    assert "saxpy(float *)" in done.stdout
    assert "configuration_count" not in done.stdout
    assert "1 of 3 kernels have no runtime call" in kernalyse("show", trace, "layers").stderr


@pytest.mark.usefixtures("analyzer_that_runs")
def test_rows_are_chosen_alike_of_a_file_and_of_its_run(private_directories: Path, trace: Path) -> None:
    """The terminal says how many rows there are; a condition counts for the tables that have its column."""
    run_id = kernalyse("import", trace).stdout.split()[0]
    sources: tuple[str | Path, ...] = (trace, run_id)
    for source in sources:
        short = ("--filter", "duration_ns<=0.05us", "--filter", "kind!=copy", "--sort", "start_ns:desc", "--top", "1", "--format", "json")
        done = kernalyse("show", source, "kernel_launches", "memory_ops", "layers", *short)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert [(row["start_ns"], row["duration_ns"]) for row in found["kernel_launches"]] == [(2000, 10)]
        assert found["memory_ops"] == []
        assert [row["layer"] for row in found["layers"]] == ["forward"]
        outer = kernalyse("show", source, "layers", "kernels", "--depth", "0", "--format", "json")
        assert {row["layer"]: row["duration_sum_ns"] for row in json.loads(outer.stdout)["layers"]} == {"step": 450, None: 10}
        assert "layers: 2 of 3 rows" in kernalyse("show", source, "layers", "--top", "2").stdout
        for wrong, words in (
            (("layers", "kernels", "--filter", "speed>1"), "no column speed"),
            (("kernels", "--depth", "1"), "no table that has depths"),
            (("layers", "--sort", "speed"), "expected one of layer, call_count"),
            (("layers", "--top", "0"), "1 or more"),
        ):
            refused = kernalyse("show", source, *wrong)
            assert refused.returncode == 2
            assert words in refused.stderr
        refused = kernalyse("show", source, "layers", "--filter", "launch_count=many")
        assert refused.returncode == 1
        assert "a whole number" in refused.stderr


def test_what_a_file_has_not_is_said(private_directories: Path, trace: Path, tmp_path: Path) -> None:
    of_runs = kernalyse("show", trace, "measurements")
    assert of_runs.returncode == 2
    assert "Import the file" in of_runs.stderr
    assert kernalyse("show", trace, "nonsense").returncode == 1
    (tmp_path / "notes.txt").write_text("hello")
    other = kernalyse("show", tmp_path / "notes.txt")
    assert other.returncode == 1
    assert "an SQLite export of Nsight Systems" in other.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("analyzer_that_runs")
def test_two_traces_are_compared_kernel_by_kernel_and_layer_by_layer(private_directories: Path, trace: Path, tmp_path: Path) -> None:
    """Files, runs, and one of each: the same answer. The second trace takes 20 ns less, of which one kernel is new."""
    later = write_export(
        tmp_path / "later.sqlite",
        kernels=[kernel(500, 900, 1), kernel(950, 980, 2), kernel(2000, 2010, demangledName=4)],
        calls=[call(150, 160, 1), call(250, 260, 2)],
        ranges=[nvtx(0, 1000, "step"), nvtx(100, 200, None, textId=3)],
        strings=STRINGS | {4: "daxpy(double *)"},
    )
    ids = [kernalyse("import", path).stdout.split()[0] for path in (trace, later)]
    sources: tuple[tuple[str | Path, str | Path], ...] = ((trace, later), (ids[0], later), (ids[0], ids[1]))
    for first, second in sources:
        done = kernalyse("compare", first, second, "--format", "json", "--fail-if-slower", "1%")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert [
            (row["occurrence"], row["kernel_name"], row["launch_count"], row["baseline_launch_count"], row["duration_delta_ns"])
            for row in found["kernel_comparison"]
        ] == [("MATCHED", "saxpy(float *)", 2, 3, -30), ("NEW", "daxpy(double *)", 1, None, 10)]
        assert {row["layer"]: row["duration_delta_ns"] for row in found["layer_comparison"]} == {"step": -20, "forward": 0, None: 0}
        assert (found["is_slower"], found["duration_ratio"]) == (False, pytest.approx(440 / 460))

    slower = kernalyse("compare", later, trace, "--fail-if-slower", "1%", "--depth", "0")
    assert slower.returncode == 1
    assert "slower by more than 1 %: yes" in slower.stdout
    assert "two recordings" in slower.stdout
    assert "forward" not in slower.stdout
    assert kernalyse("compare", later, trace, "--fail-if-slower", "5%").returncode == 0
    markdown = kernalyse("compare", trace, later, "--format", "markdown")
    assert "| daxpy(double *) | – | 10 ns | +10 ns | -50 % | – → 1 | – | – | new |" in markdown.stdout

    empty = write_export(tmp_path / "empty.sqlite", kernels=[])
    assert kernalyse("compare", trace, empty).returncode == 2
    assert kernalyse("compare", trace, trace).returncode == 2
    assert "two traces" in kernalyse("compare", trace, later, "--allow", "device").stderr
