"""What commands write: text, and tables as CSV for spreadsheets or Parquet for programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

if TYPE_CHECKING:
    import polars as pl

TableFormat = Literal["csv", "parquet"]


def write_text(text: str, output: Path | None) -> None:
    """output: None for standard output."""
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text)


def write_tables(frames: Mapping[str, pl.DataFrame], table_format: TableFormat, folder: Path) -> None:
    """One file a table in the folder, which is made where it is missing; empty tables get a file too, with its columns."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        write_table(frame, table_format, folder / f"{name}.{table_format}")


def write_table(frame: pl.DataFrame, table_format: TableFormat, path: Path) -> None:
    if table_format == "parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path)
