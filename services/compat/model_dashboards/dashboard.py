"""What both dashboards of models do: read their document, write it, and write their page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from services.compat.model_dashboards.profile_document import Document, read_document, write_document
from services.compat.model_dashboards.system_panel import facts_of
from services.core.errors import InvalidRequestError, InvalidTraceError
from services.ui.report.document import Chart, FigureTable
from services.ui.report.document import Document as Page
from services.ui.report.html_page import write_page

OUTPUT_FOLDER: Final = "profiling_results"

Entries = Mapping[str, Document]


class Dashboard:
    """Models, and the page that shows them. data: as the file has it; empty until something is loaded or measured."""

    title: ClassVar[str]
    data_file: ClassVar[str]
    dashboard_file: ClassVar[str]
    entries_member: ClassVar[str]  # of the document
    lacking: ClassVar[tuple[str, str]]  # without data: what is expected, and the remedy

    def __init__(self, output_dir: str | Path = OUTPUT_FOLDER) -> None:
        self.output_dir = Path(output_dir)
        self.data: Document = {}
        self.kept_file: Path | None = None

    def load_data(self, path: str | Path) -> Document:
        """Reads a file of that layout. Raises InvalidTraceError."""
        self.data = read_document(Path(path), self.entries_member)
        return self.data

    def save_data(self, path: str | Path | None = None) -> Path:
        """Write the data and return the path. A file there that has other models too is kept under another name, `kept_file`."""
        self._require_data()
        found = Path(path) if path is not None else self.output_dir / self.data_file
        self.kept_file = self._keep_other_models(found)
        write_document(self.data, found)
        return found

    def generate_dashboard(self, path: str | Path | None = None) -> Path:
        """Writes the page as one file that needs no server; answers with its path."""
        self._require_data()
        found = Path(path) if path is not None else self.output_dir / self.dashboard_file
        facts = facts_of(self.data.get("metadata") or {})
        write_page(found, Page(self.title, facts, list(self._charts(self._entries)), [self._table(self._entries)]))
        return found

    def _keep_other_models(self, path: Path) -> Path | None:
        """None: nothing would be lost; the new data has every model of the file, or that is none of this layout."""
        try:
            before = read_document(path, self.entries_member)[self.entries_member]
        except InvalidTraceError:
            return None
        if set(before) <= set(self._entries):
            return None
        written = time.strftime("%Y%m%d-%H%M%S", time.localtime(path.stat().st_mtime))
        kept = path.with_name(f"{path.stem}-{written}{path.suffix}")
        path.replace(kept)
        return kept

    @property
    def _entries(self) -> Entries:
        entries: Entries = self.data[self.entries_member]
        return entries

    def _table(self, entries: Entries) -> FigureTable:
        raise NotImplementedError

    def _charts(self, entries: Entries) -> Sequence[Chart]:
        raise NotImplementedError

    def _require_data(self) -> None:
        if not self.data:
            expected, remedy = self.lacking
            raise InvalidRequestError("dashboard", found="no data", expected=expected, remedy=remedy)
