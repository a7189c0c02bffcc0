"""Traces of other tools through the command: shown without being stored, imported, and the same answers from the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from services.core.settings import data_folder
from tests.integration.test_cli import kernalyse
from tests.unit.nsys_export import call, kernel, nvtx, write_export

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


def test_a_file_is_shown_and_not_stored_and_the_imported_run_says_the_same(private_folders: Path, trace: Path, tmp_path: Path) -> None:
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
        }
    ]
    assert [(row["layer"], row["launch_count"], row["duration_sum_ns"], row["source"]) for row in shown["layers"]] == [
        ("forward", 1, 400, "range"),
        ("step", 1, 50, "range"),
        (None, 1, 10, None),
    ]
    (device,) = shown["breakdown"]
    assert (device["process_id"], device["device_index"], device["busy_ns"], device["idle_ns"]) == (77, 0, 460, 1050)
    assert not data_folder().exists()

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
            folder = tmp_path / f"{name}_{table_format}"
            assert kernalyse("show", source, *TABLES, "ranges", "--format", table_format, "-o", folder).returncode == 0
            assert read(folder / f"kernels.{table_format}")["duration_sum_ns"].to_list() == [460]
            assert read(folder / f"ranges.{table_format}").height == 2


def test_the_terminal_has_kernels_first_and_what_the_reader_says(private_folders: Path, trace: Path) -> None:
    done = kernalyse("show", trace)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kernels: 1 rows")
    assert "schema 3.25.0" in done.stderr
    assert "saxpy(float *)" in done.stdout
    assert "configuration_count" not in done.stdout
    assert "1 of 3 kernels have no runtime call" in kernalyse("show", trace, "layers").stderr


def test_what_a_file_has_not_is_said(private_folders: Path, trace: Path, tmp_path: Path) -> None:
    of_runs = kernalyse("show", trace, "measurements")
    assert of_runs.returncode == 2
    assert "Import the file" in of_runs.stderr
    assert kernalyse("show", trace, "nonsense").returncode == 1
    (tmp_path / "notes.txt").write_text("hello")
    other = kernalyse("show", tmp_path / "notes.txt")
    assert other.returncode == 1
    assert "an SQLite export of Nsight Systems" in other.stderr
