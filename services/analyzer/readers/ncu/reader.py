"""The reader of Nsight Compute reports, as CSV or as .ncu-rep files, which the ncu program converts."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl

from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles, TraceNames
from kernalyse.services.analyzer.readers.ncu.csv_report import NcuReport, decode_report, read_ncu_report
from kernalyse.services.analyzer.tables.base import COUNT, INDEX
from kernalyse.services.analyzer.tables.runs import COUNTERS
from kernalyse.services.analyzer.tables.traces import KERNEL_LAUNCHES, TRACE_DEVICES, TRACE_NAMES, TRACE_PROCESSES
from kernalyse.services.core.errors import InvalidRequestError, InvalidTraceError, LimitReachedError, TimeLimitError, UnmetConditionError
from kernalyse.services.core.external_programs import find_ncu, run_limited

# ---------------------------------------------------------------- reader
# Reports become traces of profiled launches with their counters. They are CSV (`ncu --csv`, pages raw and details) or .ncu-rep files,
# which an installed ncu prints as CSV first.
#
# ncu replays one launch at a time and records no times: launches have an order but no start. Durations and other metrics are computed
# from the counters when the trace is queried.

FORMAT: Final = "ncu"

SIGN: Final = re.compile(r'^(?>[^\n]*?"ID",)[^\n]*"Kernel Name"|^ID,[^\n]*Kernel Name|^==(?:PROF|WARNING|ERROR)== ', re.MULTILINE)
"""The header of the table, or a progress line of ncu: output of the profiled program may fill the beginning."""

STORED_OPENING: Final = b"NVR\x00"

MAX_REPORT_BYTES: Final = 256 * 1024 * 1024
"""Rows are Python objects while they are read, about ten times their size: more could exhaust the memory of the service."""

AXES: Final = ("x", "y", "z")
DEVICE_NAME: Final = "device__attribute_display_name"
SM_COUNT: Final = "device__attribute_multiprocessor_count"


class NcuReader:
    """The reader of Nsight Compute reports."""

    format = FORMAT
    description = "a report of ncu as CSV, or as .ncu-rep where ncu is installed"

    def matches(self, head: bytes) -> bool:
        """Return whether the file begins like a report of ncu."""
        return head.startswith(STORED_OPENING) or SIGN.search(decode_report(head)) is not None

    def read(self, files: TraceFiles) -> ReadResult:
        """Read a report as a trace. Raises the errors of `read_report`."""
        return report_tables(read_report(files), files.file_name)


def read_report(files: TraceFiles) -> NcuReport:
    """Read a report, CSV or .ncu-rep.

    Raises:
        InvalidTraceError: it has no table of launches, or ncu cannot read it.
        LimitReachedError: it is too large.
        UnmetConditionError: it is an .ncu-rep file, and ncu is not installed here.
        TimeLimitError: ncu did not finish converting it.
    """
    with files.path.open("rb") as file:
        is_stored = file.read(len(STORED_OPENING)) == STORED_OPENING
    if not is_stored:
        return _read_csv(files)
    with print_report(files.path, files.file_name) as path:
        return _read_csv(replace(files, path=path))


def _read_csv(files: TraceFiles) -> NcuReport:
    size_bytes = files.path.stat().st_size
    if size_bytes > MAX_REPORT_BYTES:
        raise LimitReachedError(
            f"file {files.file_name}",
            found=f"{size_bytes} bytes of a report",
            expected=f"at most {MAX_REPORT_BYTES}",
            remedy="Profile fewer launches or metrics a report.",
        )
    try:
        return read_ncu_report(files.path.read_bytes())
    except InvalidRequestError as error:
        raise InvalidTraceError(f"file {files.file_name}", found=error.found, expected=error.expected, remedy=error.remedy) from error


def report_tables(report: NcuReport, file_name: str) -> ReadResult:
    """Return a report as rows of the canonical tables, with unchanged counters."""
    launches = _with_numbers(report.launches)
    names = TraceNames({})
    frames = {
        KERNEL_LAUNCHES.table_name: _kernel_launches(launches, names),
        TRACE_NAMES.table_name: names.frame(),
        TRACE_PROCESSES.table_name: TRACE_PROCESSES.own_rows(
            row | {"file_name": file_name}
            for row in launches.select("process_id", "system_process_id", "process_name", "host_name")
            .unique(maintain_order=True)
            .to_dicts()
            if row["process_id"] is not None
        ),
        TRACE_DEVICES.table_name: _devices(launches, report.counters),
        COUNTERS.table_name: report_counters(report),
    }
    return ReadResult(frames, notes="\n".join(_notes(report)))


def report_counters(report: NcuReport) -> pl.DataFrame:
    """Return the rows of table counters, without run_id, event_index and configuration_index."""
    own = ("run_id", "event_index", "configuration_index")
    return report.counters.join(report.launches, on="launch_index", how="left", maintain_order="left").select(
        name for name in COUNTERS.column_names if name not in own
    )


def parse_dimensions(launches: pl.DataFrame) -> pl.DataFrame:
    """Return grid_x to block_z of each launch; null where the text is not of the form 64x64x1."""
    return launches.select(
        pl.col(what)
        .str.extract(r"^(\d+)x(\d+)x(\d+)$", number)
        .cast(KERNEL_LAUNCHES.column(f"{what}_{axis}").dtype, strict=False)
        .alias(f"{what}_{axis}")
        for what in ("grid", "block")
        for number, axis in enumerate(AXES, start=1)
    )


def _with_numbers(launches: pl.DataFrame) -> pl.DataFrame:
    """Return launches with ids as numbers; processes are renumbered if two hosts have processes of the same number."""
    system_process_id = pl.col("process_id").cast(COUNT, strict=False)
    unique_id = pl.struct("host_name", system_process_id).rank("dense").cast(COUNT) - 1
    is_shared = pl.struct("host_name", system_process_id).n_unique() > system_process_id.n_unique()
    return launches.with_columns(
        system_process_id=system_process_id,
        process_id=pl.when(is_shared).then(unique_id).otherwise(system_process_id),
        device_index=pl.col("device_index").cast(INDEX, strict=False),
        stream_index=pl.col("stream_id").cast(COUNT, strict=False),
    )


def _kernel_launches(launches: pl.DataFrame, names: TraceNames) -> pl.DataFrame:
    name_indexes = [names.index_of(name or "") for name in launches["kernel_name"]]
    columns = launches.select(
        pl.col("launch_index").cast(INDEX), pl.Series("name_index", name_indexes, dtype=INDEX), "process_id", "device_index", "stream_index"
    )
    return columns.hstack(parse_dimensions(launches))


def _devices(launches: pl.DataFrame, counters: pl.DataFrame) -> pl.DataFrame:
    """Return the devices that launches ran on, with their properties from page raw."""
    properties = counters.group_by("launch_index").agg(
        device_name=pl.col("text").filter(pl.col("metric_name") == DEVICE_NAME).first(),
        sm_count=pl.col("value").filter(pl.col("metric_name") == SM_COUNT).first(),
    )
    rows = (
        launches.join(properties, on="launch_index", how="left")
        .group_by("process_id", "device_index", maintain_order=True)
        .agg(pl.col("device_name", "sm_count", "compute_capability").drop_nulls().first())
    )
    return TRACE_DEVICES.own_rows(row for row in rows.to_dicts() if row["device_index"] is not None)


def _notes(report: NcuReport) -> Iterator[str]:
    yield f"Report of ncu: {report.launches.height} launches, {report.counters.height} counters."
    if report.launches.is_empty():
        yield "It has no kernels: nothing was profiled."
    else:
        yield "ncu runs one launch at a time, with its own clock and caches: gaps, the breakdown and layers are not known."
    yield from report.notes


# ---------------------------------------------------------------- ncu program
# Only ncu itself can read .ncu-rep files. Where it is installed, it prints them as CSV.

BASE_LIMIT_S: Final = 120.0
LIMIT_S_PER_BYTE: Final = 1e-5
"""ncu prints a launch of a hundred kilobytes in some tens of milliseconds. With less, large reports on a busy machine would be
given up; with more, users would wait long for an ncu that hangs."""

SHOWN_LINES: Final = 8
REMEDY: Final = "ncu --import REPORT.ncu-rep --csv --page raw --print-units base > REPORT.csv"


@contextmanager
def print_report(report: Path, name: str) -> Iterator[Path]:
    """Yield the path of a temporary CSV file with page raw of an .ncu-rep report.

    Args:
        report: path of the report.
        name: name of the report, for errors.

    Raises:
        UnmetConditionError: ncu is not installed here.
        TimeLimitError: ncu did not finish.
        InvalidTraceError: ncu could not read the report; the error quotes its output.
    """
    program = find_ncu()
    if program is None:
        raise UnmetConditionError(
            f"report {name}",
            found="no ncu on this machine",
            expected="Nsight Compute, which alone reads the reports that it stores",
            remedy=f"Install it, or print the report where it is installed: {REMEDY}",
        )
    with tempfile.TemporaryDirectory(prefix="kernalyse-ncu-") as private:
        # ncu requires the file name extension, which a received file does not have.
        link, target = Path(private) / "report.ncu-rep", Path(private) / "report.csv"
        link.symlink_to(report.absolute())
        _print(program, link, target, name, BASE_LIMIT_S + report.stat().st_size * LIMIT_S_PER_BYTE)
        yield target


def _print(program: str, report: Path, target: Path, name: str, limit_s: float) -> None:
    command = [program, "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
    errors = target.with_suffix(".errors")
    with target.open("wb") as output, errors.open("wb") as error_output:
        try:
            status = run_limited(command, directory=target.parent, output=output, errors=error_output, limit_s=limit_s)
        except subprocess.TimeoutExpired as error:
            raise TimeLimitError(
                f"report {name}",
                found=f"ncu --import, which had not ended after {limit_s:.0f} s",
                expected="the report as CSV",
                remedy=f"Print it by hand: {REMEDY}",
            ) from error
    if status != 0:
        said = (errors.read_bytes() + target.read_bytes()).decode(errors="replace").strip().splitlines()[-SHOWN_LINES:]
        raise InvalidTraceError(
            f"report {name}",
            found=f"ncu --import ended with status {status}: {' '.join(said)}",
            expected="the report as CSV",
            remedy="Copy it again if it is damaged; if a newer ncu wrote it, print it with that one.",
        )
