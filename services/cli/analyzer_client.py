"""The analyzer's API in the words of `services.core.model`: blocking calls for the commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import grpc

from kernalyse.channel import Endpoint, open_channel
from kernalyse.trace_upload import TraceUpload
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1 import analyzer_service_pb2_grpc as stubs
from services.core import wire
from services.core.errors import CancelledError, UnavailableError
from services.core.model import Device, Hardware, HardwareKey, KernelDefinition, NodeStatus, Run, RunSpec, TableChunk, TableQuery
from services.core.rpc import translated_errors

if TYPE_CHECKING:
    import polars as pl

TIMEOUT_S: Final = 30.0
"""An analyzer that starts on a busy machine answers within seconds; half a minute without an answer is a fault."""

TRANSFER_TIMEOUT_S: Final = 600.0
"""Of a whole file: 256 MB, the largest bundle, at 0.5 MB/s."""

CHUNK_BYTES: Final = 512 * 1024  # the services take 1 MiB at most


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """What one message of a watched run brought. run: None when it did not change."""

    next_event_index: int
    run: Run | None
    tables: tuple[TableChunk, ...]


class AnalyzerClient:
    """Every method raises the KernalyseError that the service raised, or UnavailableError when it cannot be reached."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.address = endpoint.address
        self._channel = open_channel(endpoint)
        self._stub = stubs.AnalyzerServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._calls: set[Any] = set()  # that wait for the analyzer
        self.is_given_up = False

    def give_up(self) -> None:
        """From any thread: what waits for an answer or an update ends with UnavailableError, and so does what is asked from then on.

        Closing the channel would end it too, but gRPC bears no closing beside a call that just begins.
        """
        self.is_given_up = True
        for call in tuple(self._calls):
            call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._channel.close()

    def wait_until_reachable(self, timeout_s: float) -> None:
        """Raises UnavailableError when it does not answer in time."""
        self._call(self._stub.ListNodes, messages.ListNodesRequest(), timeout_s)

    def start_run(self, spec: RunSpec, *, node_id: str = "", request_id: str = "") -> Run:
        request = messages.AnalyzerServiceStartRunRequest(node_id=node_id, spec=wire.encode(spec), request_id=request_id)
        return wire.decode(self._call(self._stub.StartRun, request).run, Run)

    def cancel_run(self, run_id: str) -> Run:
        return wire.decode(self._call(self._stub.CancelRun, messages.AnalyzerServiceCancelRunRequest(run_id=run_id)).run, Run)

    def annotate_run(self, run_id: str, tags: tuple[str, ...], notes: str) -> Run:
        request = messages.UpdateRunRequest(run_id=run_id, tags=tags, notes=notes)
        return wire.decode(self._call(self._stub.UpdateRun, request).run, Run)

    def delete_run(self, run_id: str) -> None:
        self._call(self._stub.DeleteRun, messages.DeleteRunRequest(run_id=run_id))

    def run(self, run_id: str) -> Run:
        """run_id: a whole one, the beginning of one, or "last"."""
        return wire.decode(self._call(self._stub.GetRun, messages.AnalyzerServiceGetRunRequest(run_id=run_id)).run, Run)

    def runs(self, max_count: int) -> tuple[Run, ...]:
        """The newest first."""
        request = messages.AnalyzerServiceListRunsRequest(page_size=min(max_count, 1000))
        found: list[Run] = []
        while True:
            response = self._call(self._stub.ListRuns, request)
            found.extend(wire.decode(run, Run) for run in response.runs)
            if not response.next_page_token or len(found) >= max_count:
                return tuple(found[:max_count])
            request.page_token = response.next_page_token

    def watch_run(self, run_id: str, next_event_index: int = 0) -> Iterator[RunUpdate]:
        """From an index on until the run has ended."""
        request = messages.AnalyzerServiceWatchRunRequest(run_id=run_id, next_event_index=next_event_index)
        with self._waiting_for(self._stub.WatchRun(request)) as stream:
            for response in stream:
                yield RunUpdate(
                    response.next_event_index,
                    wire.decode(response.run, Run) if response.HasField("run") else None,
                    tuple(wire.decode(chunk, TableChunk) for chunk in response.tables),
                )

    def import_trace(self, upload: TraceUpload) -> tuple[Run, bool]:
        """The run that a file has become, and whether it was there before. Raises OSError too, when it cannot be read."""
        with translated_errors():
            answer = upload.send(self._stub, wait_for_ready=True)
        return wire.decode(answer.run, Run), answer.is_known

    def nodes(self) -> tuple[NodeStatus, ...]:
        return tuple(wire.decode(node, NodeStatus) for node in self._call(self._stub.ListNodes, messages.ListNodesRequest()).nodes)

    def node_id_of(self, node: str) -> str:
        """The id for what the user calls a node; empty stays empty: the analyzer chooses."""
        if not node:
            return ""
        known = [status.node for status in self.nodes() if status.node is not None and node in (status.address, status.node.hostname)]
        return known[0].node_id if known else node

    def device(self, node_id: str, device_id: str) -> Device:
        """As its node last described it. Raises DeviceNotFoundError."""
        request = messages.GetHardwareRequest(node_id=node_id, device_id=device_id)
        return wire.decode(self._call(self._stub.GetHardware, request).device, Device)

    def hardware(self, key: HardwareKey) -> Hardware:
        """Ceilings and thresholds of a device. Raises DeviceNotFoundError, RunNotFoundError."""
        request = messages.GetHardwareRequest(node_id=key.node_id, device_id=key.device_id, run_id=key.run_id)
        return wire.decode(self._call(self._stub.GetHardware, request), Hardware)

    def changed_hardware(self) -> Iterator[tuple[HardwareKey, ...]]:
        """What is set by hand from now on, without end; nothing at first, when the stream stands."""
        with self._waiting_for(self._stub.WatchNodes(messages.WatchNodesRequest(), wait_for_ready=True)) as stream:
            for number, response in enumerate(stream):
                changed = tuple(wire.decode(key, HardwareKey) for key in response.changed_hardware)
                if changed or number == 0:
                    yield changed

    def add_node(self, node: Endpoint) -> NodeStatus:
        request = messages.AddNodeRequest(
            address=node.address,
            token=node.token,
            ca_certificate=node.ca_certificate or b"",
            client_certificate=node.client_certificate or b"",
            client_key=node.client_key or b"",
        )
        return wire.decode(self._call(self._stub.AddNode, request).node, NodeStatus)

    def remove_node(self, address: str) -> None:
        self._call(self._stub.RemoveNode, messages.RemoveNodeRequest(address=address))

    def kernels(self, node_id: str = "") -> tuple[KernelDefinition, ...]:
        response = self._call(self._stub.ListKernels, messages.AnalyzerServiceListKernelsRequest(node_id=node_id))
        return tuple(wire.decode(kernel, KernelDefinition) for kernel in response.kernels)

    def upload_bundle(self, data: bytes, node_id: str = "") -> str:
        """Stores a tar.gz on a node; its digest there."""
        starts = range(0, max(len(data), 1), CHUNK_BYTES)
        requests = (
            messages.AnalyzerServiceUploadBundleRequest(node_id=node_id, chunk=data[start : start + CHUNK_BYTES]) for start in starts
        )
        with translated_errors():
            digest: str = self._stub.UploadBundle(requests, timeout=TRANSFER_TIMEOUT_S, wait_for_ready=True).digest
        return digest

    def artifact(self, run_id: str, artifact_name: str) -> bytes:
        """A file that a run has left. run_id: a whole one."""
        request = messages.AnalyzerServiceReadArtifactRequest(run_id=run_id, artifact_name=artifact_name)
        with translated_errors():
            parts = self._stub.ReadArtifact(request, timeout=TRANSFER_TIMEOUT_S, wait_for_ready=True)
            return b"".join(part.chunk for part in parts)

    def report(self, run_id: str, report_format: str, baseline_run_id: str = "", allowed_differences: Sequence[str] = ()) -> bytes:
        """A report as a file, of a run, or with a baseline of the comparison of both.

        Args:
            run_id: a whole one, the beginning of one, or "last"; so is baseline_run_id.
            report_format: text, markdown, html, pdf, pptx, png or svg.
        """
        request = messages.ExportReportRequest(
            run_id=run_id, format=report_format, baseline_run_id=baseline_run_id, allowed_differences=allowed_differences
        )
        with translated_errors():
            return b"".join(part.chunk for part in self._stub.ExportReport(request, timeout=TRANSFER_TIMEOUT_S, wait_for_ready=True))

    def table(self, table_name: str, run_ids: Sequence[str] = ()) -> pl.DataFrame:
        """The whole table, in the order of the configurations."""
        return self.rows(TableQuery(table_name, tuple(run_ids)))[0]

    def rows(self, query: TableQuery) -> tuple[pl.DataFrame, int]:
        """What a query finds, and how many rows before offset and limit.

        Where no order is asked for, that of the configurations: a sweep measures them in a shuffled one.
        """
        import polars

        with translated_errors():
            answers = list(self._stub.GetTable(wire.encode(query), timeout=TRANSFER_TIMEOUT_S, wait_for_ready=True))
        frames = [polars.read_ipc_stream(BytesIO(answer.chunk.arrow_ipc)) for answer in answers]
        frame = polars.concat(frames) if frames else polars.DataFrame()
        order = [name for name in ("run_id", "configuration_index") if name in frame.columns]
        is_sorted = query.order_by or not order[1:]
        return frame if is_sorted else frame.sort(order, maintain_order=True), sum(answer.total_row_count for answer in answers)

    def _call(self, method: Any, request: Any, timeout_s: float = TIMEOUT_S) -> Any:
        # wait_for_ready: a service that was started a moment ago may not listen yet.
        with self._waiting_for(method.future(request, timeout=timeout_s, wait_for_ready=True)) as call:
            return call.result()

    @contextmanager
    def _waiting_for(self, call: Any) -> Iterator[Any]:
        """The call, for as long as somebody waits for it."""
        self._calls.add(call)
        try:
            with translated_errors():
                if self.is_given_up:
                    call.cancel()
                yield call
        except (grpc.FutureCancelledError, CancelledError) as error:
            if not self.is_given_up:
                raise
            raise UnavailableError(f"analyzer {self.address}", found="a call that was given up", expected="an answer") from error
        finally:
            self._calls.discard(call)
            call.cancel()
