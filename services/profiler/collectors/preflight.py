"""Checks of a node before a program starts under a collector, each with its remedy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.core.errors import CollectorUnavailableError, CommandNotFoundError, StorageFullError

PERF_EVENT_PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")
MAX_PERF_EVENT_LEVEL: Final = 2  # with more, a user's own processes cannot be sampled
PERF_EVENTS_REMEDY: Final = "Allow it: sysctl kernel.perf_event_paranoid=2 (as root)."
ABSENT_PERF_EVENTS_REMEDY: Final = "nsys works without CPU samples."

MIN_FREE_BYTES: Final = 64 * 1024 * 1024
"""A trace of a few seconds takes megabytes, its export as much again. Asked for more, nodes with small disks would be
refused short runs; with less, a tool would end in the middle of its report."""

NOEXEC_REMEDY: Final = "Mount it without noexec, or move the node's data_folder to a file system where programs may start."


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


def is_noexec(folder: Path) -> bool:
    """Return whether the folder's file system lets no program start."""
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


def check_folder(folder: Path) -> None:
    """Check that programs can start in a folder and reports fit in it.

    Raises:
        CollectorUnavailableError: its file system is mounted noexec.
        StorageFullError: it has less than MIN_FREE_BYTES.
    """
    if is_noexec(folder):
        raise CollectorUnavailableError(
            f"working folder {folder}", found="a file system mounted noexec", expected="one where programs may start", remedy=NOEXEC_REMEDY
        )
    check_room(folder, "Free space there, or move the node's data_folder.")


def check_room(folder: Path, remedy: str) -> None:
    """Raise StorageFullError where there is less than MIN_FREE_BYTES."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < MIN_FREE_BYTES:
        raise StorageFullError(
            f"disk of {folder}", found=f"{free_bytes} bytes free", expected=f"at least {MIN_FREE_BYTES} for reports", remedy=remedy
        )


def find_command(name: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Return the program of a command, by the PATH of its environment or, with a slash, from its working folder.

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
    path = folder / name
    if not path.is_file():
        raise CommandNotFoundError(
            f"command {name}",
            found=f"no such file{'' if name.startswith('/') else ' in the working folder'}",
            expected="a program on the node, or in the bundle",
            remedy="Send its folder as a bundle (--bundle DIR), or give the path that it has on the node.",
        )
    if not os.access(path, os.X_OK):
        raise CommandNotFoundError(
            f"command {name}", found="a file that is not executable", expected="a program", remedy="chmod +x it; scripts need a #! line."
        )
    return str(path)
