"""Imports whose traces are read by the workers of a real Dask cluster, each a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

from kernalyse.services.analyzer.ingest.dask_cluster import DaskCluster, Versions
from kernalyse.services.analyzer.ingest.worker_pool import ReadingTask
from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.core.errors import ClusterMismatchError, ClusterUnavailableError, InvalidTraceError
from kernalyse.services.core.model import TableQuery, TraceStored
from tests.integration.analyzer_under_test import AnalyzerHere, add_node, connected, eventually, get_run, get_table, serving
from tests.integration.profiler_stand_in import standing_in
from tests.integration.test_left_traces import RUN_ID, kineto_trace, profile, stored
from tests.integration.test_reading_processes import joined
from tests.unit.rank_traces import write_rank

pytestmark = pytest.mark.slow  # a cluster takes two seconds to start, a worker after a killed one as well

DEATHS = 2
"""Of workers, with which a task is given up in these tests."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": DEATHS - 1}),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
    ):
        yield cluster


@pytest.fixture
async def analyzer(private_directories: Path, cluster: LocalCluster) -> AsyncIterator[AnalyzerHere]:
    async with serving(private_directories, dask=cluster.scheduler_address) as found:
        yield found


@pytest.fixture
def ranks(tmp_path: Path) -> list[Path]:
    return [write_rank(tmp_path / f"rank{rank}.json", rank, start_s=0.001 * rank) for rank in (0, 1)]


def reading(path: Path, directory: Path) -> ReadingTask:
    return ReadingTask(directory / "rows", (TraceFiles(path.name, path, 0),), run_id="run", file_name=path.name)


async def kill_reader(cluster: LocalCluster) -> None:
    """Kills the worker that has a task, as soon as one has."""
    async with Client(cluster.scheduler_address, asynchronous=True, set_as_default=False) as client:
        busy: list[str] = []

        async def is_reading() -> bool:
            busy[:] = [address for address, keys in (await client.processing()).items() if keys]
            return bool(busy)

        await eventually(is_reading)
        (process_id,) = (await client.run(os.getpid, workers=busy)).values()
        os.kill(process_id, signal.SIGKILL)

        async def is_gone() -> bool:
            return busy[0] not in await client.processing()

        await eventually(is_gone)


def traces_of_attempts(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if ".attempts" in path.name]


async def test_the_ranks_of_a_job_become_one_run(analyzer: AnalyzerHere, ranks: list[Path]) -> None:
    async with connected(analyzer.endpoint) as stub:
        answer = await joined(stub, ranks)
        found, _ = await get_table(stub, TableQuery("ranks", (answer.run.run_id,)))
        assert found["rank_index"].to_list() == [0, 1]
        assert found["collective_count"].to_list() == [1, 1]
    assert not traces_of_attempts(analyzer.directory)
    assert not list((analyzer.directory / "store" / "arriving").iterdir())


async def test_a_damaged_trace_is_refused_as_by_a_process_of_the_analyzer(analyzer: AnalyzerHere, ranks: list[Path]) -> None:
    ranks[0].write_text(ranks[0].read_text()[:-40])
    async with connected(analyzer.endpoint) as stub:
        with pytest.raises(InvalidTraceError, match=r"file rank0\.json"):
            await joined(stub, ranks[:1])
    assert not traces_of_attempts(analyzer.directory)


async def test_a_task_whose_worker_is_killed_is_repeated_by_another(cluster: LocalCluster, ranks: list[Path], tmp_path: Path) -> None:
    waiting = tmp_path / "waiting.json"
    os.mkfifo(waiting)  # its reader waits for a writer
    execution = asyncio.create_task(DaskCluster(cluster.scheduler_address, Versions.here()).execute(reading(waiting, tmp_path)))
    await eventually(lambda: has_begun(tmp_path))
    ranks[0].replace(waiting)
    await kill_reader(cluster)
    result = await execution
    assert result.run is not None
    assert (tmp_path / "rows" / "kernel_launches.parquet").exists()
    assert not traces_of_attempts(tmp_path)


async def has_begun(directory: Path) -> bool:
    return any((directory / "rows.attempts").glob("*"))


async def test_a_trace_that_ends_one_worker_after_the_other_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    waiting = tmp_path / "waiting.json"
    os.mkfifo(waiting)
    execution = asyncio.create_task(DaskCluster(cluster.scheduler_address, Versions.here()).execute(reading(waiting, tmp_path)))
    for _ in range(DEATHS):
        await kill_reader(cluster)
    with pytest.raises(
        InvalidTraceError, match=rf"file waiting.json: found content that ended {DEATHS} workers of the Dask cluster tcp://"
    ):
        await execution
    assert not traces_of_attempts(tmp_path)


async def test_a_cancelled_task_is_withdrawn_from_the_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    waiting = tmp_path / "waiting.json"
    os.mkfifo(waiting)
    execution = asyncio.create_task(DaskCluster(cluster.scheduler_address, Versions.here()).execute(reading(waiting, tmp_path)))
    await eventually(lambda: has_begun(tmp_path))
    execution.cancel()
    with pytest.raises(asyncio.CancelledError):
        await execution
    async with Client(cluster.scheduler_address, asynchronous=True, set_as_default=False) as client:

        async def is_idle() -> bool:
            return not any((await client.processing()).values())

        await eventually(is_idle)
    assert not traces_of_attempts(tmp_path)
    await asyncio.to_thread(waiting.write_text, "{")  # lets the thread of the worker go on


async def test_a_worker_of_another_version_is_refused_with_both_named(cluster: LocalCluster, ranks: list[Path], tmp_path: Path) -> None:
    own = Versions.here()
    newer = DaskCluster(cluster.scheduler_address, replace(own, kernalyse="99.0"))
    with pytest.raises(ClusterMismatchError, match=rf"found kernalyse {own.kernalyse} on Python .*; expected kernalyse 99.0 on Python"):
        await newer.execute(reading(ranks[0], tmp_path))


async def test_a_file_that_a_worker_does_not_see_is_named_with_its_host(cluster: LocalCluster, tmp_path: Path) -> None:
    missing = tmp_path / "elsewhere.json"
    with pytest.raises(ClusterMismatchError, match=rf"path {missing} on Dask worker {os.uname().nodename}"):
        await DaskCluster(cluster.scheduler_address, Versions.here()).execute(reading(missing, tmp_path))
    assert not traces_of_attempts(tmp_path)


async def test_a_scheduler_that_dies_is_unavailable_and_stays_so(ranks: list[Path], tmp_path: Path) -> None:
    place = tmp_path / "scheduler.json"
    program = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(place)]
    with subprocess.Popen(program, stderr=subprocess.DEVNULL) as scheduler:
        await eventually(lambda: is_there(place))
        async with Client(scheduler_file=str(place), asynchronous=True, set_as_default=False) as client:
            address = client.scheduler.address
            cluster = DaskCluster(address, Versions.here())
            execution = asyncio.create_task(cluster.execute(reading(ranks[0], tmp_path)))

            async def is_waiting() -> bool:
                return (tmp_path / "rows.attempts").exists()

            await eventually(is_waiting)
        scheduler.kill()
        with pytest.raises(ClusterUnavailableError, match=f"Dask cluster {address}"):
            await execution
    with pytest.raises(ClusterUnavailableError, match=f"Dask cluster {address}"):
        await cluster.execute(reading(ranks[0], tmp_path))


async def test_traces_of_runs_wait_for_a_cluster_that_does_not_answer(private_directories: Path) -> None:
    async with (
        standing_in(private_directories) as node,
        serving(private_directories, dask="tcp://127.0.0.1:9") as analyzer,
        connected(analyzer.endpoint) as stub,
    ):
        trace = stored(node, "trace.json", kineto_trace(private_directories))
        profile(node, trace, TraceStored(("trace.json",), "kineto"))
        await add_node(stub, node.endpoint)

        async def is_waiting() -> bool:
            frame, _ = await get_table(stub, TableQuery("runs", columns=("run_id",)))
            return not frame.is_empty() and (await get_run(stub, RUN_ID)).activity == "its trace waits for the Dask cluster that reads it"

        await eventually(is_waiting)


async def is_there(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
