"""Counters of a sweep with a stand-in for ncu: what is launched once more, what becomes of the report, and every refusal."""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from kernalyse.services.core.model import (
    ArtifactStored,
    Axis,
    BackendName,
    CacheMode,
    CountersStored,
    KernelSelection,
    KernelSweep,
    Progress,
    RunSpec,
)
from kernalyse.services.core.protobuf import encode_bytes
from kernalyse.services.profiler.collectors.ncu import metric_names
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.workloads.counters import CounterCollector, CounterFiles, MeasurementRecorder, count_launches, try_counting
from kernalyse.services.profiler.workloads.sweeps.plan import plan_sweep
from tests.integration.profiler_node import is_alive
from tests.integration.told import Told

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

STAND_IN_NCU = Path(__file__).with_name("stand_in_ncu.py")
METRICS = metric_names("9.0")
SAXPY = KernelSweep((KernelSelection("saxpy"),), (Axis("N", (1_024, 2_048)),), backend=BackendName.OPENCL, with_counters=True)


@dataclass(frozen=True)
class Counter:
    """Counts as the worker does after a sweep that has measured these configurations."""

    program: Path
    directory: Path

    def count(
        self,
        behaviour: str,
        monkeypatch: pytest.MonkeyPatch,
        sweep: KernelSweep = SAXPY,
        *,
        silence_limit_s: float = 60,
        **modes: list[int],
    ) -> Told:
        monkeypatch.setenv("STAND_IN_NCU", behaviour)
        monkeypatch.setenv("STAND_IN_NCU_CALLS", str(self.directory / "calls"))
        monkeypatch.setenv("STAND_IN_NCU_ID", str(self.directory / "id"))
        spec_file = self.directory / "spec"
        spec_file.write_bytes(encode_bytes(RunSpec(sweep)))
        told = Told()
        indexes = {CacheMode[mode]: found for mode, found in modes.items()} or {CacheMode.HOT: [0, 1]}
        measured = MeasurementRecorder(told, indexes, Progress(2, 0, 2, ""))
        plan = plan_sweep(sweep, load_catalog(), sys.maxsize)
        counting = CounterCollector(str(self.program), METRICS, has_ranges=False, silence_limit_s=silence_limit_s)
        count_launches(counting, plan, measured, CounterFiles(spec_file, self.directory))
        return told

    def try_counting(self, behaviour: str, monkeypatch: pytest.MonkeyPatch) -> tuple[CounterCollector | None, Told]:
        monkeypatch.setenv("STAND_IN_NCU", behaviour)
        monkeypatch.setenv("STAND_IN_NCU_CALLS", str(self.directory / "calls"))
        told = Told()
        counting = CounterCollector(str(self.program), METRICS, has_ranges=False, silence_limit_s=60)
        return try_counting(counting, SAXPY, self.directory, told), told

    def calls(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in (self.directory / "calls").read_text().splitlines()]

    def report(self, artifact_name: str = "counters.csv") -> str:
        return (self.directory / "artifacts" / artifact_name).read_text()


@pytest.fixture
def counter(tmp_path: Path) -> Counter:
    return Counter(stand_in_program(tmp_path), tmp_path)


def stand_in_program(directory: Path, behaviour: str = "") -> Path:
    """An `ncu` in a directory bin, as in a toolkit. behaviour: what it does wrong; without, the variable STAND_IN_NCU says it."""
    program = directory / "bin" / "ncu"
    program.parent.mkdir(exist_ok=True)
    chosen = f"export STAND_IN_NCU={behaviour}\n" if behaviour else ""
    program.write_text(f'#!/bin/sh\n{chosen}exec {shlex.quote(sys.executable)} {shlex.quote(str(STAND_IN_NCU))} "$@"\n')
    program.chmod(0o700)
    return program


# ---------------------------------------------------------------- counting


def test_measured_configurations_are_launched_once_more_and_the_report_is_an_artifact(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = counter.count("count", monkeypatch)
    assert told.warnings == ""
    (artifact,), (stored,) = told.of(ArtifactStored), told.of(CountersStored)
    assert (artifact.artifact_name, artifact.media_type) == ("counters.csv", "text/csv")
    assert stored == CountersStored("counters.csv", (0, 1), "none", "none", ("saxpy", "saxpy"))
    report = counter.report()
    assert artifact.size_bytes == len(report)
    assert "(4, 1, 1)" in report  # 1,024 elements in blocks of 256
    assert "(8, 1, 1)" in report
    (call,) = counter.calls()
    assert call["--replay-mode"] == "kernel"
    assert (call["--cache-control"], call["--clock-control"]) == ("none", "none")
    assert call["--kernel-name"] == "regex:^(saxpy)$"
    assert tuple(call["--metrics"].split(",")) == METRICS
    assert call["under_profiler"] == "1"  # so that no stream is held: a replay would wait for it for ever
    assert told.activities[0] == "counting"
    # Looked at from time to time: one that is over at once is not seen.
    assert {"counting saxpy N=1024", "counting saxpy N=2048"} & set(told.activities)
    assert told.activities[-1] == ""


@pytest.mark.slow
def test_cold_and_hot_configurations_have_a_report_each(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    told = counter.count("count", monkeypatch, COLD=[1], HOT=[0])
    assert told.of(CountersStored) == [
        CountersStored("counters_cold.csv", (1,), "all", "none", ("saxpy",)),
        CountersStored("counters_hot.csv", (0,), "none", "none", ("saxpy",)),
    ]
    assert "(8, 1, 1)" in counter.report("counters_cold.csv")
    assert "(4, 1, 1)" in counter.report("counters_hot.csv")


def test_metrics_that_ncu_does_not_know_cost_no_others(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    told = counter.count("unknown_metric", monkeypatch)
    missing = "sm__ops_path_tensor_src_fp64.sum"
    assert told.warnings == f"Not counted, for this ncu or device does not know them: {missing}."
    assert [missing in call["--metrics"].split(",") for call in counter.calls()] == [True, False]
    assert len(told.of(CountersStored)) == 1


def test_a_configuration_that_cannot_be_launched_is_named_and_the_others_are_counted(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = KernelSweep((KernelSelection("saxpy"),), (Axis("N", (1_024, 2**38)),), backend=BackendName.OPENCL)
    told = counter.count("count", monkeypatch, sweep)
    assert told.warnings.startswith("No counters of saxpy N=274877906944: ")
    assert told.of(CountersStored) == [CountersStored("counters.csv", (0,), "none", "none", ("saxpy",))]


# ---------------------------------------------------------------- what stands in the way


@pytest.mark.parametrize(
    ("behaviour", "said", "remedy"),
    [
        ("permission", "ERR_NVGPUCTRPERM", "options nvidia NVreg_RestrictProfilingToAdminUsers=0"),
        ("dcgm", "a driver resource was unavailable", "dcgmi profile --pause"),
        ("driver", "not compatible with Nsight Compute", "of the driver's own version"),
        ("chip", "Profiling is not supported on device 0", "Use a newer ncu"),
        ("option", "unrecognised option", "Use a newer ncu"),
        ("killed", "ended by a signal", "in a shell of that node"),
    ],
)
def test_without_a_report_the_warning_has_the_words_of_ncu_and_the_remedy(
    counter: Counter, monkeypatch: pytest.MonkeyPatch, behaviour: str, said: str, remedy: str
) -> None:
    told = counter.count(behaviour, monkeypatch)
    assert told.warnings.startswith("No counters of hot configurations: hardware counters: ")
    assert said in told.warnings
    assert remedy in told.warnings
    assert told.of(ArtifactStored) == []
    assert told.of(CountersStored) == []
    assert told.activities[-1] == ""


@pytest.mark.parametrize(
    ("behaviour", "remedy"),
    [
        ("permission", "options nvidia NVreg_RestrictProfilingToAdminUsers=0"),
        ("dcgm", "dcgmi profile --pause"),
        ("driver", "of the driver's own version"),
    ],
)
def test_what_only_ncu_knows_is_said_before_the_sweep(
    counter: Counter, monkeypatch: pytest.MonkeyPatch, behaviour: str, remedy: str
) -> None:
    counting, told = counter.try_counting(behaviour, monkeypatch)
    assert counting is None
    assert told.warnings.startswith("No counters, timings alone: hardware counters: ")
    assert remedy in told.warnings


@pytest.mark.parametrize("behaviour", ["count", "killed"])
def test_a_trial_that_goes_well_or_says_nothing_of_the_machine_is_not_told(
    counter: Counter, monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    counting, told = counter.try_counting(behaviour, monkeypatch)
    assert counting is not None
    assert counting.metrics == METRICS
    assert told.payloads == []
    (call,) = counter.calls()
    assert (call["--metrics"], call["--kernel-name"]) == ("dram__bytes.sum", "regex:^(saxpy)$")
    assert not list((counter.directory / "artifacts").glob("*")), "the run has no artifact of it"


def test_a_program_that_has_gone_since_the_preflight_is_a_refusal_too(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    counter.program.unlink()
    told = counter.count("count", monkeypatch)
    assert "No counters of hot configurations" in told.warnings
    assert told.of(CountersStored) == []


@pytest.mark.slow
def test_an_ncu_that_hangs_is_ended_with_all_it_started(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    began_s = time.monotonic()
    told = counter.count("hang", monkeypatch, silence_limit_s=1.5)
    assert "ncu while counting: no further launch within 1.5 s" in told.warnings
    assert "Count fewer or smaller configurations." in told.warnings
    assert not is_alive(int((counter.directory / "id").read_text()))
    assert time.monotonic() - began_s < 30  # the stand-in ignores TERM: 5 s of grace, then it is killed


def test_a_report_cut_short_is_kept_with_a_warning(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    told = counter.count("half", monkeypatch)
    assert told.warnings.startswith("ncu did not end well, so its report may be incomplete.")
    assert len(told.of(CountersStored)) == 1
    assert not counter.report().endswith("\n")
