"""Reads folders that Nsight Systems exports, with a file for each table: nsys export --type parquetdir, or arrowdir.

The tables and columns are those of an SQLite export. A file does not say which table it holds: its name does.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from services.analyzer.readers.nsys_sqlite import OWN_TABLES, read_tables
from services.analyzer.readers.selection import EVERYTHING, Selection
from services.analyzer.readers.table_folder import TableFolder, is_table
from services.analyzer.readers.trace import ImportedTables, TraceFiles
from services.core.errors import InvalidTraceError

FORMAT: Final = "nsys-folder"
HEAD_BYTES: Final = 8
TABLE_ENDINGS: Final = (".parquet", ".arrow")


class NsysFolderReader:
    format = FORMAT
    description = "a folder of tables that Nsight Systems exported (parquetdir, arrowdir)"

    def matches(self, head: bytes) -> bool:
        return is_table(head)

    def read(self, files: TraceFiles) -> ImportedTables:
        return self.read_columns(files, EVERYTHING)

    def read_columns(self, files: TraceFiles, selection: Selection) -> ImportedTables:
        """Raises InvalidTraceError: one table alone, tables of another program, or damaged ones."""
        paths = {_table_name(name): path for name, path in _paths(files).items() if holds_table(path)}
        folder = TableFolder(_folder_name(files), paths)
        if not files.companions:
            raise InvalidTraceError(
                f"file {files.file_name}",
                found="one table alone",
                expected="the folder that Nsight Systems exported, with all of its tables",
                remedy="Give the folder: nsys export --type parquetdir REPORT.nsys-rep makes one.",
            )
        tables = read_tables(folder, selection)
        others = sorted(_parts(name)[-1] for name, path in _paths(files).items() if not holds_table(path))
        left_out = [f"Files of the folder that are no tables are left out: {', '.join(others)}."] if others else []
        return replace(tables, title=folder.name, notes="\n".join([tables.notes, *left_out]))


def is_export(folder: Path) -> bool:
    """Whether the files of a folder are the tables of one export. Raises OSError."""
    return any(
        path.stem in OWN_TABLES and path.suffix in TABLE_ENDINGS and path.is_file() and holds_table(path) for path in folder.iterdir()
    )


def _paths(files: TraceFiles) -> dict[str, Path]:
    return {files.file_name: files.path, **files.companions}


def holds_table(path: Path) -> bool:
    """By its beginning. Raises OSError."""
    with path.open("rb") as file:
        return is_table(file.read(HEAD_BYTES))


def _table_name(file_name: str) -> str:
    return _parts(file_name)[-1].rsplit(".", 1)[0]


def _folder_name(files: TraceFiles) -> str:
    """The one that the tables lay in at their sender."""
    folders = [parts[-2] for name in _paths(files) if len(parts := _parts(name)) > 1]
    return folders[0] if folders else files.file_name


def _parts(file_name: str) -> list[str]:
    return re.split(r"[/\\]", file_name)
