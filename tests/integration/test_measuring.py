"""Measuring on a real OpenCL device, in this process: timing, memory, ceilings, and the limits of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kernalyse.services.core.errors import CompileError, KernalyseError
from kernalyse.services.core.model import (
    BufferRole,
    Ceiling,
    CeilingsMeasured,
    DataType,
    Device,
    DeviceKind,
    Dim3,
    InputDistribution,
    KernelSource,
    LogLines,
    MeasuringOptions,
    StopReason,
    Verification,
    VerificationState,
)
from kernalyse.services.profiler.backends.base import Build, DeviceSession, LaunchConfiguration
from kernalyse.services.profiler.measuring.benchmark import Batch, Benchmark, Method, Observer
from kernalyse.services.profiler.measuring.buffers import BufferPlan, DeviceBuffers, input_values, poison_values
from kernalyse.services.profiler.measuring.ceiling_bench import CeilingSources
from kernalyse.services.profiler.measuring.ceilings import FMA_FILE, MeasuredCeilings, measure_ceilings
from kernalyse.services.profiler.measuring.device_state import DeviceUse, open_clock_meter
from kernalyse.services.profiler.measuring.verification import compare
from kernalyse.services.profiler.workloads import ceilings
from kernalyse.services.profiler.workloads.ceilings import MAX_AGE_NS, MAX_BUSY_AGE_NS, load_sources, read_ceilings, write_ceilings
from tests.integration.quick_worker import measuring_quickly
from tests.integration.told import Told

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

COUNT = 200_000
SOURCE = KernelSource(
    "twice.cu",
    "__global__ void twice(const float *a, float *b, int N) {"
    " int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < N) b[i] = 2.0f * a[i]; }",
)
PLANS = (
    BufferPlan("a", (COUNT,), DataType.FLOAT32, BufferRole.INPUT),
    BufferPlan("b", (COUNT,), DataType.FLOAT32, BufferRole.OUTPUT),
)


@pytest.fixture(scope="module")
def session() -> Iterator[DeviceSession]:
    from kernalyse.services.profiler.backends.opencl.backend import OpenCLBackend

    backend = OpenCLBackend()
    if not backend.devices():
        pytest.skip("no OpenCL device: pip install 'kernalyse[opencl]'")
    opened = backend.open()
    yield opened
    opened.close()


def test_benchmark_verifies_and_times_a_kernel(session: DeviceSession) -> None:
    buffers = DeviceBuffers(session)
    taken = buffers.take(PLANS)
    inputs = input_values(PLANS[0], 0, InputDistribution.UNIFORM)
    session.upload(taken["a"], inputs)
    session.upload(taken["b"], poison_values(PLANS[1]))
    kernel = session.compile(Build(SOURCE, "twice"), Dim3(256))
    grid = Dim3(-(-COUNT // 256))
    launch = session.prepare(kernel, [taken["a"], taken["b"], np.int32(COUNT)], LaunchConfiguration(Dim3(256), grid))
    output = np.empty(COUNT, np.float32)

    def check() -> Verification:
        session.run(launch)
        session.download(taken["b"], output)
        return compare({"b": output}, {"b": 2 * inputs}, 1e-6)

    batches: list[Batch] = []
    activities: list[str] = []
    method = Method.of(MeasuringOptions(min_duration_ns=100_000_000, max_duration_ns=2_000_000_000), session.device)
    observer = Observer(activities.append, batches.append)
    result = Benchmark(session, launch, method, open_clock_meter(session.device), observer).run(check)
    buffers.release()
    assert result.verification.state is VerificationState.PASSED
    assert activities == ["verifying", "measuring"]
    assert result.stop_reason in (StopReason.CONFIDENCE_REACHED, StopReason.NO_IMPROVEMENT, StopReason.TIME_LIMIT)
    bytes_per_s = 2 * 4 * COUNT / (result.summary.duration_median_ns / 1e9)
    assert 1e8 < bytes_per_s < 1e14  # nanoseconds, not micro- or milliseconds
    waits_ns = np.diff([batch.measured_unix_ns for batch in batches])
    assert np.median(waits_ns) < 500_000_000  # some tens of milliseconds on a quiet machine


@pytest.mark.slow
def test_ceilings_are_those_of_a_real_machine(session: DeviceSession) -> None:
    measured = ceilings_of(session, load_sources())
    ceilings = {ceiling.ceiling_name: ceiling for ceiling in measured.ceilings}
    assert ceilings.keys() == {"dram", "l2", "l1", "float32", "float64"}
    assert measured.problems == ()
    assert 1e9 < ceilings["dram"].value < 1e13
    assert 1e9 < ceilings["float32"].value < 1e15
    assert ceilings["float64"].value < 2 * ceilings["float32"].value
    assert {ceiling.device_id for ceiling in ceilings.values()} == {session.device.device_id}
    assert "triad" in ceilings["dram"].note


def test_ceilings_that_cannot_be_measured_are_left_out_and_none_at_all_is_an_error(session: DeviceSession) -> None:
    good = load_sources()
    broken = KernelSource(FMA_FILE, good[FMA_FILE].text.replace("double", "quadruple"))
    measured = ceilings_of(session, {**good, FMA_FILE: broken})
    assert {ceiling.ceiling_name for ceiling in measured.ceilings} >= {"dram", "l2"}
    assert any("quadruple" in problem for problem in measured.problems)
    with pytest.raises(KernalyseError):
        ceilings_of(session, {name: KernelSource(name, "__global__ void nothing() { undeclared(); }") for name in good})


def test_refused_kernel_leaves_the_session_usable(session: DeviceSession) -> None:
    with pytest.raises(CompileError, match="undeclared"):
        session.compile(Build(KernelSource("bad.cu", "__global__ void bad(float *a) { a[0] = undeclared; }"), "bad"), Dim3(1))
    assert session.compile(Build(SOURCE, "twice"), Dim3(256)).function_name == "twice"


def ceilings_of(session: DeviceSession, sources: CeilingSources) -> MeasuredCeilings:
    with measuring_quickly():
        return measure_ceilings(session, sources, open_clock_meter(session.device), lambda index, plan: None)


# ---------------------------------------------------------------- the file of ceilings


DEVICE = Device("opencl:pocl:0", "a CPU", DeviceKind.CPU, (), driver_version="3.0")
OTHER = Device("opencl:intel:0", "a CPU", DeviceKind.CPU, (), driver_version="2026")
CEILINGS = (Ceiling("opencl:pocl:0", "dram", "bytes_per_s", 2.5e10, "copy", "measured", note="Best of 5."),)
QUIET, BUSY = 0.05, 0.9


def test_kept_ceilings_come_back_for_each_device(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "ceilings.json"
    write_ceilings(file, OTHER, (), QUIET)
    write_ceilings(file, DEVICE, CEILINGS, QUIET)
    assert read_ceilings(file, DEVICE) == taken(CEILINGS, QUIET)
    assert read_ceilings(file, OTHER) == ()
    assert [path.name for path in file.parent.iterdir()] == ["ceilings.json"]


def test_kept_ceilings_expire_after_a_day_and_with_the_driver(tmp_path: Path) -> None:
    file = tmp_path / "ceilings.json"
    write_ceilings(file, DEVICE, CEILINGS, QUIET, now_unix_ns=lambda: 1_000)
    assert read_ceilings(file, DEVICE, now_unix_ns=lambda: 1_000 + MAX_AGE_NS) == taken(CEILINGS, QUIET)
    assert read_ceilings(file, DEVICE, now_unix_ns=lambda: 1_001 + MAX_AGE_NS) == ()
    newer = Device("opencl:pocl:0", "a CPU", DeviceKind.CPU, (), driver_version="3.1")
    assert read_ceilings(file, newer, now_unix_ns=lambda: 1_000) == ()


def test_ceilings_of_a_busy_host_are_measured_again_and_the_higher_one_stays(tmp_path: Path) -> None:
    file = tmp_path / "ceilings.json"
    start = 1_000
    assert write_ceilings(file, DEVICE, CEILINGS, BUSY, now_unix_ns=lambda: start) == taken(CEILINGS, BUSY)
    assert read_ceilings(file, DEVICE, now_unix_ns=lambda: start + MAX_BUSY_AGE_NS) == taken(CEILINGS, BUSY)
    assert read_ceilings(file, DEVICE, now_unix_ns=lambda: start + MAX_BUSY_AGE_NS + 1) == ()
    lower = (replace(CEILINGS[0], value=1e10), replace(CEILINGS[0], ceiling_name="l2", value=6e10))
    both = taken((CEILINGS[0], lower[1]), QUIET)  # no lower than what was measured on the quiet host
    assert write_ceilings(file, DEVICE, lower, QUIET, now_unix_ns=lambda: start + 1) == both
    assert read_ceilings(file, DEVICE, now_unix_ns=lambda: start + 1 + MAX_AGE_NS) == both


class ScriptedHost:
    """How busy other programs keep the host, reading by reading; then as at the last one."""

    def __init__(self, *ratios: float) -> None:
        self._ratios = [*ratios]

    def read(self) -> DeviceUse:
        return DeviceUse(host_busy_ratio=self._ratios.pop(0) if len(self._ratios) > 1 else self._ratios[0])


@pytest.fixture
def measured_values(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Bytes a second of DRAM that the next measurements of ceilings find."""
    values: list[float] = []

    def measure(*_arguments: object) -> MeasuredCeilings:
        return MeasuredCeilings((replace(CEILINGS[0], value=values.pop(0)),), ())

    monkeypatch.setattr(ceilings, "measure_ceilings", measure)
    monkeypatch.setattr(ceilings, "BUSY_INTERVAL_S", 0.0)
    return values


def test_ceilings_of_a_busy_host_say_so_and_are_measured_again_as_soon_as_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured_values: list[float]
) -> None:
    session: Any = SimpleNamespace(device=DEVICE)
    file = tmp_path / "ceilings.json"

    def before_sweep(*host: float) -> tuple[bool, Ceiling, list[str]]:
        sink = Told()
        scripted = ScriptedHost(*host)
        monkeypatch.setattr(ceilings, "open_host_meter", lambda _device: scripted)
        is_settled = ceilings.report_ceilings_before_sweep(session, {}, sink, file, 1)
        ((ceiling,),) = (told.ceilings for told in sink.of(CeilingsMeasured))
        return is_settled, ceiling, [line for told in sink.of(LogLines) for line in told.lines]

    measured_values += [11.5e9, 33.4e9]
    for host in ((0.1, 0.98), (0.6,)):  # the second sweep finds what the first has kept, and a host that is busy still
        is_settled, ceiling, lines = before_sweep(*host)
        assert (is_settled, ceiling.value, ceiling.host_busy_ratio) == (False, 11.5e9, 0.98)
        assert "kept this host 98% busy while its ceilings were measured" in lines[0]
    is_settled, ceiling, lines = before_sweep(0.05, 0.06)
    assert (is_settled, ceiling.value, ceiling.host_busy_ratio, lines) == (True, 33.4e9, 0.06, [])


def test_after_a_sweep_on_a_host_that_stays_busy_it_is_said_that_nothing_was_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "open_host_meter", lambda _device: ScriptedHost(0.7))
    sink, session = Told(), SimpleNamespace(device=DEVICE)
    ceilings.report_ceilings_after_sweep(cast(DeviceSession, session), {}, sink, None)
    assert [line for told in sink.of(LogLines) for line in told.lines] == [
        "The host is 70% busy still: its ceilings are not measured again before the next sweep that finds it quiet."
    ]
    assert sink.of(CeilingsMeasured) == []


def taken(known: tuple[Ceiling, ...], host_busy_ratio: float) -> tuple[Ceiling, ...]:
    return tuple(replace(ceiling, host_busy_ratio=host_busy_ratio) for ceiling in known)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"opencl:pocl:0": 3}', '{"opencl:pocl:0": {"identity": null}}'])
def test_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ceilings.json"
    file.write_text(text)
    assert read_ceilings(file, DEVICE) == ()
    write_ceilings(file, DEVICE, CEILINGS, QUIET)
    assert read_ceilings(file, DEVICE) == taken(CEILINGS, QUIET)
