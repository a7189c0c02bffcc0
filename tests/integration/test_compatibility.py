"""What an earlier version has written is read by this one: stores, journals, the client of then, the contract. tests/data has them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.core.model import RunState
from kernalyse.services.profiler.journal.journal import ChangeNotifier, Journal
from kernalyse.services.profiler.journal.writer import JournalLimits
from kernalyse.v1 import profiler_service_pb2
from tests.service_processes import ServiceProcess

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
VERSIONS = sorted(path for path in DATA.iterdir() if path.is_dir())
TIME_S = 90


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def recorded(request: pytest.FixtureRequest) -> Path:
    """The directory of what one version has written."""
    path: Path = request.param
    return path


@pytest.fixture
def expected(recorded: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((recorded / "expected.json").read_text())
    return found


def unpack(archive: Path, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    return directory


def kernalyse(*arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "kernalyse.services.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["sweep", "trace"])
def test_a_store_shows_what_it_showed_then(recorded: Path, expected: dict[str, Any], private_directories: Path, name: str) -> None:
    unpack(recorded / "store.tar.xz", private_directories / "data" / "kernalyse" / "store")
    tables = expected[name]["tables"]
    shown = json.loads(kernalyse("show", expected[name]["run_id"], *tables, "--format", "json"))
    for table_name, rows in tables.items():
        assert len(shown[table_name]) == len(rows) > 0
        for now, then in zip(shown[table_name], rows, strict=True):
            assert {column: now[column] for column in then} == then, table_name  # columns may have been added


async def test_a_journal_has_all_events_of_its_runs(recorded: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    directory = unpack(recorded / "journal.tar.xz", tmp_path)
    journal = await Journal.open(directory, JournalLimits(max_bytes=2**30, max_age_s=1e9), ChangeNotifier(), lambda _run_id: None)
    try:
        cursor = await journal.cursor(0, expected["sweep"]["run_id"])
        kinds: list[str | None] = []
        while frames := await journal.read(cursor, 2**20):
            kinds += [
                event.WhichOneof("payload") for event in profiler_service_pb2.ProfilerServiceWatchRunResponse.FromString(frames).events
            ]
        run, _ = await journal.run(expected["sweep"]["run_id"])
    finally:
        await journal.close()
    assert run.state is RunState.SUCCEEDED
    assert kinds.count("configuration") == kinds.count("measurement") == 2


@pytest.mark.slow
def test_the_client_of_then_talks_to_the_service_of_now(recorded: Path, analyzer_process: ServiceProcess, tmp_path: Path) -> None:
    (wheel,) = recorded.glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "client", "zip")
    trace = {
        "traceEvents": [
            {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2, "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7}}
        ]
    }
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    program = (
        "import kernalyse, pathlib, sys\n"
        f"assert kernalyse.__file__.startswith({str(tmp_path)!r}), kernalyse.__file__\n"
        f"with kernalyse.connect({analyzer_process.address!r}, token={analyzer_process.token!r}) as client:\n"
        "    run = client.import_trace(pathlib.Path(sys.argv[1])).run\n"
        "    print(run.state, client.table(run, 'kernels', to='polars')['kernel_name'].to_list())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "trace.json"],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "client")},
        capture_output=True,
        text=True,
        timeout=TIME_S,
        check=False,
    )
    assert done.stdout.split(maxsplit=1) == ["SUCCEEDED", "['gemm']\n"], done.stderr


def test_the_contract_breaks_no_earlier_client(recorded: Path) -> None:
    buf = Path(sys.executable).with_name("buf")
    against = str(recorded / "contract.binpb")
    done = subprocess.run(
        [buf, "breaking", "proto", "--against", against], cwd=ROOT, capture_output=True, text=True, timeout=TIME_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_kept_of_a_version_stays_small(recorded: Path) -> None:
    assert sum(path.stat().st_size for path in recorded.iterdir() if path.suffix != ".whl") < 2**20
