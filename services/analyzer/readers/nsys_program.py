"""The program nsys, where it is installed: it alone reads its own reports, and exports them."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services.core.cuda_tools import find_nsys
from services.core.errors import InvalidTraceError, TimeLimitError, UnmetConditionError
from services.core.outside_program import run_limited

FOLDER_TYPE: Final = "parquetdir"
FILE_TYPE: Final = "sqlite"
"""What every version exports; it takes longer to write and to read."""

HELP_LIMIT_S: Final = 60.0
BASE_LIMIT_S: Final = 300.0
LIMIT_S_PER_BYTE: Final = 1e-6
"""It exports some ten megabytes of report a second. With less, a large report on a busy machine would be given up; it has
been seen to hang for good, and with more somebody would wait for that."""

SHOWN_LINES: Final = 8


@contextmanager
def exported(report: Path, name: str) -> Iterator[Path]:
    """A folder of Parquet tables, or an SQLite file where nsys cannot do that; gone when the block ends.

    It lies in a private folder and is made anew each time: beside a report there may be the export of an older one.

    Args:
        name: of the report, for people.

    Raises:
        UnmetConditionError: there is no nsys here.
        TimeLimitError: it did not come to an end.
        InvalidTraceError: it could not read the report; has its own words.
    """
    program = find_nsys()
    if program is None:
        raise UnmetConditionError(
            f"report {name}",
            found="no nsys on this machine",
            expected="Nsight Systems, which alone reads its reports",
            remedy="Install it, or export the report where it is installed: nsys export --type sqlite --lazy=false REPORT.nsys-rep",
        )
    with tempfile.TemporaryDirectory(prefix="kernalyse-nsys-") as private:
        folder = Path(private)
        export_type = FOLDER_TYPE if FOLDER_TYPE in _output(program, ["export", "--help"], folder, name, HELP_LIMIT_S) else FILE_TYPE
        # It goes by the ending, which a received file does not have.
        link, target = folder / "report.nsys-rep", folder / "exported"
        link.symlink_to(report.absolute())
        limit_s = BASE_LIMIT_S + report.stat().st_size * LIMIT_S_PER_BYTE
        said = _output(
            program, ["export", "--type", export_type, "--quiet", "true", "--output", str(target), str(link)], folder, name, limit_s
        )
        if not target.exists():
            raise _refused(name, f"no export, and: {said}")
        yield target


def _output(program: str, arguments: list[str], folder: Path, name: str, limit_s: float) -> str:
    """What it says, on either stream."""
    with (folder / "output").open("w+b") as output:
        try:
            status = run_limited([program, *arguments], folder=folder, output=output, errors=output, limit_s=limit_s)
        except subprocess.TimeoutExpired as error:
            raise TimeLimitError(
                f"report {name}",
                found=f"nsys {arguments[0]}, which had not ended after {limit_s:.0f} s",
                expected="an export",
                remedy="Export it by hand, with a newer nsys if there is one, and give the export.",
            ) from error
        output.seek(0)
        said = output.read().decode(errors="replace").strip()
    if status != 0:
        raise _refused(name, f"nsys {arguments[0]} ended with status {status}: {' '.join(said.splitlines()[-SHOWN_LINES:])}")
    return said


def _refused(name: str, found: str) -> InvalidTraceError:
    return InvalidTraceError(
        f"report {name}",
        found=found,
        expected="an export of it",
        remedy="Copy it again if it is damaged; if a newer nsys wrote it, export it with that one.",
    )
