"""A client of the analyzer: submit runs, watch them, read tables, import traces.

Needs gRPC and protobuf alone; tables come as polars, pandas or Arrow where that is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, overload

import grpc

from kernalyse.bundle import files_of_folder, pack, refuse_too_large
from kernalyse.channel import Endpoint, answer_when_back, open_channel
from kernalyse.errors import refusal, request_errors
from kernalyse.revision import git_revision
from kernalyse.runs import Run, RunUpdate, run_of, update_of
from kernalyse.tables import Table, TableFilter, filter_messages, sort_keys
from kernalyse.trace_upload import OutgoingTrace, TraceUpload
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1 import analyzer_service_pb2_grpc as stubs
from kernalyse.v1 import device_pb2, run_pb2

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

DEFAULT_TIMEOUT_S: Final = 30.0
"""Longer than any answer but a stream takes; short enough that a dead service is noticed."""

TRANSFER_TIMEOUT_S: Final = 600.0
CHUNK_BYTES: Final = 1024 * 1024
MAX_SECONDS: Final = 1e9  # as nanoseconds still a number of 64 bits
TABLE_FORMS: Final = ("polars", "pandas", "arrow")
NOTHING: Final[Callable[[], None]] = lambda: None  # noqa: E731


@dataclass(frozen=True, slots=True)
class Imported:
    """What a trace has become. is_known: the same files had been imported before."""

    run: Run
    is_known: bool


class _ClosedStub:
    """In the place of a closed client's: gRPC ends the process where a stream is asked for on a closed channel."""

    def __getattr__(self, method: str) -> Any:
        raise refusal("client", found="a closed one", expected="an open one", remedy="Call it inside of its with block, or connect again.")


class Client:
    """Calls of one analyzer. Safe to use from several threads; close it, or use it in a `with` block.

    Every method raises RequestError for what the analyzer refuses, and when it cannot be reached. Where a run is asked
    for, its id, the beginning of one and "last" do as well.
    """

    def __init__(self, endpoint: Endpoint, on_close: Callable[[], None] = NOTHING) -> None:
        self.endpoint = endpoint
        self._channel = open_channel(endpoint)
        self._stub: Any = stubs.AnalyzerServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._on_close = on_close

    def close(self) -> None:
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
        """Queues a run; the commit of the folder that the program stands in is recorded with it.

        Args:
            spec: of `kernel_sweep`, `command`, `model` or `ceilings`.
            node: id, address or host name; empty for the only node, or the first that serves.
            time_limit_s, memory_limit_bytes: None: the node's own, which these may lower but not raise.
            request_id: the same one with the same spec answers with the same run.
        """
        asked = run_pb2.RunSpec()
        asked.CopyFrom(spec)
        if title:
            asked.title = title
        if time_limit_s is not None:
            if not 0 < time_limit_s <= MAX_SECONDS:
                raise refusal("argument time_limit_s", found=str(time_limit_s), expected=f"more than 0 and at most {MAX_SECONDS:g} seconds")
            asked.limits.time_limit_ns = round(time_limit_s * 1e9)
        if memory_limit_bytes is not None:
            asked.limits.memory_limit_bytes = memory_limit_bytes
        revision = None if asked.HasField("revision") else git_revision(Path.cwd())
        if revision is not None:
            asked.revision.commit, asked.revision.is_dirty = revision
        request = messages.AnalyzerServiceStartRunRequest(node_id=self._node_id(node), spec=asked, request_id=request_id)
        return run_of(self._call(self._stub.StartRun, request).run)

    def watch(self, run: Run | str, *, next_event_index: int = 0) -> Iterator[RunUpdate]:
        """The run and its new rows from an index on, then live; ends when the run has ended.

        A stream that breaks is taken up where it was, each row once; an analyzer that stays away for 20 s ends it.
        """
        run_id = _id_of(run)
        while True:
            try:
                for update in self._stream(run_id, next_event_index):
                    next_event_index = update.next_event_index
                    yield update
                return
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or not self._is_back():
                    with request_errors():
                        raise

    def wait(self, run: Run | str) -> Run:
        """Until the run has ended; answers with how."""
        for _ in self.watch(run):
            pass
        return self.run(run)

    def run(self, run: Run | str) -> Run:
        """As it is now."""
        return run_of(self._call(self._stub.GetRun, messages.AnalyzerServiceGetRunRequest(run_id=_id_of(run))).run)

    def runs(self, *, max_count: int | None = None) -> Iterator[Run]:
        """Runs of all nodes, newest first; asks for further pages as they are needed. max_count: None for all."""
        page_token, remaining = "", max_count
        while remaining is None or remaining > 0:
            page_size = 0 if remaining is None else min(remaining, 1000)
            response = self._call(self._stub.ListRuns, messages.AnalyzerServiceListRunsRequest(page_size=page_size, page_token=page_token))
            yield from map(run_of, response.runs)
            page_token = response.next_page_token
            remaining = None if remaining is None else remaining - len(response.runs)
            if not page_token:
                return

    def cancel(self, run: Run | str) -> Run:
        """Ends a run; one that has ended stays as it is."""
        return run_of(self._call(self._stub.CancelRun, messages.AnalyzerServiceCancelRunRequest(run_id=_id_of(run))).run)

    def annotate(self, run: Run | str, *, tags: Sequence[str], notes: str) -> Run:
        """Replaces the run's tags and notes."""
        return run_of(self._call(self._stub.UpdateRun, messages.UpdateRunRequest(run_id=_id_of(run), tags=tags, notes=notes)).run)

    def delete(self, run: Run | str) -> None:
        """Deletes a run that has ended, with all its rows."""
        self._call(self._stub.DeleteRun, messages.DeleteRunRequest(run_id=_id_of(run)))

    def report(self, run: Run | str, report_format: Literal["text", "markdown"] = "text") -> str:
        """A report of a run."""
        request = messages.ExportReportRequest(run_id=_id_of(run), format=report_format)
        with request_errors():
            return b"".join(part.chunk for part in self._stub.ExportReport(request, timeout=TRANSFER_TIMEOUT_S)).decode()

    def document(self, run: Run | str, document_format: Literal["html", "pdf", "pptx", "png", "svg"], against: Run | str = "") -> bytes:
        """A document with charts of a run, as a file; of png and svg a zip.

        Args:
            against: baseline; the document compares both then.
        """
        baseline_run_id = _id_of(against) if against else ""
        request = messages.ExportReportRequest(run_id=_id_of(run), format=document_format, baseline_run_id=baseline_run_id)
        with request_errors():
            return b"".join(part.chunk for part in self._stub.ExportReport(request, timeout=TRANSFER_TIMEOUT_S))

    def artifact(self, run: Run | str, artifact_name: str) -> bytes:
        """A file that a run has left; table artifacts names them."""
        request = messages.AnalyzerServiceReadArtifactRequest(run_id=self.run(run).run_id, artifact_name=artifact_name)
        with request_errors():
            return b"".join(part.chunk for part in self._stub.ReadArtifact(request, timeout=TRANSFER_TIMEOUT_S))

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
        """Rows of a table or an analysis: measurements, samples, roofline, kernels, layers and the others.

        Args:
            run: one, or several; an empty sequence for all runs.
            filters: conditions that all hold, e.g. ("kernel_name", "contains", "gemm").
            order_by: columns; with "-" in front they descend.
            limit: 0 for all rows.
            columns: empty for all of them.
            depth: of table layers: of the ranges that kernels count for, 0 for the outermost; None: the innermost.
            to: a polars or pandas data frame, or a pyarrow table.

        Raises:
            ModuleNotFoundError: that library is not installed.
        """
        if to not in TABLE_FORMS:
            raise refusal("argument to", found=repr(to), expected=", ".join(TABLE_FORMS))
        if not isinstance(table_name, str) or offset < 0 or limit < 0:
            raise refusal(
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
        with request_errors():
            parts = tuple(response.chunk.arrow_ipc for response in self._stub.GetTable(request, timeout=TRANSFER_TIMEOUT_S))
        table = Table(table_name, parts)
        return {"polars": table.to_polars, "pandas": table.to_pandas, "arrow": table.to_arrow}[to]()

    # ------------------------------------------------------------ files in, nodes

    def import_trace(
        self,
        *paths: Path,
        reports: Sequence[Path] = (),
        on_sent: Callable[[int], None] = lambda _: None,
        on_progress: Callable[[messages.ImportProgress], None] | None = None,
    ) -> Imported:
        """Reads a file of results or a trace into a run, with NVBench's binary samples beside it; several traces into one run.

        Args:
            paths: of the file, or of the traces of one job's processes; the analyzer tells their formats by the content.
            reports: of ncu (CSV) of the program that the first trace is of: the work of its kernels.
            on_sent: called with the bytes of each part as it is sent.
            on_progress: called with what becomes of them, from another thread.

        Raises:
            OSError: the file cannot be read.
        """
        with request_errors():
            traces = [OutgoingTrace(path, reports if number == 0 else ()) for number, path in enumerate(paths)]
            answer = TraceUpload(traces, on_sent, on_progress).send(self._stub)
        return Imported(run_of(answer.run), answer.is_known)

    def upload_bundle(self, folder: Path, *, node: str = "") -> str:
        """Stores a folder on a node, without .git, .venv and __pycache__; the digest that `command` and `model` take.

        Raises:
            OSError: a file or a folder cannot be read.
        """
        files = files_of_folder(folder)
        refuse_too_large(files)
        data, node_id = pack(files), self._node_id(node)
        requests = (
            messages.AnalyzerServiceUploadBundleRequest(node_id=node_id, chunk=data[start : start + CHUNK_BYTES])
            for start in range(0, len(data), CHUNK_BYTES)
        )
        with request_errors():
            digest: str = self._stub.UploadBundle(requests, timeout=TRANSFER_TIMEOUT_S).digest
        return digest

    def nodes(self) -> list[messages.NodeStatus]:
        """Every node, reachable or not, with its devices."""
        return list(self._call(self._stub.ListNodes, messages.ListNodesRequest()).nodes)

    def hardware(self, node_id: str, device_id: str) -> list[device_pb2.Ceiling]:
        """Ceilings of a device from all sources."""
        return list(self._call(self._stub.GetHardware, messages.GetHardwareRequest(node_id=node_id, device_id=device_id)).ceilings)

    # ------------------------------------------------------------ calls

    def _node_id(self, node: str) -> str:
        if not node:
            return ""
        known = [status.node.node_id for status in self.nodes() if node in (status.address, status.node.hostname)]
        return known[0] if known else node

    def _stream(self, run_id: str, next_event_index: int) -> Iterator[RunUpdate]:
        request = messages.AnalyzerServiceWatchRunRequest(run_id=run_id, next_event_index=next_event_index)
        stream = self._stub.WatchRun(request)
        try:
            yield from map(update_of, stream)
        finally:
            stream.cancel()

    def _is_back(self) -> bool:
        """Waits for the analyzer: whether it answers within the time that a line has to come back."""
        try:
            answer_when_back(self._stub.ListNodes, messages.ListNodesRequest())
        except grpc.RpcError:
            return False
        return True

    def _call(self, method: Any, request: Any) -> Any:
        with request_errors():
            return method(request, timeout=DEFAULT_TIMEOUT_S)


def _id_of(run: Run | str) -> str:
    return run.run_id if isinstance(run, Run) else run
