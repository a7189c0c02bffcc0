"""What all tests share: private folders for each test, and services in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.kept import alone_with, kept_folder
from tests.known_ceilings import known_ceilings
from tests.private_folder import private_folder
from tests.service_processes import ServiceProcess, ServiceProcesses

# pyopencl keeps a database in the cache folder open, which `private_folders` would delete under it after the first test.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

# PoCL chooses its cache folder when it is loaded and builds nothing once that is gone, so it must outlive a test's own folders.
os.environ.setdefault("POCL_CACHE_DIR", str(kept_folder("pocl")))

# Compiled code of the readers outlives a test as well: made once for all workers, services and later runs.
os.environ.setdefault("NUMBA_CACHE_DIR", str(kept_folder("readers")))

SERIAL_FOLDERS = ("browser", "gpu")  # one set of services for all of them, one device


class FileByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Tests are spread over the workers file by file; those of SERIAL_FOLDERS stay together on one.

    A scheduler of our own and not xdist_group marks: those are written into node ids, which pytest 9 no longer lets be changed.
    """

    def _split_scope(self, nodeid: str) -> str:
        file_name = nodeid.partition("::")[0]
        folder_name = Path(file_name).parent.name
        return folder_name if folder_name in SERIAL_FOLDERS else file_name


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileByFile:
    return FileByFile(config, log)


@pytest.fixture(scope="session")
def ceilings_file() -> Path:
    """Ceilings of this machine's devices, as a profiler keeps them."""
    with alone_with("ceilings") as folder:
        return known_ceilings(folder)


@pytest.fixture(autouse=True)
def private_folders() -> Iterator[Path]:
    """The folder of settings, token, store and services of this test."""
    with private_folder() as folder:
        yield folder


@pytest.fixture
def services(private_folders: Path) -> Iterator[ServiceProcesses]:
    """Starts services in the test's private folders; whatever still runs at the end is ended, and nothing may be left."""
    processes = ServiceProcesses(private_folders)
    yield processes
    processes.stop_all()


@pytest.fixture
def profiler(services: ServiceProcesses) -> ServiceProcess:
    return services.start("profiler")


@pytest.fixture
def analyzer_process(services: ServiceProcesses) -> ServiceProcess:
    return services.start("analyzer")
