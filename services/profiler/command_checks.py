"""Checks of a command to be profiled, before anything is looked up on the node."""

from __future__ import annotations

import re
from typing import Final

from services.core.errors import InvalidParameterError
from services.core.model import CommandProfile

COLLECTORS: Final = ("nsys", "ncu", "kineto", "proton")

CHOSEN: Final = ("nsys", "kineto")  # where a request names none

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
        possible = (profile.collector,) if profile.collector else CHOSEN
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
