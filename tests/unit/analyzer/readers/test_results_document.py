"""The results document: its schema follows the tables, what is written is read back, what is damaged is refused by place."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest

from kernalyse.services.analyzer.export.results import RunResults, results_document
from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.documents import MAX_JSON_BYTES
from kernalyse.services.analyzer.readers.registry import HEAD_BYTES, read_trace
from kernalyse.services.analyzer.readers.results import ResultsReader
from kernalyse.services.analyzer.tables.base import TEXT
from kernalyse.services.analyzer.tables.results_document import DERIVED_TABLES, OBJECT_COLUMNS, ROW_TABLES, document_columns, json_schema
from kernalyse.services.analyzer.tables.runs import LOG_LINES, RUNS, SAMPLES
from kernalyse.services.core.errors import InvalidTraceError
from kernalyse.services.core.model import Revision
from tests.unit.run_results import sweep_results

ROOT = Path(__file__).parents[4]


@pytest.fixture
def results(tmp_path: Path) -> RunResults:
    return sweep_results(tmp_path / "store")


@pytest.fixture
def document(results: RunResults) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(results_document(results))
    return loaded


def read(tmp_path: Path, content: str | bytes, file_name: str = "results.json") -> ReadResult:
    path = tmp_path / "arrived"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_trace(TraceFiles(file_name, path, 1_777_000_000_000_000_000))


# ---------------------------------------------------------------- schema


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="needs the checkout")
def test_the_committed_schema_follows_from_the_tables() -> None:
    done = subprocess.run([sys.executable, "docs/schemas/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_column_of_the_tables_is_described_with_its_type() -> None:
    definitions = json_schema()["$defs"]
    for table in ROW_TABLES:
        properties = definitions[table.table_name]["properties"]
        assert list(properties) == [column.name for column in document_columns(table)]
        assert definitions[table.table_name]["required"] == list(properties)
        for column in document_columns(table):
            if column.name not in OBJECT_COLUMNS:
                assert properties[column.name]["description"] == column.description
    assert list(definitions["run"]["properties"]) == [column.name for column in document_columns(RUNS)]


def test_a_document_is_valid_and_every_other_one_is_not(document: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    validator.validate(document)
    assert not validator.is_valid(document | {"schema": "kernalyse-results/2"})
    assert not validator.is_valid({name: value for name, value in document.items() if name != "failures"})
    document["measurements"][0]["duration_median_ns"] = "fast"
    assert not validator.is_valid(document)


# ---------------------------------------------------------------- written


def test_rows_have_objects_for_parameters_and_samples_are_columns(document: dict[str, Any]) -> None:
    assert document["measurements"][0]["parameters"] == {"N": 1000}
    assert document["configurations"][0]["macros"] == {"TILE": 16}
    assert document["measurements"][0]["power_watts"] is None
    assert "event_index" not in document["measurements"][0]
    assert document["run"]["run_id"] == "run-1"
    assert document["devices"][0]["name"] == "NVIDIA H200"
    assert document["paired_comparisons"][0]["verdict"] == "SLOWER"
    assert document["failures"][0]["message"] == "line 3: expected ;"
    assert [(row["metric_name"], row["value"], row["text"]) for row in document["counters"]] == [
        ("dram__bytes.sum", 12.0, None),
        ("gpu__time_duration.sum", 4000.0, None),
        ("launch__func_cache_config", None, "CachePreferNone"),
    ]
    assert (document["counted_work"][0]["label"], document["counted_work"][0]["dram_bytes"]) == ("saxpy N=1000 TILE=16", 12e6)
    assert (document["telemetry"][0]["power_watts"], document["telemetry"][0]["throttle_reasons"]) == (512.5, "power_cap")
    assert [row["line"] for row in document["log_lines"]] == ["warm", "warmer"]
    assert document["best"][0]["is_real"] is not None
    first, second = document["samples"]
    assert first["duration_ns"] == [1000.0, 1001.0, 1002.0, 1003.0, 1004.0]
    assert (first["sm_clock_hz"], first["discarded_sample_indexes"]) == (None, [])
    assert sum(first["batches"]["sample_count"]) == 5
    assert second["sm_clock_hz"] == [1_980_000_000, None, 1_970_000_000]
    assert second["discarded_sample_indexes"] == [1]
    assert second["batches"] == {"sample_count": [3], "measured_unix_ns": [13]}


def test_figures_that_json_has_not_become_null(results: RunResults) -> None:
    measurements = results.frames["measurements"].with_columns(noise_ratio=pl.lit(float("inf")), power_watts=pl.lit(float("nan")))
    document = json.loads(results_document(replace(results, frames={**results.frames, "measurements": measurements})))
    assert [row["noise_ratio"] for row in document["measurements"]] == [None, None]
    assert [row["power_watts"] for row in document["measurements"]] == [None, None]


# ---------------------------------------------------------------- read back


def test_what_was_written_is_read_back_row_for_row(results: RunResults, tmp_path: Path) -> None:
    tables = read(tmp_path, results_document(results))
    for table in (*(table for table in ROW_TABLES if table not in DERIVED_TABLES), SAMPLES):
        assert results.frames[table.table_name].height > 0
        frame = tables.frames[table.table_name]
        if table is LOG_LINES:
            frame = frame.head(-1)  # the device's
        assert frame.schema == pl.Schema(table.schema)
        assert frame.drop("run_id", "event_index").equals(results.frames[table.table_name].drop("run_id", "event_index")), table.table_name
    assert (tables.title, tables.device_id) == ("saxpy", "cuda:0")
    assert tables.start_time is not None
    assert tables.notes == "Run run-1 of node-1: SUCCEEDED"
    assert "NVIDIA H200" in tables.frames[LOG_LINES.table_name]["line"][-1]


def test_the_runs_own_marks_come_back(document: dict[str, Any], tmp_path: Path) -> None:
    document["run"] |= {"git_commit": "abc", "git_is_dirty": True, "tags": "a,b", "notes": "why", "node_id": None, "state": "FAILED"}
    tables = read(tmp_path, json.dumps(document | {"run": document["run"] | {"error_message": "out of memory"}}))
    assert (tables.revision, tables.tags) == (Revision("abc", is_dirty=True), ("a", "b"))
    assert tables.notes == "Run run-1 of an import: FAILED out of memory\nwhy"


def test_members_of_a_later_minor_version_are_named_and_not_dropped_silently(document: dict[str, Any], tmp_path: Path) -> None:
    document["measurements"][0]["voltage_volts"] = 1.1
    document["run"]["mood"] = "good"
    document["spectra"] = []
    assert "does not know them: spectra, run.mood, measurements.voltage_volts." in read(tmp_path, json.dumps(document)).notes


def test_a_column_that_the_file_lacks_is_unknown(document: dict[str, Any], tmp_path: Path) -> None:
    for row in document["measurements"]:
        del row["recheck_state"]
    assert read(tmp_path, json.dumps(document)).frames["measurements"]["recheck_state"].to_list() == [None, None]


def test_a_document_of_before_thresholds_is_read(document: dict[str, Any], tmp_path: Path) -> None:
    del document["thresholds"]
    assert read(tmp_path, json.dumps(document)).frames["thresholds"].is_empty()


# ---------------------------------------------------------------- refused


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema="kernalyse-results/2"), r"found schema kernalyse-results/2; expected kernalyse-results/1"),
        (lambda d: d.pop("failures"), r"failures: found nothing; expected a list"),
        (lambda d: d.pop("run"), r"run: found nothing; expected an object"),
        (lambda d: d.update(measurements=[1]), r"measurements: found \[1\]; expected a list of objects"),
        (lambda d: d["measurements"][1].update(duration_median_ns="1.5"), r"measurements\[1\]: duration_median_ns: found \"1.5\""),
        (lambda d: d["measurements"][0].update(sample_count=1.5), r"sample_count: found 1.5; expected a whole number"),
        (lambda d: d["measurements"][0].update(sample_count=2**63), r"whole number of 64 bits"),
        (lambda d: d["measurements"][0].update(sample_count=True), r"sample_count: found true"),
        (lambda d: d["measurements"][0].update(flop=10**400), r"flop: found 1000"),
        (lambda d: d["measurements"][0].update(is_blocked=1), r"is_blocked: found 1; expected true, false"),
        (lambda d: d["measurements"][0].update(label=7), r"label: found 7; expected text"),
        (lambda d: d["measurements"][0].update(parameters={"N": "many"}), r"parameters: N: found \"many\"; expected a whole number"),
        (lambda d: d["measurements"][0].update(macros=[]), r"macros: found \[\]; expected an object"),
        (lambda d: d["run"].update(start_unix_ns=10**21), r"start_unix_ns"),
        (lambda d: d["run"].update(git_commit="a", git_is_dirty="no"), r"git_is_dirty: found \"no\""),
        (lambda d: d["samples"][0].update(duration_ns=[1, "2"]), r"duration_ns: found \"2\""),
        (
            lambda d: d["samples"][0]["batches"].update(sample_count=[3, 3]),
            r"sample_count: found \[3, 3\]; expected sizes that add up to 5",
        ),
        (lambda d: d["samples"][0]["batches"].update(sample_count=[6, -1]), r"sizes that add up"),
        (lambda d: d["samples"][0]["batches"].update(measured_unix_ns=[]), r"measured_unix_ns: found \[\]; expected \d values"),
        (lambda d: d["samples"][1].update(sm_clock_hz=[1]), r"sm_clock_hz: found \[1\]; expected 3 values"),
        (lambda d: d["samples"][1].update(discarded_sample_indexes=[3]), r"places from 0 to 2"),
        (lambda d: d["samples"][1].update(configuration_index=None), r"configuration_index: found null"),
        (
            lambda d: d["samples"][1].update(configuration_index=2**63),
            r"configuration_index: found 9\d+; expected a whole number of 64 bits",
        ),
        (lambda d: d["measurements"][0].update(parameters={"N": 2**63}), r"parameters: N: found 9\d+; expected a whole number of 64 bits"),
    ],
)
def test_a_document_that_is_not_as_it_should_be_is_refused_by_place(
    document: dict[str, Any], tmp_path: Path, change: Change, message: str
) -> None:
    change(document)
    with pytest.raises(InvalidTraceError, match=message):
        read(tmp_path, json.dumps(document))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.99])
def test_a_document_that_breaks_off_says_where(results: RunResults, tmp_path: Path, share: float) -> None:
    text = results_document(results)
    with pytest.raises(InvalidTraceError, match=r"file results\.json: found JSON that cannot be read: .*line \d+ column"):
        read(tmp_path, text[: int(len(text) * share)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found nothing in it; expected an SQLite export"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 100, r"content that begins with b'\\x89PNG"),
        (b"\x7fELF", "ELF"),
        (b"kernel,ns\nsaxpy,1\n", "NVBench JSON"),
        (b'{"schema": "kernalyse-results/1"} and more', "cannot be read"),
        (b'{"schema": "kernalyse-results/1", "x": "\xff"}', "cannot be read"),
        (b'{"schema": "kernalyse-results/1", "x": ' + b"[" * 100_000, "cannot be read"),
        (b'{"schema": "kernalyse-results/one"}', "found schema kernalyse-results/one"),
        (b'{"schema":\n "other/1"}', "begins with"),
    ],
)
def test_a_file_that_no_reader_takes_is_refused_with_what_it_is(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InvalidTraceError, match=message):
        read(tmp_path, content)


def test_nan_that_another_program_has_written_is_unknown(document: dict[str, Any], tmp_path: Path) -> None:
    document["measurements"][0]["noise_ratio"] = float("nan")
    assert "NaN" in json.dumps(document)
    assert read(tmp_path, json.dumps(document)).frames["measurements"]["noise_ratio"][0] is None


def test_json_that_would_not_fit_the_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "arrived"
    path.write_bytes(b'{"schema": "kernalyse-results/1",')
    with path.open("ab") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(InvalidTraceError, match=f"found {MAX_JSON_BYTES + 1} bytes of JSON"):
        read_trace(TraceFiles("huge.json", path, 1))


def test_the_format_is_told_from_the_beginning_alone(results: RunResults) -> None:
    text = results_document(results)
    assert ResultsReader().matches(text.encode()[:HEAD_BYTES])
    assert ResultsReader().matches(json.dumps(json.loads(text), indent=4).encode()[:64])
    assert not ResultsReader().matches(b'{"title": "a", "schema": "kernalyse-results/1"}')


def test_text_columns_stay_text(results: RunResults, tmp_path: Path) -> None:
    """The parameters, objects in the document, are JSON text in the tables."""
    frame = read(tmp_path, results_document(results)).frames["measurements"]
    assert frame.schema["parameters"] == TEXT
    assert json.loads(frame["parameters"][0]) == {"N": 1000}
