"""What the tables of an export can be asked, whatever they are stored as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from services.analyzer.readers.sqlite_file import TableColumns


class ExportedTables(Protocol):
    """Tables by name, any of which and any of whose columns may be missing."""

    @property
    def name(self) -> str:
        """Of the file or the folder, for people."""

    @property
    def table_names(self) -> tuple[str, ...]:
        """In no certain order."""

    def column_names(self, table_name: str) -> tuple[str, ...]:
        """Of the table; none when there is no such table."""

    def rows(self, table_name: str) -> list[dict[str, Any]]:
        """All of a small table; none when there is no such table. Raises InvalidTraceError when it is damaged."""

    def columns(self, table_name: str, integers: Sequence[str] = (), texts: Sequence[str] = (), codes: Sequence[str] = ()) -> TableColumns:
        """The columns of these names, of which there must be such. Raises InvalidTraceError when the table is damaged.

        Args:
            codes: integers of few values.
        """
