"""Tests of the store run on both catalogues: SQLite, and a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernalyse.services.analyzer.store.store import Store
from tests.postgresql import PostgresqlServer, running_postgresql


@pytest.fixture(scope="package")
def postgresql() -> Iterator[PostgresqlServer]:
    with running_postgresql() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def catalogue(request: pytest.FixtureRequest) -> str:
    """The setting of a catalogue that is empty."""
    return "" if request.param == "sqlite" else request.getfixturevalue("postgresql").new_database()


@pytest.fixture
def store(tmp_path: Path, catalogue: str) -> Iterator[Store]:
    opened = Store(tmp_path / "store", catalogue)
    yield opened
    opened.close()
