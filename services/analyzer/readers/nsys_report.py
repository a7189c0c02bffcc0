"""Reads reports of Nsight Systems (.nsys-rep, .qdrep), which an installed nsys exports first."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from services.analyzer.readers.nsys_program import exported
from services.analyzer.readers.nsys_sqlite import read_tables
from services.analyzer.readers.selection import EVERYTHING, Selection
from services.analyzer.readers.sqlite_file import SqliteFile
from services.analyzer.readers.table_folder import TableFolder
from services.analyzer.readers.trace import ImportedTables, TraceFiles

FORMAT: Final = "nsys-report"
OPENINGS: Final = (b"NVIDIA Tegra Profiler Report", b"NVIDIA Nsight Systems Report")


class NsysReportReader:
    format = FORMAT
    description = "a report of Nsight Systems (.nsys-rep), where nsys is installed"

    def matches(self, head: bytes) -> bool:
        return head.startswith(OPENINGS)

    def read(self, files: TraceFiles) -> ImportedTables:
        return self.read_columns(files, EVERYTHING)

    def read_columns(self, files: TraceFiles, selection: Selection) -> ImportedTables:
        """Raises UnmetConditionError without nsys, TimeLimitError when it hangs; InvalidTraceError when it refuses the report."""
        with exported(files.path, files.file_name) as path:
            if path.is_dir():
                return read_tables(TableFolder(files.file_name, {table.stem: table for table in path.iterdir()}), selection)
            with closing(SqliteFile.open(path, files.file_name)) as file:
                return read_tables(file, selection)
