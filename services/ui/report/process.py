"""A process that draws one document in one or more formats: a task and tables lie in a directory, and there the files go.

HoloViews and Matplotlib take seconds and 300 MB to load and are not made for threads; whatever they do ends with this process.
It ends by itself when nobody waits any more, or when it takes more than it may.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from kernalyse.services.core.report import DOCUMENT_NAME, TABLE_SUFFIX, DrawingTask, ReportFormat

if TYPE_CHECKING:
    from kernalyse.services.ui.report.document import Document

MAX_MEMORY_BYTES: Final = 4 * 1024**3
MAX_PROCESSOR_S: Final = 240
PARENT_GONE_STATUS: Final = 3


def main(directory: Path) -> None:
    gc.disable()  # of what a document is made of nearly all stays until its end
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_PROCESSOR_S, MAX_PROCESSOR_S))
    warnings.simplefilter("ignore")  # of signs that no font has: the others of the name are shown
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    draw(DrawingTask.read(directory), directory)


def draw(task: DrawingTask, directory: Path) -> list[Path]:
    """Write the document beside its tables, and return the paths of its formats."""
    from kernalyse.services.ui.report.run_document import run_document

    tables = {path.stem: pl.read_ipc(path) for path in sorted(directory.glob(f"*{TABLE_SUFFIX}"))}
    document = run_document(task, tables)
    return [_write(document, chosen, directory / f"{DOCUMENT_NAME}.{chosen}") for chosen in task.formats]


def _write(document: Document, chosen: ReportFormat, path: Path) -> Path:
    match chosen:
        case ReportFormat.HTML:
            from kernalyse.services.ui.report.document import write_page

            write_page(path, document)
        case ReportFormat.PDF:
            from kernalyse.services.ui.report.pdf import write_pdf

            write_pdf(path, document)
        case ReportFormat.PPTX:
            from kernalyse.services.ui.report.powerpoint import write_powerpoint

            write_powerpoint(path, document)
        case ReportFormat.PNG | ReportFormat.SVG:
            from kernalyse.services.ui.report.chart_figures import write_pictures

            write_pictures(path, document, "png" if chosen is ReportFormat.PNG else "svg")
        case _:
            raise ValueError(f"{chosen} is not drawn")
    return path


def _end_with_parent(parent_id: int) -> None:
    while os.getppid() == parent_id:
        time.sleep(1)
    os._exit(PARENT_GONE_STATUS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
