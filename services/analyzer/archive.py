"""Parquet files of finished runs: one folder a run, one file a table."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import polars as pl

from services.analyzer.table import Table


class Archive:
    """Folders under `root`. A folder appears complete or not at all."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._schemas: dict[Path, tuple[tuple[str, pl.DataType], ...]] = {}

    def write(self, run_id: str, frames: Mapping[str, pl.DataFrame]) -> None:
        """Replaces the run's folder; empty tables get no file."""
        temporary = self._root / f".{run_id}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            write_frames(temporary, frames)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)  # on a full disk a part of a run would take what little is left
            raise
        self.adopt(run_id, temporary)

    def adopt(self, run_id: str, folder: Path) -> None:
        """Replaces the run's folder by one that `write_frames` has filled, on the same disk."""
        self.delete(run_id)
        folder.rename(self._root / run_id)
        _sync(self._root)

    def scan(self, table: Table, run_ids: Sequence[str]) -> list[pl.LazyFrame]:
        """The table's rows of these runs, with this version's columns.

        Files of one schema in a row are one scan: the plan of a query over hundreds of scans takes longer than the query.
        """
        paths = [path for run_id in run_ids if (path := self._root / run_id / f"{table.table_name}.parquet").exists()]
        return [table.conform(pl.scan_parquet(list(alike))) for _, alike in groupby(paths, self._schema)]

    def _schema(self, path: Path) -> tuple[tuple[str, pl.DataType], ...]:
        """Columns of a file, read once: files never change, runs are replaced whole."""
        if path not in self._schemas:
            self._schemas[path] = tuple(pl.read_parquet_schema(path).items())
        return self._schemas[path]

    def has(self, table: Table, run_id: str) -> bool:
        """Whether the run has rows of the table."""
        return (self._root / run_id / f"{table.table_name}.parquet").exists()

    def keep_answer(self, run_id: str, answer_name: str, frame: pl.DataFrame) -> None:
        """Keeps what was worked out from a run beside it, until the run is deleted. Raises OSError, polars' ComputeError."""
        path = self._answer_path(run_id, answer_name)
        path.parent.mkdir(exist_ok=True)  # not its parents: of a run that has been deleted nothing is kept
        temporary = path.with_suffix(".part")
        try:
            frame.write_parquet(temporary)
            _sync(temporary)
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def kept_answer(self, run_id: str, answer_name: str) -> pl.LazyFrame | None:
        """None: nothing of that name has been kept."""
        path = self._answer_path(run_id, answer_name)
        return pl.scan_parquet(path) if path.exists() else None

    def _answer_path(self, run_id: str, answer_name: str) -> Path:
        return self._root / run_id / "answers" / f"{answer_name}.parquet"

    def delete(self, run_id: str) -> None:
        for path in [path for path in self._schemas.copy() if path.parent.name == run_id]:
            self._schemas.pop(path, None)
        shutil.rmtree(self._root / run_id, ignore_errors=True)

    def delete_all_but(self, run_ids: Collection[str]) -> None:
        """Deletes what a process that was killed in the middle left behind."""
        for path in self._root.iterdir():
            if path.name not in run_ids:
                shutil.rmtree(path, ignore_errors=True)


def write_frames(folder: Path, frames: Mapping[str, pl.DataFrame]) -> None:
    """A file for each table that has rows, on the disk when it returns. Raises OSError or polars' ComputeError."""
    for table_name, frame in frames.items():
        if frame.height > 0:
            path = folder / f"{table_name}.parquet"
            frame.write_parquet(path)
            _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
