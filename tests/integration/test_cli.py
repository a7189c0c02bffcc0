"""The command `kernalyse` as a user runs it: real services, real kernels, real exit statuses."""

from __future__ import annotations

import ctypes.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import polars as pl
import psutil
import pytest

from kernalyse.services.cli.options import Server
from kernalyse.services.cli.session import analyzer_session
from kernalyse.services.core.errors import StoreLockedError
from tests.command import kernalyse
from tests.integration.analyzer_under_test import running_analyzer
from tests.service_processes import ServiceProcess, free_port
from tests.unit.analyzer.readers.test_commands import CONFIG, MM
from tests.unit.analyzer.readers.test_kineto import call
from tests.unit.analyzer.readers.test_kineto import kernel as kernel_event

QUICK = ("--max-time", "0.2", "--samples", "50")
COMMAND = (sys.executable, "-m", "kernalyse.services.cli.main")


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.05)


def own_processes(directory: Path) -> list[psutil.Process]:
    """Every process that carries this test's private directory in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("XDG_DATA_HOME") == str(directory / "data"):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind(private_directories: Path) -> Iterator[None]:
    yield
    left = own_processes(private_directories)
    names = [" ".join(process.cmdline()) for process in left]
    for process in left:
        process.kill()
    assert not names


@pytest.mark.slow
def test_bench_needs_no_service_show_reads_what_it_stored_and_a_second_one_repeats_nothing(
    private_directories: Path, tmp_path: Path
) -> None:
    done = kernalyse("bench", "saxpy", "-p", "N=1024,2**12", *QUICK, "--json", tmp_path / "results.json", "--title", "first")
    assert done.returncode == 0, done.stderr
    for text in ("saxpy", "N=1024", "N=4096", "passed", "memory"):
        assert text in done.stdout
    assert own_processes(private_directories) == []

    results = json.loads((tmp_path / "results.json").read_text())
    assert [row["label"] for row in results["measurements"]] == ["saxpy N=1024", "saxpy N=4096"]
    assert all(row["sample_count"] >= 10 for row in results["measurements"])
    assert results["failures"] == []
    assert results["run"]["title"] == "first"
    assert results["run"]["run_id"] in done.stderr

    shown = kernalyse("show", "last", "measurements", "samples", "kernels", "roofline", "--format", "json")
    tables = json.loads(shown.stdout)
    assert list(tables) == ["measurements", "samples", "kernels", "roofline"]
    assert tables["measurements"] == results["measurements"]
    assert len(tables["samples"]) == sum(row["sample_count"] for row in results["measurements"])
    assert tables["kernels"][0]["configuration_count"] == 2

    assert kernalyse("bench", "saxpy", "-p", "N=512", *QUICK).returncode == 0
    with running_analyzer():
        second, first = json.loads(kernalyse("runs", "--json").stdout)
        assert (second["state"], first["state"]) == ("SUCCEEDED", "SUCCEEDED")
        assert second["node_id"] == first["node_id"]
        assert first["hostname"] == socket.gethostname()  # no profiler is running that could be asked
        of_second = json.loads(kernalyse("show", second["run_id"][:-2], "samples", "measurements", "--format", "json").stdout)
        assert [len(of_second["samples"])] == [row["sample_count"] for row in of_second["measurements"]]
        kernalyse("show", first["run_id"], "samples", "roofline", "--format", "parquet", "-o", tmp_path / "tables")
        csv = kernalyse("show", first["run_id"], "--format", "csv").stdout
    assert pl.read_parquet(tmp_path / "tables" / "samples.parquet").height == len(tables["samples"])
    assert pl.read_csv(BytesIO(csv.encode()))["label"].to_list() == ["saxpy N=1024", "saxpy N=4096"]


def test_a_command_that_only_reads_has_its_analyzer_in_a_thread_that_ends_with_it(private_directories: Path) -> None:
    with analyzer_session(Server(), with_profiler=False) as client:
        assert client.runs(5) == ()
        assert own_processes(private_directories) == []
        with pytest.raises(StoreLockedError, match="in use by process"), analyzer_session(Server(), with_profiler=False):
            pass
        assert client.runs(5) == ()
    assert not [thread for thread in threading.enumerate() if thread.name == "own analyzer"]


def test_listing_runs_loads_no_analysis_and_says_nothing_but_them() -> None:
    program = (
        "import sys\nfrom kernalyse.services.cli.main import app\n"
        "app(['runs'], standalone_mode=False)\n"
        "analyses = {f'kernalyse.services.analyzer.{name}' for name in ('queries.run_tables', 'analysis.comparison')}\n"
        "print(sorted({'numba', 'llvmlite', *analyses} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines(), done.stderr) == (["No runs yet. Start one: kernalyse bench saxpy", "[]"], "")


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a CUDA driver, so a device too")
def test_bench_on_a_backend_without_a_device_says_what_that_backend_lacks(server: tuple[str, ...]) -> None:
    done = kernalyse("bench", "saxpy", "-p", "N=1024", "--backend", "nvcc", *server)
    assert done.returncode == 1
    for words in ("backend nvcc: found no device for it on this node", "backend NVCC: ", "NVIDIA's driver cannot be loaded"):
        assert words in done.stderr
    assert "PYCUDA" not in done.stderr


@pytest.mark.slow
def test_up_runs_all_services_restarts_what_dies_and_leaves_nothing(private_directories: Path) -> None:
    with subprocess.Popen([*COMMAND, "up", "--port", "0"], stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        announced: list[str] = []
        while not any("Dashboard:" in line for line in announced):
            line = up.stdout.readline()
            assert line, f"up ended: {announced}"
            announced.append(line)
        url = announced[-1].split()[-1]
        assert url.startswith("http://127.0.0.1:")
        assert "?token=" in url

        second = kernalyse("up")
        assert second.returncode == 0
        assert url in second.stdout

        devices = json.loads(kernalyse("devices", "--json").stdout)
        assert devices
        assert all(device["health"] == "SERVING" for device in devices)

        announcement = private_directories / "run" / "kernalyse" / "profiler.json"
        first_profiler = json.loads(announcement.read_text())
        os.kill(first_profiler["process_id"], signal.SIGKILL)
        wait_for(lambda: json.loads(announcement.read_text())["process_id"] != first_profiler["process_id"], "the profiler's restart")
        assert json.loads(announcement.read_text())["address"] == first_profiler["address"]
        assert "The profiler was ended by SIGKILL; starting it again" in up.stdout.readline() + up.stdout.readline() + up.stdout.readline()
        wait_for(lambda: kernalyse("bench", "saxpy", "-p", "N=1024", *QUICK).returncode == 0, "a run on the new profiler")

        up.terminate()
        assert up.wait(60) == 0
    assert own_processes(private_directories) == []
    assert kernalyse("up", "--port", "notaport").returncode == 2


@pytest.mark.slow
def test_a_directory_named_services_where_the_user_stands_breaks_nothing(tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "__init__.py").write_text("raise RuntimeError('not the services of kernalyse')\n")
    (tmp_path / "trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [call(10, 1), kernel_event("gemm", 20, 5, 1)]}))
    (tmp_path / "commands.json").write_text(json.dumps([MM]))
    (tmp_path / "roofline_config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "op_registry.py").write_text("import sizes\n\ndef get_custom_metrics(cmd, dt_size):\n    return sizes.MACS, 10, 'cross'\n")
    (tmp_path / "sizes.py").write_text("MACS = 123\n")
    for arguments, expected in (
        (("devices",), "SERVING"),
        (("report", "trace.json", "--format", "html", "-o", "report.html"), ""),
        (("show", "commands.json", "roofline", "--op-registry", ".", "--format", "json"), '"cross"'),
    ):
        command = [sys.executable, "-P", "-m", "kernalyse.services.cli.main", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
    assert "gemm" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_the_services_end_when_up_is_killed(private_directories: Path) -> None:
    with subprocess.Popen([*COMMAND, "up", "--port", "0"], stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        while "Dashboard:" not in (line := up.stdout.readline()):
            assert line, "up ended"
        assert len(own_processes(private_directories)) >= 4
        up.kill()
    wait_for(lambda: own_processes(private_directories) == [], "the services' end")


@pytest.mark.slow
def test_up_says_which_port_is_taken_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("KERNALYSE_ANALYZER_ADDRESS", f"127.0.0.1:{other.getsockname()[1]}")
        monkeypatch.setenv("KERNALYSE_PROFILER_ADDRESS", "127.0.0.1:0")
        done = kernalyse("up", "--port", str(free_port()))
    assert done.returncode == 1
    assert f"listen address 127.0.0.1:{other.getsockname()[1] if other.fileno() != -1 else ''}" in done.stderr
    assert "--port 0" in done.stderr
    assert "Traceback" not in done.stderr


BROKEN = """extern "C" __global__ void broken(int N, float* x) {
    x[0] = undeclared_name;
}
"""

DOUBLING = """extern "C" __global__ void doubling(int N, float factor, const float* a, float* b) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) b[i] = factor * a[i];
}
"""


@pytest.mark.slow
def test_bad_requests_end_with_status_1_and_say_why(server: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "broken.cu").write_text(BROKEN)
    for arguments, message in (
        (("no_such_kernel",), "kernel no_such_kernel"),
        (("saxpy", "-p", "N=0"), "found 0; expected at least 1"),
        (("saxpy", "-p", "Q=1"), "axis Q"),
        (("matmul_naive", "-p", "M=1..300:1", "-p", "N=1..300:1", "-p", "K=1..300:1"), "27000000 configurations"),
        (("saxpy", "--where", "N > 10**12"), "none of"),
        (("saxpy", "--where", "N >"), "expression 'N >'"),
        (("saxpy", "--device", "cuda:99"), "cuda:99"),
        (("matmul_naive", "--block", "99999x1"), "99999"),
        ((f"{tmp_path}/broken.cu:broken", "-p", "N=16"), "undeclared_name"),
    ):
        done = kernalyse("bench", *arguments, *QUICK, *server)
        assert done.returncode == 1, (arguments, done)
        assert message in " ".join((done.stderr + done.stdout).split()), (arguments, done)
        assert "Traceback" not in done.stderr
    assert kernalyse("bench", "saxpy", "-p", "N=64", *QUICK, *server).returncode == 0  # still up


@pytest.mark.slow
def test_a_kernel_of_ones_own_is_described_on_the_command_line(server: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "own.cu").write_text(DOUBLING)
    kernel = f"{tmp_path}/own.cu:doubling"
    assumed = kernalyse("bench", kernel, "-p", "N=256,512", *QUICK, *server)
    assert assumed.returncode == 0, assumed.stderr
    assert "a, b: taken to have N elements" in assumed.stderr
    assert "factor: taken to be 1.0" in assumed.stderr

    said = kernalyse(
        "bench", kernel, "-p", "N=512", "--buffer", "a=N", "--buffer", "b=N", "--arg", "factor=3.0", "--flop", "N", "--bytes", "8*N",
        "--block", "64", "--json", "-", *QUICK, *server,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert "taken to have" not in said.stderr
    results = json.loads(said.stdout)
    assert (results["measurements"][0]["flop"], results["measurements"][0]["bytes"]) == (512.0, 4096.0)
    assert results["roofline"][0]["achieved_flop_per_s"] > 0

    unused = kernalyse("bench", kernel, "-p", "N=512", "--buffer", "c=N", *server)
    assert (unused.returncode, "--buffer c" in unused.stderr) == (2, True)


@pytest.mark.slow
def test_a_kernel_of_ones_own_is_described_by_a_file(server: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "own.cu").write_text(DOUBLING)
    (tmp_path / "own.toml").write_text(
        '[doubling]\nsource = "own.cu"\nparameters = { N = [128, 256] }\nblock = [64]\ngrid = ["ceil_div(N, block_x)"]\nflop = "N"\n'
        'bytes = "8*N"\narguments = { factor = "2.0" }\n[doubling.buffers]\na = { shape = ["N"], role = "INPUT" }\n'
        'b = { shape = ["N"], role = "OUTPUT" }\n'
    )
    for kernel in ("doubling", f"{tmp_path}/own.cu:doubling"):
        done = kernalyse("bench", kernel, "--definition", tmp_path / "own.toml", "--json", "-", *QUICK, *server)
        assert done.returncode == 0, done.stderr
        assert [row["label"] for row in json.loads(done.stdout)["measurements"]] == ["doubling N=128", "doubling N=256"]


@pytest.mark.slow
def test_ctrl_c_cancels_the_run_and_keeps_what_was_measured(server: tuple[str, ...]) -> None:
    command = [*COMMAND, "bench", "saxpy", "-p", "N=1024..9024:1", "--max-time", "0.1", *server]
    before_count = len(listed(server))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        wait_for(lambda: len(listed(server)) > before_count, "the run")
        wait_for(lambda: bool(listed(server)[0]["completed_configuration_count"]), "the first measurement")
        bench.send_signal(signal.SIGINT)
        stdout, stderr = bench.communicate(timeout=90)
    assert bench.returncode == 1
    assert "Cancelling run" in stderr
    assert "cancelled" in stderr
    assert "saxpy" in stdout
    run = listed(server)[0]
    assert run["state"] == "CANCELLED"
    assert kernalyse("cancel", "last", *server).stdout.split() == [run["run_id"], "CANCELLED"]


def test_tags_and_notes_are_listed_and_a_deleted_run_is_gone(server: tuple[str, ...]) -> None:
    done = kernalyse("bench", "saxpy", "-p", "N=1024", *QUICK, *server)
    assert done.returncode == 0, done.stderr
    run_id = listed(server)[0]["run_id"]
    assert kernalyse("annotate", "last", *server).returncode == 2
    tagged = kernalyse("annotate", "last", "--tag", "nightly", "--tag", "L2 off", "--notes", "before the change", *server)
    assert tagged.stdout == f"{run_id} nightly, L2 off\n"
    assert kernalyse("annotate", "last", "--notes", "after it", *server).stdout == tagged.stdout
    assert (listed(server)[0]["tags"], listed(server)[0]["notes"]) == (["nightly", "L2 off"], "after it")
    assert "nightly, L2 off" in kernalyse("runs", *server).stdout

    asked = kernalyse("delete", "last", *server)
    assert asked.returncode == 2
    assert f"expected --yes. It would delete {run_id} (saxpy)" in asked.stderr
    assert kernalyse("delete", "last", "--yes", *server).stdout == f"{run_id} deleted\n"
    assert run_id not in [run["run_id"] for run in listed(server)]
    assert f"{run_id!r}" in kernalyse("show", str(run_id), *server).stderr


@pytest.mark.slow
@pytest.mark.parametrize("service", ["analyzer", "profiler"])
def test_a_command_does_not_wait_for_a_service_of_its_own_that_is_gone(private_directories: Path, service: str) -> None:
    command = [*COMMAND, "bench", "saxpy", "-p", "N=1024..9024:1", "--max-time", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        wait_for(lambda: bool(descendants(bench, "kernalyse.services.profiler.worker")), "the run's worker")
        descendants(bench, f"kernalyse.services.cli.main {service}")[0].send_signal(signal.SIGKILL)
        try:
            _, stderr = bench.communicate(timeout=60)
        finally:
            bench.kill()
    assert bench.returncode == 1
    assert f"service {service} of this command: found it was ended by SIGKILL" in stderr
    assert "kernalyse resume last" in stderr


def descendants(process: subprocess.Popen[str], name: str) -> list[psutil.Process]:
    """Those with a name in their command line; ended ones have none."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a zombie too
            found += [child] if name in " ".join(child.cmdline()) else []
    return found


def listed(server: tuple[str, ...]) -> list[dict[str, object]]:
    runs: list[dict[str, object]] = json.loads(kernalyse("runs", "--json", *server).stdout)
    return runs


def test_a_wrong_token_and_a_dead_server_are_told_apart(analyzer_process: ServiceProcess, private_directories: Path) -> None:
    wrong = kernalyse("runs", "--server", analyzer_process.address, "--token", "wrong")
    assert wrong.returncode == 1
    assert "a token that is not known here" in wrong.stderr
    missing = kernalyse("runs", "--server", analyzer_process.address, "--token-file", private_directories / "nothing")
    assert missing.returncode == 1
    assert "No such file" in missing.stderr
    assert kernalyse("show", "no-such-run", "--server", analyzer_process.address, "--token", analyzer_process.token).returncode == 1


@pytest.mark.slow
def test_nodes_are_added_listed_and_removed(profiler: ServiceProcess, analyzer_process: ServiceProcess, private_directories: Path) -> None:
    token_file = private_directories / "config" / "kernalyse" / "token"
    server = ("--server", analyzer_process.address, "--token-file", str(token_file))
    assert kernalyse("nodes", "add", profiler.address, "--node-token-file", token_file, *server).returncode == 0
    wait_for(lambda: "SERVING" in kernalyse("nodes", "list", *server).stdout, "the node to serve")
    again = kernalyse("nodes", "add", profiler.address, "--node-token-file", token_file, *server)
    assert again.returncode == 1
    assert "collected from" in again.stderr
    assert kernalyse("nodes", "remove", profiler.address, *server).returncode == 0
    assert json.loads(kernalyse("nodes", "list", "--json", *server).stdout) == []
    assert kernalyse("nodes", "remove", profiler.address, *server).returncode == 1


def test_doctor_tells_what_is_there_and_the_remedy_for_what_is_not() -> None:
    checks = {check["name"]: check for check in json.loads(kernalyse("doctor", "--json").stdout)}
    assert {"NVIDIA GPU and driver", "CUDA toolkit (nvcc)", "PyCUDA", "OpenCL devices", "GPU performance counters"} <= checks.keys()
    assert all(check["remedy"] for check in checks.values() if check["state"] == "missing")
    assert "opencl:" in checks["OpenCL devices"]["found"]
