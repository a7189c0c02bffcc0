"""How programs of one user find the services that run on the same machine: one small file per service."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Announcement:
    """A running service. address: host:port or unix:PATH; ca_file: set when it serves TLS."""

    service: str
    address: str
    process_id: int
    process_start_ticks: int  # tells a process from a later one with the same id
    token_file: str
    ca_file: str | None = None


@contextmanager
def announced(path: Path, service: str, address: str, token_file: Path, ca_file: Path | None = None) -> Iterator[Announcement]:
    """Writes the file while the block runs; removes it after, unless another service has replaced it."""
    own = Announcement(
        service, address, os.getpid(), _start_ticks(os.getpid()) or 0, str(token_file), None if ca_file is None else str(ca_file)
    )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(own)))
    temporary.replace(path)
    try:
        yield own
    finally:
        if _read(path) == own:
            path.unlink(missing_ok=True)


def find_service(path: Path) -> Announcement | None:
    """The service that the file names, if its process still lives. A file of another user is passed over."""
    found = _read(path)
    if found is None or _start_ticks(found.process_id) != found.process_start_ticks:
        return None
    return found


def _read(path: Path) -> Announcement | None:
    try:
        with path.open() as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None  # it could send this user's token to whoever wrote it
            return Announcement(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None  # absent, or half of another version's: nothing that could be connected to


def _start_ticks(process_id: int) -> int | None:
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
