"""Kineto and Proton: collectors that a hook starts inside the Python programs of a command."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kernalyse.services.core.errors import CollectorFailedError, CollectorUnavailableError, KernalyseError
from kernalyse.services.core.model import CommandProfile
from kernalyse.services.profiler.collectors import python_hook
from kernalyse.services.profiler.collectors.base import (
    PROGRAM_MARK,
    ArtifactFile,
    CollectorContext,
    CollectorResult,
    ToolExit,
    ToolRunner,
    no_trace,
)

PROBE_LIMIT_S: Final = 20.0
INTERPRETER: Final = re.compile(r"python(\d+(\.\d+)*)?")
PROBE: Final = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec(sys.argv[1]) else 3)"
ABSENT_STATUS: Final = 3

TRACE_PATTERNS: Final = {"kineto": ("trace-*.json.gz", "trace-*.json"), "proton": ("profile-*.hatchet",)}
"""Of the files that are traces; a later one counts where there is none of an earlier one: not compressed to the end."""


@dataclass(frozen=True, slots=True)
class PythonCollector:
    """A collector inside a Python program. name: "kineto" or "proton"."""

    profile: CommandProfile
    context: CollectorContext

    @property
    def name(self) -> str:
        """Return "kineto" or "proton"."""
        return self.profile.collector

    @property
    def module_name(self) -> str:
        """Return the Python module whose import starts the collector."""
        return python_hook.MODULES[self.name]

    def command(self, target: Sequence[str]) -> list[str]:
        """Return the command as it is: the hook starts inside the program."""
        return list(target)

    def environment(self) -> Mapping[str, str]:
        """Return the variables that put the hook into every Python process of the command."""
        hook_directory = self.context.collected / "hook"
        own = self.context.environment.get("PYTHONPATH", "")
        steps = {} if self.profile.step_count is None else {python_hook.STEPS_VARIABLE: str(self.profile.step_count)}
        return {
            "PYTHONPATH": f"{hook_directory}:{own}" if own else str(hook_directory),
            python_hook.DIRECTORY_VARIABLE: str(self.context.collected),
            python_hook.COLLECTOR_VARIABLE: self.name,
            PROGRAM_MARK: "1",
            **steps,
        }

    def is_finishing(self) -> bool:
        """Return whether a process of the program is writing its trace."""
        return any(note.get("state") == "finishing" for note in self._notes())

    def collect(self, end: ToolExit, toolbox: ToolRunner) -> CollectorResult:
        """Return the traces that the program's processes have written, or the reason why there is none."""
        found = next((paths for pattern in TRACE_PATTERNS[self.name] if (paths := self._files(pattern))), [])
        if not found:
            problem = self._problem(end)
            return CollectorResult(problem=problem, is_within_program=not isinstance(problem, CollectorUnavailableError))
        files = tuple(ArtifactFile(self._artifact_name(path, len(found)), path) for path in found)
        failures = tuple(str(note["error"]) for note in self._notes() if note.get("state") == "failed")
        return CollectorResult(files, tuple((file.artifact_name,) for file in files), is_within_program=True, notices=failures)

    def install(self) -> None:
        """Put the hook where the program's PYTHONPATH has it."""
        directory = self.context.collected / "hook"
        directory.mkdir()
        shutil.copyfile(python_hook.__file__, directory / "sitecustomize.py")

    def _files(self, pattern: str) -> list[Path]:
        return sorted(path for path in self.context.collected.glob(pattern) if path.stat().st_size)

    def _artifact_name(self, path: Path, count: int) -> str:
        """Return the artifact's name. Of several processes each has its rank in it, or its process id where it has none."""
        stem, _, rest = path.name.partition(".")
        kind, _, process_id = stem.partition("-")
        if count == 1:
            return f"{kind}.{rest}"
        rank = next((str(note["rank"]) for note in self._notes() if note["process_id"] == process_id and note.get("rank")), "")
        return f"{kind}.{f'rank{rank}' if rank else process_id}.{rest}"

    def _notes(self) -> list[dict[str, Any]]:
        notes = list[dict[str, Any]]()
        for path in self.context.collected.glob("*.json"):
            if path.stem.isdecimal():
                notes.append({**json.loads(path.read_text()), "process_id": path.stem})
        return notes

    def _problem(self, end: ToolExit) -> KernalyseError:
        notes = self._notes()
        failed = [note for note in notes if note.get("state") == "failed"]
        if failed:
            return CollectorFailedError(
                f"collector {self.name}",
                found=f"{self.module_name} {failed[0].get('version', '')} of {failed[0]['python']} refused: {failed[0]['error']}".strip(),
                expected="a trace",
                remedy="The program itself ran on. Try another version of it, or another collector.",
            )
        if f"No module named '{self.module_name}'" in end.output:
            return missing_module_error(self.name, self.module_name, "the Python that the command started")
        if not (self.context.collected / python_hook.SEEN_FILE).exists():
            return no_trace(
                self.name,
                end,
                "no Python that took the hook",
                "The command has to start Python without -I, -E and -S, and to keep PYTHONPATH; or use the collector nsys.",
            )
        if not notes:
            return no_trace(
                self.name,
                end,
                f"no import of {self.module_name} that came to its end",
                f"Only programs that use {self.module_name} have such a trace. A duration counts from the program's start.",
            )
        states = {str(note["state"]) for note in notes}
        if states == {python_hook.EMPTY}:
            return no_trace(
                self.name,
                end,
                f"no operator of {self.module_name} between its import and the program's end",
                "Let the program do its work.",
            )
        if states == {python_hook.STARTING}:
            found = f"{self.module_name} still starting when the program was ended"
            return no_trace(self.name, end, found, "Give it longer: a duration counts from the program's start, imports included.")
        return no_trace(
            self.name,
            end,
            f"no trace (state of its process: {', '.join(sorted(states))})",
            "It is written when the program ends by itself, by an exception or by TERM; os._exit and KILL leave none. With a step count "
            "the program has to take at least two optimizer steps.",
        )


def open_python_collector(profile: CommandProfile, context: CollectorContext) -> PythonCollector:
    """Open the collector. Raises CollectorUnavailableError where the command's own interpreter lacks the module."""
    collector = PythonCollector(profile, context)
    program = profile.arguments[0]
    if INTERPRETER.fullmatch(Path(program).name) and _lacks(program, collector.module_name, context):
        raise missing_module_error(collector.name, collector.module_name, program)
    collector.install()
    return collector


def missing_module_error(collector: str, module_name: str, python: str) -> CollectorUnavailableError:
    """Return the error for a module that the command's Python lacks."""
    return CollectorUnavailableError(
        f"collector {collector}",
        found=f"no {module_name} in {python}",
        expected=f"a Python that can import {module_name}",
        remedy=f"Install it there (python -m pip install {module_name}), or give the Python of the environment that has it.",
    )


def _lacks(python: str, module_name: str, context: CollectorContext) -> bool:
    """Return whether the module is certainly missing. Other failures are left for the program itself to show."""
    try:
        done = subprocess.run(
            [shutil.which(python, path=context.environment.get("PATH")) or python, "-c", PROBE, module_name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_LIMIT_S,
            check=False,
            cwd=context.program,
            env=dict(context.environment),
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == ABSENT_STATUS
