"""Work of a trace through the command: of a file, and the same of the imported run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import kernalyse
from tests.unit.analyzer.readers.test_kineto import call, kernel, module, operator

TABLES = ("layers", "roofline", "layer_roofline", "ceilings", "opportunities")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    shapes = {"Input Dims": [[512, 256], [256, 128]], "Input type": ["c10::Half", "c10::Half"]}
    events = [
        module("Linear_0", 0, 50),
        operator("aten::mm", 10, 10, **shapes),
        call(12, 1),
        call(100, 2),
        kernel("gemm", 200, 2, 1),
        kernel("own", 203, 1, 2),
    ]
    device = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    path = tmp_path / "step.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events}))
    return path


def shown(subject: str | Path) -> dict[str, list[dict[str, Any]]]:
    done = kernalyse("show", subject, *TABLES, "--format", "json")
    assert done.returncode == 0, done.stderr
    tables: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    for rows in tables.values():
        for row in rows:
            row.pop("run_id", None)
            row.pop("event_index", None)
    return tables


@pytest.mark.slow
@pytest.mark.usefixtures("analyzer_that_runs")
def test_a_file_and_its_run_have_the_same_rooflines_and_opportunities(private_directories: Path, trace: Path) -> None:
    of_file = shown(trace)
    linear, outside = of_file["layers"]
    flop = 2.0 * 512 * 256 * 128
    assert (linear["layer"], linear["flop"], linear["achieved_flop_per_s"]) == ("nn.Module: Linear_0", flop, pytest.approx(flop / 2e-6))
    assert (outside["layer"], outside["flop"], outside["worked_share_ratio"]) == (None, None, 0.0)
    (gemm,) = of_file["roofline"]
    assert (gemm["label"], gemm["device_id"], gemm["path"]) == ("gemm float16", "NVIDIA H200", "tensor")
    # 4.8 TB/s by the datasheet, and 45 flop for each byte are far below the ridge.
    moved = 2.0 * (512 * 256 + 256 * 128 + 512 * 128)
    assert (gemm["bound"], gemm["efficiency_ratio"]) == ("memory", pytest.approx(moved / 2e-6 / 4.8e12))
    assert [row["subject"] for row in of_file["opportunities"] if row["subject_kind"] == "kernel"] == ["gemm", "own"]

    done = kernalyse("import", trace)
    assert done.returncode == 0, done.stderr
    assert shown("last") == of_file
