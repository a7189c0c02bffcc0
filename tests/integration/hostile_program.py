"""A program that tries to reach what is none of its business, and prints as JSON what it got.

hostile_program.py NAME=PATH_OR_NUMBER…: what there is to reach outside.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PTRACE_ATTACH = 16


def reached(attempt: Callable[[], object]) -> str:
    """What an attempt brought; empty: nothing."""
    try:
        return str(attempt() or "")
    except OSError:
        return ""


def connected(address: str) -> str:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 2):
        return "connected"


def called(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(path)
        return "connected"


def signalled(process_id: int) -> str:
    os.kill(process_id, 0)
    return "signalled"


def traced(process_id: int) -> str:
    return "attached" if ctypes.CDLL(None).ptrace(PTRACE_ATTACH, process_id, 0, 0) == 0 else ""


def written(path: str) -> str:
    Path(path).write_text("changed")
    return "written"


def daemon() -> str:
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # a hostile daemon"], start_new_session=True)
    return str(started.pid)


def main() -> None:
    outside = dict(argument.split("=", 1) for argument in sys.argv[1:])
    process_id = int(outside["process"])
    found = {
        "token": reached(lambda: Path(outside["token"]).read_text()),
        "journal": reached(lambda: Path(outside["journal"]).read_bytes()[:6]),
        "other run": reached(lambda: Path(outside["other_run"]).read_text()),
        "home": reached(lambda: Path(outside["home"]).read_text()),
        "shared memory": reached(lambda: Path(outside["shared_memory"]).read_text()),
        "temporary": reached(lambda: Path(outside["temporary"]).read_text()),
        "network": reached(lambda: connected(outside["listener"])),
        "socket": reached(lambda: called(outside["socket"])),
        "signal": reached(lambda: signalled(process_id)),
        "trace": reached(lambda: traced(process_id)),
        "list of processes": reached(lambda: Path(f"/proc/{process_id}/cmdline").read_bytes()),
        "write": reached(lambda: written(outside["write"])),
        "passwords": reached(lambda: Path("/etc/shadow").read_text()),
        "private": reached(lambda: Path(outside["private"]).read_text()),
        "caches of others": reached(lambda: written(outside["cache"])),
    }
    daemon()
    Path("own file").write_text("its own directory is there")
    sys.stdout.write(json.dumps({name: bool(value) for name, value in found.items()}) + "\n")


if __name__ == "__main__":
    main()
