"""A list of operations that is followed, as `python -m roofline_analysis_tool` does it: what changes, and what goes back into files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from kernalyse.channel import open_channel
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1.analyzer_service_pb2_grpc import AnalyzerServiceStub
from services.cli.analyzer_client import AnalyzerClient
from services.cli.following import merged
from services.cli.options import Server
from services.cli.session import endpoint_of
from services.core import wire
from services.core.discovery import find_service
from services.core.model import Ceiling, Hardware, HardwareKey, Thresholds
from services.core.settings import AnalyzerSettings
from tests.unit.test_commands import CONFIG, CONV, MM, MUL, SOUND

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 90.0
DEVICE: Final = "npu"


def eventually(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
    return found


class Tool:
    """The program, and what a test asks of what it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        browser = folder / "browser.sh"
        browser.write_text(f'#!/bin/sh\necho "$1" > {folder}/opened\n')
        browser.chmod(0o755)
        paths = os.pathsep.join(map(str, (ROOT, ROOT / "proto" / "python", ROOT / "services" / "compat")))
        with (folder / "said").open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "roofline_analysis_tool", "--port", "0"],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": paths, "BROWSER": f"{browser} %s"},
                stdout=said,
                stderr=said,
            )

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()

    def url(self) -> str:
        opened = self.folder / "opened"

        def found() -> str:
            assert self.process.poll() is None, self.said
            return opened.read_text().strip() if opened.exists() else ""

        return str(eventually(found))

    def write(self, name: str, content: object) -> None:
        (self.folder / name).write_text(content if isinstance(content, str) else json.dumps(content))

    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "roofline_config.json").read_text())
        return found


@pytest.fixture
def tool(private_folders: Path, tmp_path: Path) -> Iterator[Tool]:
    for name, content in (("commands.json", [CONV, MUL]), ("roofline_config.json", CONFIG | {"mine": "kept"})):
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "op_registry.py").write_text(SOUND)
    started = Tool(tmp_path)
    yield started
    started.process.kill()
    started.process.wait()


def test_auto_reload_and_config_persistence(tool: Tool) -> None:
    url = tool.url()
    run_id = url.partition("runs=")[2].partition("&")[0]
    assert "/roofline?runs=imported-" in url
    assert url.startswith("http://127.0.0.1:")
    running = find_service(AnalyzerSettings.load().announcement_path())
    assert running is not None
    endpoint = endpoint_of(running, Server())
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
        wanted = messages.UpdateHardwareRequest(run_id=run_id, device_id=DEVICE, thresholds=wire.encode(Thresholds(0.4, 0.25)))
        wanted.ceilings.append(wire.encode(Ceiling(DEVICE, "dram", "bytes_per_s", 80e9, "copy", "user")))
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
    assert merged({}, untouched) == {}
    assert merged({"mine": 1}, untouched) == {"mine": 1}
    bandwidth = Ceiling(DEVICE, "dram", "bytes_per_s", 80e9, "copy", "user")
    assert merged({}, Hardware(None, (bandwidth,), Thresholds(), "")) == {"mem_bw": 80}
    assert merged({"mem_bw": 79.9999999999999, "peak_tops": 3}, Hardware(None, (bandwidth,), Thresholds(0.5, 0.3), "")) == {
        "mem_bw": 79.9999999999999,
        "comp_thresh": 30,
    }
