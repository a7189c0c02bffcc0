"""A report as a document with charts: drawn by a process of the dashboard's, which gets words and tables as files.

The chart functions are the dashboard's, which no service imports. Drawing takes seconds, much memory and libraries that are
not made for threads: a process of its own keeps all that out of the analyzer, and whatever goes wrong in it costs one document.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import polars as pl

from services.core.drawing_task import DOCUMENT_NAME, TABLE_SUFFIX, DrawingTask
from services.core.errors import BackendUnavailableError, InternalError, LimitReachedError
from services.core.outside_program import run_limited

PROGRAM: Final = "services.ui.report.process"
LIBRARIES: Final = ("holoviews", "matplotlib", "pptx")
TIME_LIMIT_S: Final = 300.0
"""A document of a dozen charts takes ten seconds, on a machine with ten times the work it can do two minutes."""

KILLED_STATUSES: Final = (-9, -24)
"""By the system for its memory, and for its processor time."""

SHOWN_ERROR_LINES: Final = 3
OF_RUN: Final[Mapping[str, int]] = {
    "configurations": 5_000,
    "failures": 5_000,
    "roofline": 5_000,
    "layer_roofline": 5_000,
    "ceilings": 500,
    "models": 100,
    "kernels": 1_000,
    "layers": 5_000,
    "layer_tree": 20_000,
    "breakdown": 100,
    "gap_reasons": 1_000,
    "measurements": 5_000,
    "samples": 200_000,
    "telemetry": 10_000,
    "history": 1_000,
    "timeline": 1_000_000,
    "trace_devices": 1_000,
    "trace_processes": 1_000,
}
"""Tables that charts of a run are made of, and rows of them at most: more are not told apart on a page."""

ORDERED: Final = ("kernels", "layers", "layer_tree", "roofline")
"""Of these the rows that take longest are kept, of other tables the first ones."""

SEEN_GAP_RATIO: Final = 1 / 250
"""Of the whole trace: shorter gaps cannot be told from the bars beside them, and there are as many as kernels."""

LazyTableOf = Callable[[str], pl.LazyFrame]


def run_frames(rows_of: LazyTableOf, run_id: str) -> dict[str, pl.DataFrame]:
    """What the charts of a run are made of. Tables of a file that nobody has imported name no run."""
    frames = {name: _bounded(name, rows_of(name).collect(), limit) for name, limit in OF_RUN.items()}
    frames["gaps"] = _seen_gaps(rows_of, frames["timeline"])
    return {name: frame.with_columns(run_id=pl.lit(run_id)) for name, frame in frames.items()}


def _bounded(name: str, frame: pl.DataFrame, limit: int) -> pl.DataFrame:
    if frame.height <= limit:
        return frame
    if name == "samples":
        return frame.gather_every(-(-frame.height // limit))
    return (frame.sort("duration_sum_ns", descending=True, nulls_last=True) if name in ORDERED else frame).head(limit)


def _seen_gaps(rows_of: LazyTableOf, timeline: pl.DataFrame) -> pl.DataFrame:
    """The others are never in memory."""
    gaps = rows_of("gaps")
    if timeline.is_empty():
        return gaps.head(0).collect()
    span_ns = timeline.select((pl.col("start_ns") + pl.col("duration_ns")).max() - pl.col("start_ns").min()).item()
    return gaps.filter(pl.col("duration_ns") >= span_ns * SEEN_GAP_RATIO).collect()


def drawn(task: DrawingTask, frames: Mapping[str, pl.DataFrame]) -> bytes:
    """The whole file.

    Raises:
        BackendUnavailableError: the libraries that draw are not installed here.
        LimitReachedError: it takes too long, or too much memory.
        InternalError: the process failed; its last lines tell why.
    """
    _require_libraries()
    with tempfile.TemporaryDirectory(prefix="kernalyse-report-") as name:
        folder = Path(name)
        task.write(folder)
        for table_name, frame in frames.items():
            frame.write_ipc(folder / f"{table_name}{TABLE_SUFFIX}", compression="uncompressed")
        with (folder / "errors").open("w+b") as errors:
            status = _run(task, folder, errors.fileno())
            if status != 0:
                raise _failure(task, status, (folder / "errors").read_text(errors="replace"))
        return (folder / f"{DOCUMENT_NAME}.{task.format}").read_bytes()


def _run(task: DrawingTask, folder: Path, errors: int) -> int:
    try:
        return run_limited(
            [sys.executable, "-P", "-m", PROGRAM, str(folder)], folder=Path.cwd(), output=errors, errors=errors, limit_s=TIME_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise LimitReachedError(_subject(task), found=f"more than {TIME_LIMIT_S:g} s of drawing", remedy="Draw a smaller run.") from error


def _require_libraries() -> None:
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise BackendUnavailableError(
            "documents with charts",
            found=f"no {', '.join(missing)} where the analyzer runs",
            expected="the libraries that draw",
            remedy="Install them there: pip install 'kernalyse[analyzer,ui]'. Formats text and markdown need none.",
        )


def _failure(task: DrawingTask, status: int, told: str) -> LimitReachedError | InternalError:
    lines = " / ".join(told.strip().splitlines()[-SHOWN_ERROR_LINES:])
    if status in KILLED_STATUSES or "MemoryError" in lines:
        return LimitReachedError(_subject(task), found="more memory or processor time than drawing may take", remedy="Draw a smaller run.")
    return InternalError(
        _subject(task),
        found=f"status {status} of the process that draws it: {lines}",
        remedy="Report this; text and markdown are not drawn.",
    )


def _subject(task: DrawingTask) -> str:
    return f"report of {task.title} as {task.format}"
