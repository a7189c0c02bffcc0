"""Report files: plain text, Markdown, and documents with charts."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import polars as pl

from kernalyse.services.analyzer.export.report_sections import build_report
from kernalyse.services.analyzer.readers.base import CONTROLS
from kernalyse.services.core.errors import BackendUnavailableError, InternalError, InvalidRequestError, LimitReachedError
from kernalyse.services.core.external_programs import run_limited
from kernalyse.services.core.model import Device, Run
from kernalyse.services.core.report import DOCUMENT_NAME, TABLE_SUFFIX, DrawingTask, Report, ReportFormat, Section

# ---------------------------------------------------------------- written formats

MAX_CELL_LENGTH: Final = 72
"""Names of C++ templates have hundreds of characters: uncut, one would make every row as wide."""

COLUMN_GAP: Final = "  "
MARKDOWN_MARKUP: Final = re.compile(r"[\\|<>*`~&\[\]]|(?<!\w)_|_(?!\w)")
"""What Markdown would read as markup in a kernel's name; an underscore within a word is none."""

MARKDOWN_BLOCK_MARKUP: Final = re.compile(r"^(\d*)([-#+=.)])")
"""What would make a heading or a list of a sentence that begins so."""


def report_format(text: str) -> ReportFormat:
    """Return the format of this name. Raises InvalidRequestError."""
    if text in ReportFormat.__members__.values():
        return ReportFormat(text)
    raise InvalidRequestError("format of the report", found=repr(text), expected=" or ".join(ReportFormat), remedy="Choose one of these.")


def render_text_report(report: Report, output_format: ReportFormat) -> str:
    """Return the text of the report. output_format: TEXT or MARKDOWN; other formats are drawn by `draw_report`."""
    lines = _text_lines(report) if output_format is ReportFormat.TEXT else _markdown_lines(report)
    return "\n".join(lines) + "\n"


def _lines(section: Section) -> tuple[str, ...]:
    return (*(f"{name}: {value}" for name, value in section.facts), *section.sentences)


# ---------------------------------------------------------------- plain text


def _text_lines(report: Report) -> Iterator[str]:
    title = _plain(report.title)
    yield title
    yield "=" * len(title)
    for section in report.sections:
        yield ""
        yield section.title
        yield "-" * len(section.title)
        yield from map(_plain, _lines(section))
        if section.headings:
            yield ""
            yield from _aligned(section)
        yield from section.footnotes


def _aligned(section: Section) -> Iterator[str]:
    rows = [_cells(map(_plain, row)) for row in section.rows]
    widths = [max(map(len, column)) for column in zip(section.headings, *rows, strict=True)]
    rules = ["-" * min(width, MAX_CELL_LENGTH) for width in widths]
    for row in (section.headings, rules, *rows):
        cells = (
            text.rjust(width) if right else text.ljust(width) for text, width, right in zip(row, widths, section.is_numeric, strict=True)
        )
        yield COLUMN_GAP.join(cells).rstrip()


# ---------------------------------------------------------------- Markdown


def _markdown_lines(report: Report) -> Iterator[str]:
    yield f"# {_escaped(report.title)}"
    for section in report.sections:
        yield ""
        yield f"## {section.title}"
        yield ""
        lines = _lines(section)
        is_list = len(lines) > 1
        yield from (f"{'- ' if is_list else ''}{_sentence(line)}" for line in lines)
        if section.headings:
            yield from ([""] if lines else [])
            yield _markdown_row(section.headings)
            yield _markdown_row("--:" if right else "---" for right in section.is_numeric)
            yield from (_markdown_row(map(_escaped, _cells(row))) for row in section.rows)
        yield from (line for footnote in section.footnotes for line in ("", _sentence(footnote)))


def _markdown_row(cells: Iterable[str] | Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _sentence(text: str) -> str:
    return MARKDOWN_BLOCK_MARKUP.sub(r"\1\\\2", _escaped(text))


def _escaped(text: str) -> str:
    return MARKDOWN_MARKUP.sub(lambda sign: f"\\{sign.group()}", _plain(text))


# ---------------------------------------------------------------- external text


def _plain(text: str) -> str:
    """Return the text on one line, without characters that would control a terminal."""
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.split()))


def _cells(row: Iterable[str]) -> list[str]:
    """Return the cells with long names cut. The last one may be a sentence that gives a reason: it has the rest of the line."""
    *names, last = row
    return [*map(_cut, names), last]


def _cut(text: str) -> str:
    """Return a long name with its middle cut out, as names of templates begin alike."""
    half = MAX_CELL_LENGTH // 2
    return text if len(text) <= MAX_CELL_LENGTH else f"{text[:half]}…{text[1 - half :]}"


# ---------------------------------------------------------------- report file


ReportFiles = dict[ReportFormat, bytes]
"""The content of a report's files, by their formats."""


def run_report_files(run: Run, rows_of: LazyTableLookup, formats: Sequence[ReportFormat], device: Device | None = None) -> ReportFiles:
    """Return a run's report, of tables from a store or from elsewhere, in these formats. Raises what `draw_report` raises."""
    report = build_report(run, lambda name: rows_of(name).collect(), device)
    return report_files(DrawingTask(tuple(formats), report, run.run_id, run.title), lambda: run_frames(rows_of, run.run_id))


def report_files(task: DrawingTask, frames: Callable[[], Mapping[str, pl.DataFrame]]) -> ReportFiles:
    """Return the report in the formats of the task, in their order. Raises what `draw_report` raises.

    Args:
        frames: returns the tables that the charts are made of; not called where no format has charts.
    """
    drawn = tuple(chosen for chosen in task.formats if chosen.is_drawn)
    files = draw_report(replace(task, formats=drawn), frames()) if drawn else {}
    return {chosen: files[chosen] if chosen.is_drawn else render_text_report(task.report, chosen).encode() for chosen in task.formats}


# ---------------------------------------------------------------- drawing
# Charts are drawn by a process of the dashboard, which gets text and tables as files. Drawing takes seconds, much memory and libraries
# that are not thread-safe: in a process of its own a failure costs one document, not the analyzer.

PROGRAM: Final = "kernalyse.services.ui.report.process"
LIBRARIES: Final = ("holoviews", "matplotlib", "pptx")
TIME_LIMIT_S: Final = 300.0
"""A document of a dozen charts takes ten seconds; on a machine under ten times the load up to two minutes."""

KILLED_STATUSES: Final = (-9, -24)
"""Exit statuses of a process that the system killed for its memory (-9) or its processor time (-24)."""

SHOWN_ERROR_LINES: Final = 3
CHART_ROW_LIMITS: Final[Mapping[str, int]] = {
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
"""Tables that charts of a run are made of, with the most rows of each: more cannot be distinguished on a page."""

LONGEST_FIRST_TABLES: Final = ("kernels", "layers", "layer_tree", "roofline")
"""Tables of which the rows with the longest durations are kept; of others the first ones."""

MIN_DRAWN_GAP_RATIO: Final = 1 / 250
"""Shortest gap that is drawn, as a fraction of the trace: shorter ones are invisible, and there are as many as kernels."""

LazyTableLookup = Callable[[str], pl.LazyFrame]


def run_frames(rows_of: LazyTableLookup, run_id: str) -> dict[str, pl.DataFrame]:
    """Return the tables that the charts of a run are made of. Those of a file that was not imported have no run_id yet."""
    frames = {name: _bounded(name, rows_of(name).collect(), limit) for name, limit in CHART_ROW_LIMITS.items()}
    frames["gaps"] = _visible_gaps(rows_of, frames["timeline"])
    return {name: frame.with_columns(run_id=pl.lit(run_id)) for name, frame in frames.items()}


def _bounded(name: str, frame: pl.DataFrame, limit: int) -> pl.DataFrame:
    if frame.height <= limit:
        return frame
    if name == "samples":
        return frame.gather_every(-(-frame.height // limit))
    return (frame.sort("duration_sum_ns", descending=True, nulls_last=True) if name in LONGEST_FIRST_TABLES else frame).head(limit)


def _visible_gaps(rows_of: LazyTableLookup, timeline: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps that are long enough to be visible; the others are never read into memory."""
    gaps = rows_of("gaps")
    if timeline.is_empty():
        return gaps.head(0).collect()
    span_ns = timeline.select((pl.col("start_ns") + pl.col("duration_ns")).max() - pl.col("start_ns").min()).item()
    return gaps.filter(pl.col("duration_ns") >= span_ns * MIN_DRAWN_GAP_RATIO).collect()


def draw_report(task: DrawingTask, frames: Mapping[str, pl.DataFrame]) -> ReportFiles:
    """Return a document with charts in the formats of the task, all drawn by one process.

    Raises:
        BackendUnavailableError: the libraries that draw are not installed here.
        LimitReachedError: drawing takes too much time or memory.
        InternalError: the drawing process failed; the error has its last lines.
    """
    _require_libraries()
    with tempfile.TemporaryDirectory(prefix="kernalyse-report-") as name:
        directory = Path(name)
        task.write(directory)
        for table_name, frame in frames.items():
            frame.write_ipc(directory / f"{table_name}{TABLE_SUFFIX}", compression="uncompressed")
        with (directory / "errors").open("w+b") as errors:
            status = _run(task, directory, errors.fileno())
            if status != 0:
                raise _failure(task, status, (directory / "errors").read_text(errors="replace"))
        return {chosen: (directory / f"{DOCUMENT_NAME}.{chosen}").read_bytes() for chosen in task.formats}


def _run(task: DrawingTask, directory: Path, errors: int) -> int:
    try:
        return run_limited(
            [sys.executable, "-P", "-m", PROGRAM, str(directory)], directory=Path.cwd(), output=errors, errors=errors, limit_s=TIME_LIMIT_S
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


def _failure(task: DrawingTask, status: int, output: str) -> LimitReachedError | InternalError:
    lines = " / ".join(output.strip().splitlines()[-SHOWN_ERROR_LINES:])
    if status in KILLED_STATUSES or "MemoryError" in lines:
        return LimitReachedError(_subject(task), found="more memory or processor time than drawing may take", remedy="Draw a smaller run.")
    return InternalError(
        _subject(task),
        found=f"status {status} of the process that draws it: {lines}",
        remedy="Report this; text and markdown are not drawn.",
    )


def _subject(task: DrawingTask) -> str:
    return f"report of {task.title} as {' and '.join(task.formats)}"
