"""Imports whose traces are read by processes of their own: joined, watched, cancelled, and what their end does to them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from kernalyse.client import Client
from kernalyse.services.analyzer.ingest.imports import TraceImporter
from kernalyse.services.analyzer.ingest.uploads import UploadMessage, UploadPosition
from kernalyse.services.analyzer.ingest.worker_pool import PROGRAM, ReadingTask, WorkerPool, _ReadingProcess
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.store import repositories
from kernalyse.services.analyzer.store.objects import DIGESTS
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import CancelledError, InvalidTraceError, LimitReachedError, StoredRunDamagedError
from kernalyse.services.core.model import ImportedTrace, ImportProgress, ImportStage, Run, TableQuery
from kernalyse.services.core.rpc import translated_errors
from kernalyse.v1 import analyzer_service_pb2 as messages
from tests.integration.analyzer_under_test import AnalyzerHere, AnalyzerProcess, connected, eventually, get_run, get_table
from tests.integration.test_importing import CONTENT, listed
from tests.unit.analyzer.readers.test_kineto import kernel
from tests.unit.rank_traces import write_rank

ENDS_WITHIN_S = 30.0  # at once on a quiet machine; whoever is not ended is held until the test ends


@pytest.fixture
async def stub(analyzer: AnalyzerHere) -> AsyncIterator[Any]:
    async with connected(analyzer.endpoint) as stub:
        yield stub


@pytest.fixture
def process(private_directories: Path) -> Iterator[AnalyzerProcess]:
    own = AnalyzerProcess(private_directories)
    own.start()
    yield own
    own.stop()


@pytest.fixture
def ranks(tmp_path: Path) -> list[Path]:
    return [write_rank(tmp_path / f"rank{rank}.json", rank, start_s=0.001 * rank) for rank in (0, 1)]


def requests(paths: Sequence[Path], upload_id: str = "") -> Iterator[Any]:
    for number, path in enumerate(paths):
        content = path.read_bytes()
        yield messages.ImportTraceRequest(
            file_name=path.name,
            chunk=content,
            digest=f"sha256:{sha256(content).hexdigest()}",
            upload_id=upload_id if number == 0 else "",
            is_further_trace=number > 0,
            is_last=path == paths[-1],
        )


async def joined(stub: Any, paths: Sequence[Path]) -> Any:
    with translated_errors():
        return await stub.ImportTrace(requests(paths))


def readers(process_id: int) -> list[psutil.Process]:
    """Processes that read for an analyzer."""
    found = []
    for child in psutil.Process(process_id).children():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if PROGRAM in child.cmdline():
                found.append(child)
    return found


async def held(process_id: int, directory: Path, trace_count: int = 2) -> psutil.Process:
    """The first reading process, stopped as soon as it is there: it reads until the test ends. Once it has its task, or is about to."""
    found: list[psutil.Process] = []

    async def is_there() -> bool:
        found[:] = await asyncio.to_thread(readers, process_id)
        return bool(found)

    await eventually(is_there)
    found[0].suspend()
    entry_count = 1 if trace_count == 1 else 2  # what arrived, and of several traces a place for rows
    await eventually(lambda: _is_true(len(list((directory / "store" / "arriving").iterdir())) == entry_count))
    return found[0]


def let_go(process: psutil.Process) -> None:
    """Lets a held process go on, where a signal has not ended it all the same."""
    with suppress(psutil.NoSuchProcess):
        process.resume()


async def eventually_over(process: psutil.Process, within_s: float = ENDS_WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while is_alive(process):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def never(directory: Path) -> Callable[[], Awaitable[bool]]:
    async def is_empty() -> bool:
        return not list((directory / "store" / "arriving").iterdir()) and not list((directory / "store" / "runs").iterdir())

    return is_empty


# ---------------------------------------------------------------- several traces, one run


async def test_ranks_become_one_run_whatever_their_order(stub: Any, ranks: list[Path]) -> None:
    answer = await joined(stub, ranks)
    run = protobuf.decode(answer.run, Run)
    assert isinstance(run.spec.work, ImportedTrace)
    assert (run.spec.title, run.spec.work.format) == ("rank0.json and 1 more", "kineto")
    assert "2 files, read as one trace: rank0.json, rank1.json." in run.notes
    launches, _ = await get_table(stub, TableQuery("kernel_launches", ("last",)))
    assert launches["start_ns"].to_list() == [30_000, 40_000, 1_030_000, 1_040_000]
    assert launches["duration_ns"].to_list() == [5_000, 10_000, 5_000, 20_000]
    processes, _ = await get_table(stub, TableQuery("trace_processes", ("last",)))
    assert processes.select("rank_index", "world_size", "file_name").rows() == [(0, 2, "rank0.json"), (1, 2, "rank1.json")]
    assert processes["process_id"].n_unique() == 2
    kernels, _ = await get_table(stub, TableQuery("kernels", ("last",)))
    assert dict(kernels.select("kernel_name", "duration_sum_ns").iter_rows()) == {"ncclDevKernel_AllReduce": 30_000, "gemm": 10_000}
    breakdown, _ = await get_table(stub, TableQuery("breakdown", ("last",)))
    assert breakdown["communication_ns"].to_list() == [10_000, 20_000]
    again = await joined(stub, list(reversed(ranks)))
    assert (again.is_known, again.run.run_id) == (True, run.run_id)
    assert (await joined(stub, ranks[:1])).run.run_id != run.run_id


async def test_large_tables_of_a_joined_trace_stay_in_the_files_of_its_ranks(stub: Any, analyzer: AnalyzerHere, ranks: list[Path]) -> None:
    answer = await joined(stub, ranks)
    (directory,) = (analyzer.directory / "store" / "runs").iterdir()
    digests = json.loads((directory / DIGESTS).read_text())
    assert {"kernel_launches.0.parquet", "kernel_launches.1.parquet", "parts.parquet", "trace_names.parquet"} < set(digests)
    assert digests == {path.name: sha256(path.read_bytes()).hexdigest() for path in directory.glob("*.parquet")}
    whole, total = await get_table(stub, TableQuery("kernel_launches", ("last",)))
    assert (whole["launch_index"].to_list(), total) == ([0, 1, 2, 3], 4)
    for offset in range(5):
        page = await get_table(stub, TableQuery("kernel_launches", ("last",), columns=("launch_index", "start_ns"), offset=offset, limit=2))
        assert page[0].equals(whole.select("launch_index", "start_ns").slice(offset, 2))
        assert page[1] == 4
    (directory / "kernel_launches.1.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoredRunDamagedError, match=r"kernel_launches\.1\.parquet"), translated_errors():
        await get_table(stub, TableQuery("kernel_launches", ("last",)))
    await stub.DeleteRun(messages.DeleteRunRequest(run_id=answer.run.run_id))
    await eventually(never(analyzer.directory))


async def test_traces_that_cannot_be_one_run_leave_nothing(stub: Any, analyzer: AnalyzerHere, ranks: list[Path], tmp_path: Path) -> None:
    same = tmp_path / "copy.json"
    same.write_bytes(ranks[0].read_bytes())
    cut = tmp_path / "cut.json"
    cut.write_bytes(ranks[1].read_bytes()[:-40])
    results = tmp_path / "results.json"
    results.write_bytes(CONTENT)
    for other, words in (
        (same, "the same content as rank0.json"),
        (cut, "file cut.json"),
        (results, "file results.json: found results .nvbench."),
    ):
        with pytest.raises(InvalidTraceError, match=words):
            await joined(stub, [ranks[0], other])
    await eventually(never(analyzer.directory))
    assert await listed(stub) == []


# ---------------------------------------------------------------- watched, cancelled, broken


async def test_who_watches_an_import_sees_its_traces_being_read(stub: Any, ranks: list[Path]) -> None:
    async def watched() -> list[ImportProgress]:
        stream = stub.WatchImport(messages.WatchImportRequest(upload_id="mine"))
        return [protobuf.decode(response.progress, ImportProgress) async for response in stream]

    watching = asyncio.create_task(watched())
    await stub.ImportTrace(requests(ranks, "mine"))
    seen = await watching
    assert seen[-1] == ImportProgress(ImportStage.STORING, 2, 2)
    assert [state.read_trace_count for state in seen] == sorted(state.read_trace_count for state in seen)
    assert (ImportStage.READING, 2) in {(state.stage, state.trace_count) for state in seen}


async def test_a_trace_is_read_while_the_next_one_is_still_arriving(stub: Any, ranks: list[Path]) -> None:
    is_read = asyncio.Event()

    async def watch() -> None:
        async for response in stub.WatchImport(messages.WatchImportRequest(upload_id="mine")):
            if response.progress.read_trace_count == 1:
                is_read.set()

    async def slowly() -> AsyncIterator[Any]:
        first, second = requests(ranks[:1], "mine"), requests(ranks)
        for request in first:
            request.is_last = False
            yield request
        next(second)
        whole = next(second)
        yield messages.ImportTraceRequest(file_name=whole.file_name, chunk=whole.chunk[:10], is_further_trace=True)
        await is_read.wait()
        yield messages.ImportTraceRequest(chunk=whole.chunk[10:], digest=whole.digest, is_last=True)

    watching = asyncio.create_task(watch())
    with translated_errors():
        answer = await stub.ImportTrace(slowly())
    await watching
    launches, _ = await get_table(stub, TableQuery("kernel_launches", (answer.run.run_id,)))
    assert launches.height == 4


async def test_an_interrupted_upload_goes_on_with_the_rows_of_what_was_read(stub: Any, analyzer: AnalyzerHere, ranks: list[Path]) -> None:
    arriving = analyzer.directory / "store" / "arriving"
    second = ranks[1].read_bytes()
    digest = f"sha256:{sha256(second).hexdigest()}"

    async def broken() -> AsyncIterator[Any]:
        (request,) = requests(ranks[:1], "mine")
        request.is_last = False
        yield request
        yield messages.ImportTraceRequest(file_name="rank1.json", chunk=second[:10], is_further_trace=True)
        await asyncio.sleep(60)

    async def rest() -> AsyncIterator[Any]:
        yield messages.ImportTraceRequest(
            file_name="rank1.json", chunk=second[10:], offset_bytes=10, digest=digest, upload_id="mine", is_further_trace=True, is_last=True
        )

    call = stub.ImportTrace(broken())
    waiting = asyncio.ensure_future(_of(call))
    await eventually(lambda: _is_true([path.name for path in arriving.glob("*/0*")] == ["0.rows"]))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    position = await stub.ResumeUpload(messages.ResumeUploadRequest(upload_id="mine"))
    assert (position.whole_file_count, position.offset_bytes) == (1, 10)
    with translated_errors():
        answer = await stub.ImportTrace(rest())
    assert (await get_table(stub, TableQuery("kernel_launches", (answer.run.run_id,), limit=1)))[1] == 4
    assert not list(arriving.iterdir())
    assert (await joined(stub, ranks)).is_known


@pytest.mark.slow
@pytest.mark.parametrize("by_request", [True, False])
async def test_a_cancelled_import_ends_its_reader_and_leaves_nothing(
    stub: Any, analyzer: AnalyzerHere, ranks: list[Path], by_request: bool
) -> None:
    call = stub.ImportTrace(requests(ranks, "mine"))
    waiting = asyncio.ensure_future(_of(call))
    reader = await held(os.getpid(), analyzer.directory)
    if by_request:
        await stub.CancelImport(messages.CancelImportRequest(upload_id="mine"))
        with pytest.raises(CancelledError), translated_errors():
            await waiting
    else:
        call.cancel()
    await eventually_over(reader)
    await eventually(never(analyzer.directory))
    assert await listed(stub) == []
    assert not (await joined(stub, ranks)).is_known


async def test_an_import_that_is_cancelled_while_it_is_stored_is_there_whole(
    stub: Any, analyzer: AnalyzerHere, ranks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the database were slow: what has begun by then is carried through."""
    insert, has_begun = repositories.insert_compacted_run, threading.Event()

    def slow(connection: sa.Connection, run: Run, next_event_index: int) -> None:
        has_begun.set()
        time.sleep(0.3)
        insert(connection, run, next_event_index)

    monkeypatch.setattr("kernalyse.services.analyzer.store.store.insert_compacted_run", slow)
    call = stub.ImportTrace(requests(ranks))
    await asyncio.to_thread(has_begun.wait, 60)
    call.cancel()
    await eventually(lambda: _is_true(not list((analyzer.directory / "store" / "arriving").iterdir())))
    (run,) = await listed(stub)
    assert (await get_table(stub, TableQuery("kernels", (run.run_id,))))[0]["launch_count"].to_list() == [2, 2]


async def test_an_upload_that_is_cancelled_is_not_kept_to_be_resumed(stub: Any, analyzer: AnalyzerHere, ranks: list[Path]) -> None:
    async def half() -> AsyncIterator[Any]:
        yield messages.ImportTraceRequest(file_name="a.json", chunk=b"{", upload_id="mine")
        await asyncio.sleep(60)

    waiting = asyncio.ensure_future(_of(stub.ImportTrace(half())))
    await eventually(lambda: _is_true(list((analyzer.directory / "store" / "arriving").iterdir())))
    await stub.CancelImport(messages.CancelImportRequest(upload_id="mine"))
    with pytest.raises(CancelledError), translated_errors():
        await waiting
    await eventually(never(analyzer.directory))
    assert (await stub.ResumeUpload(messages.ResumeUploadRequest(upload_id="mine"))).offset_bytes == 0


async def test_a_cancellation_that_overtakes_its_upload_ends_it(stub: Any, analyzer: AnalyzerHere, ranks: list[Path]) -> None:
    await stub.CancelImport(messages.CancelImportRequest(upload_id="mine"))
    with pytest.raises(CancelledError), translated_errors():
        await stub.ImportTrace(requests(ranks, "mine"))
    await eventually(never(analyzer.directory))
    assert await listed(stub) == []


async def test_a_sender_that_hangs_up_as_it_cancels_leaves_nothing(analyzer: AnalyzerHere) -> None:
    store, processes = Store(analyzer.directory / "another"), WorkerPool(1, 2**30)
    importing = TraceImporter(store, 2**20, processes)

    async def first() -> AsyncIterator[UploadMessage]:
        yield UploadMessage("a.json", b"{", "", upload_id="mine")
        await asyncio.sleep(60)

    receiving = asyncio.create_task(importing.receive(first()))
    await eventually(lambda: _is_true(list((analyzer.directory / "another" / "arriving").iterdir())))
    importing.cancel("mine")
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert importing.resume_position("mine") == UploadPosition()
    assert not list((analyzer.directory / "another" / "arriving").iterdir())
    await processes.close()
    store.close()


@pytest.mark.parametrize(
    ("number", "error", "words"),
    [(signal.SIGSEGV, InvalidTraceError, "file rank0.json: .* by SIGSEGV"), (signal.SIGKILL, LimitReachedError, "file rank0.json")],
)
async def test_a_reader_that_dies_costs_its_import_alone(
    stub: Any, analyzer: AnalyzerHere, ranks: list[Path], number: signal.Signals, error: type[Exception], words: str
) -> None:
    waiting = asyncio.ensure_future(joined(stub, ranks[:1]))
    reader = await held(os.getpid(), analyzer.directory, trace_count=1)
    reader.send_signal(number)
    let_go(reader)
    with pytest.raises(error, match=words):
        await waiting
    assert await listed(stub) == []
    assert not (await joined(stub, ranks[:1])).is_known


@pytest.mark.slow
async def test_kill_of_the_analyzer_ends_its_readers_and_leaves_no_half_run(process: AnalyzerProcess, ranks: list[Path]) -> None:
    assert process.process is not None
    async with connected(process.endpoint) as stub:
        waiting = asyncio.ensure_future(_of(stub.ImportTrace(requests(ranks))))
        reader = await held(process.process.pid, process.directory)
        await asyncio.to_thread(process.kill)
        with pytest.raises(Exception, match="UNAVAILABLE"):
            await waiting
    let_go(reader)
    await eventually_over(reader, within_s=20)  # it may just be starting, and listens when it has loaded what it needs
    await asyncio.to_thread(process.start)
    assert await never(process.directory)()
    async with connected(process.endpoint) as stub:
        assert await listed(stub) == []
        answer = await joined(stub, ranks)
        assert (await get_run(stub, "last")).run_id == answer.run.run_id


@pytest.mark.slow
async def test_control_c_in_the_command_ends_the_import(process: AnalyzerProcess, ranks: list[Path]) -> None:
    assert process.process is not None
    token_file = process.directory / "token"
    token_file.write_text(process.endpoint.token)
    arguments = ["import", *map(str, ranks), "--server", process.endpoint.address, "--token-file", str(token_file)]
    with subprocess.Popen(
        [sys.executable, "-m", "kernalyse.services.cli.main", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as command:
        reader = await held(process.process.pid, process.directory)
        command.send_signal(signal.SIGINT)
        await eventually_over(reader)
        output, _ = await asyncio.to_thread(command.communicate)
    assert command.returncode == 130, output
    assert b"Traceback" not in output
    await eventually(never(process.directory))


# ---------------------------------------------------------------- limits


async def test_reading_over_the_memory_is_refused_and_the_next_trace_is_read(ranks: list[Path], tmp_path: Path) -> None:
    """A process with its libraries alone is over a limit of a megabyte; two at once make way for each other first."""
    crowded = WorkerPool(2, 1_000_000)
    try:
        tasks = [
            crowded.execute(ReadingTask(tmp_path / f"rows{number}", (TraceFiles(path.name, path, 0),), file_name=path.name))
            for number, path in enumerate(ranks)
        ]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, LimitReachedError) and "import_memory_bytes" in error.message for error in found), found
    finally:
        await crowded.close()
    assert readers(os.getpid()) == []


HOLDER = "import time; block = bytearray(b'x') * 200_000_000; print('ready', flush=True); time.sleep(600)"
READER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLDER!r}])"


async def test_what_a_reader_has_started_counts_as_its_memory_and_ends_with_it() -> None:
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert started.stdout is not None
    await started.stdout.readline()
    reader = _ReadingProcess(started)
    children = psutil.Process(started.pid).children()
    assert len(children) == 1
    assert reader.memory_bytes > 200_000_000
    await reader.end()
    assert not psutil.wait_procs(children, timeout=ENDS_WITHIN_S)[1]


async def test_one_process_reads_one_small_trace_after_the_other(ranks: list[Path], tmp_path: Path) -> None:
    processes = WorkerPool(1, 2**31)
    try:
        seen = set()
        for number, path in enumerate(ranks):
            await processes.execute(ReadingTask(tmp_path / f"rows{number}", (TraceFiles(path.name, path, 0),), file_name=path.name))
            seen |= {reader.pid for reader in readers(os.getpid())}
        assert len(seen) == 1
    finally:
        await processes.close()


@pytest.mark.slow
def test_the_client_library_sends_the_ranks_of_a_job(process: AnalyzerProcess, ranks: list[Path]) -> None:
    with Client(process.endpoint) as client:
        answer = client.import_trace(*ranks)
        assert client.import_trace(*reversed(ranks)).is_known
        assert client.table(answer.run, "trace_processes")["rank_index"].to_list() == [0, 1]


async def _is_true(value: object) -> bool:
    return bool(value)


def write_steps(path: Path, rank: int, ahead_us: int, drift_ratio: float) -> Path:
    """A trace of a rank whose clock is ahead and drifts: forty reductions that end together, to which ranks come late in turns."""
    events = []
    for step in range(40):
        begin_us, end_us = 50_000 * step + 1000 * ((rank + step) % 2), 50_000 * step + 2000
        start_us = round(begin_us + ahead_us + drift_ratio * begin_us)
        stop_us = round(end_us + ahead_us + drift_ratio * end_us)
        events += [kernel("ncclDevKernel_AllReduce", start_us, stop_us - start_us, step, **{"Process Group Name": "0"})]
    document = json.loads(write_rank(path, rank).read_text()) | {"traceEvents": events}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.slow
async def test_ranks_of_machines_whose_clocks_differ_and_drift_give_the_same_waits(stub: Any, tmp_path: Path) -> None:
    waits = []
    for place, (ahead_us, drift_ratio) in {"true": (0, 0.0), "shifted": (3000, 0.0), "drifting": (-7000, 60e-6)}.items():
        paths = [write_steps(tmp_path / place / f"rank{rank}.json", rank, ahead_us * rank, drift_ratio * rank) for rank in (0, 1)]
        run_id = (await joined(stub, paths)).run.run_id
        clocks, _ = await get_table(stub, TableQuery("rank_clocks", (run_id,)))
        assert clocks["clock_source"].to_list() == ["shared", "collectives"]
        assert clocks["clock_drift_ratio"].to_list() == pytest.approx([0, drift_ratio], abs=1e-6)
        assert clocks["residual_median_ns"].to_list()[1] <= 1000  # times of the trace are whole microseconds
        ranks, _ = await get_table(stub, TableQuery("ranks", (run_id,)))
        waits.append(ranks["wait_ns"].to_list())
    assert waits[0] == [20_000_000, 20_000_000]
    for found in waits[1:]:
        assert found == pytest.approx(waits[0], abs=40 * 2000)


async def _of(call: Any) -> Any:
    return await call
