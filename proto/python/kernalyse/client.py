"""A small client for the analyzer: start runs, watch them, read tables.

    with connect("127.0.0.1:7002", token) as client:
        run = client.start_run(spec)
        for update in client.watch_run(run.run_id):
            ...
        frame = client.frame("measurements", [run.run_id])

Speaks the generated messages of `kernalyse.v1` and needs gRPC and protobuf alone; `frame` needs polars too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import grpc
from google.rpc import error_details_pb2, status_pb2

from kernalyse.channel import Endpoint, open_channel
from kernalyse.trace_upload import OutgoingTrace, TraceUpload
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1 import analyzer_service_pb2_grpc as stubs
from kernalyse.v1 import device_pb2, run_pb2, table_pb2

if TYPE_CHECKING:
    import polars

__all__ = ["Client", "RequestError", "connect"]

DEFAULT_TIMEOUT_S: Final = 30.0
"""Longer than any answer but a stream takes; short enough that a dead service is noticed."""

STATUS_KEY: Final = "grpc-status-details-bin"


class RequestError(Exception):
    """A request that the service refused, or that did not reach it.

    Attributes:
        code: name of the gRPC status code, e.g. "NOT_FOUND".
        reason: the service's own reason, e.g. "RUN_NOT_FOUND"; empty when the failure is the transport's.
        message: what went wrong, for people.
        metadata: subject, found, expected, remedy, as far as the service named them.
    """

    def __init__(self, code: str, reason: str, message: str, metadata: Mapping[str, str]) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata)
        super().__init__(code, reason, message, self.metadata)

    def __str__(self) -> str:
        return f"{self.reason or self.code}: {self.message}"


def connect(address: str, token: str, ca_certificate: bytes | None = None) -> Client:
    """A client of the analyzer at `address` ("host:port" or "unix:PATH").

    Connects at the first call. ca_certificate: PEM; without it there is no TLS.
    """
    return Client(Endpoint(address, token, ca_certificate))


class Client:
    """Calls of one analyzer. Safe to use from several threads; close it, or use it in a `with` block."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._channel = open_channel(endpoint)
        self._stub = stubs.AnalyzerServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def start_run(self, spec: run_pb2.RunSpec, *, node_id: str = "", request_id: str = "") -> run_pb2.Run:
        """Queues a run. The same request_id with the same spec answers with the same run.

        node_id: empty for the only node, or the first that serves.
        """
        request = messages.AnalyzerServiceStartRunRequest(node_id=node_id, spec=spec, request_id=request_id)
        with _request_errors():
            run: run_pb2.Run = self._stub.StartRun(request, timeout=DEFAULT_TIMEOUT_S).run
        return run

    def watch_run(self, run_id: str, *, next_event_index: int = 0) -> Iterator[messages.AnalyzerServiceWatchRunResponse]:
        """The run's rows from an index on, then live; ends when the run has ended.

        After a broken stream go on with the `next_event_index` of the last response: nothing is missed or repeated.
        """
        request = messages.AnalyzerServiceWatchRunRequest(run_id=run_id, next_event_index=next_event_index)
        with _request_errors():
            yield from self._stub.WatchRun(request)

    def get_run(self, run_id: str) -> run_pb2.Run:
        """One run by its id, by the beginning of one, or "last"."""
        with _request_errors():
            run: run_pb2.Run = self._stub.GetRun(messages.AnalyzerServiceGetRunRequest(run_id=run_id), timeout=DEFAULT_TIMEOUT_S).run
        return run

    def list_runs(self, *, max_count: int | None = None) -> Iterator[run_pb2.Run]:
        """Runs of all nodes, newest first; asks for further pages as they are needed. max_count: None for all."""
        page_token, remaining = "", max_count
        while remaining is None or remaining > 0:
            page_size = 0 if remaining is None else min(remaining, 1000)
            request = messages.AnalyzerServiceListRunsRequest(page_size=page_size, page_token=page_token)
            with _request_errors():
                response = self._stub.ListRuns(request, timeout=DEFAULT_TIMEOUT_S)
            yield from response.runs
            page_token = response.next_page_token
            remaining = None if remaining is None else remaining - len(response.runs)
            if not page_token:
                return

    def cancel_run(self, run_id: str) -> run_pb2.Run:
        """Ends a run; one that has ended stays as it is."""
        with _request_errors():
            request = messages.AnalyzerServiceCancelRunRequest(run_id=run_id)
            run: run_pb2.Run = self._stub.CancelRun(request, timeout=DEFAULT_TIMEOUT_S).run
        return run

    def import_trace(
        self,
        *paths: Path,
        reports: Sequence[Path] = (),
        on_sent: Callable[[int], None] = lambda _: None,
        on_progress: Callable[[messages.ImportProgress], None] | None = None,
    ) -> messages.ImportTraceResponse:
        """Reads a file of results or a trace into a run, with NVBench's binary samples beside it; several traces into one run.

        The answer's `run` has succeeded and all its tables; `is_known` says that the same files had been imported before.

        Args:
            paths: of the file, or of the traces of one job's processes; the analyzer tells their formats by the content.
            reports: of ncu (CSV) of the program that the first trace is of: the work of its kernels.
            on_sent: called with the bytes of each part as it is sent.
            on_progress: called with what becomes of them, from another thread.

        Raises:
            OSError: the file cannot be read.
        """
        with _request_errors():
            traces = [OutgoingTrace(path, reports if number == 0 else ()) for number, path in enumerate(paths)]
            return TraceUpload(traces, on_sent, on_progress).send(self._stub)

    def report(self, run_id: str, report_format: str = "text") -> bytes:
        """A report of a run, UTF-8. report_format: "text" or "markdown"."""
        request = messages.ExportReportRequest(run_id=run_id, format=report_format)
        with _request_errors():
            return b"".join(part.chunk for part in self._stub.ExportReport(request))

    def nodes(self) -> list[messages.NodeStatus]:
        """Every node, reachable or not, with its devices."""
        with _request_errors():
            return list(self._stub.ListNodes(messages.ListNodesRequest(), timeout=DEFAULT_TIMEOUT_S).nodes)

    def hardware(self, node_id: str, device_id: str) -> list[device_pb2.Ceiling]:
        """Ceilings of a device from all sources."""
        with _request_errors():
            request = messages.GetHardwareRequest(node_id=node_id, device_id=device_id)
            return list(self._stub.GetHardware(request, timeout=DEFAULT_TIMEOUT_S).ceilings)

    def table(
        self,
        table_name: str,
        run_ids: Sequence[str] = (),
        *,
        filters: Sequence[table_pb2.Filter] = (),
        order_by: Sequence[table_pb2.SortKey] = (),
        offset: int = 0,
        limit: int = 0,
        columns: Sequence[str] = (),
        depth: int | None = None,
    ) -> list[bytes]:
        """Rows of a table as Arrow IPC streams, each complete in itself.

        run_ids: empty for all runs. limit: 0 for all rows. columns: empty for all of them. depth: of layers, see
        GetTableRequest.
        """
        request = messages.GetTableRequest(
            table_name=table_name,
            run_ids=run_ids,
            filters=filters,
            order_by=order_by,
            offset=offset,
            limit=limit,
            columns=columns,
            depth=depth,
        )
        with _request_errors():
            return [response.chunk.arrow_ipc for response in self._stub.GetTable(request)]

    def frame(
        self,
        table_name: str,
        run_ids: Sequence[str] = (),
        *,
        filters: Sequence[table_pb2.Filter] = (),
        order_by: Sequence[table_pb2.SortKey] = (),
        offset: int = 0,
        limit: int = 0,
        columns: Sequence[str] = (),
        depth: int | None = None,
    ) -> polars.DataFrame:
        """The same as one polars frame. Raises ModuleNotFoundError without polars."""
        import polars as pl

        chunks = self.table(
            table_name, run_ids, filters=filters, order_by=order_by, offset=offset, limit=limit, columns=columns, depth=depth
        )
        return pl.concat([pl.read_ipc_stream(BytesIO(chunk)) for chunk in chunks]) if chunks else pl.DataFrame()


@contextmanager
def _request_errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise _request_error(error) from error


def _request_error(error: grpc.RpcError) -> RequestError:
    code: str = error.code().name
    message: str = error.details() or code
    for key, value in error.trailing_metadata() or ():
        if key != STATUS_KEY:
            continue
        for detail in status_pb2.Status.FromString(value).details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                return RequestError(code, info.reason, message, info.metadata)
    return RequestError(code, "", message, {})
