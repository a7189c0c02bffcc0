"""A report of a run as a file, written or drawn: of tables at hand, in a store or not."""

from __future__ import annotations

from services.analyzer.writers.drawing import LazyTableOf, drawn, run_frames
from services.analyzer.writers.report import written_report
from services.analyzer.writers.report_sections import report_of
from services.core.drawing_task import DrawingTask
from services.core.model import Device, Run
from services.core.report import ReportFormat


def report_file(run: Run, rows_of: LazyTableOf, chosen: ReportFormat, device: Device | None = None) -> bytes:
    """The whole file. Raises what `services.analyzer.writers.drawing.drawn` does."""
    report = report_of(run, lambda name: rows_of(name).collect(), device)
    if not chosen.is_drawn:
        return written_report(report, chosen).encode()
    return drawn(DrawingTask(chosen, report, run.run_id, run.title), run_frames(rows_of, run.run_id))
