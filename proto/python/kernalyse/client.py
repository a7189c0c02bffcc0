"""The client of the analyzer: submit runs, watch them, read tables, import traces.

It needs only gRPC and protobuf; tables are returned as polars, pandas or Arrow where that is installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, overload

import grpc

from kernalyse.bundle import check_size, list_directory_files, pack
from kernalyse.channel import RETRY_S, Endpoint, call_with_reconnect, open_channel
from kernalyse.errors import call_error, request_errors
from kernalyse.revision import git_revision
from kernalyse.runs import Run, RunUpdate, run_from_message, update_from_message
from kernalyse.tables import Table, TableFilter, filter_messages, sort_keys
from kernalyse.trace_upload import CHUNK_BYTES, OutgoingTrace, TraceUpload
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1 import analyzer_service_pb2_grpc as stubs
from kernalyse.v1 import device_pb2, kernel_pb2, run_pb2

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

DEFAULT_TIMEOUT_S: Final = 30.0
"""Longer than any response except a stream takes; short enough to notice a dead service."""

TRANSFER_TIMEOUT_S: Final = 600.0
"""For an entire file: 256 MB, the largest bundle, at 0.5 MB/s."""

MAX_SECONDS: Final = 1e9  # still a 64-bit number in nanoseconds
TABLE_FORMS: Final = ("polars", "pandas", "arrow")
NOTHING: Final[Callable[[], None]] = lambda: None  # noqa: E731


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The run of an imported trace; is_known: the same files had been imported before."""

    run: Run
    is_known: bool


class _ClosedStub:
    """The stub of a closed client: gRPC ends the process where a stream is requested on a closed channel."""

    def __getattr__(self, method: str) -> Any:
        raise call_error(
            "client", found="a closed one", expected="an open one", remedy="Call it inside of its with block, or connect again."
        )


class Client:
    """A client of one analyzer, safe to use from several threads; close it, or use it in a `with` block.

    Every method raises RequestError when the analyzer rejects the call or cannot be reached. A run can be given as an object,
    by its id, by the beginning of its id, or as "last".

    Methods below "messages" take and return messages of `kernalyse.v1`, for programs that have types of their own.

    Args:
        endpoint: address and credentials of the analyzer.
        on_close: called when the client is closed.
        waits_until_ready: calls wait, within their time limits, for an analyzer that does not listen yet, instead of failing at once.
    """

    def __init__(self, endpoint: Endpoint, on_close: Callable[[], None] = NOTHING, *, waits_until_ready: bool = False) -> None:
        self.endpoint = endpoint
        self.is_given_up = False
        self._channel = open_channel(endpoint)
        self._stub: Any = stubs.AnalyzerServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._on_close = on_close
        self._options = {"wait_for_ready": True} if waits_until_ready else {}
        self._calls: set[Any] = set()  # pending calls and streams

    def give_up(self) -> None:
        """Cancel all pending calls and streams, from any thread; they and all later calls raise RequestError with code UNAVAILABLE.

        Closing the client would cancel them too, but gRPC does not allow a close while another call begins.
        """
        self.is_given_up = True
        for call in tuple(self._calls):
            call.cancel()

    def close(self) -> None:
        """Close the channel; every later call raises RequestError."""
        self._stub = _ClosedStub()
        self._channel.close()
        on_close, self._on_close = self._on_close, NOTHING
        on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------ runs

    def submit(
        self,
        spec: run_pb2.RunSpec,
        *,
        title: str = "",
        node: str = "",
        time_limit_s: float | None = None,
        memory_limit_bytes: int | None = None,
        request_id: str = "",
    ) -> Run:
        """Queue a run; the git commit of the working directory is recorded with it.

        Args:
            spec: the result of `kernel_sweep`, `command`, `model` or `ceilings`.
            title: shown instead of a derived title.
            node: id, address or host name; empty for the only node, or the first that serves.
            time_limit_s, memory_limit_bytes: None: the node's own limits, which these may lower but not raise.
            request_id: a repeated call with the same id and spec returns the same run.
        """
        submitted = run_pb2.RunSpec()
        submitted.CopyFrom(spec)
        if title:
            submitted.title = title
        if time_limit_s is not None:
            if not 0 < time_limit_s <= MAX_SECONDS:
                raise call_error(
                    "argument time_limit_s", found=str(time_limit_s), expected=f"more than 0 and at most {MAX_SECONDS:g} seconds"
                )
            submitted.limits.time_limit_ns = round(time_limit_s * 1e9)
        if memory_limit_bytes is not None:
            submitted.limits.memory_limit_bytes = memory_limit_bytes
        revision = None if submitted.HasField("revision") else git_revision(Path.cwd())
        if revision is not None:
            submitted.revision.commit, submitted.revision.is_dirty = revision
        request = messages.AnalyzerServiceStartRunRequest(node_id=self.node_id_of(node), spec=submitted, request_id=request_id)
        return run_from_message(self.start_run(request))

    def watch(self, run: Run | str, *, next_event_index: int = 0) -> Iterator[RunUpdate]:
        """Yield the run and its new rows from an index on, then live, until the run has ended.

        A broken stream is resumed where it ended, and yields each row once; it ends when the analyzer cannot be reached for 30 s.
        """
        yield from map(update_from_message, self.watch_messages(_id_of(run), next_event_index))

    def wait(self, run: Run | str) -> Run:
        """Wait until the run has ended, and return it."""
        for _ in self.watch(run):
            pass
        return self.run(run)

    def run(self, run: Run | str) -> Run:
        """Return a run as it is now."""
        return run_from_message(self._call("GetRun", messages.AnalyzerServiceGetRunRequest(run_id=_id_of(run))).run)

    def runs(self, *, max_count: int | None = None) -> Iterator[Run]:
        """Yield runs of all nodes, newest first, page by page as needed; `max_count` is None for all."""
        page_token, remaining = "", max_count
        while remaining is None or remaining > 0:
            page_size = 0 if remaining is None else min(remaining, 1000)
            response = self._call("ListRuns", messages.AnalyzerServiceListRunsRequest(page_size=page_size, page_token=page_token))
            yield from map(run_from_message, response.runs)
            page_token = response.next_page_token
            remaining = None if remaining is None else remaining - len(response.runs)
            if not page_token:
                return

    def cancel(self, run: Run | str) -> Run:
        """Cancel a run; one that has ended stays as it is."""
        return run_from_message(self._call("CancelRun", messages.AnalyzerServiceCancelRunRequest(run_id=_id_of(run))).run)

    def annotate(self, run: Run | str, *, tags: Sequence[str], notes: str) -> Run:
        """Replace the run's tags and notes."""
        return run_from_message(self._call("UpdateRun", messages.UpdateRunRequest(run_id=_id_of(run), tags=tags, notes=notes)).run)

    def delete(self, run: Run | str) -> None:
        """Delete a run that has ended, with all its rows."""
        self._call("DeleteRun", messages.DeleteRunRequest(run_id=_id_of(run)))

    def report(self, run: Run | str, report_format: Literal["text", "markdown"] = "text") -> str:
        """Return a report of a run."""
        return self.export_report(messages.ExportReportRequest(run_id=_id_of(run), format=report_format))[report_format].decode()

    def document(self, run: Run | str, document_format: Literal["html", "pdf", "pptx", "png", "svg"], against: Run | str = "") -> bytes:
        """Return a document with charts of a run as the bytes of a file; png and svg give a zip.

        Args:
            run: the run.
            document_format: of the file.
            against: a baseline; if given, the document compares both runs.
        """
        baseline_run_id = _id_of(against) if against else ""
        request = messages.ExportReportRequest(run_id=_id_of(run), format=document_format, baseline_run_id=baseline_run_id)
        return self.export_report(request)[document_format]

    def artifact(self, run: Run | str, artifact_name: str) -> bytes:
        """Return a file that a run has stored; the table artifacts lists their names."""
        request = messages.AnalyzerServiceReadArtifactRequest(run_id=self.run(run).run_id, artifact_name=artifact_name)
        return b"".join(part.chunk for part in self._stream("ReadArtifact", request, TRANSFER_TIMEOUT_S))

    # ------------------------------------------------------------ tables

    @overload
    def table(
        self,
        run: Run | str | Sequence[Run | str],
        table_name: str,
        *filters: TableFilter,
        order_by: Sequence[str] = ...,
        offset: int = ...,
        limit: int = ...,
        columns: Sequence[str] = ...,
        depth: int | None = ...,
        to: Literal["polars"] = ...,
    ) -> polars.DataFrame: ...

    @overload
    def table(
        self,
        run: Run | str | Sequence[Run | str],
        table_name: str,
        *filters: TableFilter,
        order_by: Sequence[str] = ...,
        offset: int = ...,
        limit: int = ...,
        columns: Sequence[str] = ...,
        depth: int | None = ...,
        to: Literal["pandas"],
    ) -> pandas.DataFrame: ...

    @overload
    def table(
        self,
        run: Run | str | Sequence[Run | str],
        table_name: str,
        *filters: TableFilter,
        order_by: Sequence[str] = ...,
        offset: int = ...,
        limit: int = ...,
        columns: Sequence[str] = ...,
        depth: int | None = ...,
        to: Literal["arrow"],
    ) -> pyarrow.Table: ...

    def table(
        self,
        run: Run | str | Sequence[Run | str],
        table_name: str,
        *filters: TableFilter,
        order_by: Sequence[str] = (),
        offset: int = 0,
        limit: int = 0,
        columns: Sequence[str] = (),
        depth: int | None = None,
        to: Literal["polars", "pandas", "arrow"] = "polars",
    ) -> Any:
        """Return rows of a table or an analysis: measurements, samples, roofline, kernels, layers and the others.

        Args:
            run: one, or several; an empty sequence for all runs.
            table_name: of the table.
            filters: conditions that must all hold, e.g. ("kernel_name", "contains", "gemm").
            order_by: columns; a leading "-" sorts descending.
            offset: rows to skip.
            limit: 0 for all rows.
            columns: empty for all of them.
            depth: for the table layers, of the ranges that kernels are attributed to, 0 for the outermost; None: the innermost.
            to: a polars or pandas data frame, or a pyarrow table.

        Raises:
            ModuleNotFoundError: that library is not installed.
        """
        if to not in TABLE_FORMS:
            raise call_error("argument to", found=repr(to), expected=", ".join(TABLE_FORMS))
        if not isinstance(table_name, str) or offset < 0 or limit < 0:
            raise call_error(
                "arguments of table",
                found=f"table {table_name!r}, offset {offset}, limit {limit}",
                expected="a run, then the name of a table; offset and limit of 0 or more",
            )
        request = messages.GetTableRequest(
            table_name=table_name,
            run_ids=[_id_of(run)] if isinstance(run, Run | str) else [_id_of(one) for one in run],
            filters=filter_messages(filters),
            order_by=sort_keys(order_by),
            offset=offset,
            limit=limit,
            columns=columns,
            depth=depth,
        )
        table = Table(table_name, tuple(response.chunk.arrow_ipc for response in self.table_messages(request)))
        return {"polars": table.to_polars, "pandas": table.to_pandas, "arrow": table.to_arrow}[to]()

    # ------------------------------------------------------------ files in, nodes

    def import_trace(
        self,
        *paths: Path,
        reports: Sequence[Path] = (),
        on_sent: Callable[[int], None] = lambda _: None,
        on_progress: Callable[[messages.ImportProgress], None] | None = None,
    ) -> ImportResult:
        """Read a file of results or a trace into a run, with NVBench's binary samples next to it; several traces into one run.

        Args:
            paths: of the file, or of the traces of one job's processes; the analyzer recognizes their formats by the content.
            reports: ncu reports (CSV) of the program of the first trace, with the counters of its kernels.
            on_sent: called with the number of bytes of each chunk as it is sent.
            on_progress: called with the progress of the import, from another thread.

        Raises:
            OSError: the file cannot be read.
        """
        traces = [OutgoingTrace(path, reports if number == 0 else ()) for number, path in enumerate(paths)]
        response = self.send_traces(TraceUpload(traces, on_sent, on_progress))
        return ImportResult(run_from_message(response.run), response.is_known)

    def upload_bundle(self, directory: Path, *, node: str = "") -> str:
        """Store a directory on a node, without .git, .venv and __pycache__, and return the digest that `command` and `model` take.

        Raises:
            OSError: a file or a directory cannot be read.
        """
        files = list_directory_files(directory)
        check_size(files)
        return self.send_bundle(pack(files), self.node_id_of(node))

    def nodes(self) -> list[messages.NodeStatus]:
        """Return every node, reachable or not, with its devices."""
        return list(self._call("ListNodes", messages.ListNodesRequest()).nodes)

    def newest_telemetry(self) -> list[messages.NodeTelemetry]:
        """Return the newest reading of each device and host of all nodes, as far as there is one."""
        return list(self._call("ListNodes", messages.ListNodesRequest()).telemetry)

    def node_id_of(self, node: str) -> str:
        """Return the id of the node with this address or host name; any other text is returned as it is, and empty stands for any node."""
        if not node:
            return ""
        reached = (status for status in self.nodes() if status.HasField("node"))
        return next((status.node.node_id for status in reached if node in (status.address, status.node.hostname)), node)

    def add_node(self, node: Endpoint) -> messages.NodeStatus:
        """Make the analyzer collect from a profiler, and return what it knows of it so far."""
        request = messages.AddNodeRequest(
            address=node.address,
            token=node.token,
            ca_certificate=node.ca_certificate or b"",
            client_certificate=node.client_certificate or b"",
            client_key=node.client_key or b"",
        )
        status: messages.NodeStatus = self._call("AddNode", request).node
        return status

    def create_join_token(self, use_count: int = 1, lifetime_s: float = 86_400.0) -> tuple[str, str]:
        """Make a join token, and return it and its id.

        Args:
            use_count: how many profilers may join with it; 0: any number.
            lifetime_s: until it ends; 0: it never does.
        """
        response = self._call("CreateJoinToken", messages.CreateJoinTokenRequest(use_count=use_count, lifetime_s=lifetime_s))
        return response.join_token, response.token_id

    def remove_node(self, address: str) -> None:
        """Make the analyzer collect from a profiler no more; its runs stay."""
        self._call("RemoveNode", messages.RemoveNodeRequest(address=address))

    def hardware(self, node_id: str, device_id: str) -> list[device_pb2.Ceiling]:
        """Return ceilings of a device from all sources."""
        return list(self.hardware_message(messages.GetHardwareRequest(node_id=node_id, device_id=device_id)).ceilings)

    # ------------------------------------------------------------ messages

    def start_run(self, request: messages.AnalyzerServiceStartRunRequest) -> run_pb2.Run:
        """Queue a run as the request says, and return it; `submit` also records the revision, and finds the node by its name."""
        run: run_pb2.Run = self._call("StartRun", request).run
        return run

    def watch_messages(self, run_id: str, next_event_index: int = 0) -> Iterator[messages.AnalyzerServiceWatchRunResponse]:
        """Yield what `watch` yields, as messages."""
        while True:
            try:
                request = messages.AnalyzerServiceWatchRunRequest(run_id=run_id, next_event_index=next_event_index)
                with self._waiting_for(self._stub.WatchRun(request)) as stream:
                    for response in stream:
                        next_event_index = response.next_event_index
                        yield response
                return
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or not self._is_back():
                    with request_errors():
                        raise
                time.sleep(RETRY_S)  # a stopping analyzer still responds for a moment

    def table_messages(self, query: messages.GetTableRequest) -> Iterator[messages.GetTableResponse]:
        """Yield the rows that a query finds, in chunks."""
        return self._stream("GetTable", query, TRANSFER_TIMEOUT_S)

    def export_report(self, request: messages.ExportReportRequest) -> dict[str, bytes]:
        """Return a report as files, by the names of the requested formats.

        An analyzer of an earlier version answers with the first format alone and does not name it.
        """
        parts: dict[str, list[bytes]] = {}
        for part in self._stream("ExportReport", request, TRANSFER_TIMEOUT_S):
            parts.setdefault(part.format or request.format, []).append(part.chunk)
        return {name: b"".join(chunks) for name, chunks in parts.items()}

    def send_traces(self, upload: TraceUpload) -> messages.ImportTraceResponse:
        """Send an upload and return the response with its run.

        Raises:
            OSError: a file cannot be read.
        """
        with request_errors():
            return upload.send(self._stub, **self._options)

    def send_bundle(self, data: bytes, node_id: str = "") -> str:
        """Store a tar.gz on a node and return its digest."""
        requests = (
            messages.AnalyzerServiceUploadBundleRequest(node_id=node_id, chunk=data[start : start + CHUNK_BYTES])
            for start in range(0, max(len(data), 1), CHUNK_BYTES)
        )
        digest: str = self._call("UploadBundle", requests, TRANSFER_TIMEOUT_S).digest
        return digest

    def kernels(self, node_id: str = "") -> list[kernel_pb2.KernelDefinition]:
        """Return the kernels of a node's catalog."""
        return list(self._call("ListKernels", messages.AnalyzerServiceListKernelsRequest(node_id=node_id)).kernels)

    def hardware_message(self, request: messages.GetHardwareRequest) -> messages.GetHardwareResponse:
        """Return ceilings and thresholds of a device."""
        response: messages.GetHardwareResponse = self._call("GetHardware", request)
        return response

    def watch_nodes(self) -> Iterator[messages.WatchNodesResponse]:
        """Yield changes of nodes and devices, without end; a broken stream is not resumed."""
        return self._stream("WatchNodes", messages.WatchNodesRequest())

    # ------------------------------------------------------------ calls

    def _is_back(self) -> bool:
        """Wait for the analyzer, and return whether it responds within the time limit for a broken connection."""

        def list_nodes(request: Any, **options: Any) -> Any:
            with self._waiting_for(self._stub.ListNodes.future(request, **options)) as call:
                return call.result()

        try:
            call_with_reconnect(list_nodes, messages.ListNodesRequest())
        except grpc.RpcError:
            return False
        return True

    def _call(self, method: str, request: Any, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        future = getattr(self._stub, method).future(request, timeout=timeout_s, **self._options)
        with request_errors(), self._waiting_for(future) as call:
            return call.result()

    def _stream(self, method: str, request: Any, timeout_s: float | None = None) -> Iterator[Any]:
        with request_errors(), self._waiting_for(getattr(self._stub, method)(request, timeout=timeout_s, **self._options)) as stream:
            yield from stream

    @contextmanager
    def _waiting_for(self, call: Any) -> Iterator[Any]:
        """Yield the call, and register it while somebody waits for it, so that `give_up` can cancel it."""
        self._calls.add(call)
        try:
            if self.is_given_up:
                raise grpc.FutureCancelledError  # a cancelled call may have its result already
            yield call
        except (grpc.FutureCancelledError, grpc.RpcError) as error:
            if not self.is_given_up:
                raise
            raise call_error(
                f"analyzer {self.endpoint.address}",
                found="a call that was given up",
                expected="an answer",
                code="UNAVAILABLE",
                reason="UNAVAILABLE",
            ) from error
        finally:
            self._calls.discard(call)
            call.cancel()


def _id_of(run: Run | str) -> str:
    return run.run_id if isinstance(run, Run) else run
