"""The queue of this node and the life of each run: QUEUED, RUNNING, then one final state, each journalled before it shows."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kernalyse.v1 import run_pb2
from services.core import wire
from services.core.errors import (
    InternalError,
    InvalidRequestError,
    KernalyseError,
    QueueFullError,
    RequestConflictError,
    RunLostError,
    ShuttingDownError,
    StorageFullError,
)
from services.core.model import CommandProfile, LogLevel, LogLines, Node, Progress, Run, RunSpec, RunState, StateChanged, Telemetry
from services.core.rpc import run_error
from services.profiler.admission import Admission, Placement
from services.profiler.backends.program_process import SILENCE_LIMIT_VARIABLE
from services.profiler.event_channel import event_message
from services.profiler.journal import Journal
from services.profiler.journal_database import RunsPage
from services.profiler.run_environment import inherited_environment, withheld_notice
from services.profiler.run_folder import RunFolder
from services.profiler.run_process import CANCELLED, Outcome, ProcessLimits, RunProcess

logger = logging.getLogger(__name__)

MAX_REQUEST_ID_LENGTH: Final = 100
REWRITE_INTERVAL_S: Final = 1.0
"""Between attempts to journal a final state that a full disk has refused."""


@dataclass(frozen=True, slots=True)
class RunsSettings:
    """worker_command: to which each run's own arguments are added."""

    folder: Path
    worker_command: tuple[str, ...]
    max_queued_run_count: int
    configuration_time_limit_s: float
    grace_s: float
    command_grace_s: float


@dataclass(slots=True)
class _Lane:
    """Runs that follow each other on one device."""

    queued: deque[str] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class Runs:
    """All runs of the node. Use `recover` once before anything else, and `drain` at the end."""

    def __init__(self, settings: RunsSettings, journal: Journal, admission: Admission, node: Node) -> None:
        self._settings = settings
        self._journal = journal
        self._admission = admission
        self._node = node
        self._active: dict[str, Run] = {}  # as journalled; a run leaves when its final state is
        self._placements: dict[str, Placement] = {}
        self._processes: dict[str, RunProcess] = {}
        self._cancelled: set[str] = set()
        self._lanes: dict[str, _Lane] = {}
        self._unwritten: dict[str, Run] = {}  # ended, but the full disk does not take it
        self._rewriting: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._is_open = False  # lanes wait until `recover` is through
        self.is_draining = False

    # ------------------------------------------------------------ what is asked for

    async def start(self, spec: RunSpec, request_id: str) -> Run:
        """Queues a run; for a request_id seen before, answers with the run it made.

        Raises what `Admission.check` raises, and:
            RequestConflictError: the request_id was used for another body.
            QueueFullError, StorageFullError, ShuttingDownError.
        """
        if len(request_id) > MAX_REQUEST_ID_LENGTH:
            raise InvalidRequestError("request_id", found=f"{len(request_id)} characters", expected=f"at most {MAX_REQUEST_ID_LENGTH}")
        body_digest = hashlib.sha256(wire.encode(spec).SerializeToString(deterministic=True)).hexdigest()
        async with self._starting:  # two calls with one request_id make one run
            known = await self._journal.request(request_id) if request_id else None
            if known is not None:
                return await self.get(_same_body(request_id, known, body_digest))
            self._check_open()
            placement = await asyncio.to_thread(self._admission.check, spec)
            run = Run(
                run_id=f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}",
                node_id=self._node.node_id,
                hostname=self._node.hostname,
                spec=spec,
                state=RunState.QUEUED,
                create_time=datetime.now(UTC),
                request_id=request_id or None,
            )
            await self._journal.create(run, body_digest, [event_message(StateChanged(RunState.QUEUED))])
            self._enqueue(run, placement)
        return run

    async def checked(self, spec: RunSpec) -> Run:
        """The run that `start` would make, without id; nothing is queued. Raises what `Admission.check` raises."""
        placement = await asyncio.to_thread(self._admission.check, spec)
        return Run(
            run_id="",
            node_id=self._node.node_id,
            hostname=self._node.hostname,
            spec=placement.spec,
            state=RunState.QUEUED,
            create_time=datetime.now(UTC),
            device_id=placement.device_id,
            total_configuration_count=placement.configuration_count,
        )

    async def get(self, run_id: str) -> Run:
        """Raises RunNotFoundError."""
        return self._unwritten.get(run_id) or self._active.get(run_id) or (await self._journal.run(run_id))[0]

    async def list(self, before_run_number: int | None, limit: int) -> RunsPage:
        """Newest first."""
        page = await self._journal.runs(before_run_number, limit)
        return replace(page, runs=tuple(self._unwritten.get(run.run_id) or self._active.get(run.run_id) or run for run in page.runs))

    async def cancel(self, run_id: str) -> Run:
        """Ends a run that has not ended; answers with it as it is then, which for a running one is still RUNNING.

        Raises RunNotFoundError.
        """
        run = await self.get(run_id)
        for lane in self._lanes.values():
            if run_id in lane.queued:
                lane.queued.remove(run_id)
                await self._finish(run_id, Outcome(RunState.CANCELLED))
                return await self.get(run_id)
        if run_id in self._active:
            self._cancelled.add(run_id)
            if run_id in self._processes:
                self._processes[run_id].end(CANCELLED)
        return run

    def folder(self, run_id: str) -> RunFolder:
        return RunFolder(self._settings.folder, run_id)

    @property
    def running_run_ids(self) -> tuple[str, ...]:
        return tuple(run.run_id for run in self._active.values() if run.state is RunState.RUNNING)

    @property
    def queued_run_ids(self) -> tuple[str, ...]:
        return tuple(run_id for lane in self._lanes.values() for run_id in lane.queued)

    @property
    def bundle_digests(self) -> frozenset[str]:
        """Of the bundles that queued and running runs name."""
        return frozenset(digest for placement in self._placements.values() for digest in placement.bundles)

    def check_complete(self, run_id: str) -> None:
        """Raises StorageFullError for a run whose end could not be journalled yet: what was read of it is not all."""
        if run_id in self._unwritten:
            raise StorageFullError(
                f"end of run {run_id}", found="a full disk", expected="room in the journal", remedy="Free space; then watch on from here."
            )

    async def record_telemetry(self, readings: Sequence[Telemetry]) -> None:
        """Journals readings with each run that goes on: the host's, and those of its device."""
        for run_id in tuple(self._processes):
            device_id = self._placements[run_id].device_id
            events = [event_message(reading) for reading in readings if reading.device_id in (None, device_id)]
            try:
                await self._journal.append(run_id, events)
            except KernalyseError:
                return  # the run's own events meet the same journal, and end it

    # ------------------------------------------------------------ start and end of the service

    async def recover(self) -> asyncio.Task[None]:
        """After a restart: a run that was running is LOST, queued ones are queued again. Never starts a run a second time.

        Answers with the task that opens the lanes once no process of a lost run is left.
        """
        lost: list[str] = []
        for run in await self._journal.unfinished():
            if run.state is RunState.RUNNING:
                lost.append(run.run_id)
                self._active[run.run_id] = run
                error = RunLostError(
                    f"run {run.run_id}",
                    found="the profiler service ended while it was running",
                    remedy="What was measured before is kept; submit it again for the rest.",
                )
                await self._finish(run.run_id, Outcome(RunState.LOST, run_error(error)))
            else:
                await self._requeue(run)
        return asyncio.create_task(self._open_lanes_after(lost))

    async def _requeue(self, run: Run) -> None:
        try:
            placement = self._admission.place(run.spec)
        except KernalyseError as error:  # its device or bundle has gone
            self._active[run.run_id] = run
            await self._finish(run.run_id, Outcome(RunState.FAILED, run_error(error)))
            return
        self._active[run.run_id] = run
        self._placements[run.run_id] = placement
        self._lanes.setdefault(placement.lane, _Lane()).queued.append(run.run_id)

    async def _open_lanes_after(self, lost: Sequence[str]) -> None:
        for run_id in lost:
            if not await self.folder(run_id).wait_for_processes(self._settings.grace_s + 5.0):
                logger.warning("Processes of run %s, which was lost, are still there.", run_id)
            self.folder(run_id).keep_artifacts_only()
        self._is_open = True
        for lane in self._lanes.values():
            self._feed(lane)

    async def drain(self, limit_s: float, hurry: asyncio.Event) -> None:
        """Lets running runs end, for `limit_s` or until `hurry`; then cancels them. Queued ones stay queued in the journal."""
        self.is_draining = True
        if self.running_run_ids:
            logger.info("Waiting for %d run(s), %g s at most.", len(self.running_run_ids), limit_s)
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if tasks:
            hurried = asyncio.create_task(hurry.wait())
            ended = asyncio.create_task(asyncio.wait(tasks))
            await asyncio.wait((hurried, ended), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            for run_id in self.running_run_ids:
                self._cancelled.add(run_id)
                if run_id in self._processes:
                    self._processes[run_id].end(CANCELLED)
            await ended
        if self._rewriting is not None:
            self._rewriting.cancel()

    def _check_open(self) -> None:
        if self.is_draining:
            raise ShuttingDownError("this node", found="it is shutting down", remedy="Try again when it has restarted.")
        if len(self.queued_run_ids) >= self._settings.max_queued_run_count:
            raise QueueFullError(
                "queue of this node",
                found=f"{len(self.queued_run_ids)} runs waiting",
                expected=f"fewer than {self._settings.max_queued_run_count}",
                remedy="Wait for some to end or cancel them.",
            )
        self._journal.check_space()

    # ------------------------------------------------------------ the life of a run

    def _enqueue(self, run: Run, placement: Placement) -> None:
        self._active[run.run_id] = run
        self._placements[run.run_id] = placement
        lane = self._lanes.setdefault(placement.lane, _Lane())
        lane.queued.append(run.run_id)
        self._feed(lane)

    def _feed(self, lane: _Lane) -> None:
        if lane.task is None and lane.queued and self._is_open and not self.is_draining:
            lane.task = asyncio.create_task(self._work(lane))

    async def _work(self, lane: _Lane) -> None:
        while lane.queued and not self.is_draining:
            run_id = lane.queued.popleft()
            try:
                outcome = await self._execute(run_id)
            except KernalyseError as error:
                outcome = Outcome(RunState.FAILED, run_error(error))
            except Exception as error:
                logger.exception("Run %s could not be carried out", run_id)
                outcome = Outcome(RunState.FAILED, run_error(InternalError(f"run {run_id}", found=f"{type(error).__name__}: {error}")))
            self._processes.pop(run_id, None)
            await self._finish(run_id, outcome)
        lane.task = None

    async def _execute(self, run_id: str) -> Outcome:
        placement = self._placements[run_id]
        await self._change(run_id, RunState.RUNNING, start_time=datetime.now(UTC), device_id=placement.device_id)
        if run_id in self._cancelled:
            return Outcome(RunState.CANCELLED)
        folder = self.folder(run_id)
        folder.prepare(placement.spec, placement.bundles)
        notice = withheld_notice(placement.spec, os.environ)
        if notice is not None:
            await self._record(run_id, [event_message(LogLines(LogLevel.INFO, "service", (notice,)))])
        process = RunProcess(
            (*self._settings.worker_command, "--spec", str(folder.spec_file), "--folder", str(folder.working_folder)),
            folder.working_folder,
            ProcessLimits(
                time_limit_s=placement.limits.run_time_limit_ns / 1e9,
                memory_limit_bytes=placement.limits.run_memory_limit_bytes,
                silence_limit_s=self._settings.configuration_time_limit_s,
                grace_s=self._settings.grace_s,
                cancel_grace_s=self._settings.command_grace_s if isinstance(placement.spec.work, CommandProfile) else 0.0,
            ),
            record=lambda events: self._record(run_id, events),
            activity=lambda: self._active[run_id].activity,
        )
        self._processes[run_id] = process
        lock_file = folder.lock()
        try:
            return await process.run(self._environment(placement.spec, folder), lock_file)
        finally:
            os.close(lock_file)
            await asyncio.to_thread(folder.keep_artifacts_only)

    def _environment(self, spec: RunSpec, folder: RunFolder) -> dict[str, str]:
        """Return that of a worker. It has to know how long it may be silent, to end what it has started itself before that."""
        return {
            **inherited_environment(spec, os.environ),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(folder.temporary_folder),
            SILENCE_LIMIT_VARIABLE: str(self._settings.configuration_time_limit_s),
        }

    async def _record(self, run_id: str, events: Sequence[run_pb2.RunEvent]) -> None:
        progress = next((event.progress for event in reversed(events) if event.WhichOneof("payload") == "progress"), None)
        if progress is None:
            await self._journal.append(run_id, events)
            return
        run = wire.decode(progress, Progress).of(self._active[run_id])
        await self._journal.append(run_id, events, run)
        self._active[run_id] = run

    async def _change(self, run_id: str, state: RunState, **changes: object) -> None:
        run: Run = replace(self._active[run_id], state=state, **changes)  # type: ignore[arg-type]
        await self._journal.append(run_id, [event_message(StateChanged(state, run.error))], run, is_synced=True)
        self._active[run_id] = run

    async def _finish(self, run_id: str, outcome: Outcome) -> None:
        """The one place where a run gets its final state."""
        changes = {"error": outcome.error, "end_time": datetime.now(UTC), "activity": ""}
        try:
            await self._change(run_id, outcome.state, **changes)
        except KernalyseError:
            self._unwritten[run_id] = replace(self._active[run_id], state=outcome.state, **changes)  # type: ignore[arg-type]
            if self._rewriting is None:
                self._rewriting = asyncio.create_task(self._write_the_unwritten())
        else:
            self._forget(run_id)
        logger.info("Run %s %s%s", run_id, outcome.state.lower(), f": {outcome.error.message}" if outcome.error else "")

    async def _write_the_unwritten(self) -> None:
        while self._unwritten:
            await asyncio.sleep(REWRITE_INTERVAL_S)
            for run_id, run in tuple(self._unwritten.items()):
                try:
                    await self._journal.append(run_id, [event_message(StateChanged(run.state, run.error))], run, is_synced=True)
                except KernalyseError:
                    break
                del self._unwritten[run_id]
                self._forget(run_id)
        self._rewriting = None

    def _forget(self, run_id: str) -> None:
        self._active.pop(run_id, None)
        self._placements.pop(run_id, None)
        self._cancelled.discard(run_id)


def _same_body(request_id: str, known: tuple[Run, str], body_digest: str) -> str:
    run, known_digest = known
    if known_digest != body_digest:
        raise RequestConflictError(
            f"request_id {request_id}",
            found=f"run {run.run_id}, which it made from another body",
            expected="the same body, or a new request_id",
            remedy="Use a new request_id for a new run.",
        )
    return run.run_id
