"""Nsight Compute: where it is, whether it may count, and the command that does it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from services.core.cuda_tools import find_ncu
from services.core.errors import UnmetConditionError
from services.core.model import CacheMode

DRIVER_PARAMETERS: Final = Path("/proc/driver/nvidia/params")
PROCESSES: Final = Path("/proc")
OWN_STATUS: Final = Path("/proc/self/status")
CAP_SYS_ADMIN: Final = 21  # bit of the effective capabilities
DCGM_SERVICE: Final = "nv-hostengine"

PERMISSION_REMEDY: Final = (
    "Put 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' in a file in /etc/modprobe.d, update the initial RAM disk and "
    "restart the machine; or start the profiler as root, in a container with the capability CAP_SYS_ADMIN."
)
INSTALL_REMEDY: Final = "It comes with the CUDA toolkit, or as the package nsight-compute; put its folder on PATH."


class CounterAccess(StrEnum):
    """The driver's permission to read counters. NOT_TOLD: its parameters are hidden; it answers when it is asked."""

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
        names = "|".join(re.escape(name) for name in self.function_names)
        return [
            *(self.program, "--csv", "--page", "raw", "--print-units", "base", "--print-fp"),
            *("--replay-mode", "kernel", "--cache-control", self.cache_control, "--clock-control", self.clock_control),
            *("--target-processes", "all", "--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$"),
            *(("--profile-from-start", "off") if self.has_ranges else ()),
            *("--metrics", ",".join(self.metrics), "--log-file", str(self.log_file)),
            *target,
        ]


def cache_control_of(cache_mode: CacheMode) -> str:
    """Return the cache control: cold launches have the caches flushed before each replay; hot ones find what the replay before has left."""
    return "all" if cache_mode is CacheMode.COLD else "none"


def check_ncu(parameters: Path = DRIVER_PARAMETERS, status: Path = OWN_STATUS) -> str:
    """Return the program, where nothing is known to stand in its way. What only a try can show, ncu says then.

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
    """Return what the driver's parameters and this process's capabilities say."""
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
    """Return DCGM's process, if one runs here: while it profiles a GPU, ncu gets no counters of it. In a container it may be hidden."""
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
