"""What tests with real devices share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.analyzer_under_test import running_analyzer
from tests.known_ceilings import FILE_NAME, known_ceilings


@pytest.fixture(scope="session")
def ceilings_file(pytestconfig: pytest.Config) -> Path:
    """Ceilings of this machine's devices, as a profiler keeps them."""
    assert pytestconfig.cache is not None
    return known_ceilings(pytestconfig.cache.mkdir("ceilings"))


@pytest.fixture(autouse=True)
def ceilings_are_known(private_folders: Path, ceilings_file: Path) -> None:
    """To the test's profiler; a test of measuring them deletes the file or names another one."""
    folder = private_folders / "data" / "kernalyse" / "profiler"
    folder.mkdir(parents=True)
    shutil.copy2(ceilings_file, folder / FILE_NAME)


@pytest.fixture
def analyzer_that_runs(private_folders: Path) -> Iterator[None]:
    """Commands find it: for tests of what commands say, not of how they start services."""
    with running_analyzer():
        yield
