"""The package `kernalyse` as a program uses it, against real services."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import numpy as np
import polars as pl
import pytest

import kernalyse
from kernalyse import Measuring, RequestError
from kernalyse.channel import Endpoint
from kernalyse.measuring import choice
from kernalyse.runs import RunState
from kernalyse.services.core import model, protobuf
from kernalyse.v1 import run_pb2
from tests.service_processes import ServiceProcess, ServiceProcesses

needs_opencl = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")
SOURCE = """
extern "C" __global__ void twice(float* x, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) x[i] *= 2;
}
"""
SHORT = Measuring(min_duration_s=0.01, max_duration_s=0.2, target_half_width_ratio=0.2)


@pytest.fixture
def client(analyzer_that_runs: None) -> Iterator[kernalyse.Client]:
    """Of an analyzer that this user has running, found as `connect()` finds it."""
    with kernalyse.connect() as client:
        yield client


def add_node(client: kernalyse.Client, profiler: Endpoint) -> None:
    """As `kernalyse nodes add` does."""
    client.add_node(profiler)
    deadline = time.monotonic() + 60
    while not any(status.HasField("node") and status.node.devices for status in client.nodes()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---------------------------------------------------------------- runs on a node


@pytest.mark.slow
@needs_opencl
def test_a_sweep_is_submitted_watched_and_read(client: kernalyse.Client, profiler: ServiceProcess, tmp_path: Path) -> None:
    add_node(client, profiler.endpoint)
    (tmp_path / "mine.cu").write_text(SOURCE)
    spec = kernalyse.kernel_sweep("saxpy", f"{tmp_path}/mine.cu:twice", parameters={"N": [1024, 2048]}, measuring=SHORT, backend="opencl")
    run = client.submit(spec, title="from Python", time_limit_s=100, request_id="once")
    assert client.submit(spec, title="from Python", time_limit_s=100, request_id="once").run_id == run.run_id

    updates = list(client.watch(run))
    assert updates[-1].run is not None
    ended = client.wait(run)
    assert ended == updates[-1].run
    assert (ended.state, ended.kind, ended.title, ended.error) == ("SUCCEEDED", "kernel_sweep", "from Python", None)
    assert ended.has_ended
    assert "4 of 4" in str(ended)
    assert ended.message.spec.limits.time_limit_ns == 100 * 10**9
    watched = pl.concat([table.to_polars() for update in updates for table in update.tables if table.name == "measurements"])
    assert sorted(watched["label"]) == ["saxpy N=1024", "saxpy N=2048", "twice N=1024", "twice N=2048"]

    slow_first = client.table(
        run, "measurements", ("kernel_name", "==", "saxpy"), order_by=["-duration_median_ns"], columns=["label", "duration_median_ns"]
    )
    assert slow_first.columns == ["label", "duration_median_ns"]
    assert slow_first["duration_median_ns"].is_sorted(descending=True)
    assert slow_first.height == 2
    in_pandas = client.table([run], "samples", ("is_discarded", "==", False), to="pandas")
    assert len(in_pandas) == client.table("last", "samples").height > 0
    assert in_pandas["duration_ns"].min() > 0
    assert "saxpy" in client.report(run)
    assert client.document(run, "svg").startswith(b"PK")
    assert [one.run_id for one in client.runs(max_count=1)] == [run.run_id]
    assert client.cancel(run).state == ended.state
    assert (client.annotate(run, tags=["nightly"], notes="").tags, client.run(run).tags) == (("nightly",), ("nightly",))
    assert client.hardware(run.node_id, run.device_id or "opencl:intel:0") is not None
    assert client.upload_bundle(tmp_path).startswith("sha256:")
    check_refusals(client)
    client.delete(run)
    assert run.run_id not in [one.run_id for one in client.runs()]


@pytest.mark.slow
def test_watching_goes_on_after_the_analyzer_was_killed(services: ServiceProcesses) -> None:
    """The run has ended; its rows come once, whoever serves them."""
    analyzer = services.start("analyzer")
    client = kernalyse.connect(analyzer.address, analyzer.token)
    bench = kernalyse.bench(lambda: sum(range(100)), measuring=SHORT)
    run = bench.send(client)
    updates = client.watch(run)
    first = next(updates)
    analyzer.kill()
    services.start("analyzer", address=analyzer.address)
    rest = [table for update in updates for table in update.tables]
    sample_count = sum(table.to_polars().height for table in (*first.tables, *rest) if table.name == "samples")
    client.close()
    assert sample_count == bench.samples_ns().size


# ---------------------------------------------------------------- callables


def test_measured_callables_become_runs_with_all_their_samples_and_verdicts(client: kernalyse.Client, tmp_path: Path) -> None:
    matrix = np.ones((64, 64), np.float32)
    bench = kernalyse.bench(
        lambda: matrix @ matrix, name="product", parameters={"N": 64}, flop=2 * 64**3, bytes=3 * 4 * 64**2, measuring=SHORT
    )
    assert bench.label == "product N=64"
    assert bench.median_interval_ns[0] <= bench.median_ns <= bench.median_interval_ns[1]
    assert bench.median_ns == pytest.approx(float(np.median(bench.samples_ns())))
    assert bench.flop_per_s == pytest.approx(2 * 64**3 / bench.median_ns * 1e9)
    assert "timed by the host's clock" in repr(bench)
    assert bench.label in repr(bench)

    run = bench.send(client)
    assert (run.state, run.title, run.completed_configuration_count) == ("SUCCEEDED", "product", 1)
    (row,) = client.table(run, "measurements").to_dicts()
    assert (row["label"], row["device_id"], row["backend"], row["cache_mode"]) == ("product N=64", "host", None, "HOT")
    assert row["stop_reason"] == bench.stop_reason
    assert row["flop"] == 2 * 64**3
    assert client.table(run, "samples")["duration_ns"].to_list() == pytest.approx(bench.samples_ns().tolist())
    assert any("perf_counter_ns" in line for line in client.table(run, "log_lines")["line"])
    assert client.table(run, "roofline")["achieved_flop_per_s"].to_list() == [pytest.approx(bench.flop_per_s)]
    assert json.loads(bench.save(tmp_path / "bench.json").read_text())["schema"] == "kernalyse-results/1"
    check_comparison(client)


def check_comparison(client: kernalyse.Client) -> None:
    def short() -> None:
        sum(range(300))

    def long() -> None:
        sum(range(3_000))

    comparison = kernalyse.compare(long, short, measuring=SHORT)
    assert comparison.verdict == "SLOWER"
    assert comparison.duration_ratio_interval[0] > 1
    assert repr(comparison).startswith("long: slower than short: ")
    run = comparison.send(client)
    (row,) = client.table(run, "paired_comparisons").to_dicts()
    assert (row["label"], row["baseline_label"], row["verdict"]) == ("long", "short", "SLOWER")
    assert row["duration_ratio"] == pytest.approx(comparison.duration_ratio)


def test_what_a_callable_raises_comes_out_and_settings_are_refused_by_name() -> None:
    with pytest.raises(ZeroDivisionError):
        kernalyse.bench(lambda: 1 // 0)
    with pytest.raises(RequestError, match="UNMET_CONDITION: timer torch: found no CUDA device that PyTorch has opened") as caught:
        kernalyse.bench(lambda: None, timer="torch")
    assert caught.value.remedy.startswith("Call the function once before")
    with pytest.raises(RequestError, match=r"argument timer: found 'sundial'; expected auto, host, torch"):
        kernalyse.bench(lambda: None, timer="sundial")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="argument function: found 5; expected a function without arguments"):
        kernalyse.bench(5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="argument dtype: found 'float31'"):
        kernalyse.bench(lambda: None, dtype="float31")
    with pytest.raises(RequestError, match="argument cache: found 'both'"):
        kernalyse.bench(lambda: None, measuring=Measuring(cache="both"))
    with pytest.raises(RequestError, match="timing method graph"):
        kernalyse.bench(lambda: None, measuring=Measuring(timing="graph", max_duration_s=0.01))


# ---------------------------------------------------------------- requests


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("function", [coroutine, generator])
@pytest.mark.filterwarnings("error")  # a coroutine that is never awaited would warn
def test_a_call_that_only_makes_something_to_be_run_is_not_timed(function: Callable[[], object]) -> None:
    with pytest.raises(RequestError, match=r"function .*: found a (coroutine|generator) that has not run yet; expected a call"):
        kernalyse.bench(function)


def test_a_call_of_seconds_is_not_called_more_often_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernalyse.services.callables.benchmark.LONG_CALL_NS", 1_000_000)
    calls: list[float] = []

    def slow() -> None:
        calls.append(time.monotonic())
        time.sleep(0.002)

    once = kernalyse.Measuring(min_duration_s=0, max_sample_count=2)
    assert kernalyse.bench(slow, measuring=once).measurement.warm_up_count == 1
    assert len(calls) == 5  # the first, one more to see that it is not the first alone, one to warm up, two samples


def test_a_closed_client_refuses_every_call(analyzer_that_runs: None) -> None:
    """gRPC would end the process at a stream."""
    with kernalyse.connect() as client:
        assert client.nodes() == []
    for call in (client.nodes, lambda: client.table("last", "runs"), lambda: next(client.watch("last")), lambda: list(client.runs())):
        with pytest.raises(RequestError, match="client: found a closed one; expected an open one"):
            call()


def test_a_client_that_was_given_up_ends_what_waits_and_refuses_what_is_asked_later(analyzer_that_runs: None) -> None:
    with kernalyse.connect() as client:
        assert client.node_id_of("") == ""
        assert client.node_id_of("nobody") == "nobody"
        updates = client.watch_nodes()
        next(updates)
        threading.Timer(0.05, client.give_up).start()
        for call in (lambda: list(updates), client.nodes, lambda: client.table("last", "runs"), lambda: list(client.watch("last"))):
            with pytest.raises(RequestError, match=r"UNAVAILABLE: analyzer .*: found a call that was given up; expected an answer"):
                call()


def check_refusals(client: kernalyse.Client) -> None:
    with pytest.raises(RequestError) as caught:
        client.run("nothing")
    assert (caught.value.code, caught.value.reason) == ("NOT_FOUND", "RUN_NOT_FOUND")
    assert caught.value.subject
    assert caught.value.found
    with pytest.raises(RequestError, match="operator '=~'"):
        client.table("last", "runs", ("run_id", "=~", "x"))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"filter of a table: found 'run_id'; expected \(column, operator, value\)"):
        client.table("last", "runs", "run_id")  # type: ignore[call-overload]
    for seconds in (0, float("nan"), 1e30):
        with pytest.raises(RequestError, match="argument time_limit_s: found"):
            client.submit(kernalyse.ceilings(), time_limit_s=seconds)
    with pytest.raises(RequestError, match="argument to: found 'numpy'; expected polars, pandas, arrow"):
        client.table("last", "runs", to="numpy")  # type: ignore[call-overload]
    with pytest.raises(RequestError, match=r"table 'runs', offset 0, limit -1; expected .* 0 or more"):
        client.table("last", "runs", limit=-1)


def test_what_no_service_could_take_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="argument bytes: found -1; expected a number of 0 or more"):
        kernalyse.bench(lambda: None, bytes=-1)
    for names in (("a", "a"), ("a",), ("a", "")):
        with pytest.raises(RequestError, match=r"argument names: found .* expected two different names"):
            kernalyse.compare(lambda: None, lambda: None, names=names)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="argument kernels: found none"):
        kernalyse.kernel_sweep()
    with pytest.raises(RequestError, match=r"argument collector: found 'vtune'; expected nsys, ncu, kineto, proton"):
        kernalyse.command(["true"], collector="vtune")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="argument arguments: found 'true'"):
        kernalyse.command("true")
    with pytest.raises(RequestError, match="argument backend: found 'cpu'; expected auto, pycuda, nvcc, opencl"):
        kernalyse.ceilings(backend="cpu")  # type: ignore[arg-type]


def test_without_an_analyzer_the_remedy_is_named() -> None:
    with pytest.raises(RequestError, match="NO_SERVICE: analyzer of this machine") as caught:
        kernalyse.connect()
    assert "kernalyse up" in caught.value.remedy
    with pytest.raises(RequestError, match="found no token"):
        kernalyse.connect("127.0.0.1:1")
    with pytest.raises(RequestError, match="another machine, without TLS"):
        kernalyse.connect("gpu-host:7002", "secret")


def test_every_spec_is_one_that_the_services_read() -> None:
    """Defaults of the functions are those of the model: nobody says a thing twice and differently."""
    specs = (
        (kernalyse.kernel_sweep("saxpy"), model.KernelSweep((model.KernelSelection("saxpy"),))),
        (kernalyse.command(["true"]), model.CommandProfile(("true",), "nsys")),
        (kernalyse.model("gpt-nano"), model.ModelRun("gpt-nano")),
        (kernalyse.ceilings(), model.CeilingMeasurement()),
        (kernalyse.device_check(block_count=4), model.DeviceCheck(block_count=4)),
    )
    for spec, work in specs:
        assert protobuf.decode(spec, model.RunSpec).work == work
    measuring = Measuring(cache="cold", stop="samples", max_sample_count=7, min_duration_s=0.5, when_busy="wait", inputs="zeros")
    assert protobuf.decode(measuring.message(), model.MeasuringOptions) == model.MeasuringOptions(
        cache_mode=model.CacheMode.COLD,
        stopping_criterion=model.StoppingCriterion.SAMPLE_COUNT,
        max_sample_count=7,
        busy_policy=model.BusyPolicy.WAIT,
        input_distribution=model.InputDistribution.ZEROS,
    )
    assert set(get_args(RunState)) == {state.value for state in model.RunState}
    assert choice("cache", "hot", run_pb2.CacheMode, "CACHE_MODE") == "CACHE_MODE_HOT"


def test_importing_the_package_loads_nothing_and_every_name_is_there() -> None:
    program = (
        "import sys, kernalyse",
        "print(sorted({'grpc', 'google', 'numpy', 'polars'} & set(sys.modules)))",
        "[getattr(kernalyse, name) for name in kernalyse.__all__]",
        "print('numpy' in sys.modules)",
    )
    done = subprocess.run([sys.executable, "-c", "; ".join(program)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "False"]
