"""The services for a benchmark of the dashboard: in private directories, the kernels on one core, the rest on all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.browser.dashboard import Dashboard, chromium, dashboard_of
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcesses


def chromium_or_exit(name: str) -> str:
    path = chromium()
    if path is None:
        sys.exit(f"{name}: Chromium is not installed; nothing measured.")
    return path


@contextmanager
def dashboard_alone() -> Iterator[Dashboard]:
    with private_directory() as directory:
        services = ServiceProcesses(directory)
        try:
            own_cores = os.sched_getaffinity(0)
            # A worker inherits the cores of the service that starts it, and a CPU runtime makes a thread for each.
            os.sched_setaffinity(0, {min(own_cores)})
            profiler = services.start("profiler")
            os.sched_setaffinity(0, own_cores)
            with dashboard_of(services, profiler) as dashboard:
                yield dashboard
        finally:
            services.stop_all()
