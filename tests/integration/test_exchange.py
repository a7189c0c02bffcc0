"""Results out of one machine's store and into another's: real kernels, the command as a user runs it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest

from tests.command import kernalyse
from tests.integration.analyzer_under_test import running_analyzer
from tests.integration.test_cli import QUICK

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

SCHEMA_PATH = Path(__file__).parents[2] / "docs" / "schemas" / "kernalyse-results-1.schema.json"
SOURCE = """extern "C" __global__ void own(int N, const float* a, float* b) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) b[i] = FACTOR * a[i];
}
"""


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    if not SCHEMA_PATH.exists():
        pytest.skip("needs the checkout")
    return jsonschema.Draft202012Validator(json.loads(SCHEMA_PATH.read_text()))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, private_directories: Path, server_process: tuple[str, ...]) -> Iterator[None]:
    """Commands without --server work on another store, as on another machine."""
    (private_directories / "other").mkdir()
    monkeypatch.setenv("XDG_DATA_HOME", str(private_directories / "other"))
    with running_analyzer():
        yield


def without_keys(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "run_id"} for row in rows]


@pytest.mark.slow
def test_a_real_run_goes_out_in_every_format_and_comes_back(
    server_process: tuple[str, ...], tmp_path: Path, schema: jsonschema.Draft202012Validator, elsewhere: None
) -> None:
    (tmp_path / "own.cu").write_text(SOURCE)
    (tmp_path / "fine.cu").write_text(SOURCE.replace("FACTOR", "2.0f"))
    kernels = ("saxpy", f"{tmp_path}/fine.cu:own", "-p", "N=1024,2**12")
    done = kernalyse("bench", *kernels, *QUICK, "--title", "both", "--json", tmp_path / "bench.json", *server_process)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "bench.json").read_text())
    schema.validate(document)
    assert document["run"]["title"] == "both"
    assert [row["label"] for row in document["measurements"]] == ["saxpy N=1024", "saxpy N=4096", "own N=1024", "own N=4096"]
    assert [len(part["duration_ns"]) for part in document["samples"]] == [
        row["sample_count"] + row["discarded_sample_count"] for row in document["measurements"]
    ]
    assert [device["device_id"] for device in document["devices"]] == [document["run"]["device_id"]]
    assert document["ceilings"]

    # As export writes it, and with what failed.
    exported = kernalyse("export", "last", *server_process)
    assert json.loads(exported.stdout) == document
    broken = kernalyse("bench", f"{tmp_path}/own.cu:own", "-p", "N=64", *QUICK, "--json", tmp_path / "broken.json", *server_process)
    assert broken.returncode == 1
    failed = json.loads((tmp_path / "broken.json").read_text())
    schema.validate(failed)
    assert "FACTOR" in failed["failures"][0]["message"]

    # Into a store that has never seen the node.
    sent = kernalyse("import", tmp_path / "bench.json", tmp_path / "broken.json")
    assert sent.returncode == 0, sent.stderr
    first, second = sent.stdout.splitlines()
    run_id = first.split()[0]
    assert first == f"{run_id} both: 4 configurations, 0 without a measurement"
    assert second.endswith("1 configurations, 1 without a measurement")
    assert f"Run {document['run']['run_id']} of {socket.gethostname()}: SUCCEEDED" in sent.stderr
    back = json.loads(kernalyse("export", run_id).stdout)
    schema.validate(back)
    for table in ("configurations", "measurements", "roofline", "ceilings", "failures", "paired_comparisons", "best", "telemetry"):
        assert without_keys(back[table]) == without_keys(document[table]), table
    assert without_keys(back["log_lines"])[:-1] == without_keys(document["log_lines"])  # the last is about the device
    assert document["telemetry"]
    assert document["best"]
    assert back["samples"] == document["samples"]
    assert back["run"]["start_unix_ns"] == document["run"]["start_unix_ns"] // 1000 * 1000
    shown = kernalyse("runs").stdout
    assert sum(line.rstrip().endswith("  imported") for line in shown.splitlines()) == 2
    assert json.loads(kernalyse("runs", "--json").stdout)[0]["node_id"] is None


@pytest.mark.slow
def test_tables_and_nvbench_go_out_and_what_nvbench_lacks_is_said(server_process: tuple[str, ...], tmp_path: Path, elsewhere: None) -> None:
    done = kernalyse("bench", "saxpy", "-p", "N=1024,2**12", *QUICK, *server_process)
    assert done.returncode == 0, done.stderr
    for table_format in ("csv", "parquet"):
        assert kernalyse("export", "last", "--format", table_format, "-o", tmp_path / table_format, *server_process).returncode == 0
        assert (tmp_path / table_format / f"failures.{table_format}").exists()
    csv, parquet = pl.read_csv(tmp_path / "csv" / "measurements.csv"), pl.read_parquet(tmp_path / "parquet" / "measurements.parquet")
    assert csv["duration_median_ns"].to_list() == parquet["duration_median_ns"].to_list()
    assert pl.read_parquet(tmp_path / "parquet" / "samples.parquet").height >= parquet["sample_count"].sum()
    assert kernalyse("export", "last", "--format", "csv", *server_process).returncode == 2

    path = tmp_path / "nvbench.json"
    written = kernalyse("export", "last", "--format", "nvbench", "-o", path, *server_process)
    assert written.returncode == 0, written.stderr
    assert "no place for these columns: " in written.stderr
    assert {"flop", "verification_state"} <= set(written.stderr.replace(",", "").split())
    assert "cache=HOT" in written.stderr
    document = json.loads(path.read_text())
    assert document["devices"][0]["name"] not in ("", parquet["device_id"][0])
    assert len(list((tmp_path / "nvbench.json-bin").iterdir())) == 2

    run_id = kernalyse("import", path).stdout.split()[0]
    back = json.loads(kernalyse("show", run_id, "measurements", "samples", "--format", "json").stdout)
    for name in ("duration_median_ns", "duration_mean_ns", "noise_ratio", "sample_count", "bytes"):
        assert [row[name] for row in back["measurements"]] == pytest.approx(parquet[name].to_list(), rel=1e-9), name
    assert [row["label"] for row in back["measurements"]] == parquet["label"].to_list()
    assert [row["cache_mode"] for row in back["measurements"]] == ["HOT", "HOT"]
    assert len(back["samples"]) == parquet["sample_count"].sum()

    on_stdout = kernalyse("export", "last", "--format", "nvbench", *server_process)
    assert "Samples are left out" in on_stdout.stderr
    assert len(json.loads(on_stdout.stdout)["benchmarks"]) == 1


@pytest.mark.usefixtures("analyzer_that_runs")
def test_a_directory_brings_every_file_that_a_reader_takes(private_directories: Path, tmp_path: Path) -> None:
    directory = tmp_path / "results"
    (directory / "monday" / "a.json-bin").mkdir(parents=True)
    for name in ("monday/a.json", "b.txt"):
        skipped = {"is_skipped": True, "skip_reason": f"no GPU for {name}"}
        content = {"meta": None, "devices": [], "benchmarks": [{"name": "copy", "states": [skipped]}]}
        (directory / name).write_text(json.dumps(content))
    (directory / "monday" / "a.json-bin" / "0.bin").write_bytes(b"1234")
    (directory / "package.json").write_text('{"name": "of another tool"}')
    done = kernalyse("import", directory)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert ("b.txt: 1 configurations" in first, "a.json: 1 configurations" in second) == (True, True)
    assert "package.json" not in done.stderr
    empty = kernalyse("import", directory / "monday" / "a.json-bin")
    assert empty.returncode == 2
    assert "found no file that could be imported; expected " in empty.stderr
    assert "results of kernalyse" in empty.stderr


@pytest.mark.usefixtures("analyzer_that_runs")
def test_import_goes_on_after_a_file_that_no_reader_takes(private_directories: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not results")
    good = {"meta": None, "devices": [], "benchmarks": [{"name": "copy", "states": [{"is_skipped": True, "skip_reason": "no GPU"}]}]}
    (tmp_path / "good.json").write_text(json.dumps(good))
    done = kernalyse("import", tmp_path / "notes.txt", tmp_path / "good.json")
    assert done.returncode == 1
    assert "file notes.txt: found content that begins with b'not results'; expected" in done.stderr
    (first,) = done.stdout.splitlines()
    assert first.endswith("good.json: 1 configurations, 1 without a measurement")
    (again,) = kernalyse("import", tmp_path / "good.json").stdout.splitlines()
    assert again == f"{first}; imported before: delete that run to read the file anew"
    assert kernalyse("import", tmp_path / "nothing.json").returncode == 2
    assert kernalyse("import").returncode == 2
