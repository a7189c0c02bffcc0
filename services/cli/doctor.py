"""Checks of what this machine has for profiling, each with the remedy for what it lacks; `kernalyse doctor` prints them."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.external_programs import find_ncu
from kernalyse.services.core.model import NodeHealth, NodeStatus
from kernalyse.services.core.settings import ProfilerSettings
from kernalyse.services.profiler.collectors.ncu import DCGM_REMEDY, PERMISSION_REMEDY, CounterAccess, counter_access, dcgm_process_id
from kernalyse.services.profiler.collectors.nsys import locate_nsys
from kernalyse.services.profiler.collectors.preflight import (
    ABSENT_PERF_EVENTS_REMEDY,
    MAX_PERF_EVENT_LEVEL,
    PERF_EVENT_PARANOID,
    PERF_EVENTS_REMEDY,
    check_directory,
    perf_event_level,
)
from kernalyse.services.profiler.processes.sandbox import open_sandbox
from kernalyse.services.profiler.workloads.onnx.spec import INSTALLING, has_cuda_provider, missing_packages

COMMAND_TIMEOUT_S: Final = 30.0
"""nvidia-smi takes seconds where the driver is not kept loaded; an OpenCL runtime compiles at its first use."""


ACCESS_TEXTS: Final = {
    CounterAccess.OPEN: "open to all users",
    CounterAccess.ADMINISTRATOR: "open to administrators, and this process has their rights",
    CounterAccess.NOT_TOLD: "the driver's parameters are hidden here: the first run with --counters will show it",
}

CUDA_DEVICES: Final = "CUDA devices"
OPENCL_DEVICES: Final = "OpenCL devices"
CLOCKS: Final = ("clocks.sm", "clocks.max.sm", "clocks.mem", "clocks.max.mem", "persistence_mode")


class CheckState(StrEnum):
    """The result of a check."""

    OK = "ok"
    MISSING = "missing"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that profiling needs, and whether it is there.

    Attributes:
        found: what the check found, for the user.
        remedy: empty where nothing is to be done.
    """

    name: str
    state: CheckState
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The output of a program.

    Attributes:
        status: its exit status; None: the program does not exist, or did not end in time.
        output: standard output, of a failed program with standard error.
    """

    status: int | None
    output: str


RunCommand = Callable[[Sequence[str]], CommandResult]


def run_command(arguments: Sequence[str]) -> CommandResult:
    """Run a program without input and return its status and output."""
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return CommandResult(None, "")
    except (OSError, subprocess.TimeoutExpired) as error:
        return CommandResult(None, str(error))
    return CommandResult(done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr)


def check_machine(run: RunCommand = run_command) -> tuple[Check, ...]:
    """Run all checks of this machine and return them in the order in which they are shown. run: runs a program."""
    settings = ProfilerSettings.load()
    nsys_program = None if settings.nsys_program is None else str(settings.nsys_program)
    gpu = check_gpu(run)
    has_gpu = gpu.state is CheckState.OK
    probe = run((sys.executable, "-P", "-m", "kernalyse.services.profiler.backends.discovery"))
    return (
        gpu,
        check_clocks(run, has_gpu=has_gpu),
        check_toolkit(run, has_gpu=has_gpu),
        check_pycuda(run, has_gpu=has_gpu),
        check_devices(probe, CUDA_DEVICES, ("PYCUDA", "NVCC"), is_needed=has_gpu),
        check_tool(run, "Nsight Systems (nsys)", locate_nsys(nsys_program) or nsys_program or "nsys", has_gpu=has_gpu),
        check_tool(run, "Nsight Compute (ncu)", find_ncu() or "ncu", has_gpu=has_gpu),
        check_counter_access(counter_access(), dcgm_process_id(), has_gpu=has_gpu),
        check_perf_events(PERF_EVENT_PARANOID),
        check_commands(settings),
        check_sandbox(settings),
        check_devices(probe, OPENCL_DEVICES, ("OPENCL",), is_needed=True),
        check_onnx_runtime(has_gpu=has_gpu),
        check_chromium(),
    )


def can_run_kernels(checks: Sequence[Check]) -> bool:
    """Return whether the checks found a device that can run kernels."""
    return any(check.state is CheckState.OK and check.name in (CUDA_DEVICES, OPENCL_DEVICES) for check in checks)


def check_gpu(run: RunCommand) -> Check:
    """Check for an NVIDIA GPU with its driver."""
    name = "NVIDIA GPU and driver"
    result = run(("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"))
    lines = result.output.strip().splitlines()
    if result.status == 0 and lines:
        return Check(name, CheckState.OK, "; ".join(lines))
    if result.status is None:
        return Check(
            name, CheckState.MISSING, "no nvidia-smi", "With an NVIDIA GPU: install its driver. Without: kernels run through OpenCL."
        )
    return Check(
        name, CheckState.MISSING, lines[-1] if lines else "nvidia-smi failed", "Install the driver anew, or restart after an update of it."
    )


def check_toolkit(run: RunCommand, *, has_gpu: bool) -> Check:
    """Check for nvcc, the CUDA compiler."""
    name = "CUDA toolkit (nvcc)"
    nvcc = _nvcc()
    result = run((nvcc, "--version"))
    release = re.search(r"release ([\d.]+)", result.output)
    if result.status == 0 and release:
        return Check(name, CheckState.OK, f"release {release.group(1)}, {nvcc}")
    return _lacking(
        name, "no nvcc on PATH", "Install the CUDA toolkit and put its bin directory on PATH, or set CUDA_HOME.", has_gpu=has_gpu
    )


def _nvcc() -> str:
    """Return the path of the nvcc that compiles kernels, or its plain name where none was found."""
    try:
        from kernalyse.services.core.external_programs import find_nvcc
    except ModuleNotFoundError:  # without the extra "profiler" nothing is compiled here
        return "nvcc"
    return find_nvcc() or "nvcc"


def check_clocks(run: RunCommand, *, has_gpu: bool) -> Check:
    """Check that the driver reports clocks: of each device the present ones, which may be idle ones, and the maximum."""
    name = "GPU clocks"
    if not has_gpu:
        return Check(name, CheckState.NOT_NEEDED, "no NVIDIA driver")
    result = run(("nvidia-smi", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader,nounits"))
    rows = [line.split(", ") for line in result.output.strip().splitlines()]
    if result.status != 0 or not rows or any(len(row) != len(CLOCKS) for row in rows):
        return Check(name, CheckState.MISSING, "nvidia-smi does not report them", "Throttled samples cannot be recognized here.")
    found = "; ".join(f"SM {sm} of {max_sm} MHz, memory {memory} of {max_memory} MHz" for sm, max_sm, memory, max_memory, _ in rows)
    if any(row[-1] == "Disabled" for row in rows):
        return Check(
            name,
            CheckState.OK,
            f"{found}; persistence mode is off",
            "The driver starts anew with each program, which costs seconds: nvidia-smi -pm 1 (as root) keeps it.",
        )
    return Check(name, CheckState.OK, found)


def check_pycuda(run: RunCommand, *, has_gpu: bool) -> Check:
    """Check that PyCUDA is installed and finds a device."""
    name = "PyCUDA"
    if importlib.util.find_spec("pycuda") is None:
        return _lacking(name, "not installed", "Install it: pip install 'kernalyse[cuda]' (needs the CUDA toolkit).", has_gpu=has_gpu)
    result = run((sys.executable, "-P", "-c", "import pycuda, pycuda.driver as d; d.init(); print(pycuda.VERSION_TEXT, d.Device.count())"))
    if result.status == 0:
        version, device_count = result.output.split()
        return Check(name, CheckState.OK, f"{version}, {device_count} device(s)")
    last_line = (result.output.strip().splitlines() or ["it did not answer"])[-1]
    return _lacking(
        name, last_line, "Use a driver as new as the CUDA toolkit that PyCUDA was built with, or build it again.", has_gpu=has_gpu
    )


def check_tool(run: RunCommand, name: str, program: str, *, has_gpu: bool) -> Check:
    """Check that a program runs, and find its version."""
    result = run((program, "--version"))
    version = re.search(r"\d{4}\.\d+\.\d+[\w.\-]*|\d+\.\d+\.\d+[\w.\-]*", result.output)
    if result.status == 0 and version:
        return Check(name, CheckState.OK, version.group())
    return _lacking(
        name,
        f"no {program} on PATH"
        if result.status is None
        else f"{program} --version fails: {(result.output.strip().splitlines() or ['silent'])[-1]}",
        f"It comes with the CUDA toolkit, or as a package of its own; put {Path(program).name} on PATH.",
        has_gpu=has_gpu,
    )


def check_counter_access(access: CounterAccess, dcgm_process_id: int | None, *, has_gpu: bool) -> Check:
    """Check that ncu may read hardware counters as this user.

    Args:
        access: what the driver allows.
        dcgm_process_id: id of the process of DCGM's service; None: it was not found.
        has_gpu: whether there is an NVIDIA GPU.
    """
    name = "GPU performance counters"
    if access is CounterAccess.NOT_TOLD and not has_gpu:
        return Check(name, CheckState.NOT_NEEDED, "no NVIDIA driver")
    if access is CounterAccess.REFUSED:
        return Check(name, CheckState.MISSING, "open to administrators only (ERR_NVGPUCTRPERM)", PERMISSION_REMEDY)
    if dcgm_process_id is not None:
        return Check(name, CheckState.MISSING, f"DCGM runs as process {dcgm_process_id} and may hold them", DCGM_REMEDY)
    return Check(name, CheckState.OK, ACCESS_TEXTS[access])


def check_perf_events(setting: Path) -> Check:
    """Check that nsys may sample the CPU as this user. setting: the path of perf_event_paranoid."""
    name = "CPU sampling (perf events)"
    level = perf_event_level(setting)
    if level is None:
        return Check(name, CheckState.MISSING, "the kernel has no perf events", ABSENT_PERF_EVENTS_REMEDY)
    if level <= MAX_PERF_EVENT_LEVEL:
        return Check(name, CheckState.OK, f"perf_event_paranoid is {level}")
    return Check(name, CheckState.MISSING, f"perf_event_paranoid is {level}", PERF_EVENTS_REMEDY)


def check_commands(settings: ProfilerSettings) -> Check:
    """Check that this node accepts commands, and that they can start in the directory of its runs."""
    name = "Commands to profile"
    if settings.observe_only:
        return Check(name, CheckState.NOT_NEEDED, "this node only observes (observe_only)")
    if not settings.allow_commands or settings.allow_catalog_only:
        return Check(name, CheckState.NOT_NEEDED, "switched off by this node's settings")
    directory = next(path for path in (settings.data_directory, *settings.data_directory.absolute().parents) if path.is_dir())
    try:
        check_directory(directory)
    except KernalyseError as error:
        return Check(name, CheckState.MISSING, f"{error.subject}: {error.found}", error.remedy)
    found = f"limited to {', '.join(settings.allowed_commands)}" if settings.allowed_commands else "any"
    return Check(name, CheckState.OK, f"{found}; run below {directory}")


def check_sandbox(settings: ProfilerSettings) -> Check:
    """Check that runs of others can be kept from the rest of this machine."""
    name = "Sandbox (bubblewrap)"
    if settings.sandbox == "off":
        return Check(name, CheckState.NOT_NEEDED, "switched off by this node's settings")
    found = open_sandbox(settings.sandbox, is_required=False, user_name=settings.sandbox_user)
    if found.program:
        return Check(name, CheckState.OK, found.explanation)
    remedy = "Install it where others measure too: apt-get install bubblewrap"
    if shutil.which("bwrap") is not None:
        remedy = "Let the service make namespaces where others measure too; container engines and some systems forbid it by default."
    return Check(name, CheckState.MISSING, found.explanation, remedy)


def check_devices(probe: CommandResult, name: str, backends: Sequence[str], *, is_needed: bool) -> Check:
    """Check for devices of the given backends.

    Args:
        probe: output of the profiler's own probe, which runs in a separate process because a broken runtime may crash it.
        name: of the check.
        backends: names of backends.
        is_needed: whether a machine without such devices lacks something.
    """
    from kernalyse.services.profiler.backends.discovery import read_probe

    if probe.status != 0:
        last_line = (probe.output.strip().splitlines() or ["the probe did not answer"])[-1]
        return Check(
            name, CheckState.MISSING, last_line, "Start the probe by hand: python -m kernalyse.services.profiler.backends.discovery."
        )
    devices, notices = read_probe(probe.output)
    notes = " ".join(notice for notice in notices if any(backend in notice for backend in backends))
    found = list[str]()
    for device in devices:
        driven_by = [backend for backend in device.backends if backend in backends]
        if driven_by:
            by = f", by {' and '.join(driven_by)}" if len(backends) > 1 else ""
            found.append(f"{device.device_id} {device.name} ({device.runtime}{by})")
    if found:
        return Check(name, CheckState.OK, "; ".join(found), notes)
    if not is_needed:
        return Check(name, CheckState.NOT_NEEDED, "none; of use with an NVIDIA GPU only")
    return Check(name, CheckState.MISSING, "none", notes or "Install the CPU runtimes: pip install 'kernalyse[opencl]'.")


def check_onnx_runtime(*, has_gpu: bool) -> Check:
    """Check that ONNX models can run, and on which devices."""
    name = "ONNX Runtime"
    missing = missing_packages()
    if missing:
        return Check(name, CheckState.MISSING, f"no {' and no '.join(missing)}", f"For ONNX models: {INSTALLING}")
    found = f"onnxruntime {onnxruntime_version()}"
    if has_gpu and not has_cuda_provider():
        return Check(name, CheckState.OK, f"{found}, for the CPU alone", "For the GPU: onnxruntime-gpu in the place of onnxruntime.")
    return Check(name, CheckState.OK, found)


def onnxruntime_version() -> str:
    """Return the version of whichever package provides the module onnxruntime."""
    for package in ("onnxruntime-gpu", "onnxruntime"):
        with suppress(PackageNotFoundError):
            return version(package)
    return "of unknown version"


def check_chromium() -> Check:
    """Check for a browser for the browser tests."""
    name = "Chromium (browser tests)"
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is not None:
        return Check(name, CheckState.OK, path)
    return Check(name, CheckState.MISSING, "not on PATH", "Only the project's own browser tests need it: apt-get install chromium.")


def _lacking(name: str, found: str, remedy: str, *, has_gpu: bool) -> Check:
    if has_gpu:
        return Check(name, CheckState.MISSING, found, remedy)
    return Check(name, CheckState.NOT_NEEDED, f"{found}; of use with an NVIDIA GPU only")


# ---------------------------------------------------------------- a fleet


OBSERVES: Final = "Nothing is run on it (observe_only): measure on another node."


def check_fleet(nodes: Sequence[NodeStatus]) -> tuple[Check, ...]:
    """Return a check for each node of an analyzer."""
    if not nodes:
        return (Check("nodes", CheckState.MISSING, "none", "Have them join: kernalyse nodes join-token"),)
    return tuple(map(_check_node, nodes))


def _check_node(status: NodeStatus) -> Check:
    node, name = status.node, status.node.hostname if status.node else status.address
    if status.health is not NodeHealth.SERVING or node is None:
        since = status.unreachable_since_time
        when = "does not answer" if since is None else f"gone since {since:%Y-%m-%d %H:%M} UTC"
        found = f"{when}: {status.problem}" if status.problem else when
        return Check(name, CheckState.MISSING, found, f"Start its profiler, or: kernalyse nodes remove {status.address}")
    if node.storage_problem:
        return Check(name, CheckState.MISSING, node.storage_problem, "Free space on its disk.")
    if not node.devices:
        return Check(name, CheckState.MISSING, "no device", "Run kernalyse doctor on it.")
    counts = Counter(device.name for device in node.devices)
    devices = ", ".join(f"{count} x {kind}" if count > 1 else kind for kind, count in counts.items())
    if status.observes_only:
        remedies = (OBSERVES, status.version_note, *node.notices)
        return Check(name, CheckState.OK, f"{devices}; only observes", " ".join(filter(None, remedies)))
    if status.version_note:
        return Check(name, CheckState.OK, f"{devices}; kernalyse {node.version}", status.version_note)
    return Check(name, CheckState.OK, devices, " ".join(node.notices))


def is_fleet_whole(checks: Sequence[Check]) -> bool:
    """Return whether all nodes can measure and store."""
    return all(check.state is CheckState.OK for check in checks)
