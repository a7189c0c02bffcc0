"""What unit tests share: how many examples properties are tried with, and a store of its own for each test that names it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernalyse.services.analyzer.store.store import Store
from tests.examples import load_profile

load_profile()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "store")
    yield opened
    opened.close()
