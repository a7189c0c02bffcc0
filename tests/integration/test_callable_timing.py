"""`kernalyse.bench` in a program that has a GPU library open: the driver's events, on the stream that is current there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.integration.nvcc_stand_in import needs_nvcc, stand_in_driver

PROGRAM = """
import json, sys, time
from types import ModuleType, SimpleNamespace
import kernalyse

is_initialized = sys.argv[1] == "initialized"
stream = SimpleNamespace(cuda_stream=7)
torch = ModuleType("torch")
torch.version = SimpleNamespace(cuda="13.0")
torch.cuda = SimpleNamespace(
    is_available=lambda: True, is_initialized=lambda: is_initialized, synchronize=lambda: None, current_stream=lambda: stream
)
sys.modules["torch"] = torch

def work():
    end_ns = time.perf_counter_ns() + 100_000
    while time.perf_counter_ns() < end_ns:
        pass

bench = kernalyse.bench(work, measuring=kernalyse.Measuring(min_duration_s=0, max_duration_s=0.2, max_sample_count=200))
figures = {"timed_by": bench.timed_by, "device_id": bench.device.device_id, "cache_mode": bench.measurement.cache_mode}
print(json.dumps(figures | {"fastest_ns": bench.measurement.duration_min_ns, "notice": bench.notice}))
"""


@needs_nvcc
@pytest.mark.parametrize(
    ("state", "timed_by", "device_id", "cache_mode"),
    [
        ("initialized", "CUDA events on the current stream of PyTorch", "cuda:0", "COLD"),
        ("not yet", "the host's clock (time.perf_counter_ns)", "host", "HOT"),
    ],
)
def test_the_library_that_is_in_use_names_the_stream(state: str, timed_by: str, device_id: str, cache_mode: str) -> None:
    environment = os.environ | {"LD_LIBRARY_PATH": str(stand_in_driver())}
    done = subprocess.run([sys.executable, "-c", PROGRAM, state], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["timed_by"], found["device_id"], found["cache_mode"]) == (timed_by, device_id, cache_mode)
    assert found["fastest_ns"] >= 99_000  # events of the stand-in have 32 bits of milliseconds
    assert found["notice"]
