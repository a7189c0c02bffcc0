"""Nsight Compute: its installation, its permissions, and its calls."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from kernalyse.services.core.errors import CollectorUnavailableError, UnmetConditionError
from kernalyse.services.core.external_programs import find_ncu
from kernalyse.services.core.model import CacheMode, CommandProfile
from kernalyse.services.profiler.backends.base import UNDER_PROFILER
from kernalyse.services.profiler.collectors.base import (
    PROGRAM_MARK,
    ArtifactFile,
    CollectorContext,
    CollectorResult,
    ToolExit,
    ToolRunner,
    no_trace,
)

DRIVER_PARAMETERS: Final = Path("/proc/driver/nvidia/params")
PROCESSES: Final = Path("/proc")
OWN_STATUS: Final = Path("/proc/self/status")
CAP_SYS_ADMIN: Final = 21  # bit of the effective capabilities
DCGM_SERVICE: Final = "nv-hostengine"

PERMISSION_REMEDY: Final = (
    "Put 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' in a file in /etc/modprobe.d, update the initial RAM disk and "
    "restart the machine; or start the profiler as root, in a container with the capability CAP_SYS_ADMIN."
)
INSTALL_REMEDY: Final = "It comes with the CUDA toolkit, or as the package nsight-compute; put its directory on PATH."


class CounterAccess(StrEnum):
    """The driver's permission to read counters. NOT_TOLD: its parameters are hidden; a try has to show it."""

    OPEN = "open"
    ADMINISTRATOR = "administrator"
    REFUSED = "refused"
    NOT_TOLD = "not told"


@dataclass(frozen=True, slots=True)
class NcuCall:
    """A call of ncu around a command.

    function_names: __global__ functions that count, without namespaces and template arguments; all other kernels of the
    command run unseen. has_ranges: the command marks the launches that count with cuProfilerStart and cuProfilerStop.
    """

    program: str
    metrics: tuple[str, ...]
    function_names: tuple[str, ...]
    cache_control: str  # "all" or "none"
    clock_control: str  # "base" or "none"
    has_ranges: bool
    log_file: Path

    def command(self, target: Sequence[str]) -> list[str]:
        """Return the command line of ncu around `target`."""
        names = "|".join(re.escape(name) for name in self.function_names)
        return [
            *(self.program, "--csv", "--page", "raw", "--print-units", "base", "--print-fp"),
            *("--replay-mode", "kernel", "--cache-control", self.cache_control, "--clock-control", self.clock_control),
            *("--target-processes", "all", "--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$"),
            *(("--profile-from-start", "off") if self.has_ranges else ()),
            *("--metrics", ",".join(self.metrics), "--log-file", str(self.log_file)),
            *target,
        ]


def ncu_cache_control(cache_mode: CacheMode) -> str:
    """Return ncu's --cache-control: caches are flushed before each replay of a cold launch, and left alone for a hot one."""
    return "all" if cache_mode is CacheMode.COLD else "none"


def check_ncu(parameters: Path = DRIVER_PARAMETERS, status: Path = OWN_STATUS) -> str:
    """Return the path of ncu after checks of the node. Raises CollectorUnavailableError. Some problems show only when it runs.

    Raises:
        UnmetConditionError: there is no ncu, or the driver keeps counters from this user.
    """
    program = find_ncu()
    if program is None:
        raise UnmetConditionError("hardware counters", found="no ncu on this node", expected="Nsight Compute", remedy=INSTALL_REMEDY)
    if counter_access(parameters, status) is CounterAccess.REFUSED:
        raise UnmetConditionError(
            "hardware counters",
            found="a driver that keeps them for administrators (ERR_NVGPUCTRPERM: RmProfilingAdminOnly is 1)",
            expected="permission to read them",
            remedy=PERMISSION_REMEDY,
        )
    return program


def counter_access(parameters: Path = DRIVER_PARAMETERS, status: Path = OWN_STATUS) -> CounterAccess:
    """Return whether this process may read counters, by the driver's parameters and the process's capabilities."""
    try:
        text = parameters.read_text(errors="replace")
    except OSError:
        return CounterAccess.NOT_TOLD
    restriction = re.search(r"^RmProfilingAdminOnly:\s*(\d)", text, re.MULTILINE)
    if restriction is None:
        return CounterAccess.NOT_TOLD
    if restriction[1] == "0":
        return CounterAccess.OPEN
    return CounterAccess.ADMINISTRATOR if _is_administrator(status) else CounterAccess.REFUSED


def dcgm_process_id(processes: Path = PROCESSES) -> int | None:
    """Return the process id of a running DCGM, which may keep ncu from the counters; None where none is visible."""
    for file in processes.glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # the process has ended
            if file.read_text().strip() == DCGM_SERVICE:
                return int(file.parent.name)
    return None


def _is_administrator(status: Path) -> bool:
    """Return whether the process has the capability that the driver asks for; in a container root may lack it."""
    try:
        found = re.search(r"^CapEff:\s*([0-9a-fA-F]+)$", status.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return os.geteuid() == 0 if found is None else bool(int(found[1], 16) >> CAP_SYS_ADMIN & 1)


# ---------------------------------------------------------------- ncu metrics
# Metrics by compute capability: time, operations, bytes at each memory level, use of the device.
#
# Names are those of the sections from which ncu itself makes its rooflines (SpeedOfLight*.section, ncu 2025). The analyzer evaluates
# the numbers.

USE_METRICS: Final = (
    "gpu__time_duration.sum",
    "sm__cycles_elapsed.avg",
    "sm__cycles_elapsed.avg.per_second",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "smsp__inst_executed.sum",
    "launch__registers_per_thread",
    "launch__waves_per_multiprocessor",
)
CACHE_METRICS: Final = ("lts__lts2xbar_cycles_active.sum", "lts__t_sector_hit_rate.pct", "l1tex__t_sector_hit_rate.pct")

SASS: Final = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
FMA_OPERATIONS: Final = tuple(f"{letter}{operation}" for letter in "dfh" for operation in ("add", "mul", "fma"))
PACKED_OPERATIONS: Final = ("fadd2", "fmul2", "ffma2")  # of compute capability 10 and 11

CAPABILITIES_WITHOUT_DRAM: Final = ("8.7", "11.0", "12.1")  # their memory is the host's: ncu has no counters of it

TENSOR: Final = "sm__ops_path_tensor_{}.sum"


def _with_sparsity(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}_sparsity_{state}" for name in names for state in ("off", "on"))


_AMPERE: Final = (
    "src_fp64",
    *_with_sparsity("src_bf16_dst_fp32", "src_fp16_dst_fp16", "src_fp16_dst_fp32", "src_int8", "src_tf32_dst_fp32"),
)
_BLACKWELL: Final = ("src_fp64", "src_bf16_dst_fp32", "src_fp16_dst_fp16", "src_fp16_dst_fp32", "src_int8", "src_tf32_dst_fp32")
TENSOR_PATHS: Final = {
    (7, 5): ("src_fp16_bf16_tf32_dst_fp32", "src_fp16_dst_fp16", "src_int8"),
    (8, 0): _AMPERE,
    (8, 9): (*_AMPERE, *_with_sparsity("src_fp8")),
    (9, 0): ("src_fp64", "src_bf16_dst_fp32", "src_fp16", "src_int8", "src_tf32_dst_fp32", *_with_sparsity("src_fp8")),
    (10, 0): (*_BLACKWELL, "src_fp4_dst_fp32", "src_fp4_fp6_fp8_dst_fp16", "src_fp4_fp6_fp8_dst_fp32"),
    (10, 3): (
        *(*_BLACKWELL, "src_fp4_dst_fp32", "src_fp4_fp6_dst_fp16", "src_fp4_fp6_dst_fp32"),
        # float8 is there by instruction alone, and sparse with sums in float32 not at all.
        *(*_with_sparsity("op_utcqmma_src_fp8_dst_fp16"), "op_utcqmma_src_fp8_dst_fp32_sparsity_off"),
    ),
    (11, 0): (*_BLACKWELL, "src_fp4_dst_fp32", "src_fp4_fp6_fp8_dst_fp16", "src_fp4_fp6_fp8_dst_fp32"),
    (12, 0): (
        *_BLACKWELL,
        *_with_sparsity("src_fp4_dst_fp32", "src_fp4_fp6_dst_fp16", "src_fp4_fp6_dst_fp32", "src_fp8_dst_fp16", "src_fp8_dst_fp32"),
    ),
}
"""Floating-point and int8 operations of tensor cores, from each compute capability on up to the next. None is part of
another: the op_* metrics that ncu has beside them from 9.0 on split the same work by instruction."""


def metric_names(compute_capability: str) -> tuple[str, ...]:
    """Return the metrics for a compute capability, e.g. "9.0". A newer one gets the metrics of the newest known."""
    major, _, minor = compute_capability.partition(".")
    version = (int(major), int(minor or 0))
    operations = FMA_OPERATIONS + (PACKED_OPERATIONS if version[0] in (10, 11) else ())
    return (
        *USE_METRICS,
        *_dram_metrics(compute_capability, version),
        *CACHE_METRICS,
        _l1_metric(version),
        *(SASS.format(operation) for operation in operations),
        *_tensor_metrics(version),
    )


def _dram_metrics(compute_capability: str, version: tuple[int, int]) -> tuple[str, ...]:
    if compute_capability in CAPABILITIES_WITHOUT_DRAM:
        return ()
    infix = "op_" if version >= (10, 0) else ""
    names = ("dram__bytes.sum", f"dram__bytes_{infix}read.sum", f"dram__bytes_{infix}write.sum")
    return (*names, "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed")


def _l1_metric(version: tuple[int, int]) -> str:
    if version >= (9, 0):
        return "l1tex__lsu_writeback_active_mem_lgds.sum"
    return "l1tex__lsu_writeback_active_mem_lg.sum" if version >= (7, 5) else "l1tex__lsu_writeback_active.sum"


def _tensor_metrics(version: tuple[int, int]) -> tuple[str, ...]:
    known = [first for first in TENSOR_PATHS if first <= version]
    if not known:
        return ("sm__inst_executed_pipe_tensor.sum",)  # Volta counts instructions
    return tuple(TENSOR.format(name) for name in TENSOR_PATHS[max(known)])


# ---------------------------------------------------------------- ncu errors
# The reasons why ncu did not count, with its own message and a remedy.

MAX_LINE_COUNT: Final = 12  # of ncu's output in a message; the report in the run's artifacts has all of it

DCGM_REMEDY: Final = (
    "If DCGM watches this GPU, pause it as root while you count (dcgmi profile --pause), and let it go on after that "
    "(dcgmi profile --resume). It is not paused by itself: others may rely on it."
)
NOTHING_PROFILED: Final = "No kernels were profiled"
REMEDIES: Final = {
    "ERR_NVGPUCTRPERM": PERMISSION_REMEDY,
    "driver resource was unavailable": DCGM_REMEDY,
    "not compatible with Nsight Compute": "Use the ncu that came with a CUDA toolkit of the driver's own version; set CUDA_HOME to it.",
    "Profiling is not supported on": "Use a newer ncu, from a CUDA toolkit that knows this GPU (ncu --list-chips); set CUDA_HOME to it.",
    "unrecognised option": "Use a newer ncu, of CUDA 11.8 or later; set CUDA_HOME to its toolkit.",
    "Cannot lock GPU clock": "Count without clock control, which is the default.",
    "LibraryNotLoaded": (
        "Use the ncu of a toolkit no newer than the driver. Sandboxes such as gVisor hide the counters altogether: count on the host then."
    ),
    "Failed to open/create lock file": "Set TMPDIR to a directory that this user can write.",
    NOTHING_PROFILED: "The launches did not come about, or ncu did not see them; the run's log may say why.",
}
"""By words of ncu's message; the first that occurs counts."""

NAMED_METRIC: Final = re.compile(r"Failed to find metric (?:regex:\^?)?([A-Za-z]\w*)")
LISTED_METRICS: Final = re.compile(r"Failed to access the following \d+ metrics?: ([^\n]+)")


def counter_error(output: str, exit_code: int | None) -> UnmetConditionError:
    """Return the error that explains the output of ncu and the command under it.

    Args:
        exit_code: of ncu; None: a signal ended it.
    """
    said = [line.split("== ", 1)[-1].strip() for line in output.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    lines = said or [line for line in output.splitlines() if line.strip()]
    found = "\n".join(dict.fromkeys(lines[-MAX_LINE_COUNT:])) or "nothing"
    remedy = next(
        (remedy for words, remedy in REMEDIES.items() if words in output), "Timings are there; try the same in a shell of that node."
    )
    said_by = "ncu was ended by a signal; it says" if exit_code is None else "ncu says"
    return UnmetConditionError("hardware counters", found=f"{said_by}: {found}", expected="a report", remedy=remedy)


def skipped_metrics_notice(refused: Iterable[str]) -> str:
    """Return the notice that names the skipped metrics."""
    return f"Not counted, for this ncu or device does not know them: {', '.join(sorted(refused))}."


def is_permanent_failure(said: str) -> bool:
    """Return whether ncu's output names a reason that lies in the machine and so holds for every kernel."""
    return any(words in said for words in REMEDIES if words != NOTHING_PROFILED)


def rejected_metrics(output: str, asked: Iterable[str]) -> frozenset[str]:
    """Return those of the requested metrics that ncu's message names as unknown."""
    named = {found[1] for found in NAMED_METRIC.finditer(output)}
    for listed in LISTED_METRICS.finditer(output):
        named |= {name.strip().partition(".")[0] for name in listed[1].split(",")}
    return frozenset(metric for metric in asked if metric.partition(".")[0] in named)


# ---------------------------------------------------------------- ncu profile
# The report of a profiled command is also printed as CSV, which the analyzer reads.

NAME: Final = "ncu"
REPORT: Final = "report.ncu-rep"
TABLE: Final = "report.csv"
TABLE_MARK: Final = b'"Kernel Name"'  # in the header of ncu's table, and nowhere in its messages
SECTIONS: Final = ("LaunchStats", "Occupancy", "SpeedOfLight", "MemoryWorkloadAnalysis")  # for those who open the report in ncu-ui
NVTX_SPECIAL: Final = re.compile(r"([\\@/\[\]*+,])")  # of ncu's filter expressions


@dataclass(frozen=True, slots=True)
class NcuProfile:
    """Nsight Compute around a command: one call of ncu collects, a second one prints the report.

    metrics: what rooflines and counters need, beside the sections.
    """

    program: str
    profile: CommandProfile
    context: CollectorContext
    metrics: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return "ncu"."""
        return NAME

    @property
    def report(self) -> Path:
        """Return the path of the report that ncu writes."""
        return self.context.collected / REPORT

    def command(self, target: Sequence[str]) -> list[str]:
        """Return the command line of ncu around `target`."""
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
        """Return the variables for ncu and the program under it."""
        return {UNDER_PROFILER: "1", "LC_ALL": "C.UTF-8"}  # numbers of another locale would be ambiguous

    def is_finishing(self) -> bool:
        """Return False: ncu writes its report within its own process."""
        return False

    def collect(self, end: ToolExit, toolbox: ToolRunner) -> CollectorResult:
        """Print the report as CSV with a second call of ncu, and return both files, or the reason why there is none."""
        unknown = rejected_metrics(end.output, self.metrics)
        notices = (skipped_metrics_notice(unknown),) if unknown else ()
        if not self.report.is_file():
            if "==ERROR==" in end.output or "==WARNING==" in end.output:
                rest = tuple(metric for metric in self.metrics if metric not in unknown)
                again = replace(self, metrics=rest) if unknown else None
                return CollectorResult(problem=counter_error(end.output, end.exit_code), notices=notices, again=again)
            return CollectorResult(
                problem=no_trace(NAME, end, "no report", "Look at the filter and the capture range: no launch may match them.")
            )
        report = ArtifactFile(REPORT, self.report)
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
            remedy = "The report is stored as an artifact; it may be cut short. Try to open it by hand."
            return CollectorResult((report,), problem=no_trace("ncu --import", printing, "a report that it does not print", remedy))
        return CollectorResult((report, ArtifactFile(TABLE, table)), ((TABLE,),), notices=notices)


def open_ncu(
    profile: CommandProfile, context: CollectorContext, compute_capability: Callable[[], str | None]
) -> tuple[NcuProfile, tuple[str, ...]]:
    """Return the collector, and notices for the user. Raises CollectorUnavailableError.

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
