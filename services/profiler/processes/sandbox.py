"""What the processes of a run can reach: bubblewrap's command line, by kind of run.

The file system is there to be read, without what is none of the run's business: home, the service's files, other runs, and sockets
through which programs of this machine do things for others. Writable are the run's own directory, its own /tmp and /dev/shm, and the
caches that runs of one person share. Processes outside are not seen; the network is off unless the run has asked for it. Where the
service is root, runs are of another user, who has nothing. The supervisor stays outside: it ends the whole, and watches time and
memory.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kernalyse.services.core.errors import InvalidSettingError, UnmetConditionError
from kernalyse.services.core.identity import OWNER
from kernalyse.services.core.model import CommandProfile, RunSpec

TEMPORARY: Final = Path("/tmp")
SOCKETS: Final = Path("/run")
"""Of what would start programs outside for whoever asks: systemd, D-Bus, container engines."""

OWNER_DIGITS: Final = 16
"""Of the SHA-256 of a name, which may be of any characters."""

NAME_SERVERS: Final = Path("/etc/resolv.conf")
"""Often a link to below SOCKETS."""

OWN_SOURCE: Final = Path(__file__).resolve().parents[2]
"""The package kernalyse.services, wherever it lies."""

NAMESPACES: Final = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
OF_USERS: Final = ("--unshare-user-try",)
"""In a namespace of users a run is the service's user without its privileges."""
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
    """The files of one run. bundles: unpacked ones, read only. caches: appears in the place of those of the node; None: there are none."""

    working_directory: Path
    spec_file: Path
    bundles: tuple[Path, ...] = ()
    caches: Path | None = None


@dataclass(frozen=True, slots=True)
class RunUser:
    """Who runs are, where the service is root. group_ids: of the devices that a group may use."""

    name: str
    user_id: int
    group_id: int
    group_ids: tuple[int, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """Start of a command line, of util-linux: what follows is this user's, and can never be another's."""
        groups = ("--groups", ",".join(map(str, self.group_ids))) if self.group_ids else ("--clear-groups",)
        ids = ("--reuid", str(self.user_id), "--regid", str(self.group_id), *groups)
        return ("setpriv", *ids, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Bubblewrap, and what the node has to hide and to show.

    program: bubblewrap's path; empty: there is none, and runs are not sandboxed. explanation: for users.
    is_for_owner: runs of the service's owner are sandboxed too, who may do everything anyway.
    hidden: directories and files that runs see empty. readable: what they see of them all the same.
    caches: directory of what runs keep for later ones, the owner's; each other person has one of their own beside it.
    user: who runs are; None: the service's user.
    process_count: most processes and threads of a run, which Linux counts for each user; 0: no limit.
    """

    program: str
    explanation: str
    is_for_owner: bool = False
    hidden: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    caches: Path | None = None
    user: RunUser | None = None
    process_count: int = 0

    def is_for(self, owner: str) -> bool:
        """Return whether the runs of a person are sandboxed. owner: as in the run; empty: not known, which is the service's owner."""
        return bool(self.program) and (self.is_for_owner or owner not in ("", OWNER.name))

    def command(self, spec: RunSpec, worker: Sequence[str], places: RunPlaces, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command line of a run's worker within the sandbox."""
        opening = OPENINGS[kind_of(spec)]
        own = ("--perms", "1777", "--size", str(opening.memory_bytes), "--tmpfs")
        hidden = [*self.hidden, SOCKETS, *(Path(name) for name in HOST_FILES)]
        emptied = [TEMPORARY, *(path for path in hidden if path.is_dir())]
        readable = [*self.readable, *_program_directories(environment, emptied), places.spec_file, *places.bundles, NAME_SERVERS.resolve()]
        mounts: dict[Path, tuple[str, ...]] = {TEMPORARY: own}
        mounts |= {path: ("--tmpfs",) if path.is_dir() else ("--ro-bind", "/dev/null") for path in hidden if path.exists()}
        mounts |= {path: ("--ro-bind-try", str(path)) for path in readable}
        mounts[places.working_directory] = ("--bind", str(places.working_directory))
        if self.caches is not None and places.caches is not None:
            mounts[self.caches] = ("--bind", str(places.caches))
        # Bubblewrap makes directories on the way to a mount too, but for its own user alone.
        on_the_way = {parent for path in mounts for parent in path.parents if any(parent.is_relative_to(place) for place in emptied)}
        mounts = dict.fromkeys(on_the_way, ("--perms", "0755", "--dir")) | mounts
        network = () if opening.network else WITHOUT_NETWORK
        limit = ("prlimit", f"--nproc={self.process_count}", "--") if self.process_count else ()
        return (
            *(self.program, "--die-with-parent", *_namespaces(self.user), *network, *FILE_SYSTEM),
            *(word for path in _devices() for word in ("--dev-bind-try", str(path), str(path))),
            *(*own, "/dev/shm"),
            # The outer ones first: what is hidden stays so within what is readable, and the other way round.
            *(word for path in sorted(mounts) for word in (*mounts[path], str(path))),
            *("--chdir", str(places.working_directory), "--", *limit, *(() if self.user is None else self.user.command), *worker),
        )

    def hand_over(self, working_directory: Path, owner: str) -> Path | None:
        """Give the user of runs what is made for one, before it starts, and return the directory with the caches of its owner.

        Nobody is kept from spoiling their own caches, and the owner's, which others start with, are never written by others.
        """
        self._give(working_directory)
        if self.caches is None:
            return None
        if owner in ("", OWNER.name):
            self._give(self.caches)
            return self.caches
        others = self.caches.with_name(f"{self.caches.name}-of-others")
        own = others / hashlib.sha256(owner.encode()).hexdigest()[:OWNER_DIGITS]
        others.mkdir(mode=0o700, exist_ok=True)
        if not own.exists():
            with tempfile.TemporaryDirectory(dir=others, prefix=".new-") as name:
                new = Path(name) / own.name
                new.mkdir()
                for file in (path for path in self.caches.iterdir() if path.is_file()):  # the ceilings
                    shutil.copyfile(file, new / file.name)
                self._give(new)
                with suppress(OSError):  # another run of this person has been faster
                    new.rename(own)
        return own

    def _give(self, directory: Path) -> None:
        """Give a directory and what is in it to the user of runs. None of another person may run in it yet."""
        if self.user is not None:
            for parent, names, files in os.walk(directory):
                for path in (Path(parent), *(Path(parent) / name for name in (*names, *files))):
                    with suppress(FileNotFoundError):  # another run has replaced it
                        os.chown(path, self.user.user_id, self.user.group_id, follow_symlinks=False)


def open_sandbox(
    whose: str,
    *,
    is_required: bool,
    hidden: Iterable[Path] = (),
    readable: Iterable[Path] = (),
    caches: Path | None = None,
    user_name: str = "",
    process_count: int = 0,
) -> Sandbox:
    """Return the sandbox of this node.

    Args:
        whose: runs are sandboxed: "others", "all", or "off".
        is_required: it has to work.
        user_name: who runs are, where the service is root; empty: root without its privileges.
        hidden, readable, caches, process_count: see Sandbox.

    Raises:
        UnmetConditionError: it is required, and does not work.
        InvalidSettingError: there is no such user.
    """
    if whose == "off":
        return Sandbox("", "off by the setting sandbox")
    program = shutil.which("bwrap")
    user = _run_user(user_name) if user_name and os.geteuid() == 0 else None
    if program is not None and user is not None and _problem(program, user):
        user = None  # as in a container, whose root may not mount
    problem = "bubblewrap is not installed" if program is None else _problem(program, user)
    if program is None or problem:
        if is_required:
            raise UnmetConditionError(
                "setting profiler.sandbox_required",
                found=problem,
                expected="bubblewrap that can make namespaces",
                remedy="Install it (apt-get install bubblewrap), or allow user namespaces; or do not require it.",
            )
        return Sandbox("", f"none: {problem}")
    hidden, readable = (tuple(dict.fromkeys(path.absolute() for path in paths)) for paths in (hidden, readable))
    told = f"{_version(program)}, for {'all runs' if whose == 'all' else 'runs of others than the owner'}"
    told += f", as user {user.name}" if user is not None else ", as root without privileges" if os.geteuid() == 0 else ""
    count = process_count if shutil.which("prlimit") else 0
    return Sandbox(program, told, whose == "all", hidden, readable, None if caches is None else caches.absolute(), user, count)


def _run_user(name: str) -> RunUser:
    try:
        found = pwd.getpwnam(name)
    except KeyError as error:
        raise InvalidSettingError(
            "setting profiler.sandbox_user", found=name, expected="a user of this machine", remedy="Create it, or leave the setting out."
        ) from error
    states = [path.stat() for path in _devices() if not path.is_dir()]
    groups = {state.st_gid for state in states if stat.S_IMODE(state.st_mode) & 0o060 == 0o060 and state.st_gid}
    return RunUser(name, found.pw_uid, found.pw_gid, tuple(sorted(groups)))


def _namespaces(user: RunUser | None) -> tuple[str, ...]:
    return (*NAMESPACES, *(OF_USERS if user is None else ()))


def _problem(program: str, user: RunUser | None) -> str:
    """Return why bubblewrap does not work here; empty: it does."""
    as_user = () if user is None else user.command
    words = (program, *_namespaces(user), *WITHOUT_NETWORK, *FILE_SYSTEM, "--", *as_user, "true")
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
