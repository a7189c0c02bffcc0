"""What tests/gpu/run.sh makes of parts that were ended before their time."""

from __future__ import annotations

from pathlib import Path

from tests.gpu import report


def test_a_part_that_was_ended_while_it_wrote_costs_no_other_its_results(tmp_path: Path) -> None:
    for part in ("ended", "silent", "whole"):
        (tmp_path / f"{part}.log").touch()
    (tmp_path / "ended.xml").write_text("<testsuites><testsuite><testca")
    (tmp_path / "whole.xml").write_text('<testsuites><testsuite><testcase name="one" time="0.1"/></testsuite></testsuites>')
    outcomes = {case["part"]: case["outcome"] for case in report.tests(tmp_path)}
    assert outcomes == {"ended": "not ended", "silent": "not ended", "whole": "passed"}
