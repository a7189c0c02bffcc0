"""A document to draw, as one process hands it to another: a file, and its tables beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from services.core.report import Report, ReportFormat


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
        (folder / TASK_NAME).write_bytes(_TASKS.dump_json(self))

    @staticmethod
    def read(folder: Path) -> DrawingTask:
        return _TASKS.validate_json((folder / TASK_NAME).read_bytes())


TASK_NAME: Final = "task.json"
TABLE_SUFFIX: Final = ".arrow"
DOCUMENT_NAME: Final = "document"
_TASKS: Final = TypeAdapter(DrawingTask)
