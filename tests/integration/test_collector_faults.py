"""What a collector can do wrong around a command: its run ends in time, says what was learnt, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.core.errors import (
    CollectorFailedError,
    CollectorUnavailableError,
    CommandFailedError,
    KernalyseError,
    StorageFullError,
    TimeLimitError,
)
from kernalyse.services.core.model import CommandProfile, EnvironmentVariable, RunLimits, TraceStored
from kernalyse.services.profiler.collectors import nsys as nsys_collector
from kernalyse.services.profiler.collectors import preflight
from kernalyse.services.profiler.workloads import monitored_program
from kernalyse.services.profiler.workloads.command import CommandSettings, run_command
from tests.integration.profiler_node import is_alive
from tests.integration.told import Told

STAND_IN_NSYS = Path(__file__).with_name("stand_in_nsys.py")


@dataclass
class Profiler:
    """Runs commands as the worker does, in the directory of a run."""

    directory: Path
    nsys_program: Path
    told: Told = field(default_factory=Told)

    def run(self, *arguments: str, behaviour: str = "", time_limit_s: float = 60.0, **options: Any) -> Told:
        variables = {"STAND_IN_NSYS": behaviour, "STAND_IN_DIRECTORY": str(self.directory.parent)}
        environment = tuple(EnvironmentVariable(name, value) for name, value in variables.items())
        profile = CommandProfile(arguments or ("true",), "nsys", environment=environment, **options)
        service = {**os.environ, "TMPDIR": str(self.directory / "tmp"), "PYTHONUNBUFFERED": "1"}
        order = CommandSettings(self.directory, service, time.monotonic(), str(self.nsys_program))
        run_command(profile, RunLimits(time_limit_ns=int(time_limit_s * 1e9)), order, self.told)
        return self.told

    def error(self, cls: type[KernalyseError], *arguments: str, **options: Any) -> str:
        with pytest.raises(cls) as caught:
            self.run(*arguments, **options)
        return caught.value.message

    @property
    def agent_id(self) -> int:
        return int((self.directory.parent / "agent").read_text())

    @property
    def options(self) -> list[str]:
        return (self.directory.parent / "profile").read_text().splitlines()


@pytest.fixture
def profiler(tmp_path: Path) -> Profiler:
    return make_profiler(tmp_path, tmp_path / "work")


def make_profiler(tmp_path: Path, directory: Path) -> Profiler:
    program = tmp_path / "nsys"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN_NSYS} "$@"\n')
    program.chmod(0o700)
    (directory / "tmp").mkdir(parents=True)
    return Profiler(directory, program)


# ---------------------------------------------------------------- as it should be


def test_the_report_and_its_export_become_artifacts_and_one_trace(profiler: Profiler) -> None:
    told = profiler.run("sh", "-c", "echo $0 $KERNALYSE_PROGRAM; echo done >made", "named")
    assert told.artifact_names == ["report.nsys-rep", "export.parquetdir/NVTX_EVENTS.parquet", "export.parquetdir/StringIds.parquet"]
    assert told.of(TraceStored) == [TraceStored(tuple(told.artifact_names[1:]), "nsys")]
    assert told.printed == ["named 1"]
    assert (profiler.directory / "program" / "made").read_text() == "done\n"
    assert (profiler.directory / "artifacts" / "report.nsys-rep").read_bytes() == b"report"
    assert profiler.options[:4] == ["--trace=cuda,nvtx,osrt,cublas,cudnn", "--cuda-graph-trace=node", "--sample=none", "--cpuctxsw=none"]
    assert told.activities[0] == "preparing the command"
    assert told.activities[-1] == ""


def test_an_old_nsys_exports_sqlite(profiler: Profiler) -> None:
    told = profiler.run(behaviour="old", capture_range="nvtx:step@torch")
    assert told.of(TraceStored) == [TraceStored(("export.sqlite",), "nsys")]
    assert "--nvtx-capture=step@torch" in profiler.options
    assert "--capture-range-end=stop" in profiler.options


def test_after_its_duration_the_program_is_ended_and_the_report_kept(profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ignores TERM, and so do its children."""
    monkeypatch.setattr(monitored_program, "MAX_GRACE_S", 1.0)
    stubborn = "trap '' TERM; sleep 600 & sleep 600"
    began = time.monotonic()
    told = profiler.run("sh", "-c", stubborn, max_duration_ns=300_000_000, time_limit_s=90)
    assert len(told.of(TraceStored)) == 1
    assert time.monotonic() - began < 60


# ---------------------------------------------------------------- the program


def test_a_program_that_fails_fails_the_run_and_leaves_its_trace(profiler: Profiler) -> None:
    message = profiler.error(CommandFailedError, "sh", "-c", "echo oh no; exit 7")
    assert message.startswith("command sh -c 'echo oh no; exit 7': found status 7; it last said:\noh no; expected status 0. Its trace")
    assert len(profiler.told.of(TraceStored)) == 1


@pytest.mark.slow
def test_a_program_without_end_is_ended_before_the_run_is_and_leaves_its_trace(profiler: Profiler) -> None:
    message = profiler.error(TimeLimitError, "sleep", "600", time_limit_s=6)
    assert "still running, and was ended so that its trace could be kept; what was collected is stored" in message
    assert len(profiler.told.of(TraceStored)) == 1


# ---------------------------------------------------------------- the collector


def test_a_spinning_agent_deaf_to_term_is_gone_with_the_run(profiler: Profiler) -> None:
    told = profiler.run(behaviour="daemon", time_limit_s=10)
    assert len(told.of(TraceStored)) == 1
    assert not is_alive(profiler.agent_id)


@pytest.mark.slow
def test_a_collector_that_hangs_after_the_program_is_given_up(profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitored_program, "SILENCE_LIMIT_S", 3.0)  # the stand-in itself has to start within it
    monkeypatch.setattr(monitored_program, "MAX_GRACE_S", 1.0)
    message = profiler.error(TimeLimitError, "echo", "worked", behaviour="hang")
    assert "its collector, which did not end" in message
    assert message.index("worked") < message.index("importing for ever")
    assert not [line for line in profiler.told.printed if "Error" in line], "the supervisor took the order"
    assert not is_alive(profiler.agent_id)


def test_a_raw_file_that_was_not_imported_is_kept_and_named(profiler: Profiler) -> None:
    message = profiler.error(CollectorFailedError, behaviour="qdstrm")
    assert "a raw file that was not imported (nsys-report-1.qdstrm)" in message
    assert "importation failed" in message
    assert profiler.told.artifact_names == ["nsys-report-1.qdstrm"]
    assert profiler.told.of(TraceStored) == []


def test_a_report_that_cannot_be_exported_is_kept(profiler: Profiler) -> None:
    message = profiler.error(CollectorFailedError, behaviour="cut")
    assert "a report of 6 bytes that it does not export (exit code 1; it last said:)\nError: the report is truncated." in message
    assert profiler.told.artifact_names == ["report.nsys-rep"]


def test_a_range_that_never_began_is_guessed(profiler: Profiler) -> None:
    message = profiler.error(CollectorFailedError, behaviour="nothing", capture_range="nvtx:warm-up")
    assert "no report; was nvtx:warm-up ever reached?" in message


# ---------------------------------------------------------------- before it starts


def test_what_stands_against_it_is_said_before_the_program_starts(
    profiler: Profiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "cannot open shared object file" in profiler.error(
        CollectorUnavailableError, "touch", str(tmp_path / "started"), behaviour="broken"
    )
    shutil.rmtree(profiler.directory)
    (profiler.directory / "tmp").mkdir(parents=True)
    level = tmp_path / "perf_event_paranoid"
    level.write_text("4\n")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(CollectorUnavailableError, match="found perf_event_paranoid 4; expected perf_event_paranoid 2 or less"):
        preflight.check_cpu_sampling(level)
    profiler.nsys_program = tmp_path / "nowhere"
    assert "nowhere, which is no program" in profiler.error(CollectorUnavailableError, "touch", str(tmp_path / "started"))
    assert not (tmp_path / "started").exists()


def test_the_newest_of_several_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2024.6.2", "2025.1.1", "2023.4.4"):
        program = tmp_path / "nvidia" / "nsight-systems" / version / "bin" / "nsys"
        program.parent.mkdir(parents=True)
        program.touch(0o700)
    monkeypatch.setattr("kernalyse.services.core.external_programs.NSYS_PATHS", (f"{tmp_path}/nvidia/nsight-systems*/*/bin/nsys",))
    found = nsys_collector.locate_nsys(None, {"PATH": str(tmp_path)})
    assert found is not None
    assert "2025.1.1" in found


# ---------------------------------------------------------------- the disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 72 MiB of its own, on which no program may start when it is remounted."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=72m", "tmpfs", str(directory)], capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_a_full_disk_is_the_reason(small_disk: Path, tmp_path: Path) -> None:
    profiler = make_profiler(tmp_path, small_disk / "work")
    message = profiler.error(StorageFullError, behaviour="full")
    assert "0 bytes free" in message
    assert "No space left on device" in message
    shutil.rmtree(small_disk / "work")
    (small_disk / "ballast").write_bytes(bytes(20 * 2**20))
    (small_disk / "work" / "tmp").mkdir(parents=True)
    assert "at least 67108864 for reports" in profiler.error(StorageFullError)
    (small_disk / "ballast").unlink()
    shutil.rmtree(small_disk / "work")
    (small_disk / "work" / "tmp").mkdir(parents=True)
    subprocess.run(["mount", "-o", "remount,noexec", str(small_disk)], check=True)
    assert "mounted noexec" in profiler.error(CollectorUnavailableError)
