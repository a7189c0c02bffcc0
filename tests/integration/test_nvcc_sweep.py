"""Sweeps on the NVCC backend, from the request to the record; under its programs a stand-in for the CUDA runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

import pytest

from kernalyse.services.core.errors import CompileError, WorkerCrashedError
from kernalyse.services.core.model import (
    ArgumentDefinition,
    ArtifactStored,
    Axis,
    BufferDefinition,
    BufferRole,
    CacheMode,
    ConfigurationFailed,
    DataType,
    EventPayload,
    KernelDefinition,
    KernelSelection,
    KernelSource,
    KernelSweep,
    LaunchDefinition,
    LogLines,
    Measurement,
    MeasuringOptions,
    ParameterDefinition,
    SampleBatch,
    TimingMethod,
    VerificationState,
)
from kernalyse.services.profiler.backends.cuda.compiler import read_report
from kernalyse.services.profiler.backends.cuda.nvcc_backend import NvccSession
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.processes.children import SILENCE_LIMIT_VARIABLE
from kernalyse.services.profiler.workloads.sweeps.plan import plan_sweep
from kernalyse.services.profiler.workloads.sweeps.run import run_sweep
from tests.integration.nvcc_stand_in import (
    ABORTS,
    ACT,
    COLD_NS,
    DEVICE,
    FAULTS,
    HANGS,
    HOT_NS,
    PRINTS_MUCH,
    StandInBuilder,
    needs_nvcc,
)

pytestmark = needs_nvcc

PLAIN = 9  # as 0
CLOCK_HZ = 1.5e9  # the stand-in's
SHORT = MeasuringOptions(min_duration_ns=1_000_000, max_duration_ns=100_000_000, cache_mode=CacheMode.HOT)

Event = TypeVar("Event")
OpenSession = Callable[[Mapping[str, str]], NvccSession]


class _Sink:
    def __init__(self) -> None:
        self.events: list[EventPayload] = []

    def write(self, payload: EventPayload) -> None:
        self.events.append(payload)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def open_session() -> Iterator[OpenSession]:
    opened: list[NvccSession] = []

    def open_one(environment: Mapping[str, str]) -> NvccSession:
        opened.append(NvccSession(replace(DEVICE, driver_version="580.1", toolkit_version="13.0"), 0, StandInBuilder(), environment))
        return opened[-1]

    yield open_one
    for session in opened:
        session.close()


@pytest.fixture
def session(open_session: OpenSession) -> NvccSession:
    return open_session({})


def _sweep(
    whats: tuple[int, ...] = (0,), *, source: KernelSource = ACT, measuring: MeasuringOptions = SHORT, counts: tuple[int, ...] = (1000,)
) -> KernelSweep:
    """y = alpha * x + y where `what` is 0, else whatever the stand-in makes of it."""
    definition = KernelDefinition(
        kernel_name="act",
        source_file_name=source.file_name,
        launch=LaunchDefinition(block=("128",), grid=("8",)),
        parameters=(ParameterDefinition("what", whats, min_value=0), ParameterDefinition("n", counts)),
        buffers=(
            BufferDefinition("x", ("n",), DataType.FLOAT32, BufferRole.INPUT),
            BufferDefinition("y", ("n",), DataType.FLOAT32, BufferRole.INPUT_OUTPUT),
        ),
        arguments=(ArgumentDefinition("alpha", "2.0"),),
        reference="saxpy",
    )
    return KernelSweep(kernels=(KernelSelection("act", source, definition),), measuring=measuring)


def _run(sweep: KernelSweep, session: NvccSession, directory: Path) -> _Sink:
    sink = _Sink()
    run_sweep(sweep, plan_sweep(sweep, load_catalog(), 100), session, sink, directory)
    return sink


# ---------------------------------------------------------------- the record


@pytest.mark.parametrize(
    ("cache_mode", "asked", "method", "launch_counts", "duration_ns"),
    [
        (CacheMode.COLD, TimingMethod.AUTO, TimingMethod.SINGLE, {1}, COLD_NS),
        (CacheMode.HOT, TimingMethod.SINGLE, TimingMethod.SINGLE, {1}, HOT_NS),
        (CacheMode.HOT, TimingMethod.BATCHED, TimingMethod.BATCHED, {20, 21}, HOT_NS),
        (CacheMode.HOT, TimingMethod.AUTO, TimingMethod.GRAPH, {20, 21}, HOT_NS),
    ],
)
def test_a_measurement_has_all_that_the_method_asks_for(
    session: NvccSession,
    cache_mode: CacheMode,
    asked: TimingMethod,
    method: TimingMethod,
    launch_counts: set[int],
    duration_ns: float,
    tmp_path: Path,
) -> None:
    sink = _run(_sweep(measuring=replace(SHORT, cache_mode=cache_mode, timing_method=asked)), session, tmp_path)
    (measured,) = sink.of(Measurement)
    assert (measured.cache_mode, measured.timing_method) == (cache_mode, method)
    assert measured.launches_per_sample in launch_counts  # as many as take 100 us
    assert measured.is_blocked
    assert (measured.verification.state, measured.recheck) == (VerificationState.PASSED, measured.verification)
    assert measured.sm_clock_hz == pytest.approx(CLOCK_HZ, rel=1e-3)
    assert measured.compiler_options == "-arch=sm_90 -lineinfo"
    assert (measured.driver_version, measured.toolkit_version) == ("580.1", "13.0")
    durations = [value for name, value in asdict(measured).items() if name.startswith("duration_") and "deviation" not in name]
    assert durations == pytest.approx([duration_ns] * len(durations))
    batches = sink.of(SampleBatch)
    assert sum(len(batch.duration_ns) for batch in batches) == measured.sample_count
    assert all(len(batch.sm_clock_hz) == len(batch.duration_ns) for batch in batches)


def test_a_measurement_has_the_resources_of_its_launch(session: NvccSession, tmp_path: Path) -> None:
    (measured,) = _run(_sweep(), session, tmp_path).of(Measurement)
    assert measured.resources is not None
    assert None not in asdict(measured.resources).values()
    assert measured.resources.theoretical_occupancy_ratio == 0.5
    assert measured.resources.spill_store_bytes == 0


def test_what_the_compiler_made_is_stored(session: NvccSession, tmp_path: Path) -> None:
    sink = _run(_sweep(), session, tmp_path)
    artifacts = {artifact.artifact_name for artifact in sink.of(ArtifactStored)}
    assert artifacts >= {"act.ptx", "act.ptxas.txt"}
    report = (tmp_path / "artifacts" / "act.ptxas.txt").read_text()
    assert list(read_report(report)) == ["_Z3actiifPKfPf"]
    assert ".target sm_90" in (tmp_path / "artifacts" / "act.ptx").read_text()


def test_remarks_of_the_compiler_are_in_the_runs_log(session: NvccSession, tmp_path: Path) -> None:
    text = ACT.text.replace("{ y[VARIANT]", "{ int unused; y[VARIANT]")
    sink = _run(_sweep(source=KernelSource("act.cu", text)), session, tmp_path)
    (lines,) = (log.lines for log in sink.of(LogLines) if log.source == "compiler")
    assert 'variable "unused" was declared but never referenced' in "".join(lines)


# ---------------------------------------------------------------- what goes wrong


def test_a_sweep_goes_on_after_faults_and_hangs(open_session: OpenSession, tmp_path: Path) -> None:
    sink = _run(_sweep((0, FAULTS, HANGS, ABORTS, PLAIN)), open_session({SILENCE_LIMIT_VARIABLE: "1"}), tmp_path)
    assert [event.error.reason for event in sink.of(ConfigurationFailed)] == ["WORKER_CRASHED", "TIME_LIMIT", "WORKER_CRASHED"]
    assert len(sink.of(Measurement)) == 2


def test_a_sweep_ends_with_a_session_that_is_lost(session: NvccSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(NvccSession, "is_lost", True)
    sink, sweep = _Sink(), _sweep((0, FAULTS, PRINTS_MUCH))
    with pytest.raises(WorkerCrashedError, match="cudaErrorIllegalAddress"):
        run_sweep(sweep, plan_sweep(sweep, load_catalog(), 100), session, sink, tmp_path)
    assert len(sink.of(Measurement)) == len(sink.of(ConfigurationFailed)) == 1


def test_a_program_that_exits_before_its_kernel_says_so(session: NvccSession, tmp_path: Path) -> None:
    text = ACT.text + "#include <cstdlib>\nstruct Exits { Exits() { std::exit(3); } };\nstatic Exits exits;\n"
    with pytest.raises(WorkerCrashedError, match=r"kernel act on a stand-in: found the end of the program that runs it: exit code 3"):
        _run(_sweep(source=KernelSource("act.cu", text)), session, tmp_path)


def test_a_kernel_that_prints_much_is_measured_all_the_same(
    session: NvccSession, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    measuring = replace(SHORT, max_sample_count=20, timing_method=TimingMethod.SINGLE)
    (measured,) = _run(_sweep((PRINTS_MUCH,), measuring=measuring), session, tmp_path).of(Measurement)
    assert measured.verification.state is VerificationState.PASSED
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err) > 20 * 100_000


def test_a_compile_error_names_the_configuration_and_shows_the_compilers_line(session: NvccSession, tmp_path: Path) -> None:
    text = ACT.text.replace("y[VARIANT] = alpha", "y[0] = TILE == 16 ? alpha : missing")
    sweep = replace(_sweep(source=KernelSource("act.cu", text)), macro_axes=(Axis("TILE", (16, 32)),))
    with pytest.raises(CompileError, match=r"kernel act TILE=16 of act\.cu for sm_90: nvcc says:\n.*act\.cu\(4\): error: .*missing"):
        _run(sweep, session, tmp_path)


def test_a_size_that_does_not_fit_is_refused_with_the_largest_that_does(session: NvccSession, tmp_path: Path) -> None:
    sink = _run(_sweep(counts=(1_000, 1_200_000)), session, tmp_path)
    (failed,) = sink.of(ConfigurationFailed)
    assert failed.error.reason == "MEMORY_LIMIT"
    assert "4800000 bytes asked for; expected 1 to 2097152 bytes, the largest that fits now" in failed.error.message
    assert len(sink.of(Measurement)) == 1
