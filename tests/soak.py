"""What takes too long for every change: fuzzing, kills, load, large stores, Slurm. `python -m tests.soak [--minutes M] [PART...]`

Each part is a process of its own. docs/soak.md keeps what each part said when it last ran, with the commit that it tested.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.benchmarks.run import cpu_model

ROOT: Final = Path(__file__).parents[1]
REPORT: Final = ROOT / "docs" / "soak.md"

READERS: Final = ("nsys", "kineto", "foreign", "seeds")
DEFAULT_MINUTES: Final = 10.0
EXAMPLES_FACTOR: Final = 10
KILL_ROUNDS: Final = 25
"""Each round kills services and workers in some twenty places: hundreds of kills in all."""

KILLS_AT_WRITES: Final = 250
FAULTS_FACTOR: Final = 3

KILL_TESTS: Final = (
    "tests/integration/test_kill_each_service.py",
    "tests/integration/test_profiler_faults.py",
    "tests/integration/test_collector_faults.py",
    "tests/integration/test_reading_processes.py",
    "tests/unit/profiler/test_journal.py",
)
RUN_COUNT, CONFIGURATION_COUNT = 2000, 1000
"""Of a large store: two million measurements."""

TAIL_LINES: Final = 20
TITLE: Final = "# Soak"
HEADING: Final = "## "


@dataclass(frozen=True, slots=True)
class Part:
    """A command and what it stands for. rounds: how many times it runs; the first failure ends it."""

    title: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    rounds: int = 1


def parts(minutes: float, rounds: int) -> dict[str, Part]:
    pytest = (sys.executable, "-m", "pytest", "--quiet", "--timeout", "3600", "-o", "faulthandler_timeout=7200")
    found = {
        f"fuzz-{reader}": Part(
            f"Damaged files of reader {reader}, {minutes:g} minutes",
            (sys.executable, "-m", f"tests.fuzzing.{reader}", "--minutes", str(minutes)),
        )
        for reader in READERS
    }
    found["fuzz-rpcs"] = Part(
        f"Hostile requests to each service, {minutes:g} minutes each",
        (sys.executable, "-m", "tests.fuzzing.rpcs", "--minutes", str(minutes)),
    )
    found["vanished-lines"] = Part(
        "Connections whose other end vanishes and never says so",
        (*pytest, "--numprocesses", "0", "tests/integration/test_fault_proxy.py", "-k", "found_dead"),
        (("VANISHED_LINES", "1"),),
    )
    found["properties"] = Part(
        f"Properties with {EXAMPLES_FACTOR} times the examples",
        (*pytest, "--numprocesses", "2", "tests/unit"),
        (("EXAMPLES_SHARE", str(EXAMPLES_FACTOR)),),
    )
    found["kills"] = Part(
        f"Kills of services, workers and readers, {rounds} rounds", (*pytest, "--numprocesses", "0", *KILL_TESTS), (), rounds
    )
    found["kills-at-writes"] = Part(
        f"kill -9 at writes, {KILLS_AT_WRITES} times each service",
        (*pytest, "--numprocesses", "0", "tests/integration/test_kills_at_writes.py"),
        (("KILLS_AT_WRITES", str(KILLS_AT_WRITES)),),
    )
    found["faults"] = Part(
        f"Runs under faults in any order, {20 * FAULTS_FACTOR} times",
        (*pytest, "--numprocesses", "0", "tests/integration/test_fault_machine.py"),
        (("EXAMPLES_SHARE", str(FAULTS_FACTOR)),),
    )
    found["slurm"] = Part(
        "Slurm's daemons on three hosts run the batch script",
        (*pytest, "--numprocesses", "0", "tests/integration/test_slurm.py"),
        (("SLURM", "1"),),
    )
    found["install"] = Part(
        "The install script for systemd on a bare Debian",
        (*pytest, "--numprocesses", "0", "tests/integration/test_install_script.py"),
        (("INSTALL_SCRIPT", "1"),),
    )
    found["load"] = Part(
        "Slow watchers, ten thousand queued runs, a gigabyte of output",
        (*pytest, "--numprocesses", "0", "tests/integration/test_load.py"),
        (("LOAD_SHARE", "1"),),
    )
    found["large-store"] = Part(
        f"Histories of {RUN_COUNT} runs with {CONFIGURATION_COUNT} configurations each",
        (sys.executable, "-m", "tests.benchmarks.history_questions", str(RUN_COUNT), str(CONFIGURATION_COUNT)),
    )
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """tail: the last lines that the command printed."""

    name: str
    part: Part
    status: int
    rounds: int
    duration_s: float
    commit: str
    tail: Sequence[str]

    def as_markdown(self) -> str:
        verdict = "passed" if self.status == 0 else f"failed with status {self.status}"
        rounds = f", {self.rounds} of {self.part.rounds} rounds" if self.part.rounds > 1 else ""
        machine = f"{cpu_model()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        return "\n".join(
            [
                f"{HEADING}{self.part.title}",
                "",
                f"`{self.name}`: {verdict}{rounds}, {self.duration_s:.0f} s. Commit {self.commit}, {datetime.now(UTC):%Y-%m-%d}, {machine}",
                "",
                "```text",
                *self.tail,
                "```",
                "",
            ]
        )


def run(name: str, part: Part) -> Outcome:
    sys.stdout.write(f"{name}: {part.title}\n")
    start = time.monotonic()
    tested = commit()
    tail: list[str] = []
    status = completed = 0
    while completed < part.rounds and status == 0:
        command = subprocess.Popen(
            part.command, cwd=ROOT, env=os.environ | dict(part.environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert command.stdout is not None
        for line in command.stdout:
            sys.stdout.write(f"{name}: {line}")
            tail = [*tail, line.rstrip().replace(f"{ROOT.parent}/", "../")][-TAIL_LINES:]
        status = command.wait()
        completed += status == 0
    return Outcome(name, part, status, completed, time.monotonic() - start, tested, tail)


def commit() -> str:
    """Return the commit that is tested, marked where files other than the report differ from it."""
    described, changed = (
        subprocess.run(("git", *command), cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        for command in (
            ("rev-parse", "--short=12", "HEAD"),
            ("status", "--porcelain", "--untracked-files=no", "--", ":!docs/soak.md"),
        )
    )
    return f"{described or 'unknown'}{'-dirty' if changed else ''}"


def write_report(outcomes: Sequence[Outcome], known: Sequence[str]) -> None:
    """Put each outcome in the place of what its part said before; parts that no longer exist go."""
    _, *before = REPORT.read_text().split(f"\n{HEADING}") if REPORT.exists() else [""]
    sections = {section.split("`")[1]: f"{HEADING}{section.rstrip()}\n" for section in before}
    sections |= {outcome.name: outcome.as_markdown() for outcome in outcomes}
    head = f"{TITLE}\n\nWhat each part of `make soak` said when it last ran.\n"
    REPORT.write_text("\n".join([head, *(sections[name] for name in known if name in sections)]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=DEFAULT_MINUTES, help="of fuzzing, each reader")
    parser.add_argument("--rounds", type=int, default=KILL_ROUNDS, help="of kills")
    parser.add_argument("--jobs", type=int, default=1, help="parts that run at the same time")
    parser.add_argument("names", nargs="*", metavar="PART", help=f"some of {', '.join(parts(0, 0))}; none: all")
    options = parser.parse_args()
    known = parts(options.minutes, options.rounds)
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(known)}")
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(lambda name: run(name, known[name]), options.names or known))
    write_report(outcomes, list(known))
    return int(any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
