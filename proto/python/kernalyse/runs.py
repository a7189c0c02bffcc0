"""Runs and their updates, as the client returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, cast

from google.protobuf.timestamp_pb2 import Timestamp

from kernalyse.tables import Table
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1 import run_pb2

RunState = Literal["QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "LOST"]

LIVE_STATES: Final = ("QUEUED", "RUNNING")


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Why a run has failed. reason: e.g. "COMPILE_FAILED"; metadata: subject, found, expected and remedy."""

    code: str
    reason: str
    message: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Run:
    """A snapshot of a run.

    Attributes:
        kind: "kernel_sweep", "command_profile", "model_run", "ceiling_measurement" or "imported_trace".
        node_id: empty: imported.
        total_configuration_count: None until the work is expanded.
        activity: the status message.
        error: None: there is none.
        problem: why the analyzer cannot receive or store the run's progress; empty: it can.
        message: the message of the contract, with the complete spec.
    """

    run_id: str
    node_id: str
    kind: str
    title: str
    state: RunState
    create_time: datetime
    start_time: datetime | None
    end_time: datetime | None
    device_id: str | None
    completed_configuration_count: int
    failed_configuration_count: int
    total_configuration_count: int | None
    activity: str
    error: RunFailure | None
    problem: str
    tags: tuple[str, ...]
    notes: str
    message: run_pb2.Run = field(repr=False, compare=False)

    @property
    def has_ended(self) -> bool:
        """Return whether nothing more will come of it."""
        return self.state not in LIVE_STATES

    def __str__(self) -> str:
        done = f"{self.completed_configuration_count} of {self.total_configuration_count or '?'}"
        failed = f", {self.failed_configuration_count} failed" if self.failed_configuration_count else ""
        said = self.error.message if self.error is not None else self.problem or self.activity
        return f"run {self.run_id} {self.state.lower()}, {done}{failed}{': ' if said else ''}{said}"


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """A change of a run.

    Attributes:
        run: its new state; None: only rows have arrived.
        tables: new rows, grouped by table.
        next_event_index: where to continue watching.
    """

    run: Run | None
    tables: tuple[Table, ...]
    next_event_index: int


def run_from_message(message: run_pb2.Run) -> Run:
    """Return the run that a message is of."""
    return Run(
        run_id=message.run_id,
        node_id=message.node_id,
        kind=message.spec.WhichOneof("work") or "",
        title=message.spec.title,
        state=cast(RunState, run_pb2.RunState.Name(message.state).removeprefix("RUN_STATE_")),
        create_time=message.create_time.ToDatetime(tzinfo=UTC),
        start_time=_time(message.start_time) if message.HasField("start_time") else None,
        end_time=_time(message.end_time) if message.HasField("end_time") else None,
        device_id=message.device_id if message.HasField("device_id") else None,
        completed_configuration_count=message.completed_configuration_count,
        failed_configuration_count=message.failed_configuration_count,
        total_configuration_count=message.total_configuration_count if message.HasField("total_configuration_count") else None,
        activity=message.activity,
        error=_failure(message.error) if message.HasField("error") else None,
        problem=message.problem,
        tags=tuple(message.tags),
        notes=message.notes,
        message=message,
    )


def update_from_message(message: messages.AnalyzerServiceWatchRunResponse) -> RunUpdate:
    """Return the update in a message."""
    return RunUpdate(
        run=run_from_message(message.run) if message.HasField("run") else None,
        tables=tuple(Table(chunk.table_name, (chunk.arrow_ipc,)) for chunk in message.tables),
        next_event_index=message.next_event_index,
    )


def _time(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(tzinfo=UTC)


def _failure(error: run_pb2.RunError) -> RunFailure:
    return RunFailure(error.code, error.reason, error.message, dict(error.metadata))
