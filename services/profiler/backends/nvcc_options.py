"""The options with which nvcc builds a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from services.profiler.backends.base import Build

ARCHITECTURE_OPTIONS: Final = ("-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code", "--gpu-code")
DEBUG_OPTIONS: Final = ("-G", "--device-debug")


def build_options(build: Build, architecture: str) -> list[str]:
    """Return architecture, line numbers, macros, the request's own options, folders of headers: in this order.

    Args:
        architecture: of the device, e.g. "sm_90"; one that the request's options name counts instead.
    """
    return [
        *([] if names_architecture(build.options) else [f"-arch={architecture}"]),
        *([] if any(option in DEBUG_OPTIONS for option in build.options) else ["-lineinfo"]),  # full debug information has them
        *(f"-D{macro.name}={macro.value}" for macro in build.macros),
        *build.options,
        *(f"-I{folder}" for folder in header_folders(build)),
    ]


def names_architecture(options: Sequence[str]) -> bool:
    """Return whether options choose an architecture by themselves."""
    return any(option.split("=", maxsplit=1)[0] in ARCHITECTURE_OPTIONS for option in options)


def header_folders(build: Build) -> tuple[Path, ...]:
    """Return the build's folders, and before them those in which the source itself lies: #include "x.h" looks there first."""
    place = PurePosixPath(build.source.file_name).parent
    beside = [folder / place for folder in build.include_folders] if place.parts and ".." not in place.parts else []
    return (*(folder for folder in beside if folder.is_dir()), *build.include_folders)
