"""Kernels that claim more than they do, on a real OpenCL device: caught by their results, or by the device's ceilings."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from kernalyse.services.core.model import BufferDefinition, ConfigurationFailed, KernelSweep, Measurement, Pairing, VerificationState
from tests.command import Done, kernalyse
from tests.integration.cheating_kernels import BUFFERS, HONEST, RECALLING, SKIPPING, STATIC, sweep
from tests.integration.test_cli import QUICK
from tests.integration.test_worker import QUICK as QUICK_OPTIONS
from tests.integration.test_worker import own_kernel, run_worker, sweep_of

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")


def measured(work: KernelSweep, directory: Path) -> list[Measurement]:
    ended = run_worker(work, directory)
    assert ended.exit_code == 0
    return ended.of(Measurement)


def test_an_honest_kernel_is_right_before_and_after(tmp_path: Path) -> None:
    (measurement,) = measured(sweep(HONEST), tmp_path)
    assert measurement.verification.state is VerificationState.PASSED
    assert measurement.recheck is not None
    assert measurement.recheck.state is VerificationState.PASSED


@pytest.mark.parametrize(("text", "buffers"), [(SKIPPING, BUFFERS[:2]), (RECALLING, BUFFERS)], ids=["skipping", "recalling"])
def test_work_that_is_done_only_once_is_caught_with_fresh_inputs(text: str, buffers: tuple[BufferDefinition, ...], tmp_path: Path) -> None:
    (measurement,) = measured(sweep(text, buffers), tmp_path)
    assert measurement.verification.state is VerificationState.FAILED
    assert measurement.verification.message.startswith("With fresh inputs after timing: ")


@pytest.mark.slow
def test_a_kernel_that_skips_is_caught_beside_an_honest_one_with_which_it_shares_its_buffers(tmp_path: Path) -> None:
    """The honest side has just written the right results for the fresh inputs where the other one only has to leave them."""
    kernels = tuple(
        own_kernel(text, name, function_name="copied", buffers=BUFFERS[:2], reference="stream_copy")
        for name, text in (("honest", HONEST), ("skipping", SKIPPING))
    )
    work = sweep_of(*kernels, pairing=Pairing(), measuring=replace(QUICK_OPTIONS, min_duration_ns=0))
    honest, skipping = sorted(measured(work, tmp_path), key=lambda measurement: measurement.configuration_index)
    assert honest.verification.state is VerificationState.PASSED
    assert skipping.verification.state is VerificationState.FAILED


def test_static_device_memory_is_refused_where_it_cannot_be(tmp_path: Path) -> None:
    """A GPU takes it, and tests/gpu shows it caught there."""
    (failure,) = run_worker(sweep(STATIC), tmp_path).of(ConfigurationFailed)
    assert "the __device__ variable kept" in failure.error.message


# ---------------------------------------------------------------- more than the device can

CHAIN: Final = """
__global__ void chain(const float *x, float *y, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N) return;
    float value = x[i];
    for (int round = 0; round < 2000; round++) value = fmaf(value, 0.5f, 0.5f);
    y[i] = value;
}
"""
TRUE_FLOP: Final = "4000*N"
CLAIMED_FLOP: Final = "10000000*N"
"""Far more than done, for one chain reaches a hundredth of the ceiling, and a busy host may leave it a part of its time."""

CLAIMED_BYTES: Final = "40000000*N"


def bench(directory: Path, server: tuple[str, ...], *claims: str) -> Done:
    (directory / "chain.cu").write_text(CHAIN)
    return kernalyse("bench", f"{directory / 'chain.cu'}:chain", "-p", "N=65536", "--backend", "opencl", *QUICK, *claims, *server)


@pytest.mark.slow
def test_more_flop_and_bytes_than_the_device_can_are_marked_everywhere(server: tuple[str, ...], tmp_path: Path) -> None:
    honest = bench(tmp_path, server, "--flop", TRUE_FLOP, "--bytes", "8*N")
    assert honest.returncode == 0, honest.stderr
    assert "implausible" not in honest.stdout

    for claims, words in ((("--flop", CLAIMED_FLOP), "It computes"), (("--bytes", CLAIMED_BYTES), "It moves")):
        done = bench(tmp_path, server, *claims)
        assert done.returncode == 0, done.stderr
        assert f"implausible: chain N=65536: {words}" in done.stdout
        tables: dict[str, list[dict[str, Any]]] = json.loads(
            kernalyse("show", "last", "roofline", "kernels", "--format", "json", *server).stdout
        )
        assert tables["roofline"][-1]["is_implausible"] is True
        assert tables["roofline"][-1]["implausible_reason"].startswith(words)
        assert tables["kernels"][0]["implausible_count"] == 1
    assert "  implausible  " in kernalyse("show", "last", "roofline", *server).stdout
