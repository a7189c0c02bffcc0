"""What all tests share: private directories for each test, and services in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.kept import alone_with, kept_directory
from tests.known_ceilings import known_ceilings
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcess, ServiceProcesses

# pyopencl keeps a database in the cache directory open, which `private_directories` would delete under it after the first test.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

# PoCL chooses its cache directory when it is loaded and builds nothing once that is gone, so it must outlive a test's own directories.
os.environ.setdefault("POCL_CACHE_DIR", str(kept_directory("pocl")))

# Compiled code of the readers outlives a test as well: made once for all workers, services and later runs.
os.environ.setdefault("NUMBA_CACHE_DIR", str(kept_directory("readers")))

SERIAL_DIRECTORIES = ("browser", "gpu")  # one set of services for all of them, one device


class FileByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Tests are spread over the workers file by file; those of SERIAL_DIRECTORIES stay together on one.

    A scheduler of our own and not xdist_group marks: those are written into node ids, which pytest 9 no longer lets be changed.
    """

    def _split_scope(self, nodeid: str) -> str:
        file_name = nodeid.partition("::")[0]
        directory_name = Path(file_name).parent.name
        return directory_name if directory_name in SERIAL_DIRECTORIES else file_name


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileByFile:
    return FileByFile(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Figures that tests have recorded under the name `told` are shown, although the tests have passed."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    for text in (value for report in reports if report.when == "call" for name, value in report.user_properties if name == "told"):
        terminalreporter.write_line(str(text))


@pytest.fixture(scope="session")
def ceilings_file() -> Path:
    """Ceilings of this machine's devices, as a profiler keeps them."""
    with alone_with("ceilings") as directory:
        return known_ceilings(directory)


@pytest.fixture(autouse=True)
def private_directories() -> Iterator[Path]:
    """The directory of settings, token, store and services of this test."""
    with private_directory() as directory:
        yield directory


@pytest.fixture
def services(private_directories: Path) -> Iterator[ServiceProcesses]:
    """Starts services in the test's private directories; whatever still runs at the end is ended, and nothing may be left."""
    processes = ServiceProcesses(private_directories)
    yield processes
    processes.stop_all()


@pytest.fixture
def profiler(services: ServiceProcesses) -> ServiceProcess:
    return services.start("profiler")


@pytest.fixture
def analyzer_process(services: ServiceProcesses) -> ServiceProcess:
    return services.start("analyzer")
