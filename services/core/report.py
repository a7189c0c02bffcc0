"""A report of a run in words and tables: who writes it as text, and who draws it with charts, take the same."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pydantic import TypeAdapter

UNKNOWN: Final = "unknown"
"""What a cell or a fact says that is not known."""


class ReportFormat(StrEnum):
    """What a report can be written as: text, or a document with charts. PNG and SVG are a zip of one file a chart."""

    TEXT = "text"
    MARKDOWN = "markdown"
    HTML = "html"
    PDF = "pdf"
    PPTX = "pptx"
    PNG = "png"
    SVG = "svg"

    @property
    def is_drawn(self) -> bool:
        return self not in (ReportFormat.TEXT, ReportFormat.MARKDOWN)

    @property
    def suffix(self) -> str:
        """Of its file's name."""
        return {"text": ".txt", "markdown": ".md", "png": ".zip", "svg": ".zip"}.get(self.value, f".{self.value}")


@dataclass(frozen=True, slots=True)
class Section:
    """facts: name and value. sentences: above the table; footnotes: below. A column is numeric when its cells stand to the right."""

    title: str
    sentences: tuple[str, ...] = ()
    headings: tuple[str, ...] = ()
    is_numeric: tuple[bool, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    footnotes: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    sections: tuple[Section, ...]


# ---------------------------------------------------------------- drawing task
# A document to draw, as one process hands it to another: a file, and its tables beside it.


@dataclass(frozen=True, slots=True)
class DrawingTask:
    """A document to draw. The tables that its charts are made of lie beside it, one Arrow file each.

    title: of the run, or of both that are compared. baseline_run_id: that run_id is judged by; empty: it is no comparison.
    """

    format: ReportFormat
    report: Report
    run_id: str
    title: str
    baseline_run_id: str = ""

    def write(self, folder: Path) -> None:
        (folder / TASK_NAME).write_bytes(_tasks().dump_json(self))

    @staticmethod
    def read(folder: Path) -> DrawingTask:
        return _tasks().validate_json((folder / TASK_NAME).read_bytes())


TASK_NAME: Final = "task.json"
TABLE_SUFFIX: Final = ".arrow"
DOCUMENT_NAME: Final = "document"


def _tasks() -> TypeAdapter[DrawingTask]:
    """Return the conversion of tasks. pydantic takes 0.1 s to load, and every command loads this module for the names of formats."""
    from pydantic import TypeAdapter

    return TypeAdapter(DrawingTask)
