"""Nsight Compute around a command: the call, its report, and the same as CSV for the analyzer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from services.core.errors import CollectorUnavailableError, UnmetConditionError
from services.core.model import CommandProfile
from services.profiler.backends.stream_holding import UNDER_PROFILER
from services.profiler.collectors.collector import PROGRAM_MARK, Collected, CollectorContext, KeptFile, Toolbox, ToolEnd, no_trace
from services.profiler.collectors.ncu import check_ncu, dcgm_process_id
from services.profiler.collectors.ncu_metrics import metric_names
from services.profiler.collectors.ncu_refusals import DCGM_REMEDY, not_counted, refusal, refused_metrics

NAME: Final = "ncu"
REPORT: Final = "report.ncu-rep"
TABLE: Final = "report.csv"
TABLE_MARK: Final = b'"Kernel Name"'  # in the header of ncu's table, and nowhere in its messages
SECTIONS: Final = ("LaunchStats", "Occupancy", "SpeedOfLight", "MemoryWorkloadAnalysis")  # for those who open the report in ncu-ui
NVTX_SPECIAL: Final = re.compile(r"([\\@/\[\]*+,])")  # of ncu's filter expressions


@dataclass(frozen=True, slots=True)
class NcuProfile:
    """Collects with one call of ncu, and prints the report with a second one.

    metrics: what rooflines and counters need, beside the sections.
    """

    program: str
    profile: CommandProfile
    context: CollectorContext
    metrics: tuple[str, ...]

    @property
    def name(self) -> str:
        return NAME

    @property
    def report(self) -> Path:
        return self.context.collected / REPORT

    def command(self, target: Sequence[str]) -> list[str]:
        profile = self.profile
        kernels = ("--kernel-name", f"regex:{profile.kernel_filter}") if profile.kernel_filter else ()
        skipped = ("--launch-skip", str(profile.launch_skip_count)) if profile.launch_skip_count else ()
        sections = (argument for section in SECTIONS for argument in ("--section", section))
        return [
            *(self.program, "--export", str(self.report), "--force-overwrite", "--target-processes", "all"),
            *(*kernels, *skipped, "--launch-count", str(profile.max_launch_count), *self._capture_range(), *sections),
            *(("--metrics", ",".join(self.metrics)) if self.metrics else ()),
            # As the program runs otherwise: a clock locked to its base would make its times incomparable with any other.
            *("--clock-control", "none"),
            *("env", f"{PROGRAM_MARK}=1", *target),
        ]

    def _capture_range(self) -> tuple[str, ...]:
        kind, _, nvtx_range = self.profile.capture_range.partition(":")
        if kind == "cudaProfilerApi":
            return ("--profile-from-start", "off")
        if not nvtx_range:
            return ()
        name, _, domain = nvtx_range.rpartition("@") if "@" in nvtx_range else (nvtx_range, "", "")
        within = NVTX_SPECIAL.sub(r"\\\1", domain) + "@" if domain not in ("", "*") else ""
        expression = within + NVTX_SPECIAL.sub(r"\\\1", name)
        # With a slash ranges that are pushed and popped, without those that are started and ended.
        return ("--nvtx", "--nvtx-include", f"{expression}/", "--nvtx-include", expression)

    def environment(self) -> Mapping[str, str]:
        return {UNDER_PROFILER: "1", "LC_ALL": "C.UTF-8"}  # numbers of another locale would be ambiguous

    def is_finishing(self) -> bool:
        return False

    def collect(self, end: ToolEnd, toolbox: Toolbox) -> Collected:
        unknown = refused_metrics(end.output, self.metrics)
        notices = (not_counted(unknown),) if unknown else ()
        if not self.report.is_file():
            if "==ERROR==" in end.output or "==WARNING==" in end.output:
                rest = tuple(metric for metric in self.metrics if metric not in unknown)
                again = replace(self, metrics=rest) if unknown else None
                return Collected(problem=refusal(end.output, end.exit_code), notices=notices, again=again)
            return Collected(
                problem=no_trace(NAME, end, "no report", "Look at the filter and the capture range: no launch may match them.")
            )
        report = KeptFile(REPORT, self.report)
        table = self.context.collected / TABLE
        printing = toolbox.run(
            [
                self.program,
                "--import",
                str(self.report),
                *["--csv", "--page", "raw", "--print-units", "base", "--print-fp"],
                "--log-file",
                str(table),
            ],
            "printing the report",
        )
        if printing.exit_code != 0 or not table.is_file() or TABLE_MARK not in table.read_bytes():
            remedy = "The report is kept as an artifact; it may be cut short. Try to open it by hand."
            return Collected((report,), problem=no_trace("ncu --import", printing, "a report that it does not print", remedy))
        return Collected((report, KeptFile(TABLE, table)), ((TABLE,),), notices=notices)


def open_ncu(
    profile: CommandProfile, context: CollectorContext, compute_capability: Callable[[], str | None]
) -> tuple[NcuProfile, tuple[str, ...]]:
    """Open ncu, and return it with what is to be said beforehand.

    Args:
        compute_capability: of the first NVIDIA device, e.g. "9.0"; None: there is none.

    Raises:
        CollectorUnavailableError: there is no ncu, no GPU, or the driver keeps counters from this user.
    """
    try:
        program = check_ncu()
    except UnmetConditionError as error:
        raise CollectorUnavailableError("collector ncu", found=error.found, expected=error.expected, remedy=error.remedy) from error
    capability = compute_capability()
    if capability is None:
        raise CollectorUnavailableError(
            "collector ncu", found="no NVIDIA GPU on this node", expected="one whose counters it can read", remedy="Choose another node."
        )
    process_id = dcgm_process_id()
    notices = () if process_id is None else (f"DCGM runs here as process {process_id} and may keep ncu from counting. {DCGM_REMEDY}",)
    return NcuProfile(program, profile, context, metric_names(capability)), notices
