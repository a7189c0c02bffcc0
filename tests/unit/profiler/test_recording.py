"""Recordings: what the package brings, and how runs are replayed."""

from __future__ import annotations

import gzip
import hashlib
import re
import zipfile
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from kernalyse.services.core.errors import InvalidSettingError, UnmetConditionError
from kernalyse.services.core.model import (
    ArtifactStored,
    EventPayload,
    KernelSelection,
    KernelSweep,
    LogLines,
    Measurement,
    RunSpec,
    SampleBatch,
    StateChanged,
    Telemetry,
)
from kernalyse.services.profiler.workloads.recording import H200, Recording, replay

MAX_BYTES = 2_000_000
TITLES = ("matrix product", "GPT training", "GPT as CUDA graph", "demo sweep")
START_UNIX_NS = 2_000_000_000_000_000_000


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.open(H200)


class Replayed:
    """A replay by a clock that stands still but for its waits."""

    def __init__(self, recording: Recording, title: str, directory: Path) -> None:
        self.now_ns = 0
        self.payloads: list[tuple[int, EventPayload]] = []
        spec = next(run.spec for run in recording.runs if run.spec.title.endswith(title))
        clocks = {"clock_ns": lambda: self.now_ns, "unix_clock_ns": lambda: START_UNIX_NS + self.now_ns}
        replay(recording, spec, directory, self, sleep=self._sleep, **clocks)

    def write(self, payload: EventPayload) -> None:
        self.payloads.append((self.now_ns, payload))

    def _sleep(self, duration_s: float) -> None:
        self.now_ns += round(duration_s * 1e9)


@pytest.fixture(scope="module")
def product(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> tuple[Replayed, Path]:
    directory = tmp_path_factory.mktemp("run")
    return Replayed(recording, TITLES[0], directory), directory


def test_the_package_brings_four_runs_of_one_device_that_are_labelled(recording: Recording) -> None:
    assert H200.stat().st_size < MAX_BYTES
    assert [run.spec.title for run in recording.runs] == [f"H200 recording: {title}" for title in TITLES]
    assert [device.name for device in recording.devices] == ["NVIDIA H200"]
    assert {recording.measured_on(run) for run in recording.runs} == {date(2026, 11, 27)}


def test_nothing_in_it_tells_the_machine() -> None:
    """No absolute path but those of programs' own names, and no host."""
    with zipfile.ZipFile(H200) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            text = gzip.decompress(data) if name.endswith(".gz") else data
            assert not re.search(rb"/(?:work|root|opt|tmp|home|usr)/", text), name


def test_a_run_comes_as_fast_as_it_came_and_begins_with_a_label(product: tuple[Replayed, Path], recording: Recording) -> None:
    replayed, _ = product
    (_, first), *rest = replayed.payloads
    assert isinstance(first, LogLines)
    assert first.lines == ("Nothing is measured: this is a recording of 2026-11-27, from NVIDIA H200.",)
    recorded = list(recording.events(recording.runs[0]))
    duration_ns = recorded[-1].event_unix_ns - recorded[0].event_unix_ns
    assert rest[-1][0] == pytest.approx(duration_ns, rel=0.01)
    measured = [payload for _, payload in rest if isinstance(payload, Measurement)]
    assert len(measured) == 12


def test_times_are_moved_to_now_and_figures_stay(product: tuple[Replayed, Path], recording: Recording) -> None:
    replayed, _ = product
    recorded = [event.payload for event in recording.events(recording.runs[0])]
    for kind in (SampleBatch, Measurement):
        told = [payload for _, payload in replayed.payloads if isinstance(payload, kind)]
        before = [payload for payload in recorded if isinstance(payload, kind)]
        assert [replace(payload, measured_unix_ns=0) for payload in told] == [replace(payload, measured_unix_ns=0) for payload in before]
    for now_ns, payload in replayed.payloads:
        if isinstance(payload, SampleBatch | Measurement | Telemetry):
            assert 0 <= START_UNIX_NS + now_ns - payload.measured_unix_ns < 5e9  # a large product is checked once more


def test_what_the_service_tells_of_itself_is_left_to_the_one_that_replays(product: tuple[Replayed, Path]) -> None:
    replayed, _ = product
    payloads = [payload for _, payload in replayed.payloads]
    assert not any(isinstance(payload, StateChanged) for payload in payloads)
    assert {payload.device_id for payload in payloads if isinstance(payload, Telemetry)} == {"cuda:0"}


def test_artifacts_are_those_that_events_name(product: tuple[Replayed, Path]) -> None:
    replayed, directory = product
    stored = [payload for _, payload in replayed.payloads if isinstance(payload, ArtifactStored)]
    assert "counters.csv" in [artifact.artifact_name for artifact in stored]
    for artifact in stored:
        data = (directory / "artifacts" / artifact.artifact_name).read_bytes()
        assert (f"sha256:{hashlib.sha256(data).hexdigest()}", len(data)) == (artifact.digest, artifact.size_bytes)


def test_work_that_was_not_recorded_is_refused_with_what_was(recording: Recording) -> None:
    with pytest.raises(UnmetConditionError, match=r"measures nothing.*H200 recording: matrix product; H200 recording: GPT training"):
        recording.find(RunSpec(KernelSweep((KernelSelection("saxpy"),)), title="mine"))


@pytest.mark.parametrize("content", [None, b"no zip", "empty zip"])
def test_a_file_that_is_no_recording_is_named(content: bytes | str | None, tmp_path: Path) -> None:
    path = tmp_path / "some.zip"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        with zipfile.ZipFile(path, "w"):
            pass
    with pytest.raises(InvalidSettingError, match=r"some\.zip.*cannot be read as one"):
        Recording.open(path)
