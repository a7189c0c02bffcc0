"""Resident memory of the services when nothing goes on: `python -m tests.benchmarks.idle_memory`."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from tests.integration.profiler_node import resident_bytes
from tests.service_processes import ServiceProcesses

SETTLING_S = 6.0  # one round of idle telemetry, and what start-up leaves to be collected
GOAL_BYTES = {"profiler": 90e6}


def main() -> None:
    directory = Path(tempfile.mkdtemp(prefix="kn-"))
    for name in ("config", "data", "run"):
        (directory / name).mkdir(mode=0o700)
    places = {"XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data", "XDG_RUNTIME_DIR": "run"}
    os.environ |= {variable: str(directory / name) for variable, name in places.items()}
    services = ServiceProcesses(directory)
    try:
        started = [services.start("profiler"), services.start("analyzer")]
        time.sleep(SETTLING_S)
        for service in started:
            goal = f" (goal: at most {GOAL_BYTES[service.name] / 1e6:.0f} MB)" if service.name in GOAL_BYTES else ""
            print(f"idle {service.name:<9} {resident_bytes(service.process.pid) / 1e6:6.1f} MB resident{goal}")
    finally:
        services.stop_all()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
