"""GPT on a real device: beside the same model in PyTorch, and its layers as Nsight Systems sees them.

That its logits are right is proven by tests/integration/test_gpt.py, which runs on PYCUDA too.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from kernalyse.services.core.model import BackendName, CacheMode
from kernalyse.services.profiler.backends.base import PassSession
from kernalyse.services.profiler.workloads.gpt.operations import plan_pass
from kernalyse.services.profiler.workloads.gpt.spec import VARIANTS
from tests.gpu.conftest import RecordFigure, opened, require
from tests.gpu.model_passes import loaded_pass, problem_of

MAX_TORCH_RATIO = 1.5
TOOL_LIMIT_S = 60.0
PASS_COUNT = 3
SAMPLE_COUNT = 200


@pytest.mark.timeout(100)
@pytest.mark.parametrize("model_name", ["gpt-tile-medium", "gpt-tile-large"])
def test_the_fused_variant_keeps_up_with_pytorch(model_name: str, tmp_path: Path, cache_directory: Path, figure: RecordFigure) -> None:
    if find_spec("torch") is None:
        pytest.skip("needs torch")
    session = opened(BackendName.PYCUDA, cache_directory)
    assert isinstance(session, PassSession)
    medians_ns = {}
    for variant in VARIANTS:
        with loaded_pass(model_name, variant, session) as (model, loaded):
            logits = model.logits(loaded)
            session.time_passes(loaded.launches, CacheMode.HOT, 20)
            medians_ns[variant] = float(np.median(session.time_passes(loaded.launches, CacheMode.HOT, SAMPLE_COUNT).duration_ns))
    session.close()
    result_file = tmp_path / "torch.json"
    command = [sys.executable, "-m", "tests.gpu.timed_by_torch", model_name, str(result_file)]
    subprocess.run(command, check=True, timeout=TOOL_LIMIT_S)
    torch = json.loads(result_file.read_text())
    wanted = np.array(torch["logits"])
    assert np.abs(logits[0] - wanted).max() <= 1e-4 * np.abs(wanted).max()
    ratio = medians_ns["fused"] / torch["eager_ns"]
    figure(
        "beside_pytorch",
        model=model_name,
        baseline_ns=medians_ns["baseline"],
        fused_ns=medians_ns["fused"],
        pytorch_eager_ns=torch["eager_ns"],
        pytorch_graph_ns=torch["graph_ns"],
        ratio_to_eager=ratio,
        torch=torch["torch"],
    )
    assert ratio <= MAX_TORCH_RATIO


@pytest.mark.timeout(100)
@pytest.mark.parametrize("variant", VARIANTS)
def test_nsys_maps_each_launch_to_the_layer_that_the_run_tells(variant: str, tmp_path: Path, cache_directory: Path) -> None:
    require(BackendName.PYCUDA)
    if shutil.which("nsys") is None:
        pytest.skip("needs nsys")
    session = opened(BackendName.PYCUDA, cache_directory)
    planned = plan_pass(problem_of("gpt-nano", session), variant, 0, CacheMode.HOT, ())
    session.close()
    report = tmp_path / "passes"
    program = [sys.executable, "-m", "tests.gpu.model_passes", "gpt-nano", variant, str(PASS_COUNT)]
    options = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--export=sqlite", f"--output={report}"]
    subprocess.run(["nsys", "profile", *options, *program], check=True, timeout=TOOL_LIMIT_S, capture_output=True)
    told = [(step.configuration.layer_path, step.plan.definition.function) for step in planned.steps]
    assert layers_of_launches(report.with_suffix(".sqlite")) == told * PASS_COUNT


def layers_of_launches(file: Path) -> list[tuple[str, str]]:
    """For each kernel launch, in order: the innermost range around the call that launched it, and the kernel's name."""
    rows = sqlite3.connect(file).execute(
        """
        SELECT (SELECT COALESCE(n.text, t.value) FROM NVTX_EVENTS n LEFT JOIN StringIds t ON t.id = n.textId
                WHERE n.globalTid = r.globalTid AND n.start <= r.start AND n.end >= r.end ORDER BY n.start DESC LIMIT 1),
               s.value
        FROM CUPTI_ACTIVITY_KIND_KERNEL k
        JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId
        JOIN StringIds s ON s.id = k.shortName
        ORDER BY k.start
        """
    )
    return [(layer, kernel) for layer, kernel in rows if layer is not None]
