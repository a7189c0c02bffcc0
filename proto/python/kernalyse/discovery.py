"""Discovery of the user's services on this machine, through one small file per service."""

from __future__ import annotations

import json
import os
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Announcement:
    """A running service, as its file describes it.

    address: "host:port" or "unix:PATH"; ca_file: set when it serves TLS.
    """

    service: str
    address: str
    process_id: int
    process_start_ticks: int  # distinguishes the process from a later one with the same id
    token_file: str
    ca_file: str | None = None


def config_directory() -> Path:
    """Return the directory of the user's settings and token."""
    import platformdirs

    return platformdirs.user_config_path("kernalyse")


def config_file() -> Path:
    """Return the settings file: the one that KERNALYSE_CONFIG names, else the one in the configuration directory."""
    return Path(os.environ.get("KERNALYSE_CONFIG") or config_directory() / "kernalyse.toml")


def runtime_directory() -> Path:
    """Return the directory for the files of running services, in XDG_RUNTIME_DIR, or below /tmp in a session without one."""
    import platformdirs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns of every fallback; `find_service` ignores files of other users
        return platformdirs.user_runtime_path("kernalyse")


def announcement_path(service: str) -> Path:
    """Return the path of a service's file: from the environment or the settings, else the default."""
    configured = os.environ.get(f"KERNALYSE_{service.upper()}_ANNOUNCEMENT_FILE") or _setting(service)
    return Path(configured) if configured else runtime_directory() / f"{service}.json"


def find_service(path: Path) -> Announcement | None:
    """Return the service that the file describes, or None if its process has ended. A file of another user is ignored."""
    found = read_announcement(path)
    if found is None or start_ticks(found.process_id) != found.process_start_ticks:
        return None
    return found


def read_announcement(path: Path) -> Announcement | None:
    """Return the content of a file of this user, or None where there is none that can be read."""
    try:
        with path.open() as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None  # its author could obtain this user's token
            return Announcement(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None  # absent, incomplete, or written by another version


def start_ticks(process_id: int) -> int | None:
    """Return the start time of a process in ticks of the kernel, or None if it has ended."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _setting(service: str) -> str | None:
    try:
        settings = tomllib.loads(config_file().read_text())
        configured = settings[service]["announcement_file"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no setting; invalid TOML is for the services to reject
    return str(configured)
