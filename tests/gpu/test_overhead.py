"""What a configuration costs beside Kernel Tuner, beyond the kernel's own time: the same sweep by both, in turns, in one process each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernalyse.services.core.model import BackendName
from tests.gpu.conftest import RecordFigure, require
from tests.gpu.test_medians import is_installed

ROOT = Path(__file__).parents[2]
EXTENT = 256
MAX_RATIO = 0.2
TOOL_LIMIT_S = 90.0

PROGRAM = """
import json, sys, warnings
from pathlib import Path
from kernalyse.services.profiler.backends.cuda.pycuda_backend import PyCudaBackend
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from tests.benchmarks.configuration_overhead import GPU_BLOCKS, KERNEL, sweep_with_kernalyse, tuned
warnings.simplefilter("ignore")
side, extent = sys.argv[1], int(sys.argv[2])
text = load_catalog().source(KERNEL).text
session = PyCudaBackend(Path(sys.argv[3])).open() if side == "kernalyse" else None
costs = [
    tuned(text, extent, GPU_BLOCKS, lang="CUPY", compiler_options=["-std=c++17"]) if session is None
    else sweep_with_kernalyse(session, extent, GPU_BLOCKS)
    for _ in range(2)
]
print(json.dumps([costs[-1].configuration_count, costs[-1].overhead_ms, costs[-1].overhead_with_compile_ms]))
"""


def cost_ms(side: str, cache_directory: Path) -> tuple[int, float, float]:
    """The second sweep of a process: number of configurations, and ms of each without and with compiling."""
    command = [sys.executable, "-c", PROGRAM, side, str(EXTENT), str(cache_directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=False)
    said = (done.stdout + done.stderr).strip()
    last_line = said.rpartition("\n")[2]
    assert done.returncode == 0, f"{last_line}\n{said[-3000:]}"
    count, without, within = json.loads(done.stdout.splitlines()[-1])
    return count, without, within


@pytest.mark.timeout(200)
def test_a_configuration_costs_a_fifth_of_what_kernel_tuner_takes(cache_directory: Path, figure: RecordFigure) -> None:
    require(BackendName.PYCUDA)
    if not is_installed("kernel_tuner") or not is_installed("cupy"):
        pytest.skip("needs kernel-tuner and cupy")
    own_count, own_ms, own_compiled_ms = cost_ms("kernalyse", cache_directory)
    count, tuner_ms, tuner_compiled_ms = cost_ms("kernel_tuner", cache_directory)
    figure(
        "overhead",
        configurations=own_count,
        own_ms=own_ms,
        kernel_tuner_ms=tuner_ms,
        ratio=own_ms / tuner_ms,
        own_with_compiling_ms=own_compiled_ms,
        kernel_tuner_with_compiling_ms=tuner_compiled_ms,
    )
    assert own_count == count
    assert own_ms <= MAX_RATIO * tuner_ms
