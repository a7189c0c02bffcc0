"""What the processes of a run can reach: bubblewrap's command line, by kind of run.

The file system is there to be read, without what is none of the run's business: home, the service's files, other runs, and sockets
through which programs of this machine do things for others. Writable are the run's own directory, its own /tmp and /dev/shm, and the
caches that runs share. Processes outside are not seen; the network is off unless the run has asked for it. The supervisor stays
outside: it ends the whole, and watches time and memory.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kernalyse.services.core.errors import UnmetConditionError
from kernalyse.services.core.identity import OWNER
from kernalyse.services.core.model import CommandProfile, RunSpec

TEMPORARY: Final = Path("/tmp")
SOCKETS: Final = Path("/run")
"""Of what would start programs outside for whoever asks: systemd, D-Bus, container engines."""

NAME_SERVERS: Final = Path("/etc/resolv.conf")
"""Often a link to below SOCKETS."""

OWN_SOURCE: Final = Path(__file__).resolve().parents[2]
"""The package kernalyse.services, wherever it lies."""

NAMESPACES: Final = ("--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
WITHOUT_NETWORK: Final = ("--unshare-net",)
FILE_SYSTEM: Final = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")
PROBE_LIMIT_S: Final = 10.0
MEBIBYTE: Final = 2**20

DEVICE_PATTERNS: Final = ("nvidia*", "dri", "kfd", "infiniband")
"""Below /dev: GPUs, and the network cards that GPUs of several nodes talk through."""

HOST_FILES: Final = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/ssh", "/etc/krb5.keytab")
"""Of a service that runs as root: its runs must not read them either."""

PATH_VARIABLES: Final = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables with the directories of programs and libraries that a run needs, wherever they lie."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a kind of run can reach beyond its own directory.

    network: the host's. memory_bytes: of /dev/shm, and of /tmp.
    """

    network: bool
    memory_bytes: int


OPENINGS: Final[Mapping[str, Opening]] = {
    "kernels": Opening(network=False, memory_bytes=1024 * MEBIBYTE),
    "command": Opening(network=False, memory_bytes=8192 * MEBIBYTE),
    "command with network": Opening(network=True, memory_bytes=8192 * MEBIBYTE),
}
"""By kind of run. Processes of one command talk through shared memory, NCCL's most of all; those of several nodes need the network."""


def kind_of(spec: RunSpec) -> str:
    """Return the kind of OPENINGS that a run is of."""
    if not isinstance(spec.work, CommandProfile):
        return "kernels"
    return "command with network" if spec.work.network else "command"


@dataclass(frozen=True, slots=True)
class RunPlaces:
    """The files of one run. bundles: unpacked ones, read only."""

    working_directory: Path
    spec_file: Path
    bundles: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Bubblewrap, and what the node has to hide and to show.

    program: bubblewrap's path; empty: there is none, and runs are not sandboxed. explanation: for users.
    is_for_owner: runs of the service's owner are sandboxed too, who may do everything anyway.
    hidden: directories and files that runs see empty. readable: what they see of them all the same. shared: writable for all runs.
    """

    program: str
    explanation: str
    is_for_owner: bool = False
    hidden: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    shared: tuple[Path, ...] = ()

    def is_for(self, owner: str) -> bool:
        """Return whether the runs of a person are sandboxed. owner: as in the run; empty: not known, which is the service's owner."""
        return bool(self.program) and (self.is_for_owner or owner not in ("", OWNER.name))

    def command(self, spec: RunSpec, worker: Sequence[str], places: RunPlaces, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command line of a run's worker within the sandbox."""
        opening = OPENINGS[kind_of(spec)]
        own = ("--size", str(opening.memory_bytes), "--tmpfs")
        hidden = [*self.hidden, SOCKETS, *(Path(name) for name in HOST_FILES)]
        emptied = [TEMPORARY, *(path for path in hidden if path.is_dir())]
        readable = [*self.readable, *_program_directories(environment, emptied), places.spec_file, *places.bundles, NAME_SERVERS.resolve()]
        mounts: dict[Path, tuple[str, ...]] = {TEMPORARY: own}
        mounts |= {path: ("--tmpfs",) if path.is_dir() else ("--ro-bind", "/dev/null") for path in hidden if path.exists()}
        mounts |= {path: ("--ro-bind-try", str(path)) for path in readable}
        mounts |= {path: ("--bind", str(path)) for path in (*self.shared, places.working_directory)}
        return (
            *(self.program, "--die-with-parent", *NAMESPACES, *(() if opening.network else WITHOUT_NETWORK), *FILE_SYSTEM),
            *(word for path in _devices() for word in ("--dev-bind-try", str(path), str(path))),
            *(*own, "/dev/shm"),
            # The outer ones first: what is hidden stays so within what is readable, and the other way round.
            *(word for path in sorted(mounts) for word in (*mounts[path], str(path))),
            *("--chdir", str(places.working_directory), "--", *worker),
        )


def open_sandbox(whose: str, *, is_required: bool, hidden: Iterable[Path], readable: Iterable[Path], shared: Iterable[Path]) -> Sandbox:
    """Return the sandbox of this node.

    Args:
        whose: runs are sandboxed: "others", "all", or "off".
        is_required: it has to work.
        hidden, readable, shared: see Sandbox.

    Raises:
        UnmetConditionError: it is required, and does not work.
    """
    if whose == "off":
        return Sandbox("", "off by the setting sandbox")
    program = shutil.which("bwrap")
    problem = "bubblewrap is not installed" if program is None else _problem(program)
    if program is None or problem:
        if is_required:
            raise UnmetConditionError(
                "setting profiler.sandbox_required",
                found=problem,
                expected="bubblewrap that can make namespaces",
                remedy="Install it (apt-get install bubblewrap), or allow user namespaces; or do not require it.",
            )
        return Sandbox("", f"none: {problem}")
    places = (tuple(dict.fromkeys(path.absolute() for path in paths)) for paths in (hidden, readable, shared))
    told = f"{_version(program)}, for {'all runs' if whose == 'all' else 'runs of others than the owner'}"
    return Sandbox(program, told, whose == "all", *places)


def _problem(program: str) -> str:
    """Return why bubblewrap does not work here; empty: it does."""
    words = (program, *NAMESPACES, *WITHOUT_NETWORK, *FILE_SYSTEM, "true")
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start: {error}"
    return "" if done.returncode == 0 else f"bubblewrap fails: {done.stderr.strip() or done.returncode}"


def _version(program: str) -> str:
    return subprocess.run((program, "--version"), capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=False).stdout.strip()


def _devices() -> list[Path]:
    return sorted(path for pattern in DEVICE_PATTERNS for path in Path("/dev").glob(pattern))


def _program_directories(environment: Mapping[str, str], hidden: Sequence[Path]) -> list[Path]:
    """Return the directories of this package, of Python, and of the environment's programs and libraries that lie in what is hidden."""
    named = (part for name in PATH_VARIABLES for part in environment.get(name, "").split(":") if part)
    own = (str(OWN_SOURCE), str(OWN_SOURCE.parent))  # where it is not installed, the directory above has what it links to
    paths = {Path(path) for path in (sys.prefix, sys.base_prefix, *sys.path, *named, *own) if path.startswith("/")}
    paths |= {path.resolve() for path in paths}
    return [path for path in paths if path.exists() and path not in hidden and any(path.is_relative_to(place) for place in hidden)]
