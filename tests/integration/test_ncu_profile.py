"""ncu around a command, with a stand-in for it: the options that it gets, what it leaves, and its refusals."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.core.errors import CollectorUnavailableError
from kernalyse.services.core.model import CommandProfile, RunLimits
from kernalyse.services.profiler.collectors import ncu
from kernalyse.services.profiler.collectors.base import CollectorContext, CollectorResult
from kernalyse.services.profiler.collectors.ncu import NcuProfile, open_ncu
from kernalyse.services.profiler.workloads import command
from kernalyse.services.profiler.workloads.command import CommandSettings
from kernalyse.services.profiler.workloads.monitored_program import Cancellation, TimeBudget, ToolSupervisor
from tests.integration.told import Told

STAND_IN = """
import os, subprocess, sys
from pathlib import Path
arguments = sys.argv[1:]
refusal = os.environ.get("STAND_IN_REFUSAL")
if "--import" in arguments:
    if refusal == "cut":
        sys.exit("==ERROR== Could not open the report.")
    Path(arguments[arguments.index("--log-file") + 1]).write_text('"ID","Kernel Name"\\n"0","saxpy"\\n')
    sys.exit()
Path(os.environ["STAND_IN_CALL"]).write_text("\\n".join(arguments))
Path(os.environ["STAND_IN_STARTS"]).open("a").write("started\\n")
if refusal == "unknown":
    asked = arguments[arguments.index("--metrics") + 1].split(",")
    unknown = [name for name in ("dram__bytes.sum", "sm__ops_path_tensor_src_fp64.sum") if name in asked]
    if unknown:
        sys.exit(f"==PROF== Connected to process 1\\n==ERROR== Failed to find metric {unknown[0]}")
elif refusal and refusal != "cut":
    sys.exit(f"==PROF== Connected to process 1\\n==ERROR== {refusal}")
status = subprocess.run(arguments[arguments.index("env"):]).returncode
Path(arguments[arguments.index("--export") + 1]).write_text("report")
sys.exit(status)
"""


def stand_in(tmp_path: Path, refusal: str) -> dict[str, str]:
    """Puts an ncu there; answers with the environment that tells it what to do."""
    program = tmp_path / "ncu"
    program.write_text(f"#!{sys.executable}\n{STAND_IN}")
    program.chmod(0o700)
    files = {"STAND_IN_CALL": str(tmp_path / "call"), "STAND_IN_STARTS": str(tmp_path / "starts")}
    return {"STAND_IN_REFUSAL": refusal, "PATH": os.environ["PATH"], **files}


def collected(tmp_path: Path, refusal: str = "", **options: Any) -> tuple[CollectorResult, Sequence[str], Told]:
    """What the profile of a command leaves, ncu's options, and what was told meanwhile."""
    program = tmp_path / "ncu"
    workplace = CollectorContext(tmp_path, tmp_path / "collected", tmp_path, stand_in(tmp_path, refusal))
    workplace.collected.mkdir()
    profile = CommandProfile(("sh", "-c", "echo mark $KERNALYSE_PROGRAM"), "ncu", **options)
    told = Told()
    watcher = ToolSupervisor(workplace, TimeBudget.of(60, time.monotonic()), told, lambda _: None, Cancellation(lambda: False, 1))
    collector = NcuProfile(str(program), profile, workplace, ("gpu__time_duration.sum",))
    end = watcher.run_program(collector, profile.arguments, "it", None)
    return collector.collect(end.tool, watcher), (tmp_path / "call").read_text().splitlines(), told


def test_the_report_and_its_table_are_kept(tmp_path: Path) -> None:
    left, call, told = collected(
        tmp_path, kernel_filter="gemm|saxpy", launch_skip_count=2, max_launch_count=5, capture_range="nvtx:my/step@a,b"
    )
    assert [file.artifact_name for file in left.files] == ["report.ncu-rep", "report.csv"]
    assert left.traces == (("report.csv",),)
    assert left.problem is None
    assert told.printed == ["mark 1"]
    options = dict(pairwise(call))
    assert (options["--kernel-name"], options["--launch-skip"], options["--launch-count"]) == ("regex:gemm|saxpy", "2", "5")
    assert options["--metrics"] == "gpu__time_duration.sum"
    assert [call[index + 1] for index, word in enumerate(call) if word == "--nvtx-include"] == [r"a\,b@my\/step/", r"a\,b@my\/step"]


def test_refusals_have_their_remedy(tmp_path: Path) -> None:
    left, call, _ = collected(tmp_path, "ERR_NVGPUCTRPERM - The user does not have permission", capture_range="cudaProfilerApi")
    assert left.files == ()
    assert left.problem is not None
    assert "NVreg_RestrictProfilingToAdminUsers=0" in left.problem.remedy
    assert "--profile-from-start" in call


def test_a_report_that_cannot_be_printed_is_kept(tmp_path: Path) -> None:
    left, _, _ = collected(tmp_path, "cut")
    assert [file.artifact_name for file in left.files] == ["report.ncu-rep"]
    assert left.problem is not None
    assert "Could not open the report" in left.problem.message


def test_metrics_that_ncu_does_not_know_are_named_and_the_rest_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = stand_in(tmp_path, "unknown")
    monkeypatch.setattr(ncu, "check_ncu", lambda: str(tmp_path / "ncu"))
    monkeypatch.setattr(ncu, "dcgm_process_id", lambda: None)
    monkeypatch.setattr(command, "_compute_capability", lambda: "9.0")
    directory = tmp_path / "run"
    (directory / "tmp").mkdir(parents=True)
    told = Told()
    order = CommandSettings(directory, variables, time.monotonic())
    command.run_command(CommandProfile(("sh", "-c", "echo ran"), "ncu"), RunLimits(time_limit_ns=60 * 10**9), order, told)
    assert told.artifact_names == ["report.ncu-rep", "report.csv"]
    assert told.warnings.splitlines() == [
        "Not counted, for this ncu or device does not know them: dram__bytes.sum.",
        "sh -c 'echo ran' is started again without them.",
        "Not counted, for this ncu or device does not know them: sm__ops_path_tensor_src_fp64.sum.",
        "sh -c 'echo ran' is started again without them.",
    ]
    assert (tmp_path / "starts").read_text().count("started") == 3
    assert told.printed.count("ran") == 1


def test_without_ncu_or_gpu_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workplace = CollectorContext(tmp_path, tmp_path, tmp_path, {})
    profile = CommandProfile(("true",), "ncu")
    monkeypatch.setattr("kernalyse.services.profiler.collectors.ncu.find_ncu", lambda: None)
    with pytest.raises(CollectorUnavailableError, match="collector ncu: found no ncu on this node"):
        open_ncu(profile, workplace, lambda: "9.0")
    monkeypatch.setattr(ncu, "check_ncu", lambda: "/usr/bin/ncu")
    with pytest.raises(CollectorUnavailableError, match="no NVIDIA GPU on this node"):
        open_ncu(profile, workplace, lambda: None)
    monkeypatch.setattr(ncu, "dcgm_process_id", lambda: 7)
    collector, notices = open_ncu(profile, workplace, lambda: "9.0")
    assert "gpu__time_duration.sum" in collector.metrics
    assert "dcgmi profile --pause" in notices[0]
