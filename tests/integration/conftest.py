"""What tests with real devices share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import kernalyse
from tests.integration.analyzer_under_test import running_analyzer
from tests.private_folder import know_ceilings, private_folder
from tests.service_processes import ServiceProcesses


@pytest.fixture(autouse=True)
def ceilings_are_known(private_folders: Path, ceilings_file: Path) -> None:
    """To the test's profiler; a test of measuring them deletes the file or names another one."""
    know_ceilings(private_folders, ceilings_file)


@pytest.fixture
def analyzer_that_runs(private_folders: Path) -> Iterator[None]:
    """Commands find it: for tests of what commands say, not of how they start services."""
    with running_analyzer():
        yield


@pytest.fixture(scope="module")
def server(ceilings_file: Path) -> Iterator[tuple[str, ...]]:
    """Options that lead to an analyzer with one node, both processes of their own; one for all tests of a file."""
    with private_folder() as folder:
        know_ceilings(folder, ceilings_file)
        services = ServiceProcesses(folder)
        try:
            profiler, analyzer = services.start("profiler"), services.start("analyzer")
            token_file = folder / "config" / "kernalyse" / "token"
            options = ("--server", analyzer.address, "--token-file", str(token_file))
            added = kernalyse("nodes", "add", profiler.address, "--node-token-file", token_file, *options)
            assert added.returncode == 0, added.stderr
            yield options
        finally:
            services.stop_all()
