"""A list of operations that is followed, as `python -m roofline_analysis_tool` does it: what changes, and what goes back into files."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest

from kernalyse.channel import open_channel
from kernalyse.services.cli.analyzer_client import AnalyzerClient
from kernalyse.services.cli.follow import OperationListFollower, merge_config
from kernalyse.services.cli.options import Server
from kernalyse.services.cli.session import service_endpoint
from kernalyse.services.core import protobuf
from kernalyse.services.core.model import Ceiling, Hardware, HardwareKey, Thresholds
from kernalyse.services.core.settings import AnalyzerSettings, UiSettings, find_service
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1.analyzer_service_pb2_grpc import AnalyzerServiceStub
from tests.service_processes import free_port
from tests.unit.analyzer.readers.test_commands import CONFIG, CONV, MM, MUL, SOUND
from tests.unit.compat.test_model_dashboards import PROFILE

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PATIENCE_S: Final = 90.0
DEVICE: Final = "npu"


def eventually(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
    return found


def environment() -> dict[str, str]:
    """In which the modules are found as they are here, and not as they were installed."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "proto" / "python", ROOT / "compat")))}


class Tool:
    """The program, and what a test asks of what it started. arguments: those of `kernalyse follow`."""

    def __init__(self, directory: Path, *arguments: str, module: str = "roofline_analysis_tool") -> None:
        self.directory = directory
        browser = directory / "browser.sh"
        browser.write_text(f'#!/bin/sh\necho "$1" > {directory}/opened\n')
        browser.chmod(0o755)
        with (directory / "said").open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=directory,
                env=environment() | {"BROWSER": f"{browser} %s"},
                stdout=said,
                stderr=said,
            )

    @property
    def said(self) -> str:
        return (self.directory / "said").read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def url(self) -> str:
        opened = self.directory / "opened"

        def found() -> str:
            assert self.process.poll() is None, self.said
            return opened.read_text().strip() if opened.exists() else ""

        return str(eventually(found))

    def write(self, name: str, content: object) -> None:
        (self.directory / name).write_text(content if isinstance(content, str) else json.dumps(content))

    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "roofline_config.json").read_text())
        return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a list, its configuration and a registry."""
    for name, content in (("commands.json", [CONV, MUL]), ("roofline_config.json", CONFIG | {"mine": "kept"})):
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "op_registry.py").write_text(SOUND)
    return tmp_path


@pytest.fixture
def tool(private_directories: Path, directory: Path) -> Iterator[Tool]:
    with Tool(directory, "--port", "0") as started:
        yield started


@pytest.mark.slow
def test_auto_reload_and_config_persistence(tool: Tool) -> None:
    url = tool.url()
    run_id = url.partition("runs=")[2].partition("&")[0]
    assert "/roofline?runs=imported-" in url
    assert url.startswith("http://127.0.0.1:")
    running = find_service(AnalyzerSettings.load().announcement_path())
    assert running is not None
    endpoint = service_endpoint(running, Server())
    with AnalyzerClient(endpoint) as client, open_channel(endpoint) as channel:
        stub = AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]

        def symbols() -> dict[str, str]:
            return dict(client.table("roofline", [run_id]).select("label", "symbol").iter_rows())

        assert symbols() == {"#1 ID_CONV": "square", "#2 ID_MUL": "x"}

        # The list and the registry: in the same run, for links to it hold.
        tool.write("commands.json", [CONV, MUL, MM])
        eventually(lambda: symbols() == {"#1 ID_CONV": "square", "#2 ID_MUL": "x", "#3 ID_MM": "circle"})
        tool.write("op_registry.py", SOUND.replace('"x"', '"diamond"'))
        eventually(lambda: symbols()["#2 ID_MUL"] == "diamond")

        # What is set on a page goes into the file; what nobody set stays as it stands there.
        wanted = messages.UpdateHardwareRequest(run_id=run_id, device_id=DEVICE, thresholds=protobuf.encode(Thresholds(0.4, 0.25)))
        wanted.ceilings.append(protobuf.encode(Ceiling(DEVICE, "dram", "bytes_per_s", 80e9, "copy", "user")))
        stub.UpdateHardware(wanted)
        eventually(lambda: tool.config() == {"mem_bw": 80, "mem_thresh": 40, "comp_thresh": 25, "mine": "kept"})

        # What is written into the file holds on the pages, and what was set there before does not.
        tool.write("roofline_config.json", CONFIG | {"mem_bw": 70})
        key = HardwareKey("", DEVICE, run_id)
        eventually(lambda: client.hardware(key).thresholds == Thresholds(0.4, 0.6))
        assert {ceiling.value for ceiling in client.hardware(key).ceilings if ceiling.unit == "bytes_per_s"} == {70e9}
        assert tool.config() == CONFIG | {"mem_bw": 70}

        # A file that is broken is told of; what was read before stays.
        tool.write("commands.json", "[{")
        eventually(lambda: "The page shows what was read before" in tool.said)
        assert len(symbols()) == 3
        assert len([run for run in client.runs(10) if run.is_imported]) == 1
    tool.process.send_signal(signal.SIGINT)
    assert tool.process.wait(60) == 0
    assert find_service(AnalyzerSettings.load().announcement_path()) is None


def test_only_what_was_set_is_written() -> None:
    untouched = Hardware(None, (), Thresholds(), "")
    assert merge_config({}, untouched) == {}
    assert merge_config({"mine": 1}, untouched) == {"mine": 1}
    bandwidth = Ceiling(DEVICE, "dram", "bytes_per_s", 80e9, "copy", "user")
    assert merge_config({}, Hardware(None, (bandwidth,), Thresholds(), "")) == {"mem_bw": 80}
    assert merge_config({"mem_bw": 79.9999999999999, "peak_tops": 3}, Hardware(None, (bandwidth,), Thresholds(0.5, 0.3), "")) == {
        "mem_bw": 79.9999999999999,
        "comp_thresh": 30,
    }


@pytest.fixture
def services_that_run(private_directories: Path) -> Iterator[None]:
    """As `make run` has started them."""
    command = [sys.executable, "-m", "kernalyse.services.cli.main", "up", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as up:
        eventually(lambda: find_service(UiSettings.load().announcement_path()))
        yield
        up.terminate()


def is_served(url: str) -> bool:
    """Whether the page comes, which asks for a cookie once it has the token."""
    with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(url) as answer:
        return bool(answer.status == 200)


@pytest.mark.slow
def test_beside_services_that_run_the_tool_has_its_own_port_and_runs_the_registry_of_its_directory(
    services_that_run: None, directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    port, running = free_port(), find_service(UiSettings.load().announcement_path())
    analyzer = find_service(AnalyzerSettings.load().announcement_path())
    assert running is not None
    assert analyzer is not None
    with Tool(directory, "--port", str(port)) as tool:
        url = tool.url()
        assert url.startswith(f"http://127.0.0.1:{port}/roofline?runs=")
        assert is_served(url)
        run_id = url.partition("runs=")[2].partition("&")[0]
        with AnalyzerClient(service_endpoint(analyzer, Server())) as client:  # in the store that is there, with what the registry says
            assert dict(client.table("roofline", [run_id]).select("label", "symbol").iter_rows())["#2 ID_MUL"] == "x"
        assert find_service(UiSettings.load().announcement_path()) == running

        beside = tmp_path_factory.mktemp("beside")
        (beside / "commands.json").write_text(json.dumps([MM]))
        with Tool(beside, "--port", str(port)) as second:  # the port is taken now
            assert second.url().startswith(f"http://{running.address}/roofline")
            assert f"Port {port} is in use by another program; the page is on {running.address}." in second.said

        tool.process.send_signal(signal.SIGINT)
        assert tool.process.wait(60) == 0
    with pytest.raises(OSError, match="refused"):
        is_served(url)
    assert find_service(UiSettings.load().announcement_path()) == running


@pytest.mark.slow
def test_without_services_a_port_that_is_taken_leaves_the_tool_another_one(private_directories: Path, directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with Tool(directory, "--port", str(port)) as tool:
            assert not tool.url().startswith(f"http://127.0.0.1:{port}/")
            assert f"Port {port} is in use by another program; the page is on 127.0.0.1:" in tool.said
            assert is_served(tool.url())
            tool.process.send_signal(signal.SIGINT)
            assert tool.process.wait(60) == 0


def test_what_has_no_place_is_told_with_the_reason_at_every_reading(analyzer_that_runs: None, tmp_path: Path) -> None:
    path, said = tmp_path / "commands.json", list[str]()
    unknown = {"type": "ID_WHAT", "data_type": "INT8", "time_ns": 5}
    path.write_text(json.dumps([MUL, MUL | {"data_type": "INT3"}, unknown]))
    running = find_service(AnalyzerSettings.load().announcement_path())
    assert running is not None
    with AnalyzerClient(service_endpoint(running, Server())) as client:
        followed = OperationListFollower(client, path, None, said.append)
        followed.read()
        assert "commands.json read: 3 operations" in said[0]
        assert "operation 1 (#2, ID_MUL): data type INT3: the bytes of a number are not known" in said[1]
        assert "Type ID_WHAT (1): neither a formula nor a registry of operations knows its work" in said[2]
        said.clear()
        path.write_text(json.dumps([MM | {"input_mat2": None}] * 12))
        run = followed.read()
        assert sum("input_mat2: found null" in line for line in said) == 10
        assert said[-1] == f"  And 2 more: kernalyse show {run.run_id} log_lines --filter level=WARNING"
        said.clear()
        path.write_text(json.dumps([MUL | {"data_type": "INT4"}]))
        followed.read()
        assert len(said) == 1


@pytest.mark.parametrize(
    ("module", "file_name"), [("roofline_analysis_tool", "commands.json"), ("kernel_benchmark_visualizer", "kernel_benchmarks.json")]
)
def test_the_help_of_a_module_has_its_own_name_file_and_port(module: str, file_name: str, tmp_path: Path) -> None:
    with Tool(tmp_path, "--help", module=module) as tool:
        assert tool.process.wait(60) == 0
        said = " ".join(tool.said.replace("│", " ").split())
    assert f"Usage: python -m {module} [OPTIONS] [FILE]" in said
    assert f"[default: {file_name}]" in said
    assert "[default: 8050]" in said
    assert "follow [OPTIONS]" not in said


@pytest.mark.slow
def test_a_list_of_kernels_is_shown_by_the_module_of_its_name(analyzer_that_runs: None, tmp_path: Path) -> None:
    row = {"batch_size": 8, "dtype": "float16", "model": "bert", "arithmetic_intensity": 12.0, "performance": 3.5}
    (tmp_path / "kernel_benchmarks.json").write_text(json.dumps([{"kernel": name} | row for name in ("gemm", "softmax")]))
    (tmp_path / "roofline_config.json").write_text(json.dumps({"peak_tops": 20, "mem_bw": 900}))
    port, analyzer = free_port(), find_service(AnalyzerSettings.load().announcement_path())
    assert analyzer is not None
    with Tool(tmp_path, "--port", str(port), module="kernel_benchmark_visualizer") as tool:
        url = tool.url()
        assert url.startswith(f"http://127.0.0.1:{port}/roofline?runs=")
        with AnalyzerClient(service_endpoint(analyzer, Server())) as client:
            points = client.table("roofline", [url.partition("runs=")[2].partition("&")[0]])
        assert points.select("kernel_name", "achieved_flop_per_s").rows() == [("gemm", 3.5e12), ("softmax", 3.5e12)]
        assert points["efficiency_ratio"].to_list() == pytest.approx([3.5 / (12 * 0.9)] * 2)
        (tmp_path / "kernel_benchmarks.json").write_text("[{")
        eventually(lambda: "The page shows what was read before" in tool.said)


@pytest.mark.skipif(not DOCS.is_dir(), reason="needs the checkout")
def test_every_module_under_another_name_is_there() -> None:
    page = (DOCS / "other_names.md").read_text()
    names = set(re.findall(r"`(?:python -m|import) ([\w.]+)`", page)) - {"plotly"}
    assert {"roofline_analysis_tool", "kernel_benchmark_visualizer", "visualize", "interface.cli.main"} <= names
    for name in names:
        assert (ROOT / "compat" / f"{name.replace('.', '/')}.py").is_file(), name
    assert "pip install plotly" in page


@pytest.mark.slow
@pytest.mark.skipif(not DOCS.is_dir(), reason="needs the checkout")
def test_the_data_of_a_dashboard_can_be_drawn_as_the_page_on_models_says(tmp_path: Path) -> None:
    section = (DOCS / "models.md").read_text().partition("### Drawing the data yourself")[2]
    (tmp_path / "profiling_results").mkdir()
    (tmp_path / "profiling_results" / "profiling_data.json").write_text(json.dumps(PROFILE))
    script = section.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p99.png").stat().st_size > 1000
