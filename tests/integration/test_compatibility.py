"""What an earlier version has written is read by this one, and the way back to it. tests/data has what they wrote.

Stores, journals, the client of then, the contract.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Iterable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kernalyse.channel import open_async_channel
from kernalyse.services.core.model import RunState
from kernalyse.services.profiler.journal.journal import ChangeNotifier, Journal
from kernalyse.services.profiler.journal.writer import JournalLimits
from kernalyse.v1 import profiler_service_pb2, run_pb2
from kernalyse.v1.profiler_service_pb2_grpc import ProfilerServiceStub
from tests.command import kernalyse
from tests.integration.test_python_api import needs_opencl
from tests.service_processes import ServiceProcess, ServiceProcesses

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
VERSIONS = sorted(path for path in DATA.iterdir() if path.is_dir() and path.name[0].isdigit())
TIME_S = 90
SWEEP = ("saxpy", "-p", "N=2**10", "--max-time", "0.1", "--no-confirm", "--title", "measured by this version")
FOLLOWS_CEILINGS = "roofline"
"""The table that tells another efficiency after a new run: its device is this machine's, with other ceilings, and the newest hold."""

ENDED = (run_pb2.RUN_STATE_SUCCEEDED, run_pb2.RUN_STATE_FAILED, run_pb2.RUN_STATE_CANCELLED)
STORE_OF_UNITS = "/var/lib/kernalyse/data/kernalyse/store"


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


def said(*arguments: str | Path) -> str:
    """What the command writes."""
    done = kernalyse(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of(run_id: str, tables: Iterable[str], *server: str | Path) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = json.loads(said("show", run_id, *tables, "--format", "json", *server))
    return rows


def check_rows(run: dict[str, Any], *server: str | Path, without: str = "") -> None:
    """Check that a kept run has the rows that it had; columns may have been added. without: a table."""
    tables = {name: rows for name, rows in run["tables"].items() if name != without}
    shown = rows_of(run["run_id"], tables, *server)
    for table_name, rows in tables.items():
        assert len(shown[table_name]) == len(rows) > 0
        for now, then in zip(shown[table_name], rows, strict=True):
            assert {column: now[column] for column in then} == then, table_name


def catalogue_rows(catalogue: Path) -> list[str]:
    with closing(sqlite3.connect(f"{catalogue.as_uri()}?mode=ro", uri=True)) as connection:
        return list(connection.iterdump())


def digests(directory: Path) -> dict[str, str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): sha256(path.read_bytes()).hexdigest() for path in files}


class Site:
    """Services of this version over directories that an earlier one has filled."""

    def __init__(self, services: ServiceProcesses) -> None:
        self._services = services
        data = services.directory / "data" / "kernalyse"
        self.store, self.journal = data / "store", data / "profiler"
        self._token_file = services.directory / "config" / "kernalyse" / "token"
        self.server: tuple[str | Path, ...] = ()

    def start_profiler(self) -> ServiceProcess:
        self._profiler = self._services.start("profiler", "--journal-max-age-s", "1e9")  # what is kept grows old
        return self._profiler

    def start_analyzer(self) -> ServiceProcess:
        analyzer = self._services.start("analyzer")
        self.server = ("--server", analyzer.address, "--token-file", self._token_file)
        said("nodes", "add", self._profiler.address, "--node-token-file", self._token_file, *self.server)
        return analyzer

    def wait_for_runs(self, count: int) -> list[str]:
        """Wait until as many runs are stored and have ended, and return their ids, newest first."""
        deadline = time.monotonic() + TIME_S
        while True:
            runs = json.loads(said("runs", "--json", *self.server))
            if len(runs) == count and all(run["state"] == "SUCCEEDED" for run in runs):
                return [run["run_id"] for run in runs]
            assert time.monotonic() < deadline, runs
            time.sleep(0.1)

    def measure(self) -> str:
        """Measure a new run, and return its id."""
        known = {run["run_id"] for run in json.loads(said("runs", "--json", *self.server))}
        said("bench", *SWEEP, *self.server)
        (new,) = {run["run_id"] for run in json.loads(said("runs", "--json", *self.server))} - known
        return str(new)


@pytest.fixture
def site(services: ServiceProcesses) -> Site:
    return Site(services)


# ---------------------------------------------------------------- stores


@pytest.mark.parametrize("name", ["sweep", "trace"])
def test_a_store_shows_what_it_showed_then(recorded: Path, expected: dict[str, Any], private_directories: Path, name: str) -> None:
    unpack(recorded / "store.tar.xz", private_directories / "data" / "kernalyse" / "store")
    check_rows(expected[name])


def test_a_store_of_then_is_checked_and_copied_before_the_upgrade(recorded: Path, private_directories: Path, tmp_path: Path) -> None:
    store = unpack(recorded / "store.tar.xz", private_directories / "data" / "kernalyse" / "store")
    before = catalogue_rows(store / "catalogue.sqlite")
    assert re.match(r"\d+ files of 2 runs checked, 0 damaged\.", said("store", "verify"))
    said("store", "backup", tmp_path / "backup")
    assert catalogue_rows(tmp_path / "backup" / "catalogue.sqlite") == before
    assert re.match(r"\d+ files of 2 runs checked, 0 damaged\.", said("store", "verify", "--data-directory", tmp_path / "backup"))
    refused = kernalyse("store", "gc", "--older-than", "1", "--dry-run")
    assert refused.returncode != 0
    assert "start this one's analyzer once: deploy/README.md, Upgrades." in " ".join(refused.stderr.split())
    assert catalogue_rows(store / "catalogue.sqlite") == before


def way_back(store: Path, revision: str) -> str:
    """The lines of deploy/README.md between the stop of the services and the installation that starts them, for this store and revision."""
    page = (ROOT / "deploy" / "README.md").read_text()
    block = re.search(r"^## Upgrades$.*?^```console$(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    stop, *steps, install = [line.removeprefix("# ") for line in block[1].strip().splitlines()]
    assert stop == "systemctl stop kernalyse-ui kernalyse-analyzer"
    assert install.startswith("sh deploy/systemd/install.sh 'kernalyse[all]==")
    script = "\n".join(steps)
    assert STORE_OF_UNITS in script
    return re.sub(r"revision-\d{4}", f"revision-{revision}", script.replace(STORE_OF_UNITS, str(store)))


@pytest.mark.slow
@needs_opencl
@pytest.mark.skipif(not (ROOT / "deploy").is_dir(), reason="needs the checkout")
def test_who_goes_back_by_the_documented_steps_has_what_was_there(recorded: Path, expected: dict[str, Any], site: Site) -> None:
    unpack(recorded / "store.tar.xz", site.store)
    unpack(recorded / "journal.tar.xz", site.journal)
    catalogue = site.store / "catalogue.sqlite"
    rows, files = catalogue_rows(catalogue), digests(site.store / "runs")

    site.start_profiler()
    analyzer = site.start_analyzer()
    new_run_id = site.measure()
    assert len(site.wait_for_runs(3)) == 3  # nothing of the journal came twice
    measured = rows_of(new_run_id, ("configurations", "measurements"), *site.server)
    (kept,) = site.store.glob("catalogue.revision-*.sqlite")
    assert str(kept) in analyzer.log_path.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert catalogue_rows(catalogue) != rows
    assert digests(site.store / "runs").items() >= files.items()

    assert analyzer.stop() == 0
    revision = kept.suffixes[0].removeprefix(".revision-")
    subprocess.run(("sh", "-e", "-c", way_back(site.store, revision)), check=True, timeout=TIME_S)
    assert catalogue_rows(catalogue) == rows
    assert digests(site.store / "runs").items() >= files.items()

    site.start_analyzer()  # in the place of the earlier version
    assert new_run_id in site.wait_for_runs(3)  # from the node's journal
    assert rows_of(new_run_id, ("configurations", "measurements"), *site.server) == measured
    for run in expected.values():
        check_rows(run, *site.server, without=FOLLOWS_CEILINGS)
    assert digests(site.store / "runs").items() >= files.items()


# ---------------------------------------------------------------- journals


async def open_journal(directory: Path) -> Journal:
    return await Journal.open(directory, JournalLimits(max_bytes=2**30, max_age_s=1e9), ChangeNotifier(), lambda _run_id: None)


async def test_a_journal_has_all_events_of_its_runs(recorded: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    directory = unpack(recorded / "journal.tar.xz", tmp_path)
    journal = await open_journal(directory)
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


async def test_a_journal_of_now_can_be_read_by_the_version_of_then(recorded: Path, tmp_path: Path) -> None:
    """It has the same tables. Whoever changes them says here what becomes of a node that goes back, and in deploy/README.md, Upgrades."""
    tables = []
    for directory in (unpack(recorded / "journal.tar.xz", tmp_path / "then"), tmp_path / "now"):
        if directory.name == "now":
            await (await open_journal(directory)).close()
        with closing(sqlite3.connect(directory / "journal.sqlite")) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            tables.append((version, connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()))
    then, now = tables
    assert now == then


@pytest.mark.slow
@needs_opencl
def test_a_node_serves_the_runs_of_its_journal_and_measures_on(recorded: Path, expected: dict[str, Any], site: Site) -> None:
    unpack(recorded / "journal.tar.xz", site.journal)
    profiler = site.start_profiler()
    run, events = asyncio.run(asked(profiler, expected["sweep"]["run_id"]))
    assert (run.run_id, run.state) == (expected["sweep"]["run_id"], run_pb2.RUN_STATE_SUCCEEDED)
    kinds = [event.WhichOneof("payload") for event in events]
    assert kinds.count("configuration") == kinds.count("measurement") == 2
    assert events[-1].state_changed.state == run_pb2.RUN_STATE_SUCCEEDED

    site.start_analyzer()
    site.wait_for_runs(1)
    check_rows(expected["sweep"], *site.server)
    new_run_id = site.measure()
    assert site.wait_for_runs(2) == [new_run_id, expected["sweep"]["run_id"]]
    check_rows(expected["sweep"], *site.server, without=FOLLOWS_CEILINGS)
    (measured,) = rows_of(new_run_id, ("measurements",), *site.server)["measurements"]
    assert (measured["kernel_name"], measured["parameters"], measured["verification_state"]) == ("saxpy", {"N": 1024}, "PASSED")


async def asked(profiler: ServiceProcess, run_id: str) -> tuple[run_pb2.Run, list[run_pb2.RunEvent]]:
    """GetRun, and the events of WatchNode up to the end of the run."""
    async with asyncio.timeout(TIME_S), open_async_channel(profiler.endpoint) as channel:
        stub = ProfilerServiceStub(channel)  # type: ignore[no-untyped-call]
        answer = await stub.GetRun(profiler_service_pb2.ProfilerServiceGetRunRequest(run_id=run_id))
        events: list[run_pb2.RunEvent] = []
        async for page in stub.WatchNode(profiler_service_pb2.WatchNodeRequest()):
            events += (event for event in page.events if event.run_id == run_id)
            if events and events[-1].WhichOneof("payload") == "state_changed" and events[-1].state_changed.state in ENDED:
                break
        return answer.run, events


# ---------------------------------------------------------------- clients and the contract


def told_by_client(recorded: Path, analyzer: ServiceProcess, directory: Path, lines: str, *arguments: str | Path) -> str:
    """What a program that has the client of then says. lines: of it, with `client`."""
    (wheel,) = recorded.glob("*.whl")
    shutil.unpack_archive(wheel, directory / "client", "zip")
    program = (
        "import kernalyse, pathlib, sys\n"
        f"assert kernalyse.__file__.startswith({str(directory)!r}), kernalyse.__file__\n"
        f"with kernalyse.connect({analyzer.address!r}, token={analyzer.token!r}) as client:\n{textwrap.indent(lines, '    ')}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": str(directory / "client")},
        capture_output=True,
        text=True,
        timeout=TIME_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_client_of_then_talks_to_the_service_of_now(recorded: Path, analyzer_process: ServiceProcess, tmp_path: Path) -> None:
    trace = {
        "traceEvents": [
            {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2, "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7}}
        ]
    }
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    lines = """
run = client.import_trace(pathlib.Path(sys.argv[1])).run
print(run.state, client.table(run, "kernels", to="polars")["kernel_name"].to_list())
"""
    told = told_by_client(recorded, analyzer_process, tmp_path, lines, tmp_path / "trace.json")
    assert told == "SUCCEEDED ['gemm']\n"


@pytest.mark.slow
@needs_opencl
def test_the_client_of_then_starts_and_watches_a_run_of_now(recorded: Path, site: Site, tmp_path: Path) -> None:
    site.start_profiler()
    lines = """
short = kernalyse.Measuring(min_duration_s=0.01, max_duration_s=0.2)
run = client.submit(kernalyse.kernel_sweep("saxpy", parameters={"N": [1024, 2048]}, measuring=short), title="by the client of then")
updates = list(client.watch(run))
print(next(update.run.state for update in reversed(updates) if update.run is not None))
print(sorted({table.name for update in updates for table in update.tables} & {"configurations", "measurements"}))
print(client.run(run).title, client.table(run, "measurements", to="polars")["parameters"].to_list())
"""
    told = told_by_client(recorded, site.start_analyzer(), tmp_path, lines)
    assert told.splitlines() == [
        "SUCCEEDED",
        "['configurations', 'measurements']",
        """by the client of then ['{"N": 1024}', '{"N": 2048}']""",
    ]


def test_the_contract_breaks_no_earlier_client(recorded: Path) -> None:
    buf = Path(sys.executable).with_name("buf")
    against = str(recorded / "contract.binpb")
    done = subprocess.run(
        [buf, "breaking", "proto", "--against", against], cwd=ROOT, capture_output=True, text=True, timeout=TIME_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_kept_of_a_version_stays_small(recorded: Path) -> None:
    assert sum(path.stat().st_size for path in recorded.iterdir() if path.suffix != ".whl") < 2**20
