"""The interface of collectors, the tools that profile a command, and what all of them share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kernalyse.services.core.errors import CollectorFailedError, KernalyseError

PROGRAM_MARK: Final = "KERNALYSE_PROGRAM"
"""Variable that the program and what it starts have, and the processes of the tool have not: so one can be ended without the other."""

SHOWN_LINE_COUNT: Final = 12  # of a tool's output in a message; the run's log has all of it


@dataclass(frozen=True, slots=True)
class CollectorContext:
    """The directories of one command run, all private to it.

    program: working directory of the program. collected: where the collector writes. temporary: TMPDIR of all processes.
    environment: of the program, without what the collector adds.
    """

    program: Path
    collected: Path
    temporary: Path
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ToolExit:
    """How a process of the tool has ended.

    exit_code: None when a signal ended it. output: its last lines, and the program's. is_over_time: it was ended for that.
    """

    exit_code: int | None
    output: str
    is_over_time: bool = False


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A file that becomes an artifact of the run."""

    artifact_name: str
    path: Path


@dataclass(frozen=True, slots=True)
class CollectorResult:
    """The traces and files of a collector.

    traces: names of the artifacts of each trace, the one to read first in front.
    problem: why there is no trace. is_within_program: the collector is part of the program, and ends as it ends.
    again: asks the tool for less than it refused; the program has to be started once more for it.
    """

    files: tuple[ArtifactFile, ...] = ()
    traces: tuple[tuple[str, ...], ...] = ()
    problem: KernalyseError | None = None
    is_within_program: bool = False
    notices: tuple[str, ...] = ()
    again: Collector | None = None


class ToolRunner(Protocol):
    """The means to run a tool again on the collected data: supervised, within the run's time limit, with its status shown."""

    def run(self, command: Sequence[str], activity: str) -> ToolExit:
        """Run the command to its end. activity: the status message that the service shows meanwhile."""
        ...


class Collector(Protocol):
    """A way to collect around a command. Whoever creates one has checked that it can work on this node."""

    @property
    def name(self) -> str:
        """Return the name by which requests select the collector."""
        ...

    def command(self, target: Sequence[str]) -> list[str]:
        """Return the command that runs `target` and collects. Below a tool, only the program's processes have PROGRAM_MARK."""
        ...

    def environment(self) -> Mapping[str, str]:
        """Return additional environment variables for that command."""
        ...

    def is_finishing(self) -> bool:
        """Return whether a process of the program is writing its trace, and so gets more time after SIGTERM."""
        ...

    def collect(self, end: ToolExit, toolbox: ToolRunner) -> CollectorResult:
        """Return the traces and files that are there after the program's end, however it ended."""
        ...


def last_lines(output: str) -> str:
    """Return the last lines of a tool's output that are not empty."""
    lines = [line for line in output.splitlines() if line.strip()]
    return "\n".join(lines[-SHOWN_LINE_COUNT:])


def no_trace(collector: str, end: ToolExit, found: str, remedy: str) -> CollectorFailedError:
    """Return the error of a collector that has left no trace, with its last lines."""
    ending = (
        "was ended for the time limit"
        if end.is_over_time
        else "a signal ended it"
        if end.exit_code is None
        else f"exit code {end.exit_code}"
    )
    said = last_lines(end.output)
    return CollectorFailedError(
        f"collector {collector}",
        found=f"{found} ({ending}{'; it last said:' if said else ''})\n{said}".rstrip(),
        expected="a trace",
        remedy=remedy,
    )


def files_below(directory: Path) -> Iterator[Path]:
    """Return files in the order of their names; none where there is no such directory."""
    yield from sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
