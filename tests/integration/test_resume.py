"""`kernalyse resume` and `kernalyse rerun` as a user runs them: real services, real kernels, runs that really stop."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.channel import Endpoint
from kernalyse.services.cli.analyzer_client import AnalyzerClient
from kernalyse.services.cli.options import Server
from kernalyse.services.cli.rerun import original_spec
from kernalyse.services.cli.runs import run_row
from kernalyse.services.cli.session import analyzer_session
from kernalyse.services.core.model import KernelSweep, RunSpec, RunState
from kernalyse.services.core.protobuf import decode_json
from kernalyse.services.core.reruns import SPEC_ARTIFACT, repetition_spec
from tests.command import kernalyse
from tests.integration.analyzer_under_test import running_analyzer
from tests.integration.test_cli import COMMAND, QUICK, wait_for
from tests.service_processes import ServiceProcess, ServiceProcesses

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

COUNT = 5
OWN = """#include "turns.h"
template <typename T> __global__ void own(const T *a, T *b, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    T sum = T();
    for (int turn = 0; turn < TURNS * REPEAT; ++turn) sum += a[i % N] + turn;
    if (i < N) b[i] = sum;
}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A template kernel of one's own, with a header."""
    (tmp_path / "own.cu").write_text(OWN)
    (tmp_path / "turns.h").write_text("#define TURNS 4\n")
    return tmp_path / "own.cu"


def connect(services: ServiceProcesses) -> tuple[ServiceProcess, ServiceProcess, tuple[str, ...]]:
    """Profiler, analyzer with that node, and the options that lead to it."""
    profiler, analyzer = services.start("profiler"), services.start("analyzer")
    token_file = services.directory / "config" / "kernalyse" / "token"
    options = ("--server", analyzer.address, "--token-file", str(token_file))
    added = kernalyse("nodes", "add", profiler.address, "--node-token-file", token_file, *options)
    assert added.returncode == 0, added.stderr
    return profiler, analyzer, options


def sweep_of(own: Path) -> tuple[str, ...]:
    return ("bench", f"{own}:own<float>", "-p", "N=100000", "-D", f"REPEAT=1..{COUNT}:1", "--max-time", "0.6", "--min-time", "0.6")


def endpoint_of(options: tuple[str, ...]) -> Endpoint:
    _, address, _, token_file = options
    return Endpoint(address, Path(token_file).read_text().strip())


def listed(options: tuple[str, ...]) -> list[dict[str, Any]]:
    """As `kernalyse runs --json` says, without a process for each time that is asked."""
    with AnalyzerClient(endpoint_of(options)) as client:
        return [run_row(run) for run in client.runs(20)]


@contextmanager
def bench_under_way(command: tuple[str, ...], options: tuple[str, ...], count: int = 2) -> Iterator[subprocess.Popen[str]]:
    """A sweep that has measured so many."""
    with subprocess.Popen([*COMMAND, *command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        wait_for(lambda: any(run["completed_configuration_count"] >= count for run in listed(options)), f"{count} measurements")
        yield bench
        bench.communicate(timeout=90)


def assert_measured_once(first: pl.DataFrame, whole: pl.DataFrame) -> None:
    """whole: of the run that continued `first`, which has the rows of both."""
    assert whole["configuration_index"].is_unique().all()
    kept = whole.join(first, on="configuration_index", how="semi")
    assert kept["measured_unix_ns"].to_list() == first["measured_unix_ns"].to_list()
    assert whole.height > first.height >= 2


@pytest.mark.slow
def test_a_cancelled_sweep_goes_on_where_it_stopped_in_a_session_of_its_own(services: ServiceProcesses, own: Path) -> None:
    _, _, options = connect(services)
    with bench_under_way(sweep_of(own), options):
        assert kernalyse("cancel", "last", *options).returncode == 0
    (cancelled,) = listed(options)
    assert cancelled["state"] == "CANCELLED"
    services.stop_all()
    own.unlink()  # the run knows its sources

    written = own.with_suffix(".json")
    done = kernalyse("resume", "last", "--json", written)
    assert done.returncode == 0, done.stderr
    document = json.loads(written.read_text())
    assert [row["configuration_index"] for row in document["measurements"]] == list(range(COUNT))
    assert [samples["configuration_index"] for samples in document["samples"]] == list(range(COUNT))
    assert {row["run_id"] for row in document["configurations"]} == {document["run"]["run_id"]} != {cancelled["run_id"]}
    assert f"Continuing run {cancelled['run_id']}" in done.stderr
    assert all(f"REPEAT={repeat} " in done.stdout for repeat in range(1, COUNT + 1))  # of both runs
    assert f"best of {COUNT}: own<float> N=100000 REPEAT=" in done.stdout  # which one, noise may decide
    with running_analyzer(), analyzer_session(Server(), with_profiler=False) as client:
        shown, exported = kernalyse("show", "last"), kernalyse("export", "last")
        resumed = client.run("last")
        assert (resumed.state, resumed.spec.continues_run_id) == (RunState.SUCCEEDED, cancelled["run_id"])
        assert (resumed.completed_configuration_count, resumed.total_configuration_count) == (COUNT, COUNT)
        run_ids = [cancelled["run_id"], resumed.run_id]
        parts = [client.table("measurements", [run_id]) for run_id in run_ids]
        assert_measured_once(*parts)
        assert parts[1].height == COUNT
        candidate_counts = [client.table("best", [run_id])["candidate_count"].to_list() for run_id in run_ids]
        assert candidate_counts[0][0] < COUNT
        assert candidate_counts[1] == [COUNT]
    assert f"run {run_ids[1]} continues run {run_ids[0]}: what both have measured is shown" in shown.stderr
    assert all(f"REPEAT={repeat} " in shown.stdout for repeat in range(1, COUNT + 1))
    assert json.loads(exported.stdout)["measurements"] == document["measurements"]


@pytest.mark.slow
def test_a_sweep_that_was_lost_with_its_profiler_goes_on_when_that_is_back(services: ServiceProcesses, own: Path) -> None:
    profiler, analyzer, options = connect(services)
    with bench_under_way(sweep_of(own), options):
        profiler.kill()
        services.start("profiler")
    (lost,) = listed(options)
    assert lost["state"] == "LOST"
    done = kernalyse("resume", lost["run_id"][:-1], *options)
    assert done.returncode == 0, done.stderr
    resumed = listed(options)[0]
    assert (resumed["state"], resumed["continues_run_id"]) == ("SUCCEEDED", lost["run_id"])
    with AnalyzerClient(analyzer.endpoint) as client:
        assert_measured_once(*(client.table("measurements", [run["run_id"]]) for run in (lost, resumed)))
    nothing_left = kernalyse("resume", "last", *options)
    assert (nothing_left.returncode, "every configuration measured" in nothing_left.stderr) == (1, True)


@pytest.mark.slow
def test_a_run_is_repeated_as_it_was_though_its_files_have_changed_and_its_headers_have_expired(
    services: ServiceProcesses, private_directories: Path, own: Path
) -> None:
    _, analyzer, options = connect(services)
    bench = (
        "bench",
        f"{own}:own<float>",
        "-p",
        "N=256,512,1024",
        "-D",
        "REPEAT=1,2",
        "--seed",
        "7",
        "--title",
        "mine",
        "--input",
        "normal",
    )
    assert kernalyse(*bench, *QUICK, *options).returncode == 0
    own.write_text("not CUDA any more")
    own.with_name("turns.h").unlink()
    (bundle,) = (private_directories / "data").rglob("bundles/[0-9a-f]*")
    shutil.rmtree(bundle)

    done = kernalyse("rerun", "last", *options)
    assert done.returncode == 0, done.stderr
    second, first = listed(options)
    assert (second["state"], second["title"], second["continues_run_id"]) == ("SUCCEEDED", "mine", None)
    with AnalyzerClient(analyzer.endpoint) as client:
        specs = [client.artifact(run["run_id"], SPEC_ARTIFACT) for run in (first, second)]
        measured = [client.table("measurements", [run["run_id"]]) for run in (first, second)]
    assert specs[0] == specs[1]
    sweep = decode_json(specs[1], RunSpec).work
    assert isinstance(sweep, KernelSweep)
    assert (sweep.order_seed, sweep.measuring.seed, sweep.measuring.input_distribution) == (7, 7, "NORMAL")
    columns = ("configuration_index", "label", "seed", "device_id", "compiler_options")
    assert measured[0].sort("event_index").select(columns).equals(measured[1].sort("event_index").select(columns))


@pytest.mark.slow
def test_what_cannot_be_done_again_is_refused(server: tuple[str, ...]) -> None:
    for command in ("resume", "rerun"):
        done = kernalyse(command, "nosuchrun", *server)
        assert (done.returncode, "run 'nosuchrun': found no such run" in done.stderr) == (1, True)
    assert kernalyse("bench", "saxpy", "-p", "N=64,128", "--strategy", "random", "--budget", "5", *QUICK, *server).returncode == 0
    done = kernalyse("resume", "last", "--budget", "5", *server)
    assert (done.returncode, "every configuration measured" in done.stderr, "kernalyse rerun" in done.stderr) == (1, True, True)
    assert kernalyse("rerun", "last", *server).returncode == 0


@pytest.mark.slow
def test_a_cancelled_search_by_halving_goes_on_with_those_that_it_has_not_left_behind(services: ServiceProcesses, own: Path) -> None:
    _, analyzer, options = connect(services)
    bench = ("bench", f"{own}:own<float>", "-p", "N=100000,200000", "-D", f"REPEAT=1..{COUNT}:1", "--max-time", "1", "--min-time", "1")
    with bench_under_way((*bench, "--strategy", "halving", "--budget", "60"), options, COUNT):  # the first problem is done
        assert kernalyse("cancel", "last", *options).returncode == 0
    (cancelled,) = listed(options)
    assert cancelled["completed_configuration_count"] < 2 * COUNT
    done = kernalyse("resume", "last", *options)
    assert done.returncode == 0, done.stderr
    resumed = listed(options)[0]
    assert (resumed["completed_configuration_count"], resumed["total_configuration_count"]) == (2 * COUNT, 2 * COUNT)
    with AnalyzerClient(analyzer.endpoint) as client:
        assert_measured_once(*(client.table("measurements", [run["run_id"]]) for run in (cancelled, resumed)))
        best = client.table("best", [resumed["run_id"]])
        (run,) = [run for run in client.runs(9) if run.run_id == resumed["run_id"]]
    assert best["candidate_count"].to_list() == [COUNT, COUNT]
    assert best["reason"].str.starts_with("Alternating blocks").all()  # both problems, though one was measured by the run before
    assert isinstance(run.spec.work, KernelSweep)
    assert 0 < (run.spec.work.budget_ns or 0) < 60e9


@pytest.mark.slow
def test_a_kernel_that_ends_the_worker_is_not_run_again_until_it_is_asked_for(server: tuple[str, ...], own: Path) -> None:
    own.write_text(OWN.replace("T sum = T();", "T sum = T(); if (REPEAT == 2) b[1ll << 40] = sum;"))
    bench = ("bench", f"{own}:own<float>", "-p", "N=1000", "-D", "REPEAT=1,2,3", "--no-shuffle")
    crashed = kernalyse(*bench, *QUICK, *server)
    assert (crashed.returncode, "SIGSEGV" in crashed.stderr, "SIGSEGV; it last said:\nPLEASE" in crashed.stderr) == (1, True, False)
    first = listed(server)[0]
    assert (first["completed_configuration_count"], first["failed_configuration_count"]) == (2, 1)

    done = kernalyse("resume", "last", *server)
    assert "1 configuration that failed is left out; --retry-failed tries it again." in done.stderr
    assert done.returncode == 1, "the sweep has a configuration without a measurement"
    second = listed(server)[0]
    assert second["state"] == "SUCCEEDED"
    assert "failed: own<float> N=1000 REPEAT=2: worker while" in done.stdout
    assert (second["completed_configuration_count"], second["failed_configuration_count"]) == (3, 1)

    refused = kernalyse("resume", "last", *server)
    assert "every configuration measured, the one left failed" in refused.stderr
    assert "--retry-failed" in refused.stderr
    own.unlink()
    assert kernalyse("resume", "last", "--retry-failed", *server).returncode == 1
    third = listed(server)[0]
    assert (third["state"], third["failed_configuration_count"]) == ("FAILED", 1)
    with AnalyzerClient(endpoint_of(server)) as client:
        failures = [client.table("failures", [run["run_id"]]) for run in (first, third)]
    assert [frame["reason"].to_list() for frame in failures] == [["WORKER_CRASHED"]] * 2


@pytest.mark.slow
def test_a_search_whose_budget_is_spent_goes_on_with_another(server: tuple[str, ...], own: Path) -> None:
    bench = ("bench", f"{own}:own<float>", "-p", "N=100000", "-D", "REPEAT=1..40:1", "--max-time", "0.3", "--min-time", "0.3")
    assert kernalyse(*bench, "--strategy", "random", "--budget", "2", *server).returncode == 0
    first = listed(server)[0]
    assert 2 <= first["completed_configuration_count"] < 40
    refused = kernalyse("resume", "last", *server)
    assert (refused.returncode, "its budget of 2 s spent" in refused.stderr) == (1, True)
    assert f"kernalyse resume {first['run_id']} --budget SECONDS" in refused.stderr
    done = kernalyse("resume", "last", "--budget", "2", *server)
    assert done.returncode == 0, done.stderr
    second = listed(server)[0]
    assert second["continues_run_id"] == first["run_id"]
    assert second["completed_configuration_count"] > first["completed_configuration_count"]
    with AnalyzerClient(endpoint_of(server)) as client:
        parts = [client.table("measurements", [run["run_id"]]) for run in (first, second)]
        (best,) = client.table("best", [second["run_id"]]).rows(named=True)
        whole = repetition_spec(original_spec(client, client.run(second["run_id"])).spec).work
    assert_measured_once(*parts)
    assert best["candidate_count"] == parts[1].height == second["completed_configuration_count"]
    assert isinstance(whole, KernelSweep)
    assert (whole.budget_ns, whole.earlier_budget_ns, whole.done_configuration_indexes) == (4_000_000_000, None, ())
