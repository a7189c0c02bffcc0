"""What tests with real devices share.

Loaded on a node with a GPU too, for the tests of its backends: there is no polars there, and so no analyzer.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.command import kernalyse
from tests.integration import stand_in_nvml
from tests.integration.profiler_node import Calls, ProfilerNode, calls_to, running_node
from tests.integration.profiler_stand_in import ProfilerStandIn
from tests.private_directory import know_ceilings, private_directory
from tests.service_processes import ServiceProcesses

if TYPE_CHECKING:
    from tests.integration.analyzer_under_test import AnalyzerHere


@pytest.fixture(autouse=True)
def ceilings_are_known(private_directories: Path, ceilings_file: Path) -> None:
    """To the test's profiler; a test of measuring them deletes the file or names another one."""
    know_ceilings(private_directories, ceilings_file)


@pytest.fixture
def analyzer_that_runs(private_directories: Path) -> Iterator[None]:
    """Commands find it: for tests of what commands say, not of how they start services."""
    from tests.integration.analyzer_under_test import running_analyzer

    with running_analyzer():
        yield


@pytest.fixture
def nvml_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the calls that change clocks; all processes started from here on have the stand-in as pynvml."""
    (tmp_path / "modules").mkdir()
    shutil.copy2(Path(stand_in_nvml.__file__), tmp_path / "modules" / "pynvml.py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path / "modules"), os.environ.get("PYTHONPATH", ""))).rstrip(os.pathsep))
    file = tmp_path / "nvml_calls"
    file.touch()
    monkeypatch.setenv("NVML_STAND_IN_FILE", str(file))
    return file


@pytest.fixture(scope="module")
def server(ceilings_file: Path) -> Iterator[tuple[str, ...]]:
    """Options that lead to an analyzer with one node, which is a process of its own; one for all tests of a file."""
    from tests.integration.analyzer_under_test import running_analyzer

    with private_directory() as directory, running_analyzer() as address:
        yield from options_with_node(ServiceProcesses(directory), ceilings_file, address)


@pytest.fixture(scope="module")
def server_process(ceilings_file: Path) -> Iterator[tuple[str, ...]]:
    """The same with an analyzer in a process of its own, for tests that have another one in theirs."""
    with private_directory() as directory:
        services = ServiceProcesses(directory)
        yield from options_with_node(services, ceilings_file, services.start("analyzer").address)


def options_with_node(services: ServiceProcesses, ceilings_file: Path, analyzer_address: str) -> Iterator[tuple[str, ...]]:
    know_ceilings(services.directory, ceilings_file)
    try:
        profiler = services.start("profiler")
        token_file = services.directory / "config" / "kernalyse" / "token"
        options = ("--server", analyzer_address, "--token-file", str(token_file))
        added = kernalyse("nodes", "add", profiler.address, "--node-token-file", token_file, *options)
        assert added.returncode == 0, added.stderr
        yield options
    finally:
        services.stop_all()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, ceilings_file: Path) -> Iterator[ProfilerNode]:
    """A profiler whose ceilings are known, one for all tests of a file; files that need another one have a `node` of their own."""
    with running_node(tmp_path_factory.mktemp("node"), ceilings_file=ceilings_file) as node:
        yield node


@pytest.fixture
async def calls(node: ProfilerNode) -> AsyncIterator[Calls]:
    async with calls_to(node) as calls:
        yield calls


@pytest.fixture
async def analyzer(private_directories: Path) -> AsyncIterator[AnalyzerHere]:
    from tests.integration.analyzer_under_test import serving

    async with serving(private_directories) as here:
        yield here


@pytest.fixture
async def stub(analyzer: AnalyzerHere, node: ProfilerNode | ProfilerStandIn) -> AsyncIterator[Any]:
    """Of an analyzer that has the file's node."""
    from tests.integration.analyzer_under_test import add_node, connected

    async with connected(analyzer.endpoint) as stub:
        await add_node(stub, node.endpoint)
        yield stub
