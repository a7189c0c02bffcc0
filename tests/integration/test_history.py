"""`kernalyse history` as CI uses it: a history of imported results, every exit status, every format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.command import kernalyse
from tests.history_files import history_files
from tests.integration.analyzer_under_test import running_analyzer


@pytest.mark.slow
def test_the_status_tells_ci_of_a_regression_and_of_nothing_else(tmp_path: Path) -> None:
    medians = np.append(np.full(9, 5_000.0), np.full(5, 5_600.0)) * np.exp(np.random.default_rng(1).normal(0, 0.004, 14))
    with running_analyzer():
        nothing = kernalyse("history", "--fail-on-regression")
        assert (nothing.returncode, "No run has measured that" in nothing.stderr) == (2, True)
        files = history_files(tmp_path, medians.tolist(), "gemm")
        assert kernalyse("import", *files).returncode == 0

        shown = kernalyse("history", "gemm")
        assert shown.returncode == 0, shown.stderr
        assert "regression" in shown.stdout
        assert "1 history, 1 with a change." in shown.stdout
        failed = kernalyse("history", "gemm", "--fail-on-regression")
        assert (failed.returncode, "Worse by more than 3 % of late: gemm N=1000." in failed.stdout) == (1, True)
        rate = kernalyse("history", "gemm", "--metric", "achieved_bytes_per_s", "--fail-on-regression", "--format", "json")
        document = json.loads(rate.stdout)
        assert (rate.returncode, len(document["history"]), len(document["regressions"])) == (1, 14, 1)
        assert document["regressions"][0]["since_commit"] == f"{9:040x}"

        for accepted in (("--threshold", "20%"), ("--recent", "4")):
            assert kernalyse("history", "gemm", "--fail-on-regression", *accepted).returncode == 0
        markdown = kernalyse("history", "gemm", "--format", "markdown")
        assert markdown.stdout.startswith("- 1 history, 1 with a change.\n")
        for wrong in (("--metric", "speed"), ("--threshold", "much"), ("--device", "cuda:9")):
            assert kernalyse("history", "gemm", "--fail-on-regression", *wrong).returncode == 2
