"""The collector of a command for which none was named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from services.core.errors import CollectorUnavailableError
from services.core.model import CommandProfile
from services.profiler.collectors.nsys import INSTALL_REMEDY, chosen_nsys
from services.profiler.collectors.python_collector import INTERPRETER
from services.profiler.command_checks import check_command


def with_collector(profile: CommandProfile, environment: Mapping[str, str], nsys_program: str | None) -> CommandProfile:
    """Return the profile with a collector: nsys where the node has it, else kineto for a Python program.

    Args:
        environment: of the program.
        nsys_program: the node's setting.

    Raises:
        CollectorUnavailableError: the node has no nsys, and the program is not Python.
        InvalidParameterError: an option that the chosen one does not have.
    """
    if profile.collector:
        return profile
    chosen = replace(profile, collector=_chosen(profile.arguments, has_nsys=chosen_nsys(nsys_program, environment) is not None))
    check_command(chosen)
    return chosen


def _chosen(arguments: Sequence[str], *, has_nsys: bool) -> str:
    if has_nsys:
        return "nsys"
    if INTERPRETER.fullmatch(Path(arguments[0]).name):
        return "kineto"
    raise CollectorUnavailableError(
        f"a collector for {arguments[0]}",
        found="no nsys on this node, and a program that is not Python",
        expected="nsys",
        remedy=INSTALL_REMEDY,
    )
