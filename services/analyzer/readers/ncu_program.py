"""The program ncu, where it is installed: it alone reads the reports that it stores, and prints them as CSV."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services.core.cuda_tools import find_ncu
from services.core.errors import InvalidTraceError, TimeLimitError, UnmetConditionError
from services.core.outside_program import run_limited

BASE_LIMIT_S: Final = 120.0
LIMIT_S_PER_BYTE: Final = 1e-5
"""A launch of a hundred kilobytes takes it some tens of milliseconds. With less, a large report on a busy machine would be
given up; with more, somebody would wait for one that hangs."""

SHOWN_LINES: Final = 8
REMEDY: Final = "ncu --import REPORT.ncu-rep --csv --page raw --print-units base > REPORT.csv"


@contextmanager
def printed(report: Path, name: str) -> Iterator[Path]:
    """A file with page raw of a stored report as CSV; gone when the block ends.

    Args:
        name: of the report, for people.

    Raises:
        UnmetConditionError: there is no ncu here.
        TimeLimitError: it did not come to an end.
        InvalidTraceError: it could not read the report; has its own words.
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
        # It goes by the ending, which a received file does not have.
        link, target = Path(private) / "report.ncu-rep", Path(private) / "report.csv"
        link.symlink_to(report.absolute())
        _print(program, link, target, name, BASE_LIMIT_S + report.stat().st_size * LIMIT_S_PER_BYTE)
        yield target


def _print(program: str, report: Path, target: Path, name: str, limit_s: float) -> None:
    command = [program, "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
    errors = target.with_suffix(".errors")
    with target.open("wb") as output, errors.open("wb") as error_output:
        try:
            status = run_limited(command, folder=target.parent, output=output, errors=error_output, limit_s=limit_s)
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
