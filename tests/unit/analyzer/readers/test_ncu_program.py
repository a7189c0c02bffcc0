"""kernalyse.services.analyzer.readers.ncu.reader: stored reports of ncu, printed by a program that stands in for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernalyse.services.analyzer.ingest.reading import read_with_counters
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.readers.ncu import reader
from kernalyse.services.analyzer.readers.registry import select_reader
from kernalyse.services.core.errors import InvalidTraceError, TimeLimitError, UnmetConditionError
from tests.unit.ncu_report import launch, report_text
from tests.unit.nsys_export import call, kernel, write_export

STORED = b"NVR\x00 whatever ncu keeps"

PRINTING = f"""
import sys
from pathlib import Path
option, report, *others = sys.argv[1:]
assert (option, others) == ("--import", ["--csv", "--page", "raw", "--print-units", "base"]), sys.argv
assert report.endswith(".ncu-rep") and Path(report).read_bytes() == {STORED!r}
print({report_text([launch("saxpy(float *)", ffma=8, bytes=96)])!r})
"""
REFUSING = "import sys; print('==ERROR== Unsupported file version.'); print('trouble', file=sys.stderr); sys.exit(1)"
SILENT = ""
HANGING = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)"


@pytest.fixture
def stored(tmp_path: Path) -> TraceFiles:
    path = tmp_path / "0"
    path.write_bytes(STORED)
    return TraceFiles("app.ncu-rep", path, 0)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a program in the place of ncu."""

    def install(program: str) -> None:
        (tmp_path / "bin").mkdir()
        ncu = tmp_path / "bin" / "ncu"
        ncu.write_text(f"#!{sys.executable}\n{program}\n")
        ncu.chmod(0o755)
        monkeypatch.setenv("PATH", str(ncu.parent))
        for name in ("CUDA_HOME", "CUDA_PATH"):
            monkeypatch.delenv(name, raising=False)

    return install


def test_a_stored_report_is_read_through_ncu(stored: TraceFiles, installed: Callable[[str], None]) -> None:
    installed(PRINTING)
    assert select_reader(stored).format == "ncu"
    tables = read_with_counters(stored)
    assert tables.frames["launch_work"].select("flop", "bytes").rows() == [(16.0, 96.0)]
    assert tables.frames["trace_processes"]["file_name"].to_list() == ["app.ncu-rep"]


def test_it_counts_the_kernels_of_a_trace_too(stored: TraceFiles, installed: Callable[[str], None], tmp_path: Path) -> None:
    installed(PRINTING)
    export = write_export(tmp_path / "a.sqlite", kernels=[kernel(5, 9, 1)], calls=[call(1, 2, 1)], gpus=[{}])
    tables = read_with_counters(TraceFiles("a.sqlite", export, 0, {stored.file_name: stored.path}))
    assert tables.frames["launch_work"].select("flop", "bytes").rows() == [(16.0, 96.0)]


def test_without_ncu_the_way_to_csv_is_told(stored: TraceFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("kernalyse.services.core.external_programs.NCU_PATHS", ())
    with pytest.raises(
        UnmetConditionError, match=r"app\.ncu-rep: found no ncu on this machine.*ncu --import REPORT\.ncu-rep --csv --page raw"
    ):
        read_with_counters(stored)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (REFUSING, r"app\.ncu-rep: found ncu --import ended with status 1: trouble ==ERROR== Unsupported file version"),
        (SILENT, r"app\.ncu-rep: found no table of launches"),
    ],
)
def test_what_ncu_cannot_read_is_said_in_its_words(
    stored: TraceFiles, installed: Callable[[str], None], program: str, message: str
) -> None:
    installed(program)
    with pytest.raises(InvalidTraceError, match=message):
        read_with_counters(stored)


def test_an_ncu_that_hangs_is_ended_with_all_that_it_started(
    stored: TraceFiles, installed: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(HANGING)
    monkeypatch.setattr(reader, "BASE_LIMIT_S", 0.5)
    begun = time.monotonic()
    with pytest.raises(TimeLimitError, match=r"had not ended after [01] s"):
        read_with_counters(stored)
    assert time.monotonic() - begun < 50
