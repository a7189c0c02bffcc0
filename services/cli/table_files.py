"""Files that commands read and write: traces on the command line, text, and tables as CSV or Parquet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import typer

from kernalyse.services.core.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

TableFormat = Literal["csv", "parquet"]

STANDARD_OUTPUT: Final = "-"


def is_trace_path(text: str) -> bool:
    """Return whether text is the path of a trace, rather than the name of a run that a directory happens to have too."""
    path = Path(text)
    if not path.is_dir():
        return path.is_file()
    from kernalyse.services.analyzer.readers.registry import is_trace

    return "/" in text or is_trace(path)


def check_output_path(path: Path | None) -> Path | None:
    """Check that a file can be written and return its path. Called before a run, so that its results are not lost at the end.

    Args:
        path: None, or - for standard output, is returned unchecked.

    Raises:
        UsageError: the file cannot be written.
    """
    if path is None or str(path) == STANDARD_OUTPUT:
        return path
    if path.is_dir():
        found = "a directory"
    elif not path.parent.is_dir():
        found = f"no directory {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        found = "no permission to write it"
    else:
        return path
    raise UsageError(f"file {path}", found=found, expected="a file to write", remedy="Correct the path, or make the directory.")


def write_text(text: str, output: Path | None) -> None:
    """Write text to a file.

    Args:
        text: written as UTF-8.
        output: None for standard output.

    Raises:
        UsageError: the file cannot be written.
    """
    check_output_path(output)
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


def write_tables(frames: Mapping[str, pl.DataFrame], table_format: TableFormat, directory: Path) -> None:
    """Write one file per table, also for empty ones, to a directory that is created where it does not exist."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        write_table(frame, table_format, directory / f"{name}.{table_format}")


def write_table(frame: pl.DataFrame, table_format: TableFormat, path: Path) -> None:
    """Write a table to a CSV or Parquet file."""
    if table_format == "parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path)
