"""Services as a user starts them: `kernalyse profiler` and the others, on Unix sockets in private directories."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from kernalyse.channel import Endpoint
from kernalyse.services.core.settings import find_service

START_TIMEOUT_S = 90.0  # a loaded machine with cold caches
STOP_TIMEOUT_S = 60.0


@dataclass(slots=True)
class ServiceProcess:
    """A running service. address: where it really listens."""

    name: str
    process: subprocess.Popen[bytes]
    address: str
    token: str
    log_path: Path

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.address, self.token)

    def kill(self) -> None:
        """kill -9, as a crash would be."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(STOP_TIMEOUT_S)

    def stop(self) -> int:
        """SIGTERM; answers with the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(STOP_TIMEOUT_S)


@dataclass(slots=True)
class ServiceProcesses:
    """Starts services and knows what is left of them. python: of the environment that they are installed in."""

    directory: Path
    python: str = sys.executable
    started: list[ServiceProcess] = field(default_factory=list)

    def start(self, service: str, *arguments: str, address: str | None = None, host: Sequence[str] = ()) -> ServiceProcess:
        """Starts one and waits until it serves.

        Args:
            address: by default a Unix socket, for the dashboard a free port.
            host: command that it runs under, as of a namespace.
        """
        run_directory = self.directory / "run"
        announcement_path = run_directory / f"{service}-{len(self.started)}.json"
        log_path = self.directory / f"{service}-{len(self.started)}.log"
        chosen = address or ("127.0.0.1:0" if service == "ui" else f"unix:{run_directory}/{service}.sock")
        command = [
            *host,
            self.python,
            "-P",
            "-m",
            "kernalyse.services.cli.main",
            service,
            "--address",
            chosen,
            "--announcement-file",
            str(announcement_path),
        ]
        with log_path.open("wb") as log:
            process = subprocess.Popen([*command, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ.copy())
        deadline = time.monotonic() + START_TIMEOUT_S
        while (found := find_service(announcement_path)) is None or found.process_id != process.pid:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise AssertionError(f"{service} did not start:\n{log_path.read_text()}")
            time.sleep(0.02)
        running = ServiceProcess(service, process, found.address, Path(found.token_file).read_text().strip(), log_path)
        self.started.append(running)
        return running

    def stop_all(self) -> None:
        """Ends everything, dashboard first, and fails when a descendant survives it."""
        descendants = [child for service in self.started for child in _descendants(service.process.pid)]
        for service in reversed(self.started):
            try:
                service.stop()
            except subprocess.TimeoutExpired:
                service.kill()
        _, alive = psutil.wait_procs(descendants, timeout=5)
        names = [" ".join(process.cmdline()) for process in alive]
        for process in alive:
            process.kill()
        assert not alive, f"processes left behind: {names}"


def _descendants(process_id: int) -> list[psutil.Process]:
    try:
        return psutil.Process(process_id).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
