"""Checks of a node before a program starts under a collector, each with its remedy."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kernalyse.services.core.errors import CollectorUnavailableError, CommandNotFoundError, InvalidParameterError, StorageFullError
from kernalyse.services.core.model import CommandProfile

PERF_EVENT_PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")
MAX_PERF_EVENT_LEVEL: Final = 2  # with more, a user's own processes cannot be sampled
PERF_EVENTS_REMEDY: Final = "Allow it: sysctl kernel.perf_event_paranoid=2 (as root)."
ABSENT_PERF_EVENTS_REMEDY: Final = "nsys works without CPU samples."

MIN_FREE_BYTES: Final = 64 * 1024 * 1024
"""A trace of a few seconds takes megabytes, its export as much again. Asked for more, nodes with small disks would be
refused short runs; with less, a tool would end in the middle of its report."""

NOEXEC_REMEDY: Final = "Mount it without noexec, or move the node's data_directory to a file system where programs may start."


def perf_event_level(setting: Path = PERF_EVENT_PARANOID) -> int | None:
    """Return the kernel's perf_event_paranoid; None: it has no perf events."""
    try:
        return int(setting.read_text())
    except (OSError, ValueError):
        return None


def check_cpu_sampling(setting: Path = PERF_EVENT_PARANOID) -> None:
    """Raise CollectorUnavailableError where this user may not sample the CPU."""
    level = perf_event_level(setting)
    if level is not None and (level <= MAX_PERF_EVENT_LEVEL or os.geteuid() == 0):
        return
    raise CollectorUnavailableError(
        "CPU sampling",
        found="a kernel without perf events" if level is None else f"perf_event_paranoid {level}",
        expected=f"perf_event_paranoid {MAX_PERF_EVENT_LEVEL} or less",
        remedy=f"Leave CPU sampling out: {ABSENT_PERF_EVENTS_REMEDY}" if level is None else PERF_EVENTS_REMEDY,
    )


def is_noexec(directory: Path) -> bool:
    """Return whether the directory's file system lets no program start."""
    return bool(os.statvfs(directory).f_flag & os.ST_NOEXEC)


def check_directory(directory: Path) -> None:
    """Raise CollectorUnavailableError or StorageFullError unless programs can start in a directory and reports fit in it.

    Raises:
        CollectorUnavailableError: its file system is mounted noexec.
        StorageFullError: it has less than MIN_FREE_BYTES.
    """
    if is_noexec(directory):
        raise CollectorUnavailableError(
            f"working directory {directory}",
            found="a file system mounted noexec",
            expected="one where programs may start",
            remedy=NOEXEC_REMEDY,
        )
    check_room(directory, "Free space there, or move the node's data_directory.")


def check_room(directory: Path, remedy: str) -> None:
    """Raise StorageFullError where there is less than MIN_FREE_BYTES."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < MIN_FREE_BYTES:
        raise StorageFullError(
            f"disk of {directory}", found=f"{free_bytes} bytes free", expected=f"at least {MIN_FREE_BYTES} for reports", remedy=remedy
        )


def find_command(name: str, directory: Path, environment: Mapping[str, str]) -> str:
    """Return the program of a command, by the PATH of its environment or, with a slash, from its working directory.

    Raises:
        CommandNotFoundError: there is none, or it cannot be executed.
    """
    if "/" not in name:
        found = shutil.which(name, path=environment.get("PATH", os.defpath))
        if found is None:
            raise CommandNotFoundError(
                f"command {name}",
                found="no such program",
                expected=f"one on the node's PATH ({environment.get('PATH', os.defpath)})",
                remedy=f"Install it on the node, give its path, or send it in a bundle and name it ./{name}.",
            )
        return found
    path = directory / name
    if not path.is_file():
        raise CommandNotFoundError(
            f"command {name}",
            found=f"no such file{'' if name.startswith('/') else ' in the working directory'}",
            expected="a program on the node, or in the bundle",
            remedy="Send its directory as a bundle (--bundle DIR), or give the path that it has on the node.",
        )
    if not os.access(path, os.X_OK):
        raise CommandNotFoundError(
            f"command {name}", found="a file that is not executable", expected="a program", remedy="chmod +x it; scripts need a #! line."
        )
    return str(path)


# ---------------------------------------------------------------- command checks
# These checks look only at the request, not at the node.

COLLECTORS: Final = ("nsys", "ncu", "kineto", "proton")

AUTOMATIC: Final = ("nsys", "kineto")  # where a request names none

OPTION_COLLECTORS: Final = {
    "capture_range": ("nsys", "ncu"),
    "with_cpu_sampling": ("nsys",),
    "kernel_filter": ("ncu",),
    "launch_skip_count": ("ncu",),
    "max_launch_count": ("ncu",),
    "step_count": ("kineto",),
}
DEFAULTS: Final = CommandProfile((), "")

CAPTURE_RANGE: Final = re.compile(r"cudaProfilerApi|nvtx:[^\0]*[^@\0][^\0]*", re.DOTALL)
VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1
"""What Linux takes as one argument or variable (MAX_ARG_STRLEN), less its end."""


def check_command(profile: CommandProfile) -> None:
    """Raise InvalidParameterError for the first field that no run could use."""
    if profile.collector not in ("", *COLLECTORS):
        raise _invalid("collector", repr(profile.collector), f"one of {', '.join(COLLECTORS)}", "Choose one of them.")
    _check_arguments(profile)
    _check_environment(profile)
    _check_options(profile)


def _check_arguments(profile: CommandProfile) -> None:
    if not profile.arguments or not profile.arguments[0]:
        raise _invalid("arguments", "no program", "a command: program first", "Give the command after --.")
    for index, argument in enumerate(profile.arguments):
        if "\0" in argument or len(argument.encode(errors="surrogateescape")) > MAX_ARGUMENT_BYTES:
            found = f"argument {index} with {'a NUL' if chr(0) in argument else f'{len(argument)} characters'}"
            raise _invalid("arguments", found, f"up to {MAX_ARGUMENT_BYTES} bytes without NUL", "Pass large data in a file of the bundle.")


def _check_environment(profile: CommandProfile) -> None:
    names = [variable.name for variable in profile.environment]
    for variable in profile.environment:
        if not VARIABLE_NAME.fullmatch(variable.name) or "\0" in variable.value:
            raise _invalid("environment", repr(variable.name), "a name of letters, digits and _, and a value without NUL", "Correct it.")
        if len(variable.value.encode(errors="surrogateescape")) + len(variable.name) >= MAX_ARGUMENT_BYTES:
            raise _invalid(
                "environment", f"{variable.name} with {len(variable.value)} characters", f"up to {MAX_ARGUMENT_BYTES} bytes", "Use a file."
            )
        if names.count(variable.name) > 1:
            raise _invalid("environment", f"{variable.name} twice", "each variable once", "Leave one of them out.")


def _check_options(profile: CommandProfile) -> None:
    for name, collectors in OPTION_COLLECTORS.items():
        value = getattr(profile, name)
        possible = (profile.collector,) if profile.collector else AUTOMATIC
        if value != getattr(DEFAULTS, name) and not set(possible) & set(collectors):
            raise _invalid(
                name,
                f"{value} with collector {' or '.join(possible)}",
                f"collector {' or '.join(collectors)} with it",
                f"Leave {name} out.",
            )
    if profile.capture_range and not CAPTURE_RANGE.fullmatch(profile.capture_range):
        raise _invalid(
            "capture_range", repr(profile.capture_range), "cudaProfilerApi, nvtx:RANGE or nvtx:RANGE@DOMAIN", "Write it like that."
        )
    for name in ("max_duration_ns", "max_launch_count", "step_count"):
        value = getattr(profile, name)
        if value is not None and value <= 0:
            raise _invalid(name, str(value), "more than 0", "Correct it, or leave it out.")
    try:
        re.compile(profile.kernel_filter)
    except re.error as error:
        raise _invalid(
            "kernel_filter", f"{profile.kernel_filter!r}: {error}", "a regular expression over kernel names", "Correct it."
        ) from error


def _invalid(field: str, found: str, expected: str, remedy: str) -> InvalidParameterError:
    return InvalidParameterError(f"{field} of the command", found=found, expected=expected, remedy=remedy)
