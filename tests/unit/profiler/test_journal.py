"""The journal: order, durability, resuming, limits, and a full disk."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kernalyse.services.core.errors import EventExpiredError, RunNotFoundError, StorageFullError, StoreLockedError, UnmetConditionError
from kernalyse.services.core.model import KernelSelection, KernelSweep, Run, RunSpec, RunState, SampleBatch, StateChanged
from kernalyse.services.profiler.journal import journal as journal_module
from kernalyse.services.profiler.journal import writer
from kernalyse.services.profiler.journal.journal import ChangeNotifier, Cursor, Journal
from kernalyse.services.profiler.journal.writer import JournalLimits, RunClocks
from kernalyse.services.profiler.processes.event_pipe import event_message
from kernalyse.v1 import profiler_service_pb2, run_pb2

ROOMY = JournalLimits(max_bytes=2**30, max_age_s=86_400.0)
LIMIT_BYTES = 1024 * 1024


@asynccontextmanager
async def opened(
    directory: Path,
    limits: JournalLimits = ROOMY,
    forget: Callable[[str], None] = lambda run_id: None,
    clocks: RunClocks | None = None,
) -> AsyncIterator[Journal]:
    journal = await Journal.open(directory, limits, ChangeNotifier(), forget, clocks)
    try:
        yield journal
    finally:
        await journal.close()


def a_run(run_id: str, state: RunState = RunState.QUEUED, request_id: str | None = None) -> Run:
    spec = RunSpec(KernelSweep((KernelSelection("saxpy"),)), title=run_id)
    return Run(run_id, "node", spec, state, create_time=datetime(2026, 1, 1, tzinfo=UTC), request_id=request_id)


def samples(count: int = 1, sample_count: int = 3) -> list[run_pb2.RunEvent]:
    return [event_message(SampleBatch(0, place, (float(place),) * sample_count, 1)) for place in range(count)]


def state(value: RunState) -> list[run_pb2.RunEvent]:
    return [event_message(StateChanged(value))]


async def create(journal: Journal, run_id: str, request_id: str | None = None) -> Run:
    run = a_run(run_id, request_id=request_id)
    await journal.create(run, "digest", state(RunState.QUEUED))
    return run


async def finish(journal: Journal, run: Run, end_time: datetime | None = None) -> None:
    ended = replace(run, state=RunState.SUCCEEDED, end_time=end_time or datetime.now(UTC))
    await journal.append(run.run_id, state(RunState.SUCCEEDED), ended, is_synced=True)


async def read_all(journal: Journal, cursor: Cursor, limit_bytes: int = LIMIT_BYTES) -> list[run_pb2.RunEvent]:
    events: list[run_pb2.RunEvent] = []
    while frames := await journal.read(cursor, limit_bytes):
        events += profiler_service_pb2.ProfilerServiceWatchRunResponse.FromString(frames).events
    return events


async def indexes(journal: Journal, next_event_index: int = 0, run_id: str | None = None, limit_bytes: int = LIMIT_BYTES) -> list[int]:
    events = await read_all(journal, await journal.cursor(next_event_index, run_id), limit_bytes)
    return [event.event_index for event in events]


HOUR_NS = 3_600_000_000_000


class HostClock:
    """A host's clock, which is set forward and back, and one that nobody sets; both in ns."""

    def __init__(self) -> None:
        self.wall_ns = 1_800_000_000_000_000_000
        self.elapsed_ns = 5_000_000_000

    def pass_s(self, seconds: int) -> None:
        self.wall_ns += seconds * 1_000_000_000
        self.elapsed_ns += seconds * 1_000_000_000

    def clocks(self) -> RunClocks:
        return RunClocks(lambda: self.wall_ns, lambda: self.elapsed_ns)


@pytest.mark.parametrize("step_ns", [HOUR_NS, -HOUR_NS])
async def test_a_clock_that_is_set_during_a_run_changes_no_duration(tmp_path: Path, step_ns: int) -> None:
    host = HostClock()
    clocks = host.clocks()
    async with opened(tmp_path, clocks=clocks) as journal:
        began = clocks.begin("a")
        run = await create(journal, "a")
        host.pass_s(2)
        host.wall_ns += step_ns
        host.pass_s(3)
        await finish(journal, run, clocks.now("a"))
        times_ns = [event.event_unix_ns for event in await read_all(journal, await journal.cursor(0, "a"))]
        ended = (await journal.run("a"))[0].end_time
    assert times_ns[1] - times_ns[0] == 5_000_000_000
    assert ended is not None
    assert (ended - began).total_seconds() == 5
    clocks.end("a")
    assert clocks.unix_ns("b") == host.wall_ns  # what begins now goes by the clock as it is set


async def test_a_run_goes_on_where_it_was_when_the_service_restarts_with_its_clock_set_back(tmp_path: Path) -> None:
    host = HostClock()
    async with opened(tmp_path, clocks=(clocks := host.clocks())) as journal:
        began = clocks.begin("a")
        run = await create(journal, "a")
        host.pass_s(2)
        await journal.append("a", samples(1), run)
    host.wall_ns -= HOUR_NS
    async with opened(tmp_path, clocks=(clocks := host.clocks())) as journal:
        ((run, last_event_unix_ns),) = await journal.unfinished()
        assert (clocks.begin("a", last_event_unix_ns) - began).total_seconds() == 2
        host.pass_s(1)
        await finish(journal, run, clocks.now("a"))
        times_ns = [event.event_unix_ns for event in await read_all(journal, await journal.cursor(0, "a"))]
        ended = (await journal.run("a"))[0].end_time
    assert times_ns == sorted(times_ns)
    assert ended is not None
    assert (ended - began).total_seconds() == 3


async def test_a_journal_over_its_size_drops_runs_whose_end_lies_ahead_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "EXPIRY_INTERVAL_S", 0.01)
    dropped: list[str] = []
    async with opened(tmp_path, JournalLimits(max_bytes=4096, max_age_s=86_400.0), dropped.append) as journal:
        run = await create(journal, "a")
        await journal.append("a", samples(100, 500))
        await finish(journal, run, datetime.now(UTC) + timedelta(hours=1))
        await journal.append((await create(journal, "b")).run_id, samples(1))
        async with asyncio.timeout(30):
            while dropped != ["a"]:
                await asyncio.sleep(0.01)


async def test_events_carry_index_journal_run_and_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await create(journal, "one")
        await journal.append("one", samples(2))
        events = await read_all(journal, await journal.cursor(0))
    assert [event.event_index for event in events] == [1, 2, 3]
    assert {(event.journal_id, event.run_id) for event in events} == {(journal.journal_id, "one")}
    assert all(event.event_unix_ns > 0 for event in events)
    assert list(events[2].sample_batch.duration_ns) == [1.0] * 3


async def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        run = await create(journal, "one", request_id="request")
        await journal.append("one", samples(5), replace(run, completed_configuration_count=7))
        before = [event.SerializeToString() for event in await read_all(journal, await journal.cursor(0))]
    async with opened(tmp_path) as again:
        after = [event.SerializeToString() for event in await read_all(again, await again.cursor(0))]
        assert after == before
        assert (await again.run("one"))[0] == replace(run, completed_configuration_count=7)
        assert await again.request("request") == (replace(run, completed_configuration_count=7), "digest")
        last_event_unix_ns = run_pb2.RunEvent.FromString(before[-1]).event_unix_ns
        assert await again.unfinished() == [(replace(run, completed_configuration_count=7), last_event_unix_ns)]
        assert again.journal_id == journal.journal_id


@pytest.mark.parametrize("tail_bytes", [200, 1500, 10_000_000], ids=["database", "database, then memory", "memory"])
@pytest.mark.parametrize("limit_bytes", [1, 300, LIMIT_BYTES])
async def test_reading_has_neither_gaps_nor_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail_bytes: int, limit_bytes: int
) -> None:
    monkeypatch.setattr(journal_module, "TAIL_BYTES", tail_bytes)
    async with opened(tmp_path) as journal:
        for run_id in ("one", "two"):
            await create(journal, run_id)
        for _ in range(10):
            await journal.append("one", samples(2))
            await journal.append("two", samples(1))
        both = await indexes(journal, limit_bytes=limit_bytes)
        one, two = [await indexes(journal, 0, run_id, limit_bytes) for run_id in ("one", "two")]
        assert both == list(range(1, 33)) == sorted(one + two)
        assert (len(one), len(two)) == (21, 11)
        assert await indexes(journal, 17, limit_bytes=limit_bytes) == list(range(17, 33))
        assert await indexes(journal, 17, "two", limit_bytes) == [index for index in two if index >= 17]


async def test_a_cursor_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "TAIL_BYTES", 2000)
    async with opened(tmp_path) as journal:
        await create(journal, "one")
        cursor = await journal.cursor(0, "one")
        seen: list[int] = []
        for _ in range(30):
            seen += [event.event_index for event in await read_all(journal, cursor)]
            await journal.append("one", samples(3, 20))
        seen += [event.event_index for event in await read_all(journal, cursor)]
    assert seen == list(range(1, 92))


async def test_concurrent_writers_get_distinct_indexes_in_order(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await create(journal, "one")
        await asyncio.gather(*(journal.append("one", samples(3)) for _ in range(100)))
        assert await indexes(journal) == list(range(1, 302))


async def test_a_watcher_is_told_of_news(tmp_path: Path) -> None:
    news = ChangeNotifier()
    journal = await Journal.open(tmp_path, ROOMY, news, lambda run_id: None)
    coming = news.next()
    await create(journal, "one")
    assert coming.is_set()
    await journal.close()


async def test_an_unknown_run_is_named(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        with pytest.raises(RunNotFoundError, match="nowhere"):
            await journal.cursor(0, "nowhere")


async def test_runs_come_newest_first_in_pages(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        for number in range(5):
            await create(journal, f"run{number}")
        names: list[str] = []
        place: int | None = None
        for _ in range(3):
            page = await journal.runs(place, 2)
            names += [run.run_id for run in page.runs]
            place = page.next_run_number
        assert names == ["run4", "run3", "run2", "run1", "run0"]
        assert place is None


async def test_one_service_a_directory(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(StoreLockedError, match="another profiler service"):
            await Journal.open(tmp_path, ROOMY, ChangeNotifier(), lambda run_id: None)


async def test_a_journal_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await create(journal, "run-1")
    file = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 7")
    before = file.read_bytes()
    told = r"version 7 of its tables, which a newer kernalyse has written; expected version \d or an older one. Use that version"
    with pytest.raises(UnmetConditionError, match=told):
        async with opened(tmp_path):
            pass
    assert file.read_bytes() == before


# ---------------------------------------------------------------- crash


WRITER = """
    import asyncio, sys
    from pathlib import Path
    from tests.unit.profiler.test_journal import create, opened, samples

    async def main():
        async with opened(Path(sys.argv[1])) as journal:
            await create(journal, "one")
            while True:
                await journal.append("one", samples(2))
                print(journal._tail._indexes[-1], flush=True)

    asyncio.run(main())
"""


async def test_after_a_kill_everything_committed_is_there_and_no_index_comes_twice(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = [int(process.stdout.readline()) for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    seen += [int(line) for line in process.stdout.read().splitlines()]
    process.wait()
    process.stdout.close()
    async with opened(tmp_path) as journal:
        kept = await indexes(journal)
        assert kept[: seen[-1]] == list(range(1, seen[-1] + 1))
        await journal.append("one", samples(1))
        assert (await indexes(journal))[-1] > max(kept[-1], writer.INDEX_BLOCK_SIZE)


async def test_changes_of_state_are_synced_and_samples_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as journal:
        statements: list[str] = []
        run = await create(journal, "one")
        journal._writer._connection.set_trace_callback(statements.append)
        await journal.append("one", samples(1))
        await journal.append("one", state(RunState.RUNNING), run, is_synced=True)
        journal._writer._connection.set_trace_callback(None)
    assert [line.split()[-1] for line in statements if "synchronous" in line] == ["NORMAL", "FULL"]


# ---------------------------------------------------------------- limits


async def test_the_oldest_finished_runs_leave_a_journal_over_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "TAIL_BYTES", 1000)
    forgotten: list[str] = []
    async with opened(tmp_path, JournalLimits(2**20, 86_400.0), forgotten.append) as journal:
        running = await create(journal, "running")
        for number in range(6):
            run = await create(journal, f"run{number}")
            await journal.append(run.run_id, samples(100, 500))
            await finish(journal, run)
        for _ in range(3000):
            if len(forgotten) >= 3 and sqlite_count(tmp_path, "events WHERE run_id = 'run2'") == 0:
                break
            await asyncio.sleep(0.02)
            await journal.append("running", samples(1))
        assert forgotten[:3] == ["run0", "run1", "run2"]
        assert "run5" not in forgotten
        with pytest.raises(EventExpiredError) as raised:
            await journal.cursor(2)
        oldest = int(raised.value.expected)
        assert (await indexes(journal, oldest))[0] == oldest
        assert 1 in await indexes(journal, 0), "0 asks for all that is left, and the running run has lost nothing"
        with pytest.raises(EventExpiredError):
            await journal.cursor(0, "run0")
        assert len(await indexes(journal, 0, "run5")) == 102
        assert (await journal.run("run0"))[0].state is RunState.SUCCEEDED, "a run that made room keeps its record"
        assert (await journal.run(running.run_id))[1] is False


async def test_runs_over_age_leave_with_their_record(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await finish(journal, await create(journal, "old"), end_time=datetime.now(UTC) - timedelta(days=2))
        await finish(journal, await create(journal, "new"))
    async with opened(tmp_path, JournalLimits(2**30, 86_400.0)) as journal:
        for _ in range(3000):
            if sqlite_count(tmp_path, "runs") == 1:
                break
            await asyncio.sleep(0.02)
        with pytest.raises(RunNotFoundError):
            await journal.cursor(0, "old")
        assert len(await indexes(journal, 0, "new")) == 2


async def test_a_watcher_whose_next_events_have_been_dropped_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "TAIL_BYTES", 1000)
    async with opened(tmp_path, JournalLimits(2**20, 86_400.0)) as journal:
        run = await create(journal, "one")
        await journal.append("one", samples(200, 500))
        cursor = await journal.cursor(0)
        await journal.read(cursor, 10_000)
        await finish(journal, run)
        await create(journal, "two")
        for _ in range(3000):
            await journal.append("two", samples(1, 500))
            if journal._writer.expired_index:
                break
        with pytest.raises(EventExpiredError):
            await read_all(journal, cursor)


def sqlite_count(directory: Path, what: str) -> int:
    connection = sqlite3.connect(directory / "journal.sqlite")
    try:
        return int(connection.execute(f"SELECT count(*) FROM {what}").fetchone()[0])
    finally:
        connection.close()


# ---------------------------------------------------------------- full


async def test_a_full_journal_refuses_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await create(journal, "one")
        page_count = journal._writer._connection.execute("PRAGMA page_count").fetchone()[0]
        journal._writer._connection.execute(f"PRAGMA max_page_count = {page_count + 20}")
        attempts = [journal.append("one", samples(1, 1000)) for _ in range(60)]
        results = [(await asyncio.gather(attempt, return_exceptions=True))[0] for attempt in attempts]
        written = sum(result is None for result in results)
        assert 0 < written < 60
        assert all(isinstance(result, StorageFullError) for result in results[written:])
        with pytest.raises(StorageFullError):
            journal.check_space()
        kept = await indexes(journal)
        assert kept == list(range(1, written + 2)), "what was committed before is all there"
        journal._writer._connection.execute("PRAGMA max_page_count = 100000")
        await journal.append("one", samples(1))
        journal.check_space()
        assert await indexes(journal) == [*kept, kept[-1] + 1]
