"""Nsight Systems around a command: its installation, its options, and its report with an export that the analyzer reads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kernalyse.services.core.errors import CollectorUnavailableError
from kernalyse.services.core.external_programs import find_nsys
from kernalyse.services.core.model import CommandProfile
from kernalyse.services.profiler.collectors.base import (
    PROGRAM_MARK,
    ArtifactFile,
    CollectorContext,
    CollectorResult,
    ToolExit,
    ToolRunner,
    files_below,
    no_trace,
)
from kernalyse.services.profiler.collectors.preflight import check_cpu_sampling

NAME: Final = "nsys"
INSTALL_REMEDY: Final = (
    "Install Nsight Systems (it comes with the CUDA toolkit, or as the package nsight-systems-cli); put its directory on PATH, or set "
    "nsys_program on the node."
)

TRACES: Final = ("cuda", "nvtx", "osrt", "cublas", "cudnn")
ALWAYS: Final = ("cuda", "nvtx", "osrt")  # the others where that nsys has them

DIRECTORY_TYPE: Final = "parquetdir"
FILE_TYPE: Final = "sqlite"  # what every version exports

PROBE_LIMIT_S: Final = 20.0  # --help takes tenths of a second; an installation that lacks libraries may take longer to say so
REPORT: Final = "report.nsys-rep"
LEFTOVER_REMEDY: Final = "The raw file is stored as an artifact: QdstrmImporter of the same nsys may still make a report of it."


@dataclass(frozen=True, slots=True)
class NsysProgram:
    """An installation of nsys. profile_help, export_help: its help texts, as options differ from version to version."""

    path: str
    profile_help: str
    export_help: str

    def can(self, option: str) -> bool:
        """Return whether this version has the option for profiling."""
        return option in self.profile_help

    @property
    def traces(self) -> str:
        """Return the value of --trace: everything that this version can record and the analyzer reads."""
        return ",".join(trace for trace in TRACES if trace in ALWAYS or re.search(rf"\b{trace}\b", self.profile_help))

    @property
    def export_type(self) -> str:
        """Return the best export type that this version offers."""
        return DIRECTORY_TYPE if DIRECTORY_TYPE in self.export_help else FILE_TYPE


@dataclass(frozen=True, slots=True)
class Nsys:
    """Nsight Systems around a command: one call of nsys collects, a second one exports."""

    program: NsysProgram
    profile: CommandProfile
    context: CollectorContext

    @property
    def name(self) -> str:
        """Return "nsys"."""
        return NAME

    @property
    def report(self) -> Path:
        """Return the path of the report that nsys writes."""
        return self.context.collected / REPORT

    def command(self, target: Sequence[str]) -> list[str]:
        """Return the command line of nsys around `target`."""
        # Registered strings alone would open a range by default: most programs name theirs with plain ones.
        variables = f"{PROGRAM_MARK}=1,NSYS_NVTX_PROFILER_REGISTER_ONLY=0"
        # Its own CPU sampling is on by default, and has been seen to hang for good in virtual machines.
        sampling = () if self.profile.with_cpu_sampling else ("--sample=none", "--cpuctxsw=none")
        graphs = ("--cuda-graph-trace=node",) if self.program.can("--cuda-graph-trace") else ()
        return [
            *(self.program.path, "profile", f"--trace={self.program.traces}", *graphs, *sampling, *self._capture_range()),
            *(f"--env-var={variables}", "--force-overwrite=true", f"--output={self.report.with_suffix('')}"),
            *target,
        ]

    def _capture_range(self) -> tuple[str, ...]:
        """Return options for the capture range; the program goes on when the range has ended."""
        if not self.profile.capture_range:
            return ()
        end = ("--capture-range-end=stop",) if self.program.can("--capture-range-end") else ("--stop-on-range-end=true",)
        kind, _, nvtx_range = self.profile.capture_range.partition(":")
        return (f"--capture-range={kind}", *end, *((f"--nvtx-capture={nvtx_range}",) if nvtx_range else ()))

    def environment(self) -> Mapping[str, str]:
        """Return no variables: nsys gets those of the program on its command line."""
        return {}

    def is_finishing(self) -> bool:
        """Return False: nsys writes its report within its own process."""
        return False

    def collect(self, end: ToolExit, toolbox: ToolRunner) -> CollectorResult:
        """Export the report with a second call of nsys, and return both, or what a failed nsys has left."""
        if not self.report.is_file() or self.report.stat().st_size == 0:
            return self._leftovers(end)
        report = ArtifactFile(REPORT, self.report)
        export_type = self.program.export_type
        target = self.context.collected / f"export.{export_type}"
        exporting = toolbox.run(
            [self.program.path, "export", "--type", export_type, "--quiet", "true", "--output", str(target), str(self.report)],
            "exporting the report",
        )
        found = tuple(files_below(target)) if target.is_dir() else (target,) if target.is_file() else ()
        if exporting.exit_code != 0 or exporting.is_over_time or not found:
            problem = no_trace(
                "nsys export",
                exporting,
                f"a report of {self.report.stat().st_size} bytes that it does not export",
                "The report is stored as an artifact; it may be cut short, or made by another version. Try to open or export it by hand.",
            )
            return CollectorResult(files=(report,), problem=problem)
        files = tuple(ArtifactFile(str(path.relative_to(self.context.collected)), path) for path in found)
        return CollectorResult(files=(report, *files), traces=(tuple(file.artifact_name for file in files),))

    def _leftovers(self, end: ToolExit) -> CollectorResult:
        """Return the error of an nsys that made no report, with its raw file if the importer failed or was not reached."""
        directories = (self.context.collected, self.context.temporary)
        raw = [path for directory in directories for path in files_below(directory) if path.suffix == ".qdstrm" and path.stat().st_size]
        names = ", ".join(path.name for path in raw)
        if raw:
            problem = no_trace(NAME, end, f"no report, but a raw file that was not imported ({names})", LEFTOVER_REMEDY)
        elif self.profile.capture_range:
            remedy = "A range that never begins leaves no report: look at its name and domain, and at what the program printed."
            problem = no_trace(NAME, end, f"no report; was {self.profile.capture_range} ever reached?", remedy)
        else:
            problem = no_trace(
                NAME, end, "no report", "Run the same under nsys in a shell of that node; `kernalyse doctor` looks at it too."
            )
        return CollectorResult(files=tuple(ArtifactFile(path.name, path) for path in raw), problem=problem)


def locate_nsys(setting: str | None = None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of nsys by the node's setting, else on the path; None where there is none."""
    return find_nsys(environment) if setting is None else shutil.which(setting, path=environment.get("PATH"))


def open_nsys(profile: CommandProfile, context: CollectorContext, setting: str | None) -> Nsys:
    """Open nsys. Raises CollectorUnavailableError: there is none, it does not start, or it may not sample the CPU."""
    path = locate_nsys(setting, context.environment)
    if path is None:
        raise CollectorUnavailableError(
            "collector nsys",
            found="no nsys on this node" if setting is None else f"nsys_program {setting}, which is no program",
            expected="Nsight Systems",
            remedy=INSTALL_REMEDY,
        )
    if profile.with_cpu_sampling:
        check_cpu_sampling()
    return Nsys(NsysProgram(path, _help(path, "profile", context), _help(path, "export", context)), profile, context)


def _help(path: str, command: str, context: CollectorContext) -> str:
    said = context.temporary / "help"
    try:
        with said.open("wb") as output:  # no pipe: whatever it leaves behind could hold that open
            done = subprocess.run(
                [path, command, "--help"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=PROBE_LIMIT_S,
                check=False,
                cwd=context.program,
                env=dict(context.environment),
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CollectorUnavailableError("collector nsys", found=f"{path} {command} --help: {error}", remedy=INSTALL_REMEDY) from error
    text = said.read_text(errors="replace")
    said.unlink()
    if done.returncode != 0:
        raise CollectorUnavailableError(
            "collector nsys",
            found=f"{path} {command} --help ends with status {done.returncode}: {text.strip()[-500:]}",
            expected="its options",
            remedy="Install it anew with the libraries that it needs, or set nsys_program to another one.",
        )
    return text
