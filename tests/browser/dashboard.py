"""The three services with a dashboard, and a sweep to watch in it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from kernalyse.channel import open_channel
from kernalyse.services.core.model import Axis, CommandProfile, KernelSelection, KernelSweep, MeasuringOptions, Run, RunSpec
from kernalyse.services.core.protobuf import decode, encode
from kernalyse.trace_upload import OutgoingTrace, TraceUpload
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1.analyzer_service_pb2_grpc import AnalyzerServiceStub
from tests.service_processes import ServiceProcess, ServiceProcesses

CHROMIUM_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_ARGUMENTS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
NODE_TIMEOUT_S: Final = 90.0
MANY_SIZES: Final = tuple(range(65_536, 65_536 + 300 * 1024, 1024))
"""Of a sweep that goes on until it is cancelled."""


def chromium() -> str | None:
    """Path of the machine's Chromium."""
    return next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


@dataclass(frozen=True, slots=True)
class Dashboard:
    ui: ServiceProcess
    opened_urls: Path | None  # what it opened in a browser, a line each; None: it was not asked to
    analyzer_address: str
    stub: Any

    @property
    def url(self) -> str:
        return f"http://{self.ui.address}"

    def start_sweep(
        self, *kernel_names: str, title: str = "", seconds: float = 0.3, sizes: tuple[int, ...] = (65_536, 262_144, 1_048_576)
    ) -> Run:
        """Starts one over N. seconds: of sampling for each configuration."""
        measuring = MeasuringOptions(
            min_duration_ns=int(seconds * 1e9), max_duration_ns=int(seconds * 1e9), target_half_width_ratio=1e-6, skip_verification=True
        )
        sweep = KernelSweep(tuple(KernelSelection(name) for name in kernel_names), axes=(Axis("N", sizes),), measuring=measuring)
        answer = self.stub.StartRun(messages.AnalyzerServiceStartRunRequest(spec=encode(RunSpec(sweep, title=title))))
        return decode(answer.run, Run)

    def import_file(self, path: Path, content: object = None) -> str:
        """The id of the run that it becomes. content: what is written to the file before, as JSON."""
        if content is not None:
            path.write_text(json.dumps(content))
        run_id: str = TraceUpload([OutgoingTrace(path)], lambda _: None).send(self.stub).run.run_id
        return run_id

    def start_profile(self, *arguments: str) -> Run:
        """Starts the command under nsys."""
        spec = RunSpec(CommandProfile(arguments, "nsys"))
        return decode(self.stub.StartRun(messages.AnalyzerServiceStartRunRequest(spec=encode(spec))).run, Run)

    def cancel(self, run_id: str) -> None:
        self.stub.CancelRun(messages.AnalyzerServiceCancelRunRequest(run_id=run_id))

    def delete(self, run_id: str) -> None:
        self.stub.DeleteRun(messages.DeleteRunRequest(run_id=run_id))

    def runs(self) -> list[Run]:
        request = messages.AnalyzerServiceListRunsRequest(page_size=1000)
        return [decode(run, Run) for run in self.stub.ListRuns(request).runs]

    def run(self, run_id: str) -> Run:
        return decode(self.stub.GetRun(messages.AnalyzerServiceGetRunRequest(run_id=run_id)).run, Run)


@contextmanager
def dashboard_of(services: ServiceProcesses, profiler: ServiceProcess, opened_urls: Path | None = None) -> Iterator[Dashboard]:
    """Analyzer and dashboard for a running profiler. opened_urls: with it the dashboard is to open itself in a browser."""
    analyzer = services.start("analyzer")
    ui = services.start("ui", "--analyzer-address", analyzer.address, *([] if opened_urls is None else ["--open"]))
    with open_channel(analyzer.endpoint) as channel:
        stub = AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
        _wait_for_node(stub, profiler)
        yield Dashboard(ui, opened_urls, analyzer.address, stub)


def _wait_for_node(stub: Any, profiler: ServiceProcess) -> None:
    try:
        stub.AddNode(messages.AddNodeRequest(address=profiler.address, token=profiler.token))
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
            raise
    deadline = time.monotonic() + NODE_TIMEOUT_S
    while not any(node.health == messages.NODE_HEALTH_SERVING for node in stub.ListNodes(messages.ListNodesRequest()).nodes):
        assert time.monotonic() < deadline, "the profiler's node does not serve"
        time.sleep(0.05)
