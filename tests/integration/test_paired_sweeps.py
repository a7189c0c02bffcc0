"""`bench A B --paired` on a real OpenCL device: blocks that take turns, the verdict on them, and what a faulty side leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kernalyse.services.core.errors import CompileError, KernalyseError, UnmetConditionError, WorkerCrashedError
from kernalyse.services.core.model import (
    Axis,
    Configuration,
    ConfigurationFailed,
    Dim3,
    EventPayload,
    KernelSelection,
    KernelSweep,
    Measurement,
    MeasuringOptions,
    PairedComparison,
    Pairing,
    Progress,
    SampleBatch,
    StopReason,
    Verdict,
)
from kernalyse.services.profiler.backends.base import DeviceSession, PreparedLaunch, TimedSamples, Timing
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.measuring import paired as turns_module
from kernalyse.services.profiler.processes.event_pipe import CrashMarker, MarkedTrial, read_crash_marker
from kernalyse.services.profiler.workloads.sweeps.plan import plan_sweep
from kernalyse.services.profiler.workloads.sweeps.run import run_sweep
from tests.command import kernalyse
from tests.integration.test_worker import own_kernel, sweep_of

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

QUICK = MeasuringOptions(min_duration_ns=20_000_000, max_duration_ns=1_000_000_000)
CHAIN = (
    "__global__ void NAME(const float *a, float *b, int N) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= N) return;"
    " float sum = 0.0f; for (int step = 0; step < STEPS; ++step) sum = a[i] * sum + 1.0f; b[i] = sum; }"
)
EXTENT = 4_096
T = TypeVar("T")


def chain(name: str, step_count: int) -> KernelSelection:
    return own_kernel(CHAIN.replace("NAME", name).replace("STEPS", str(step_count)), name)


def paired(*kernels: KernelSelection, **changes: Any) -> KernelSweep:
    changes = {"axes": (Axis("N", (EXTENT,)),), "measuring": QUICK, "pairing": Pairing()} | changes
    return sweep_of(*kernels, **changes)


@dataclass(slots=True)
class Events:
    payloads: list[EventPayload] = field(default_factory=list)

    def write(self, payload: EventPayload) -> None:
        self.payloads.append(payload)

    def of(self, cls: type[T]) -> list[T]:
        return [payload for payload in self.payloads if isinstance(payload, cls)]


@dataclass(slots=True)
class Watched:
    """The real session; notes which launch is timed and fails in the turn that a test names."""

    session: DeviceSession
    launches: list[PreparedLaunch] = field(default_factory=list)
    turn: int = 0  # counts up when another launch is timed than before
    fails_in_turn: int | None = None
    error: KernalyseError = field(default_factory=lambda: UnmetConditionError("the device", found="a fault that the test made"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    @property
    def is_lost(self) -> bool:
        return self.fails_in_turn is None and isinstance(self.error, WorkerCrashedError)

    def time(self, launch: PreparedLaunch, timing: Timing, count: int) -> TimedSamples:
        self.turn += not self.launches or launch is not self.launches[-1]
        self.launches.append(launch)
        if self.turn == self.fails_in_turn:
            self.fails_in_turn = None
            raise self.error
        return self.session.time(launch, timing, count)


@pytest.fixture(scope="module")
def device_session() -> Iterator[DeviceSession]:
    from kernalyse.services.profiler.backends.opencl.backend import OpenCLBackend

    backend = OpenCLBackend()
    if not backend.devices():
        pytest.skip("no OpenCL device: pip install 'kernalyse[opencl]'")
    opened = backend.open()
    yield opened
    opened.close()


@pytest.fixture
def session(device_session: DeviceSession) -> Watched:
    return Watched(device_session)


def run(sweep: KernelSweep, session: Any, directory: Path) -> Events:
    events = Events()
    run_sweep(sweep, plan_sweep(sweep, load_catalog(), 100), session, events, directory)
    return events


def test_twice_the_work_is_slower_and_half_of_it_is_faster(session: Watched, tmp_path: Path) -> None:
    events = run(paired(chain("one", 400), chain("two", 800)), session, tmp_path)
    (slower,) = events.of(PairedComparison)
    assert (slower.verdict, slower.baseline_configuration_index, slower.configuration_index) == (Verdict.SLOWER, 0, 1), slower.reason
    assert 1 < slower.duration_ratio_low <= slower.duration_ratio <= slower.duration_ratio_high
    assert 1.5 < slower.duration_ratio < 3  # the interval is as wide as the machine is busy
    assert (slower.block_count >= 20, slower.confidence_ratio, slower.cycle_ratio) == (True, 0.99, None)
    (faster,) = run(paired(chain("two", 800), chain("one", 400)), session, tmp_path).of(PairedComparison)
    assert faster.verdict is Verdict.FASTER, faster.reason


def test_both_sides_are_measured_as_any_configuration_and_the_comparison_comes_last(session: Watched, tmp_path: Path) -> None:
    events = run(paired(chain("one", 400), chain("two", 500)), session, tmp_path)
    assert [one.label for one in events.of(Configuration)] == [f"one N={EXTENT}", f"two N={EXTENT}"]
    measurements = events.of(Measurement)
    assert [one.configuration_index for one in measurements] == [0, 1]
    for measurement in measurements:
        batches = [batch for batch in events.of(SampleBatch) if batch.configuration_index == measurement.configuration_index]
        assert sum(len(batch.duration_ns) for batch in batches) == measurement.sample_count
        assert [batch.first_sample_index for batch in batches[1:]] == [
            batch.first_sample_index + len(batch.duration_ns) for batch in batches[:-1]
        ]
        assert measurement.stop_reason in (StopReason.CONFIDENCE_REACHED, StopReason.TIME_LIMIT)
    assert isinstance(events.payloads[-1], PairedComparison)
    last = events.of(Progress)[-1]
    assert (last.completed_configuration_count, last.failed_configuration_count, last.total_configuration_count) == (2, 0, 2)


def test_the_sides_take_turns_in_the_order_abba(session: Watched, tmp_path: Path) -> None:
    (comparison,) = run(paired(chain("one", 400), chain("two", 500)), session, tmp_path).of(PairedComparison)
    first, second = dict.fromkeys(map(id, session.launches))
    turns = [id(launch) for launch in session.launches][-2 * comparison.block_count :]  # at least one a block
    assert all(set(pair) == {first, second} for pair in zip(turns[::2], turns[1::2], strict=True))
    assert all(left[::-1] == right for left, right in pairwise(zip(turns[::2], turns[1::2], strict=True)))


def test_a_short_kernel_and_one_just_too_long_for_batches_are_timed_alike(session: Watched, tmp_path: Path) -> None:
    events = run(paired(chain("brief", 1), chain("lengthy", 20_000)), session, tmp_path)
    brief, lengthy = events.of(Measurement)
    assert brief.timing_method is lengthy.timing_method
    (comparison,) = events.of(PairedComparison)
    assert comparison.verdict is Verdict.SLOWER


def test_each_problem_is_compared_by_itself_in_the_order_listed(session: Watched, tmp_path: Path) -> None:
    sweep = paired(chain("one", 200), chain("two", 400), axes=(Axis("N", (1_024, 4_096)),), order_seed=7)
    events = run(sweep, session, tmp_path)
    pairs = {(one.baseline_configuration_index, one.configuration_index) for one in events.of(PairedComparison)}
    assert pairs == {(0, 2), (1, 3)}


def test_a_side_that_does_not_compile_is_told_and_the_other_measured_by_itself(session: Watched, tmp_path: Path) -> None:
    broken = own_kernel("__global__ void broken(const float *a, float *b, int N) { b[0] = undeclared_name; }", "broken")
    events = run(paired(broken, chain("two", 400)), session, tmp_path)
    assert [(one.configuration_index, one.error.reason) for one in events.of(ConfigurationFailed)] == [(0, CompileError.reason)]
    assert [one.configuration_index for one in events.of(Measurement)] == [1]
    assert events.of(PairedComparison) == []


def test_a_side_that_fails_in_its_turn_leaves_the_other_with_its_own_measurement(session: Watched, tmp_path: Path) -> None:
    session.fails_in_turn = 12
    events = run(paired(chain("one", 400), chain("two", 500)), session, tmp_path)
    (failed,) = events.of(ConfigurationFailed)
    (measured,) = events.of(Measurement)
    assert {failed.configuration_index, measured.configuration_index} == {0, 1}
    assert "a fault that the test made" in failed.error.message
    assert events.of(PairedComparison) == []


@pytest.mark.parametrize("turn", [1, 12])
def test_a_fault_that_takes_the_device_ends_the_sweep(session: Watched, tmp_path: Path, turn: int) -> None:
    session.fails_in_turn, session.error = turn, WorkerCrashedError("kernel one", found="an illegal address")
    sweep = paired(chain("one", 400), chain("two", 500), axes=(Axis("N", (1_024, 4_096)),))
    events = Events()
    with pytest.raises(WorkerCrashedError):
        run_sweep(sweep, plan_sweep(sweep, load_catalog(), 100), session, events, tmp_path)
    assert len(events.of(ConfigurationFailed)) == 1
    assert session.turn == turn  # nothing was launched after it


def test_where_one_side_has_been_measured_before_the_other_is_measured_by_itself(session: Watched, tmp_path: Path) -> None:
    events = run(paired(chain("one", 400), chain("two", 500), done_configuration_indexes=(0,)), session, tmp_path)
    assert [one.configuration_index for one in events.of(Measurement)] == [1]
    assert events.of(PairedComparison) == []


def test_two_blocks_of_one_kernel_are_a_pair_too(session: Watched, tmp_path: Path) -> None:
    sizes = tuple(Axis(name, (128,)) for name in ("M", "N", "K"))
    events = run(paired(KernelSelection("matmul_naive"), axes=sizes, blocks=(Dim3(16, 16), Dim3(1, 1))), session, tmp_path)
    (comparison,) = events.of(PairedComparison)
    assert comparison.verdict is Verdict.SLOWER, comparison.reason


# ---------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_shows_and_writes_the_verdict(server: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "paired.json"
    sizes = [part for name in "MNK" for part in ("-p", f"{name}=128")]
    done = kernalyse("bench", "matmul_naive", "--block", "16x16,1x1", "--paired", "--max-time", "1", *sizes, "--json", file, *server)
    assert done.returncode == 0, done.stderr
    heading, row = (next(line for line in done.stdout.splitlines() if word in line) for word in ("compared", "slower"))
    assert heading.split("  ")[0] == "compared"
    assert "99 % interval" in heading
    for text in ("matmul_naive M=128 N=128 K=128 block=1", "block=16x16", "slower", "of time"):
        assert text in row
    (comparison,) = json.loads(file.read_text())["paired_comparisons"]
    assert (comparison["verdict"], comparison["block_count"] >= 20) == ("SLOWER", True)
    assert "real: Alternating blocks say so." in done.stdout


def test_a_pair_of_three_and_too_few_blocks_are_refused(server: tuple[str, ...]) -> None:
    three = kernalyse("bench", "saxpy", "vector_add", "-p", "N=64", "--block", "32,64", "--paired", *server)
    assert (three.returncode, "expected two of each" in three.stderr) == (1, True), three.stderr
    few = kernalyse("bench", "saxpy", "vector_add", "-p", "N=64", "--paired-blocks", "19", *server)
    assert (few.returncode, "expected at least 20" in few.stderr) == (1, True), few.stderr


LATE = (
    "__global__ void late(const float *a, float *b, int *count, int N) { int i = blockIdx.x * blockDim.x + threadIdx.x;"
    " if (i < N) b[i] = a[i] + 1.0f; if (i != 0) return; int done = count[0] < 0 || count[0] > 1000000 ? 0 : count[0];"
    " count[0] = done + 1; if (done > 3000) { volatile float *nowhere = (volatile float *)(8UL * N); *nowhere = 1.0f; } }\n"
)


def test_a_side_that_ends_the_worker_in_its_turn_is_the_one_that_failed(server: tuple[str, ...], tmp_path: Path) -> None:
    source = tmp_path / "late.cu"
    source.write_text(CHAIN.replace("NAME", "steady").replace("STEPS", "1") + LATE)
    kernels = (f"{source}:steady", f"{source}:late")
    done = kernalyse("bench", *kernels, "-p", "N=1024", "--buffer", "count=1", "--paired", *server)
    assert done.returncode == 1
    assert "in a trial of late N=1024: found SIG" in " ".join(done.stderr.split()), done.stderr
    shown = kernalyse("show", "last", "failures", "--format", "json", *server)
    (failed,) = json.loads(shown.stdout)["failures"]
    assert (failed["label"], failed["reason"]) == ("late N=1024", "WORKER_CRASHED")


def test_whose_turn_it_was_is_left_by_a_process_that_was_ended(tmp_path: Path) -> None:
    turns = [MarkedTrial(0, "one with a longer name N=4096", is_measurement=True), MarkedTrial(1, "two N=4096", is_measurement=False)]
    with CrashMarker(tmp_path, turns) as note:
        assert read_crash_marker(tmp_path) is None
        for index in (0, 1, 0, 1):
            note.write(index)
            assert read_crash_marker(tmp_path) == turns[index]
    assert read_crash_marker(tmp_path) is None


def test_a_comparison_without_samples_gives_signs_of_life(session: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "HEARTBEAT_INTERVAL_NS", 100_000_000)
    events = run(paired(chain("one", 400), chain("two", 400)), session, tmp_path)
    assert len([one for one in events.of(Progress) if one.activity.startswith("comparing")]) > 1
