"""Parquet files of finished runs: one folder a run, one file a table."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import polars as pl

from services.analyzer.table import Table

STATE_MARK: Final = "~"
"""Before the number of a later state of a run, in the name of its folder."""


class Archive:
    """Folders under `root`. A folder appears complete or not at all.

    A run whose rows are replaced gets another folder, and the one before stays until the next time: a query finds its files
    to its end.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._numbers: dict[str, int] = {}  # of the newest state, by run, where it is not the first
        for path in root.iterdir():
            run_id, _, number = path.name.partition(STATE_MARK)
            if number:
                self._numbers[run_id] = max(int(number), self._numbers.get(run_id, 0))
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
        """Takes a folder that `write_frames` has filled, on the same disk, for the run's rows from now on."""
        before = self._numbers.get(run_id, 0)
        if self._folder(run_id).exists():
            folder.rename(self._state(run_id, before + 1))
            self._numbers[run_id] = before + 1
            self._delete_state(run_id, before - 1)
        else:
            folder.rename(self._folder(run_id))
        _sync(self._root)

    def scan(self, table: Table, run_ids: Sequence[str]) -> list[pl.LazyFrame]:
        """The table's rows of these runs, with this version's columns.

        Files of one schema in a row are one scan: the plan of a query over hundreds of scans takes longer than the query.
        """
        paths = [path for run_id in run_ids if (path := self._folder(run_id) / f"{table.table_name}.parquet").exists()]
        return [table.conform(pl.scan_parquet(list(alike))) for _, alike in groupby(paths, self._schema)]

    def _schema(self, path: Path) -> tuple[tuple[str, pl.DataType], ...]:
        """Columns of a file, read once: files never change, runs are replaced whole."""
        if path not in self._schemas:
            self._schemas[path] = tuple(pl.read_parquet_schema(path).items())
        return self._schemas[path]

    def damaged_file(self, run_id: str) -> tuple[Path, str] | None:
        """The first of the run's files that cannot be read, and why. Reads all of them."""
        for path in sorted(self._folder(run_id).glob("*.parquet")):
            try:
                pl.read_parquet(path)
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
                return path, str(error)
        return None

    def has(self, table: Table, run_id: str) -> bool:
        """Whether the run has rows of the table."""
        return (self._folder(run_id) / f"{table.table_name}.parquet").exists()

    def keep_answer(self, path: Path, frame: pl.DataFrame) -> None:
        """Keeps what was worked out from a run beside it, until the run is deleted. Raises OSError, polars' ComputeError.

        Args:
            path: see `answer_path`, asked for before the run's rows were read: they may be others by now.
        """
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
        path = self.answer_path(run_id, answer_name)
        return pl.scan_parquet(path) if path.exists() else None

    def answer_path(self, run_id: str, answer_name: str) -> Path:
        """Of the state that the run is in."""
        return self._folder(run_id) / "answers" / f"{answer_name}.parquet"

    def _folder(self, run_id: str) -> Path:
        return self._state(run_id, self._numbers.get(run_id, 0))

    def _state(self, run_id: str, number: int) -> Path:
        return self._root / (f"{run_id}{STATE_MARK}{number}" if number else run_id)

    def delete(self, run_id: str) -> None:
        number = self._numbers.pop(run_id, 0)
        for state in {0, max(0, number - 1), number}:
            self._delete_state(run_id, state)

    def _delete_state(self, run_id: str, number: int) -> None:
        folder = self._state(run_id, number)
        for path in [path for path in self._schemas.copy() if path.parent == folder]:
            self._schemas.pop(path, None)
        shutil.rmtree(folder, ignore_errors=True)

    def delete_all_but(self, run_ids: Collection[str]) -> None:
        """Deletes what a process that was killed in the middle left behind, and earlier states."""
        kept = {self._folder(run_id).name for run_id in run_ids}
        for path in self._root.iterdir():
            if path.name not in kept:
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
