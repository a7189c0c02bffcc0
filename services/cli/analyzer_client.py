"""A blocking client of the analyzer that takes and returns the types of `kernalyse.services.core.model`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from kernalyse.channel import Endpoint
from kernalyse.client import Client
from kernalyse.errors import RequestError
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import error_from_parts
from kernalyse.services.core.model import (
    Device,
    Hardware,
    HardwareKey,
    KernelDefinition,
    NodeHealth,
    NodeStatus,
    NodeTelemetry,
    Run,
    RunSpec,
    TableChunk,
    TableQuery,
)
from kernalyse.tables import Table
from kernalyse.trace_upload import TraceUpload
from kernalyse.v1 import analyzer_service_pb2 as messages

if TYPE_CHECKING:
    import polars as pl


POLL_S: Final = 0.05
FIRST_READING_S: Final = 2.0
"""A node reads its devices when it starts, which takes milliseconds; one that cannot must not keep a command waiting."""


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """One message of a watched run.

    Attributes:
        run: its new state; None: it did not change.
        tables: rows that were added, by table.
    """

    run: Run | None
    tables: tuple[TableChunk, ...]


class AnalyzerClient:
    """A client whose methods raise the KernalyseError that the service raised, or UnavailableError when it cannot be reached."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        # A service that was started a moment ago may not listen yet.
        self._client = Client(endpoint, waits_until_ready=True)

    @property
    def is_given_up(self) -> bool:
        """Return whether `give_up` was called."""
        return self._client.is_given_up

    def give_up(self) -> None:
        """End all calls that wait, and all later ones, with UnavailableError; may be called from any thread."""
        self._client.give_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._client.close()

    def start_run(self, spec: RunSpec, *, node_id: str = "", request_id: str = "") -> Run:
        """Queue a run and return it.

        Args:
            node_id: empty for any node.
            request_id: the same id submits the same run once only; empty: no such check.
        """
        request = messages.AnalyzerServiceStartRunRequest(node_id=node_id, spec=protobuf.encode(spec), request_id=request_id)
        with _kernalyse_errors():
            return protobuf.decode(self._client.start_run(request), Run)

    def check_run(self, spec: RunSpec, *, node_id: str = "") -> Run:
        """Return the run that it would be. Nothing is queued."""
        request = messages.AnalyzerServiceStartRunRequest(node_id=node_id, spec=protobuf.encode(spec), validate_only=True)
        with _kernalyse_errors():
            return protobuf.decode(self._client.start_run(request), Run)

    def cancel_run(self, run_id: str) -> Run:
        """Cancel a run and return it; one that has ended stays as it is."""
        with _kernalyse_errors():
            return protobuf.decode(self._client.cancel(run_id).message, Run)

    def annotate_run(self, run_id: str, tags: tuple[str, ...], notes: str) -> Run:
        """Replace the tags and notes of a run and return it."""
        with _kernalyse_errors():
            return protobuf.decode(self._client.annotate(run_id, tags=tags, notes=notes).message, Run)

    def delete_run(self, run_id: str) -> None:
        """Delete a run that has ended, with all its rows."""
        with _kernalyse_errors():
            self._client.delete(run_id)

    def run(self, run_id: str) -> Run:
        """Return the present state of a run. run_id: a complete id, the beginning of one, or "last"."""
        with _kernalyse_errors():
            return protobuf.decode(self._client.run(run_id).message, Run)

    def runs(self, max_count: int) -> tuple[Run, ...]:
        """Return runs of all nodes, the newest first."""
        with _kernalyse_errors():
            return tuple(protobuf.decode(run.message, Run) for run in self._client.runs(max_count=max_count))

    def watch_run(self, run_id: str) -> Iterator[RunUpdate]:
        """Yield the changes of a run until it has ended; a stream that breaks is resumed.

        Raises:
            UnavailableError: the analyzer could not be reached again.
        """
        with _kernalyse_errors():
            for response in self._client.watch_messages(run_id):
                yield RunUpdate(
                    protobuf.decode(response.run, Run) if response.HasField("run") else None,
                    tuple(protobuf.decode(chunk, TableChunk) for chunk in response.tables),
                )

    def import_trace(self, upload: TraceUpload) -> tuple[Run, bool]:
        """Upload traces and return their run, and whether it was imported before.

        Raises:
            OSError: a file cannot be read.
        """
        with _kernalyse_errors():
            response = self._client.send_traces(upload)
        return protobuf.decode(response.run, Run), response.is_known

    def nodes(self) -> tuple[NodeStatus, ...]:
        """Return all nodes, reachable or not."""
        with _kernalyse_errors():
            return tuple(protobuf.decode(node, NodeStatus) for node in self._client.nodes())

    def newest_telemetry(self, nodes: Sequence[NodeStatus]) -> tuple[NodeTelemetry, ...]:
        """Return the newest reading of each device and host of the nodes that serve; of one that has just come its first is waited for."""
        serving = {status.node.node_id for status in nodes if status.node is not None and status.health is NodeHealth.SERVING}
        deadline = time.monotonic() + FIRST_READING_S
        while True:
            with _kernalyse_errors():
                readings = [protobuf.decode(reading, NodeTelemetry) for reading in self._client.newest_telemetry()]
            found = tuple(reading for reading in readings if reading.node_id in serving)
            if serving <= {reading.node_id for reading in found} or time.monotonic() > deadline:
                return found
            time.sleep(POLL_S)

    def node_id_of(self, node: str) -> str:
        """Return the id of a node named by id, host name or address. Empty stays empty: then the analyzer selects a node."""
        with _kernalyse_errors():
            return self._client.node_id_of(node)

    def device(self, node_id: str, device_id: str) -> Device:
        """Return a device as its node last described it.

        Raises:
            DeviceNotFoundError: no node has it.
        """
        request = messages.GetHardwareRequest(node_id=node_id, device_id=device_id)
        with _kernalyse_errors():
            return protobuf.decode(self._client.hardware_message(request).device, Device)

    def hardware(self, key: HardwareKey) -> Hardware:
        """Return ceilings and thresholds of a device.

        Raises:
            DeviceNotFoundError, RunNotFoundError: no such device or run.
        """
        request = messages.GetHardwareRequest(node_id=key.node_id, device_id=key.device_id, run_id=key.run_id)
        with _kernalyse_errors():
            return protobuf.decode(self._client.hardware_message(request), Hardware)

    def changed_hardware(self) -> Iterator[tuple[HardwareKey, ...]]:
        """Yield the keys of ceilings and thresholds that users set from now on, without end; first an empty tuple, once connected."""
        with _kernalyse_errors():
            for number, response in enumerate(self._client.watch_nodes()):
                changed = tuple(protobuf.decode(key, HardwareKey) for key in response.changed_hardware)
                if changed or number == 0:
                    yield changed

    def add_node(self, node: Endpoint) -> NodeStatus:
        """Register a profiler that the analyzer is to collect from, and return its status."""
        with _kernalyse_errors():
            return protobuf.decode(self._client.add_node(node), NodeStatus)

    def create_join_token(self, use_count: int, lifetime_s: float) -> tuple[str, str]:
        """Return a join token and its id. use_count: 0: any number. lifetime_s: 0: without end."""
        with _kernalyse_errors():
            return self._client.create_join_token(use_count, lifetime_s)

    def remove_node(self, address: str) -> None:
        """Remove a profiler that the analyzer collects from; its runs stay."""
        with _kernalyse_errors():
            self._client.remove_node(address)

    def kernels(self, node_id: str = "") -> tuple[KernelDefinition, ...]:
        """Return the kernels of a node's catalog."""
        with _kernalyse_errors():
            return tuple(protobuf.decode(kernel, KernelDefinition) for kernel in self._client.kernels(node_id))

    def upload_bundle(self, data: bytes, node_id: str = "") -> str:
        """Store a tar.gz on a node and return its digest there."""
        with _kernalyse_errors():
            return self._client.send_bundle(data, node_id)

    def artifact(self, run_id: str, artifact_name: str) -> bytes:
        """Return the content of an artifact of a run."""
        with _kernalyse_errors():
            return self._client.artifact(run_id, artifact_name)

    def report(self, run_id: str, report_format: str, baseline_run_id: str = "", allowed_differences: Sequence[str] = ()) -> bytes:
        """Return the content of a report on a run, or with a baseline on the comparison of both.

        Args:
            run_id, baseline_run_id: a complete id, the beginning of one, or "last".
            report_format: text, markdown, html, pdf, pptx, png or svg.
        """
        request = messages.ExportReportRequest(
            run_id=run_id, format=report_format, baseline_run_id=baseline_run_id, allowed_differences=allowed_differences
        )
        with _kernalyse_errors():
            return self._client.export_report(request)[report_format]

    def documents(self, run_id: str, formats: Sequence[str], baseline_run_id: str, allowed_differences: Sequence[str]) -> dict[str, bytes]:
        """Return the same report in several formats, by their names. Drawn together they take half the time."""
        found: dict[str, bytes] = {}
        while missing := [name for name in formats if name not in found]:
            request = messages.ExportReportRequest(
                run_id=run_id,
                format=missing[0],
                further_formats=missing[1:],
                baseline_run_id=baseline_run_id,
                allowed_differences=allowed_differences,
            )
            with _kernalyse_errors():
                found |= self._client.export_report(request)
        return found

    def table(self, table_name: str, run_ids: Sequence[str] = ()) -> pl.DataFrame:
        """Return the complete table, in the order of the configurations."""
        return self.rows(TableQuery(table_name, tuple(run_ids)))[0]

    def rows(self, query: TableQuery) -> tuple[pl.DataFrame, int]:
        """Return the rows that match a query, and their number before offset and limit.

        Without a requested order they come in that of the configurations, because a sweep measures these in a shuffled one.
        """
        with _kernalyse_errors():
            responses = tuple(self._client.table_messages(protobuf.encode(query)))
        frame = Table(query.table_name, tuple(response.chunk.arrow_ipc for response in responses)).to_polars()
        order = [name for name in ("run_id", "configuration_index") if name in frame.columns]
        is_sorted = query.order_by or not order[1:]
        return frame if is_sorted else frame.sort(order, maintain_order=True), sum(response.total_row_count for response in responses)


@contextmanager
def _kernalyse_errors() -> Iterator[None]:
    """Raise each RequestError of the block as the KernalyseError that it stands for."""
    try:
        yield
    except RequestError as error:
        raise error_from_parts(error.code, error.reason, error.message, error.metadata) from error
