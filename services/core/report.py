"""The content of a run's report, as words and tables, independent of the format it is written in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pydantic import TypeAdapter

UNKNOWN: Final = "unknown"
"""The text of a cell or fact whose value is not known."""


class ReportFormat(StrEnum):
    """The formats of a report: text, or a document with charts. PNG and SVG are a zip with one file per chart."""

    TEXT = "text"
    MARKDOWN = "markdown"
    HTML = "html"
    PDF = "pdf"
    PPTX = "pptx"
    PNG = "png"
    SVG = "svg"

    @property
    def is_drawn(self) -> bool:
        """Return whether the format has charts."""
        return self not in (ReportFormat.TEXT, ReportFormat.MARKDOWN)

    @property
    def suffix(self) -> str:
        """Return the suffix of the file's name, with its dot."""
        return {"text": ".txt", "markdown": ".md", "png": ".zip", "svg": ".zip"}.get(self.value, f".{self.value}")


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a report: facts (name and value), sentences, a table and its footnotes.

    The sentences stand above the table, the footnotes below. Cells of a numeric column are aligned to the right.
    """

    title: str
    sentences: tuple[str, ...] = ()
    headings: tuple[str, ...] = ()
    is_numeric: tuple[bool, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    footnotes: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """A report: its title and its sections."""

    title: str
    sections: tuple[Section, ...]


# ---------------------------------------------------------------- drawing task
# One process writes the task to a directory, another one draws the document there.


@dataclass(frozen=True, slots=True)
class DrawingTask:
    """A document to draw, in one or more formats; the tables for its charts lie in the same directory, one Arrow file each.

    title names the run, or both runs of a comparison. baseline_run_id is the run that run_id is compared with; empty: none.
    """

    formats: tuple[ReportFormat, ...]
    report: Report
    run_id: str
    title: str
    baseline_run_id: str = ""

    def write(self, directory: Path) -> None:
        """Write the task to the directory."""
        (directory / TASK_NAME).write_bytes(_tasks().dump_json(self))

    @staticmethod
    def read(directory: Path) -> DrawingTask:
        """Read the task from the directory."""
        return _tasks().validate_json((directory / TASK_NAME).read_bytes())


TASK_NAME: Final = "task.json"
TABLE_SUFFIX: Final = ".arrow"
DOCUMENT_NAME: Final = "document"


def _tasks() -> TypeAdapter[DrawingTask]:
    """Return the conversion of tasks. pydantic takes 0.1 s to load, and every command loads this module for the names of formats."""
    from pydantic import TypeAdapter

    return TypeAdapter(DrawingTask)
