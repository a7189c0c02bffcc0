"""A kernel that hands out its first result from memory of its own, which only an NVIDIA device gives it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernalyse.services.core.model import BackendName, Measurement, StateChanged, VerificationState
from tests.integration.cheating_kernels import HONEST, SKIPPING, STATIC, sweep
from tests.integration.devices import found_devices
from tests.integration.test_worker import run_worker


@pytest.fixture(scope="module", params=[BackendName.PYCUDA, BackendName.NVCC])
def backend(request: pytest.FixtureRequest) -> BackendName:
    devices, notices = found_devices()
    name: BackendName = request.param
    if not any(name in device.backends for device in devices):
        pytest.skip(f"no NVIDIA device for {name}: {' '.join(notices)}")
    return name


@pytest.mark.parametrize(
    ("text", "state"),
    [(HONEST, VerificationState.PASSED), (SKIPPING, VerificationState.FAILED), (STATIC, VerificationState.FAILED)],
    ids=["honest", "skipping", "static"],
)
def test_results_are_checked_again_with_fresh_inputs(text: str, state: VerificationState, backend: BackendName, tmp_path: Path) -> None:
    ended = run_worker(replace(sweep(text), backend=backend, device_id="cuda:0"), tmp_path, ceilings_file=tmp_path / "ceilings.json")
    assert [change.error for change in ended.of(StateChanged) if change.error is not None] == []
    (measurement,) = ended.of(Measurement)
    assert measurement.verification.state is state
    if state is VerificationState.FAILED:
        assert measurement.verification.message.startswith("With fresh inputs after timing: ")
