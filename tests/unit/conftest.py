"""A store of its own for each test that names it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.analyzer.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "store")
    yield opened
    opened.close()
