"""Traces by OpenTelemetry of real services, as a collector receives them, and what logs say of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceServicer, add_TraceServiceServicer_to_server

from kernalyse.services.core.tracing import exported, span
from kernalyse.trace_context import carried, current_traceparent, trace_environment, trace_ids
from tests.command import kernalyse
from tests.service_processes import ServiceProcesses

WAIT_S = 60.0
FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Received(TraceServiceServicer):
    """A collector. spans: service, name, trace id, span id and parent's, in hexadecimal."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.spans: list[tuple[str, str, str, str, str]] = []
        self.lengths_ns: dict[str, int] = {}

    def Export(self, request: Any, context: Any) -> Any:
        with self._lock:
            for resource in request.resource_spans:
                names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                for scope in resource.scope_spans:
                    for one in scope.spans:
                        ids = (one.trace_id.hex(), one.span_id.hex(), one.parent_span_id.hex())
                        self.spans.append((names["service.name"], one.name, *ids))
                        self.lengths_ns[one.name] = one.end_time_unix_nano - one.start_time_unix_nano
        return messages.ExportTraceServiceResponse()

    def of_trace(self, trace_id: str) -> set[tuple[str, str]]:
        with self._lock:
            return {(service, name) for service, name, of, *_ in self.spans if of == trace_id}


@contextmanager
def collector() -> Iterator[tuple[Received, str]]:
    received, server = Received(), grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(received, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield received, f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def test_spans_within_each_other_are_one_trace_and_an_error_ends_both() -> None:
    def fail() -> None:
        with span("inner", begin_unix_ns=time.time_ns() - 5_000_000_000):
            raise LookupError("nothing")

    with collector() as (received, endpoint):
        with exported("test", endpoint), pytest.raises(LookupError), span("outer", parent=FOREIGN):
            fail()
        trace_id, parent_id = trace_ids(FOREIGN) or ("", "")
        by_name = {name: (of, own, parent) for _, name, of, own, parent in received.spans}
        assert by_name["outer"][0] == by_name["inner"][0] == trace_id
        assert by_name["outer"][2] == parent_id
        assert by_name["inner"][2] == by_name["outer"][1]
        assert received.lengths_ns["inner"] > 4_900_000_000


def test_without_an_endpoint_the_context_is_passed_on_and_nothing_is_imported() -> None:
    with exported("test", ""), span("outer", parent=FOREIGN):
        assert current_traceparent() == FOREIGN
        assert trace_environment() == {"TRACEPARENT": FOREIGN}
        with span("another trace", parent=""):
            assert trace_environment() == {}
    with carried("00-not-a-trace"):
        assert current_traceparent() == ""


@pytest.mark.slow
def test_one_trace_follows_a_sweep_from_the_command_to_its_compacting(
    services: ServiceProcesses, private_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as (received, endpoint):
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")  # milliseconds between batches
        profiler = services.start("profiler", "--otel-endpoint", endpoint, "--log-format", "json")
        analyzer = services.start("analyzer", "--otel-endpoint", endpoint, "--log-format", "json")
        token_file = private_directories / "config" / "kernalyse" / "token"
        server = ("--server", analyzer.address, "--token-file", token_file)
        assert kernalyse("nodes", "add", profiler.address, "--node-token-file", token_file, *server).returncode == 0
        monkeypatch.setenv("KERNALYSE_OTEL_ENDPOINT", endpoint)
        done = kernalyse("bench", "saxpy", "-p", "N=65536", "--max-time", "0.2", *server)
        assert done.returncode == 0, done.stdout + done.stderr
        wanted = {
            *(("kernalyse-cli", "kernalyse bench"), ("kernalyse-analyzer", "StartRun"), ("kernalyse-profiler", "StartRun")),
            *(("kernalyse-profiler", "run"), ("kernalyse-profiler", "worker")),
            *(("kernalyse-analyzer", "collect"), ("kernalyse-analyzer", "compact"), ("kernalyse-analyzer", "GetTable")),
        }
        deadline = time.monotonic() + WAIT_S
        while True:
            trace_id = next((of for _, name, of, *_ in list(received.spans) if name == "worker"), "")
            if wanted <= received.of_trace(trace_id):
                break
            assert time.monotonic() < deadline, (wanted - received.of_trace(trace_id), received.spans)
            time.sleep(0.1)
        assert received.lengths_ns["run"] >= received.lengths_ns["worker"] > 0
        logged = profiler.log_path.read_text()
        assert f'"trace_id": "{trace_id}"' in logged  # of the line that says how the run has ended
        assert '"run_id": "' in logged
        assert '"node_id": "' in logged


def test_without_opentelemetry_the_setting_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from kernalyse.services.core.tracing import exported\n"
        "from kernalyse.services.core.errors import InvalidSettingError\n"
        "try:\n"
        "    with exported('ui', 'http://127.0.0.1:4317'): pass\n"
        "except InvalidSettingError as error:\n"
        "    print(error.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ.copy(), capture_output=True, text=True, check=True)
    assert "pip install 'kernalyse[otel]'" in done.stdout
