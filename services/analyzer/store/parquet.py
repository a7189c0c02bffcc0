"""Parquet files of finished runs: one file a table, under a prefix of its own for each state of a run.

A prefix has never been used before, and its files become visible by one row of the database that names it. Nothing is renamed,
as object stores cannot do that, and a process that is killed in the middle leaves files that no row names.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path

import polars as pl
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from kernalyse.services.analyzer.store.database import Database
from kernalyse.services.analyzer.store.object_cache import ObjectCache
from kernalyse.services.analyzer.store.objects import DIGESTS, read_digests, write_digests
from kernalyse.services.analyzer.store.schema import parquet_prefixes, runs
from kernalyse.services.analyzer.store.trace_parts import TABLES_IN_PARTS, part_path, stored_parts
from kernalyse.services.analyzer.tables.base import Table
from kernalyse.services.core.errors import UnavailableError

TOKEN_BYTES = 8  # of a prefix, behind the run's id: no two states of a run share one by chance
CACHED_RESULTS = "results"
LEFT_S = 600.0
"""Age of half a result at which it is no other analyzer's that is still writing it."""


class RunFiles:
    """The Parquet files of one kind: rows from events and imports, or traces that were read after their run had ended.

    Args:
        root: directory of all prefixes; directories in it that no row of the database names are deleted here.
        kind: distinguishes the rows of parquet_prefixes from those of the other kind.
        cache: of the objects that these files are in; None: they are in the directory alone.
        unnamed_s: how old a directory that no row names must be to be deleted; other analyzers may be filling younger ones.
    """

    def __init__(self, root: Path, database: Database, kind: str, cache: ObjectCache | None = None, unnamed_s: float = 0.0) -> None:
        self._root = root
        self._database = database
        self._kind = kind
        self._cache = cache
        self._replaced: dict[str, Path] = {}  # the state before the visible one, by run
        self._schemas: dict[Path, tuple[tuple[str, pl.DataType], ...] | None] = {}
        root.mkdir(parents=True, exist_ok=True)
        with database.reading() as connection:
            visible = {path.name for path in self.directories(connection, None).values()}
        for path in root.iterdir():
            with suppress(FileNotFoundError):  # another analyzer starts too
                if path.name not in visible and path.stat().st_mtime <= time.time() - unnamed_s:
                    shutil.rmtree(path, ignore_errors=True)

    # ------------------------------------------------------------ writing

    def reserve(self, run_id: str) -> Path:
        """Return a directory that is not there yet, for `write_frames` to fill, then for `put` and `publishing`."""
        return self._root / f"{run_id}-{secrets.token_hex(TOKEN_BYTES)}"

    def write(self, run_id: str, frames: Mapping[str, pl.DataFrame | pl.LazyFrame]) -> Path:
        """Write the tables that have rows to a directory of their own, and return it. Nobody sees it before `put` and `publishing`."""
        directory = self.reserve(run_id)
        directory.mkdir()
        try:
            write_frames(directory, frames)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)  # on a full disk a part of a run would take what little is left
            raise
        return directory

    def put(self, directory: Path) -> None:
        """Put a written directory into the objects, where it has to be before a row names it. Without objects nothing is done.

        An upload may take long: callers hold no lock. Raises ObjectsUnavailableError: they do not take it; the directory goes.
        """
        if self._cache is not None:
            try:
                self._cache.put(directory)
            except BaseException:
                self.discard(directory)
                raise

    @contextmanager
    def publishing(self, run_id: str, directory: Path) -> Iterator[Connection]:
        """Yield a transaction at whose end a written directory is the run's visible one; where it fails, the directory goes.

        A directory that was visible before stays until the next one is replaced: a query that has begun finds its files to its end.
        """
        try:
            sync(self._root)
            with self._database.writing() as connection:
                yield connection
                replaced = self.directories(connection, [run_id]).get(run_id)
                connection.execute(sa.delete(parquet_prefixes).where(self._is_of([run_id])))
                connection.execute(sa.insert(parquet_prefixes), {"kind": self._kind, "run_id": run_id, "prefix": directory.name})
        except UnavailableError:
            raise  # the database may have taken the row that names it: if not, the next start deletes it
        except BaseException:
            self.discard(directory)
            raise
        earlier = self._replaced.pop(run_id, None)
        if earlier is not None:
            self.discard(earlier)
        if replaced is not None:
            self._replaced[run_id] = replaced

    def delete(self, run_id: str, directory: Path | None) -> None:
        """Delete the files of a run whose row is gone. directory: the one visible before that."""
        for path in (self._replaced.pop(run_id, None), directory):
            if path is not None:
                self.discard(path)

    def discard(self, directory: Path) -> None:
        """Delete a directory that is not to be published, or no longer visible."""
        for path in [path for path in self._schemas.copy() if path.parent == directory]:
            self._schemas.pop(path, None)
        if self._cache is None:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            self._cache.forget(directory)

    def catch_up(self) -> None:
        """Do what an outage of the objects has prevented. Raises ObjectsUnavailableError."""
        if self._cache is not None:
            self._cache.catch_up(self._root, self._named)

    def _named(self) -> set[Path]:
        """Return the visible directories, and those that were visible before."""
        with self._database.reading() as connection:
            return {*self.directories(connection, None).values(), *self._replaced.values()}

    # ------------------------------------------------------------ reading

    def directories(self, connection: Connection, run_ids: Sequence[str] | None) -> dict[str, Path]:
        """Return the visible directory of each of these runs, or of all, by run_id, oldest run first."""
        columns = parquet_prefixes.c
        query = sa.select(columns.run_id, columns.prefix).join(runs, runs.c.run_id == columns.run_id).where(self._is_of(run_ids))
        return {run_id: self._root / prefix for run_id, prefix in connection.execute(query.order_by(runs.c.create_unix_ns))}

    def directory(self, run_id: str) -> Path | None:
        """Return the run's visible directory; None: it has none."""
        with self._database.reading() as connection:
            return self.directories(connection, [run_id]).get(run_id)

    def local_directory(self, run_id: str) -> Path | None:
        """Return the run's visible directory, fetched where it is not local; None: it has none. Raises what ObjectCache.provide does."""
        directory = self.directory(run_id)
        if directory is not None and self._cache is not None:
            self._cache.provide([directory])
        return directory

    def has(self, table: Table, directory: Path) -> bool:
        """Return whether a visible directory has rows of the table. Raises ObjectsUnavailableError."""
        paths = [table_path(directory, table), *([part_path(directory, table, 0)] if table in TABLES_IN_PARTS else [])]
        return any(path.exists() if self._cache is None else self._cache.has_file(directory, path.name) for path in paths)

    def measure(self, directory: Path) -> None:
        """Take into account that something was written to a visible directory."""
        if self._cache is not None:
            self._cache.measure(directory)

    def _is_of(self, run_ids: Sequence[str] | None) -> sa.ColumnElement[bool]:
        is_kind = parquet_prefixes.c.kind == self._kind
        return is_kind if run_ids is None else sa.and_(is_kind, parquet_prefixes.c.run_id.in_(run_ids))

    def scan(self, table: Table, directories: Iterable[Path]) -> list[pl.LazyFrame]:
        """Return the table's rows in these directories, with this version's columns.

        Files of one schema in a row are one scan: the plan of a query over hundreds of scans takes longer than the query.
        Raises what ObjectCache.provide does.
        """
        found = [directory for directory in directories if self.has(table, directory)]
        if self._cache is not None:
            self._cache.provide(found)
        frames: list[pl.LazyFrame] = []
        for schema, alike in groupby((table_path(directory, table) for directory in found), self._schema):
            if schema is None:
                frames += [stored_parts(path.parent).rows(table, path.parent) for path in alike]
            else:
                frames.append(table.conform(pl.scan_parquet(list(alike))))
        return frames

    def page_of_parts(self, table: Table, run_id: str, offset: int, limit: int) -> tuple[pl.LazyFrame, int] | None:
        """Return a page of a table that is stored in parts, and its row count; None: it is not. Raises what ObjectCache.provide does."""
        directory = self.local_directory(run_id)
        if directory is None or not part_path(directory, table, 0).exists():
            return None
        parts = stored_parts(directory)
        return parts.rows(table, directory, offset, offset + limit), sum(parts.row_counts[table.table_name])

    def _schema(self, path: Path) -> tuple[tuple[str, pl.DataType], ...] | None:
        """Return the columns of a file, read once: files never change. None: the table is stored in parts."""
        if path not in self._schemas:
            self._schemas[path] = tuple(pl.read_parquet_schema(path).items()) if path.exists() else None
        return self._schemas[path]

    def damaged_file(self, run_id: str) -> tuple[Path, str] | None:
        """Return the first of the run's local files that cannot be read, and why. Reads all of them. A copy of objects is dropped."""
        directory = self.directory(run_id)
        for path in sorted(directory.glob("*.parquet")) if directory is not None else ():
            try:
                pl.read_parquet(path)
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
                if self._cache is not None:
                    self._cache.drop(path.parent)
                return path, str(error)
        return None


def table_path(directory: Path, table: Table) -> Path:
    """Return the file of a table; a table without rows, and one that is stored in parts, has none."""
    return directory / f"{table.table_name}.parquet"


def row_count(directory: Path, table: Table) -> int:
    """Return how many rows a directory has of a table."""
    if part_path(directory, table, 0).exists():
        return sum(stored_parts(directory).row_counts[table.table_name])
    path = table_path(directory, table)
    return int(pl.scan_parquet(path).select(pl.len()).collect().item()) if path.exists() else 0


def cached_result_path(directory: Path, result_name: str) -> Path:
    """Return the file of a result computed from the rows of a directory, which goes with it."""
    return directory / CACHED_RESULTS / f"{result_name}.parquet"


def write_cached_result(path: Path, frame: pl.DataFrame) -> None:
    """Write a result to its `cached_result_path`, complete or not at all. Raises OSError, polars' ComputeError."""
    path.parent.mkdir(exist_ok=True)  # not its parents: a run deleted meanwhile must leave nothing behind
    for left in path.parent.glob(f"{path.stem}*.part"):  # by a process that was killed
        if left.stat().st_mtime < time.time() - LEFT_S:
            left.unlink(missing_ok=True)
    temporary = path.with_suffix(f".{secrets.token_hex(TOKEN_BYTES)}.part")  # another analyzer may write the same one
    try:
        frame.write_parquet(temporary)
        sync(temporary)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_frames(directory: Path, frames: Mapping[str, pl.DataFrame | pl.LazyFrame]) -> None:
    """Write a file for each table that has rows, and their digests; they are on the disk at return. Raises OSError or ComputeError.

    Frames that are not read yet have rows, and are written as they are read.
    """
    paths = []
    for table_name, frame in frames.items():
        if not (isinstance(frame, pl.DataFrame) and frame.is_empty()):
            path = directory / f"{table_name}.parquet"
            frame.lazy().sink_parquet(path)
            sync(path)
            paths.append(path)
    write_digests(directory, paths)
    sync(directory / DIGESTS)
    sync(directory)


def take_parts(directory: Path, parts: Sequence[Path]) -> None:
    """Move the files of TABLES_IN_PARTS that `write_frames` has written to several directories into one, with their digests."""
    digests = read_digests(directory) or {}
    for table in TABLES_IN_PARTS:
        with_rows = [path for path in (table_path(part, table) for part in parts) if path.exists()]
        for number, path in enumerate(with_rows):
            taken = part_path(directory, table, number)
            digests[taken.name] = (read_digests(path.parent) or {})[path.name]
            path.rename(taken)
    (directory / DIGESTS).write_text(json.dumps(digests))
    sync(directory / DIGESTS)
    sync(directory)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
