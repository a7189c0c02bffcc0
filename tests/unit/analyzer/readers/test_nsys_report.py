"""Reports of Nsight Systems: exported by the program that wrote them, which may be missing, refuse, or never end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.nsys import reader
from kernalyse.services.analyzer.readers.registry import select_reader
from kernalyse.services.core.errors import InvalidTraceError, TimeLimitError, UnmetConditionError
from tests.unit.installed_nsys import FOUND, MISSING
from tests.unit.nsys_directory import write_directory
from tests.unit.nsys_export import kernel, write_export

REPORT = b"NVIDIA Tegra Profiler Report 2023@4@4@54-0 v0.\n\n"


def report(directory: Path) -> TraceFiles:
    """As the analyzer stores it: without an ending."""
    path = directory / "0"
    path.write_bytes(REPORT)
    return TraceFiles("nightly.nsys-rep", path, 0)


def read(files: TraceFiles) -> ReadResult:
    return select_reader(files).read(files)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program nsys, first on the path, whose text the test writes. Private directories lie in the test's own."""
    programs, private = tmp_path / "bin", tmp_path / "private"
    programs.mkdir()
    private.mkdir()
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setattr("tempfile.tempdir", str(private))
    return programs / "nsys"


def write_program(path: Path, text: str, help_text: str = "sqlite, parquetdir") -> None:
    path.write_text(f"#!{sys.executable}\nimport shutil, sys, time\nif '--help' in sys.argv: sys.exit(print({help_text!r}))\n{text}\n")
    path.chmod(0o755)


COPY = """
kind, target = (sys.argv[sys.argv.index(name) + 1] for name in ("--type", "--output"))
assert sys.argv[-1].endswith(".nsys-rep") and open(sys.argv[-1], "rb").read().startswith(b"NVIDIA")
"""


def test_it_is_exported_as_the_program_can_and_nothing_stays(tmp_path: Path, stand_in: Path) -> None:
    export = write_export(tmp_path / "a.sqlite", kernels=[kernel(5, 9, 1)])
    directory = write_directory(export, tmp_path / "tables", "parquetdir")
    write_program(stand_in, f"{COPY}assert kind == 'parquetdir'\nshutil.copytree({str(directory)!r}, target)")
    of_directory = read(report(tmp_path))
    write_program(stand_in, f"{COPY}assert kind == 'sqlite'\nshutil.copy({str(export)!r}, target)", help_text="sqlite, hdf")
    of_file = read(report(tmp_path))
    assert of_directory.frames["kernel_launches"].equals(of_file.frames["kernel_launches"])
    assert of_directory.frames["kernel_launches"]["duration_ns"].to_list() == [4]
    assert of_file.frames["trace_processes"]["file_name"].to_list() == ["nightly.nsys-rep"]
    assert list((tmp_path / "private").iterdir()) == []


def test_its_own_words_are_told(tmp_path: Path, stand_in: Path) -> None:
    write_program(stand_in, "sys.exit('Exportation error: the report was made by a newer version')")
    with pytest.raises(InvalidTraceError, match=r"nightly.nsys-rep.*status 1.*made by a newer version"):
        read(report(tmp_path))
    write_program(stand_in, "print('done')")
    with pytest.raises(InvalidTraceError, match="no export, and: done"):
        read(report(tmp_path))


@pytest.mark.slow
def test_one_that_hangs_is_ended_with_what_it_started(tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "child"
    write_program(
        stand_in,
        f"import subprocess\nchild = subprocess.Popen(['sleep', '600'])\nopen({str(told)!r}, 'w').write(str(child.pid))\ntime.sleep(600)",
    )
    monkeypatch.setattr(reader, "BASE_LIMIT_S", 4.0)
    with pytest.raises(TimeLimitError, match="had not ended after 4 s"):
        read(report(tmp_path))
    child = int(told.read_text())
    deadline = time.monotonic() + 60
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(child)


def _runs(process_id: int) -> bool:
    """A process that nobody has waited for has ended too."""
    status = Path(f"/proc/{process_id}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_without_the_program_it_is_said_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernalyse.services.analyzer.readers.nsys.reader.find_nsys", lambda: None)
    with pytest.raises(UnmetConditionError, match="nsys export --type sqlite"):
        read(report(tmp_path))


@pytest.mark.skipif(not FOUND, reason=MISSING)
@pytest.mark.parametrize("program", FOUND, ids=lambda path: Path(path).parts[3])
def test_a_real_report_is_read(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(program).parent}{os.pathsep}{os.environ['PATH']}")
    # Sampling of the processor is known to hang in virtual machines.
    options = ["--sample=none", "--cpuctxsw=none", "--trace=osrt", "--output", str(tmp_path / "real")]
    done = subprocess.run([program, "profile", *options, "sleep", "0.1"], capture_output=True, text=True, timeout=120, check=False)
    path = tmp_path / "real.nsys-rep"
    if not path.exists():
        pytest.skip(f"nsys cannot profile here: {done.stdout}{done.stderr}")
    files = TraceFiles(path.name, path, 0)
    tables = read(files)
    assert "Nsight Systems 20" in tables.notes
    assert "no kernels" in tables.notes
    assert tables.start_time is not None
    assert tables.end_time is not None
    assert 0.1 <= (tables.end_time - tables.start_time).total_seconds() < 60
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InvalidTraceError, match="nsys export ended with status"):
        read(files)
