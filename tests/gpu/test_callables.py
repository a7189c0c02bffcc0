"""`kernalyse.bench` of PyTorch's and Triton's work beside `triton.testing.do_bench`."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import pytest

import kernalyse
from tests.gpu.conftest import RecordFigure

TOLERANCE, MIN_NS = 0.02, 100_000.0  # do_bench's events have launch gaps between them, which longer work hides
MEASURING = kernalyse.Measuring(cache="cold", min_duration_s=0.2, max_duration_s=2)

pytestmark = pytest.mark.skipif(find_spec("torch") is None or find_spec("triton") is None, reason="needs torch and triton")


@pytest.mark.parametrize("size", [2048, 4096])
def test_medians_are_those_of_do_bench(size: int, figure: RecordFigure) -> None:
    torch: Any = importlib.import_module("torch")
    testing: Any = importlib.import_module("triton.testing")
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    bench = kernalyse.bench(lambda: left @ right, name="matmul", flop=2 * size**3, dtype="bfloat16", measuring=MEASURING)
    reference_ns = testing.do_bench(lambda: left @ right, warmup=50, rep=200, return_mode="median") * 1e6
    figure("callable beside do_bench", size=size, median_ns=bench.median_ns, do_bench_ns=reference_ns)
    assert bench.timed_by.endswith("PyTorch")
    assert bench.device.device_id == "cuda:0"
    assert bench.measurement.sm_clock_hz
    assert abs(bench.median_ns - reference_ns) <= max(TOLERANCE * reference_ns, TOLERANCE * MIN_NS)


def test_a_side_stream_is_timed_and_twice_the_work_is_slower() -> None:
    torch: Any = importlib.import_module("torch")
    values = torch.randn(2**24, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        comparison = kernalyse.compare(lambda: values.sin_().sin_(), values.sin_, names=("twice", "once"), measuring=MEASURING)
    assert comparison.verdict == "SLOWER"
    assert 1.8 < comparison.duration_ratio < 2.2
