"""Running services for hostile requests: what they hold, what valid requests to them look like, and whether they grow.

Runs of the profiler go to a stand-in: whatever a request says, no program and no kernel of it is executed.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import psutil
from google.protobuf.message import Message

from kernalyse import Client
from kernalyse.bundle import pack
from kernalyse.channel import Endpoint
from kernalyse.services.analyzer.tables.runs import TABLES
from kernalyse.services.core import protobuf
from kernalyse.services.core.model import (
    CeilingMeasurement,
    CommandProfile,
    DeviceCheck,
    Filter,
    FilterOperator,
    ImportedTrace,
    KernelSelection,
    KernelSource,
    KernelSweep,
    ModelRun,
    RunSpec,
    SortKey,
    TableQuery,
)
from kernalyse.v1 import analyzer_service_pb2 as analyzer
from kernalyse.v1 import device_pb2
from kernalyse.v1 import profiler_service_pb2 as profiler
from tests.fuzzing.kineto import WRITTEN_EVENTS
from tests.integration.profiler_node import STAND_IN_DEVICE_ID, ProfilerNode, behaving, quick_sweep
from tests.integration.test_importing import CONTENT
from tests.service_processes import ServiceProcess, ServiceProcesses

LOOK_EVERY: Final = 50
MAX_GROWTH_BYTES: Final = 10_000
"""A case, over the second half of at least MIN_SLOPE_CASES. In the first one libraries are loaded, caches fill, and each thread's arena of
malloc grows to the largest case: an analyzer comes to 480 MiB in its first 6,000 cases and stays there for the next 17,000."""

MIN_SLOPE_CASES: Final = 2_000
MAX_MORE_FILES, MAX_MORE_THREADS = 64, 48
IDLE_S: Final = 15.0
"""Before the last look: the threads in which polars and gRPC wait for files and connections end after ten seconds."""

SETTINGS: Final[dict[str, Any]] = {
    "run_time_limit_s": 5.0,
    "max_queued_run_count": 20,
    "configuration_time_limit_s": 3.0,
    "bundles_max_bytes": 2**24,
}
SOURCE: Final = 'extern "C" __global__ void own(int N, const float* a, float* b) { int i = threadIdx.x; if (i < N) b[i] = a[i]; }'
TRACE: Final = json.dumps({"schemaVersion": 1, "traceEvents": WRITTEN_EVENTS}).encode()


@dataclass(slots=True)
class Fuzzed:
    """A running service. ids: of real runs, nodes, digests and uploads; kept: those that no case may delete; seeds: valid requests by
    method, each as the messages of its stream.
    """

    name: str
    endpoint: Endpoint
    process_id: int
    log_path: Path
    ids: Sequence[str]
    kept: Sequence[str]
    seeds: dict[str, list[list[Message]]] = field(default_factory=dict)
    reports: list[tuple[int, int, int, int]] = field(default_factory=list)
    case_count: int = 0
    read_log_bytes: int = 0

    def new_log(self) -> str:
        """What the service has written since the last look."""
        with self.log_path.open("rb") as log:
            log.seek(self.read_log_bytes)
            text = log.read()
        self.read_log_bytes += len(text)
        return text.decode(errors="replace")

    def look(self) -> None:
        """Note memory, files and threads now and then."""
        self.case_count += 1
        if self.case_count % LOOK_EVERY == 0:
            self._note()

    def _note(self) -> None:
        process = psutil.Process(self.process_id)
        self.reports.append((self.case_count, process.memory_info().rss, process.num_fds(), process.num_threads()))

    def growth(self) -> str:
        """A line on what has grown. Raises AssertionError: too much."""
        late = self.reports[len(self.reports) // 2 :]
        if len(late) < 3:
            return f"{self.name}: {self.case_count} cases, too few to see growth"
        time.sleep(IDLE_S)
        self._note()
        late.append(self.reports[-1])
        cases, memory, files, threads = zip(*late, strict=True)
        slope = statistics.linear_regression(cases, memory).slope
        text = (
            f"{self.name}: {self.case_count} cases; memory {memory[0] / 2**20:.0f} to {memory[-1] / 2**20:.0f} MiB, "
            f"{slope / 1024:+.2f} KiB a case; files {files[0]} to {files[-1]}; threads {threads[0]} to {threads[-1]}"
        )
        assert files[-1] <= files[0] + MAX_MORE_FILES, text
        assert threads[-1] <= threads[0] + MAX_MORE_THREADS, text
        assert cases[-1] - cases[0] < MIN_SLOPE_CASES or slope < MAX_GROWTH_BYTES, text
        return text


@contextmanager
def fuzzed_services(directory: Path) -> Iterator[dict[str, Fuzzed]]:
    """All three with a sweep, imports of results and a trace, and a bundle; fails where a process is left at the end."""
    services = ServiceProcesses(directory)
    (directory / "node").mkdir()
    node = ProfilerNode(directory / "node", stand_in=True, **SETTINGS)
    try:
        node.start()
        assert node.process is not None
        analyzer_process = services.start("analyzer")
        ids, kept = prepared(analyzer_process.endpoint, node)
        ui = services.start("ui", "--analyzer-address", analyzer_process.address)
        yield {
            "profiler": Fuzzed("profiler", node.endpoint, node.process.pid, directory / "node" / "log", ids, kept, profiler_seeds(ids[0])),
            "analyzer": _fuzzed(analyzer_process, ids, kept, analyzer_seeds(ids)),
            "ui": _fuzzed(ui, ids, kept, {}),
        }
    finally:
        is_alive = node.process is not None and node.process.poll() is None
        below = psutil.Process(node.process.pid).children(recursive=True) if node.process is not None and is_alive else []
        services.stop_all()
        node.close()
        _, left = psutil.wait_procs(below, timeout=10)
        assert not left, f"processes left behind: {left}"


def _fuzzed(process: ServiceProcess, ids: list[str], kept: list[str], seeds: dict[str, list[list[Message]]]) -> Fuzzed:
    return Fuzzed(process.name, process.endpoint, process.process.pid, process.log_path, ids, kept, seeds)


def prepared(endpoint: Endpoint, node: ProfilerNode) -> tuple[list[str], list[str]]:
    """Fill the analyzer, and return ids, of a sweep first and imports next, and those that are to stay."""
    with Client(endpoint) as client, tempfile.TemporaryDirectory() as scratch:
        client.add_node(node.endpoint)
        started = client.start_run(analyzer.AnalyzerServiceStartRunRequest(spec=protobuf.encode(behaving("succeed"))))
        runs = [started.run_id]
        for name, content in (("a.json", CONTENT), ("b.json", CONTENT + b" "), ("trace.json", TRACE)):
            path = Path(scratch) / name
            path.write_bytes(content)
            runs.append(client.import_trace(path).run.run_id)
        digest = client.send_bundle(bundle())
        client.wait(runs[0])
        nodes = [status.node.node_id for status in client.nodes()]
    return [*runs, *nodes, node.endpoint.address, digest, "upload-1", "upload-2", STAND_IN_DEVICE_ID], [*runs, node.endpoint.address]


def bundle() -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "own.h"
        path.write_text("// none\n" * 1000)
        return pack({"own.h": path, "sub/own.h": path})


# ---------------------------------------------------------------- valid requests


def specs(digest: str) -> list[RunSpec]:
    own = KernelSelection("own", KernelSource("own.cu", SOURCE), bundle_digest=digest)
    work = (
        quick_sweep().work,
        KernelSweep((own,), device_id=STAND_IN_DEVICE_ID),
        CommandProfile(("/bin/true", "-x"), "nsys", bundle_digest=digest),
        ModelRun("gpt-nano", ("baseline", "fused"), batch_size=1),
        ModelRun("bert-tiny", prompt="a b c"),
        CeilingMeasurement(),
        DeviceCheck(),
        ImportedTrace("a.json", "sha256:" + "0" * 64, "nvbench"),
    )
    return [behaving("succeed"), *(RunSpec(one, title="succeed") for one in work)]


def profiler_seeds(run_id: str) -> dict[str, list[list[Message]]]:
    digest = f"sha256:{sha256(bundle()).hexdigest()}"
    source = protobuf.encode(KernelSource("own.cu", SOURCE))
    single: dict[str, list[Any]] = {
        "GetNode": [profiler.GetNodeRequest()],
        "StartRun": [
            profiler.ProfilerServiceStartRunRequest(spec=protobuf.encode(spec), validate_only=place % 4 != 0)
            for place, spec in enumerate(specs(digest))
        ],
        "GetRun": [profiler.ProfilerServiceGetRunRequest(run_id=run_id)],
        "ListRuns": [profiler.ProfilerServiceListRunsRequest(page_size=5)],
        "CancelRun": [profiler.ProfilerServiceCancelRunRequest(run_id=run_id)],
        "WatchRun": [profiler.ProfilerServiceWatchRunRequest(run_id=run_id, next_event_index=1)],
        "WatchNode": [profiler.WatchNodeRequest(next_event_index=1)],
        "ReadArtifact": [profiler.ProfilerServiceReadArtifactRequest(run_id=run_id, artifact_name="report.txt")],
        "ListKernels": [profiler.ProfilerServiceListKernelsRequest(source=source), profiler.ProfilerServiceListKernelsRequest()],
    }
    streams = {"UploadBundle": [[profiler.ProfilerServiceUploadBundleRequest(chunk=chunk) for chunk in pieces(bundle())]]}
    return {**{name: [[message] for message in messages] for name, messages in single.items()}, **streams}


def analyzer_seeds(ids: Sequence[str]) -> dict[str, list[list[Message]]]:
    sweep, first, second, trace, node_id = ids[:5]
    digest = f"sha256:{sha256(bundle()).hexdigest()}"
    source = protobuf.encode(KernelSource("own.cu", SOURCE))
    node = device_pb2.Node(node_id="node-of-a-case", hostname="fuzzed", version="0.1.0", journal_id="j")
    node.start_time.seconds = 1_700_000_000
    ceiling = device_pb2.Ceiling(device_id=STAND_IN_DEVICE_ID, ceiling_name="dram", unit="bytes_per_s", value=1e12, path="copy")
    queries = [
        TableQuery(
            table.table_name,
            runs,
            (Filter("run_id", runs[0], FilterOperator.CONTAINS),) if place % 5 == 0 else (),
            (SortKey("run_id", True),) if place % 7 == 0 else (),
            limit=50,
        )
        for place, table in enumerate(TABLES)
        for runs in ((sweep,), (first, second), (trace,))
    ]
    single: dict[str, list[Any]] = {
        "SignIn": [
            analyzer.SignInRequest(token="none"),
            analyzer.SignInRequest(id_token="a.b.c"),
            analyzer.SignInRequest(password=analyzer.Password(name="alice", password="secret")),
        ],
        "RenewToken": [analyzer.RenewTokenRequest(short_token="a.b.c")],
        "AddNode": [analyzer.AddNodeRequest(address="127.0.0.1:1", token="none")],
        "CreateJoinToken": [analyzer.CreateJoinTokenRequest(use_count=1, lifetime_s=60)],
        "Join": [analyzer.JoinRequest(node=node, address="127.0.0.1:1", token="none")],
        "ListNodes": [analyzer.ListNodesRequest()],
        "WatchNodes": [analyzer.WatchNodesRequest()],
        "RemoveNode": [analyzer.RemoveNodeRequest(address="127.0.0.1:1")],
        "StartRun": [
            analyzer.AnalyzerServiceStartRunRequest(node_id=node_id, spec=protobuf.encode(spec), validate_only=place % 4 != 0)
            for place, spec in enumerate(specs(digest))
        ],
        "CancelRun": [analyzer.AnalyzerServiceCancelRunRequest(run_id=run_id) for run_id in (sweep, first)],
        "ReadArtifact": [analyzer.AnalyzerServiceReadArtifactRequest(run_id=sweep, artifact_name="report.txt")],
        "ListKernels": [analyzer.AnalyzerServiceListKernelsRequest(node_id=node_id, source=source)],
        "GetRun": [analyzer.AnalyzerServiceGetRunRequest(run_id=run_id) for run_id in (sweep, trace, "last")],
        "ListRuns": [analyzer.AnalyzerServiceListRunsRequest(page_size=5)],
        "UpdateRun": [analyzer.UpdateRunRequest(run_id=first, tags=["a", "b"], notes="note")],
        "DeleteRun": [analyzer.DeleteRunRequest(run_id="none")],
        "ResumeUpload": [analyzer.ResumeUploadRequest(upload_id="upload-1")],
        "WatchImport": [analyzer.WatchImportRequest(upload_id="upload-1")],
        "CancelImport": [analyzer.CancelImportRequest(upload_id="upload-2")],
        "WatchRun": [analyzer.AnalyzerServiceWatchRunRequest(run_id=run_id) for run_id in (sweep, trace)],
        "GetTable": [protobuf.encode(query) for query in queries],
        "GetHardware": [
            analyzer.GetHardwareRequest(node_id=node_id, device_id=STAND_IN_DEVICE_ID),
            analyzer.GetHardwareRequest(device_id="0", run_id=first),
        ],
        "UpdateHardware": [
            analyzer.UpdateHardwareRequest(
                node_id=node_id,
                device_id=STAND_IN_DEVICE_ID,
                ceilings=[ceiling],
                thresholds=analyzer.Thresholds(memory_inefficient_ratio=0.5, compute_inefficient_ratio=0.5),
            )
        ],
        "ExportReport": [
            analyzer.ExportReportRequest(run_id=first, format="text", baseline_run_id=second),
            analyzer.ExportReportRequest(run_id=trace, format="markdown"),
            analyzer.ExportReportRequest(run_id=sweep, format="text", allowed_differences=["device"]),
        ],
    }
    uploads = [
        import_messages(*upload)
        for upload in (("a.json", CONTENT, "upload-1"), ("trace.json", TRACE, ""), ("new.json", CONTENT + b"  ", "upload-2"))
    ]
    node_bundle = [analyzer.AnalyzerServiceUploadBundleRequest(chunk=chunk) for chunk in pieces(bundle())]
    tunnel = [
        analyzer.TunnelRequest(join=analyzer.JoinRequest(node=node, token="none")),
        *(analyzer.TunnelRequest(bytes=analyzer.TunnelBytes(connection=1, data=data)) for data in (b"HTTP/2", b"more", b"")),
    ]
    streams: dict[str, list[list[Any]]] = {"ImportTrace": uploads, "UploadBundle": [node_bundle], "Tunnel": [tunnel]}
    return {**{name: [[message] for message in messages] for name, messages in single.items()}, **streams}


def pieces(data: bytes, count: int = 5) -> list[bytes]:
    size = -(-len(data) // count)
    return [data[start : start + size] for start in range(0, len(data), size)]


def import_messages(name: str, content: bytes, upload_id: str) -> list[Message]:
    return [
        analyzer.ImportTraceRequest(file_name=name, upload_id=upload_id),
        *(analyzer.ImportTraceRequest(chunk=chunk) for chunk in pieces(content)),
        analyzer.ImportTraceRequest(digest=f"sha256:{sha256(content).hexdigest()}", is_last=True),
    ]
