"""Exports of Nsight Systems as directories of tables, made from SQLite exports: the same tables with the same columns."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import polars as pl

UNSIGNED: Final = ("globalTid", "globalPid", "correlationId", "domainId", "streamId", "bytes", "graphNodeId")
"""Columns that Nsight Systems writes without a sign."""

ENDINGS: Final = {"parquetdir": "parquet", "arrowdir": "arrow"}


def write_directory(export: Path, directory: Path, export_type: str) -> Path:
    """export_type: parquetdir or arrowdir."""
    directory.mkdir()
    with closing(sqlite3.connect(export)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = connection.execute(f'SELECT * FROM "{name}"')
            columns = [column[0] for column in cursor.description]
            frame = pl.DataFrame(cursor.fetchall(), schema=columns, orient="row", infer_schema_length=None)
            write_table(frame, directory / f"{name}.{ENDINGS[export_type]}")
    return directory


def write_table(frame: pl.DataFrame, path: Path) -> None:
    unsigned = [name for name in UNSIGNED if name in frame.columns and frame[name].dtype == pl.Int64]
    frame = frame.with_columns(pl.col(unsigned).cast(pl.UInt64, wrap_numerical=True))
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_ipc_stream(path, compat_level=pl.CompatLevel.oldest())
