"""What the tests on a GPU make of their records: of parts without time, of lines that were cut short, and of ncu's report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gpu import report
from tests.gpu.records import FILE_NAME, read_records, write_record
from tests.gpu.test_counters import Launch, report_lines
from tests.unit.ncu_report import FFMA, report_text
from tests.unit.ncu_report import launch as ncu_launch


def outcomes_of(directory: Path) -> dict[str, str]:
    return {case["test"]: case["outcome"] for case in report.tests(read_records(directory))}


def test_the_last_record_of_a_test_counts_and_one_that_was_cut_short_does_not(tmp_path: Path) -> None:
    for outcome in ("not run", "not ended", "passed"):
        write_record(tmp_path, record="test", part="p", test="one", outcome=outcome, seconds=None, message="")
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"record": "test", "part": "p", "te')
    assert outcomes_of(tmp_path) == {"one": "passed"}


def test_a_part_of_which_no_test_is_known_is_told_as_such(tmp_path: Path) -> None:
    write_record(tmp_path, record="part", part="silent", limit_s=60)
    write_record(tmp_path, record="part", part="late", limit_s=0)
    assert outcomes_of(tmp_path) == {"silent": "not run", "late": "not run"}


def test_calls_are_merged_into_one_report(tmp_path: Path) -> None:
    for name in ("correctness", "timing"):
        (tmp_path / name).mkdir()
        assert report.main("begin", str(tmp_path / name)) is None
        write_record(tmp_path / name, record="test", part=name, test=f"of {name}", outcome="passed", seconds=1, message="")
        write_record(tmp_path / name, record="figure", values={"test": name, "figure": "median", "us": 2.5})
        assert report.main("end", str(tmp_path / name)) is None
    assert report.main("merge", str(tmp_path), str(tmp_path / "correctness"), str(tmp_path / "timing")) is None
    results = json.loads((tmp_path / "results.json").read_text())
    assert [case["test"] for case in results["tests"]] == ["of correctness", "of timing"]
    assert [figure["us"] for figure in results["figures"]] == [2.5, 2.5]
    assert "- tests: 2 passed" in (tmp_path / "RESULTS.md").read_text()


def test_a_call_in_which_nothing_passed_has_proved_nothing(tmp_path: Path) -> None:
    write_record(tmp_path, record="test", part="p", test="one", outcome="skipped", seconds=0, message="no NVIDIA device")
    assert report.main("merge", str(tmp_path), str(tmp_path)) == "no test has passed"


def test_lines_of_ncu_are_read_without_the_analyzer() -> None:
    text = report_text([ncu_launch("saxpy(int, float)", ffma=1_000_000, bytes=12_000_000), ncu_launch("copy(int)")])
    saxpy, copy = (Launch(None, cells) for cells in report_lines(text.encode()))  # type: ignore[arg-type]
    assert (saxpy.value(FFMA), saxpy.value("dram__bytes.sum")) == (1_000_000, 12_000_000)
    assert saxpy.flop == {("float32", "fma"): 2_000_000}
    assert (saxpy.main_work, copy.main_work) == (("float32", "fma"), None)
    with pytest.raises(KeyError):
        copy.value("gpu__time_duration.avg")
