"""How programs of one user find the services that run on the same machine: one small file per service."""

from __future__ import annotations

import json
import os
import tomllib
import warnings
from dataclasses import dataclass
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


def config_folder() -> Path:
    """Return the folder of the user's settings and token."""
    import platformdirs

    return platformdirs.user_config_path("kernalyse")


def config_file() -> Path:
    """Return the file of settings: the one that KERNALYSE_CONFIG names, else the one in the folder."""
    return Path(os.environ.get("KERNALYSE_CONFIG") or config_folder() / "kernalyse.toml")


def runtime_folder() -> Path:
    """Return the folder of files that name running services: in XDG_RUNTIME_DIR, or below /tmp where a session has none."""
    import platformdirs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns of every fallback; `find_service` trusts nobody else's files
        return platformdirs.user_runtime_path("kernalyse")


def announcement_path(service: str) -> Path:
    """Return where a service of this user says that it runs: as its settings have it, else in the usual place."""
    chosen = os.environ.get(f"KERNALYSE_{service.upper()}_ANNOUNCEMENT_FILE") or _setting(service)
    return Path(chosen) if chosen else runtime_folder() / f"{service}.json"


def find_service(path: Path) -> Announcement | None:
    """Return the service that the file names, if its process still lives. A file of another user is passed over."""
    found = read_announcement(path)
    if found is None or start_ticks(found.process_id) != found.process_start_ticks:
        return None
    return found


def read_announcement(path: Path) -> Announcement | None:
    """Return what a file of this user says, or None where there is none that can be read."""
    try:
        with path.open() as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None  # it could send this user's token to whoever wrote it
            return Announcement(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None  # absent, or half of another version's: nothing that could be connected to


def start_ticks(process_id: int) -> int | None:
    """Return when a process was started, in ticks of the kernel, or None for one that is gone."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _setting(service: str) -> str | None:
    try:
        settings = tomllib.loads(config_file().read_text())
        chosen = settings[service]["announcement_file"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # none there; a file that is no TOML is for the services to refuse
    return str(chosen)
