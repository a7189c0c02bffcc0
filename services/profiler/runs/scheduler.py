"""The device queues of this node and the life of each run: QUEUED, RUNNING, then one final state, each journaled before it shows."""

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
from functools import partial
from pathlib import Path
from typing import Final

from kernalyse.services.core import protobuf
from kernalyse.services.core.access import caller
from kernalyse.services.core.errors import (
    InternalError,
    InvalidRequestError,
    KernalyseError,
    QueueFullError,
    RequestConflictError,
    RunLostError,
    ShuttingDownError,
    StorageFullError,
)
from kernalyse.services.core.logs import logging_about
from kernalyse.services.core.model import (
    ClockMode,
    CommandProfile,
    KernelSweep,
    LogLevel,
    LogLines,
    Node,
    Progress,
    Run,
    RunSpec,
    RunState,
    StateChanged,
    Telemetry,
)
from kernalyse.services.core.rpc import run_error
from kernalyse.services.core.tracing import span
from kernalyse.services.profiler.journal.database import RunsPage
from kernalyse.services.profiler.journal.journal import Journal
from kernalyse.services.profiler.processes import clock_locks
from kernalyse.services.profiler.processes.children import SILENCE_LIMIT_VARIABLE
from kernalyse.services.profiler.processes.event_pipe import event_message
from kernalyse.services.profiler.processes.sandbox import RunPlaces, Sandbox
from kernalyse.services.profiler.runs.admission import Admission, Placement
from kernalyse.services.profiler.runs.device_watch import DeviceWatch
from kernalyse.services.profiler.runs.files import CLOCK_LOCK_NAME, RunDirectory, storage_errors
from kernalyse.services.profiler.runs.process import CANCELLED, Outcome, ProcessLimits, RunProcess, inherited_environment, withheld_notice
from kernalyse.trace_context import current_traceparent, trace_environment
from kernalyse.v1 import run_pb2

logger = logging.getLogger(__name__)

MAX_REQUEST_ID_LENGTH: Final = 100
REWRITE_INTERVAL_S: Final = 1.0
"""Pause between attempts to journal a final state that a full disk has refused."""


@dataclass(frozen=True, slots=True)
class RunsSettings:
    """Limits, directory and worker command of the node's runs.

    worker_command: each run's own arguments are added to it.
    """

    sandbox: Sandbox
    directory: Path
    worker_command: tuple[str, ...]
    max_queued_run_count: int
    configuration_time_limit_s: float
    grace_s: float
    command_grace_s: float


@dataclass(slots=True, eq=False)
class ActiveRun:
    """A run that is queued or running, or whose final state is not in the journal yet.

    placement: None for a run of an earlier process of the service that is not run again.
    unjournaled: the run in its final state, which a full disk refuses.
    """

    run: Run  # as journaled
    placement: Placement | None = None
    process: RunProcess | None = None
    is_cancel_requested: bool = False
    unjournaled: Run | None = None

    @property
    def latest(self) -> Run:
        """Return the latest state of the run, journaled or not."""
        return self.unjournaled or self.run

    def cancel(self) -> None:
        """End the worker, or keep one from being started."""
        self.is_cancel_requested = True
        if self.process is not None:
            self.process.end(CANCELLED)


@dataclass(slots=True)
class DeviceQueue:
    """The runs of one device, which run one after the other."""

    pending: deque[ActiveRun] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class Runs:
    """All runs of the node. Call `recover` before anything else, and `drain` at the end."""

    def __init__(self, settings: RunsSettings, journal: Journal, admission: Admission, node: Node, watch: DeviceWatch) -> None:
        self._watch = watch
        self._settings = settings
        self._journal = journal
        self._admission = admission
        self._node = node
        self._active: dict[str, ActiveRun] = {}  # a run leaves when its final state is journaled
        self._device_queues: dict[str, DeviceQueue] = {}
        self._rewriting: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._is_open = False  # device queues wait until `recover` is through
        self.is_draining = False

    # ------------------------------------------------------------ what is asked for

    async def start(self, spec: RunSpec, request_id: str) -> Run:
        """Queue a run and return it; for a request_id seen before, return the run that it made.

        Raises what `Admission.check` raises, and:
            RequestConflictError: the request_id was used for another body.
            QueueFullError, StorageFullError, ShuttingDownError.
        """
        if len(request_id) > MAX_REQUEST_ID_LENGTH:
            raise InvalidRequestError("request_id", found=f"{len(request_id)} characters", expected=f"at most {MAX_REQUEST_ID_LENGTH}")
        body_digest = hashlib.sha256(protobuf.encode(spec).SerializeToString(deterministic=True)).hexdigest()
        async with self._starting:  # two calls with one request_id make one run
            known = await self._journal.request(request_id) if request_id else None
            if known is not None:
                return await self.get(_same_body(request_id, known, body_digest))
            self._check_open()
            placement = await asyncio.to_thread(self._admission.check, spec)
            run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
            run = Run(
                run_id=run_id,
                node_id=self._node.node_id,
                hostname=self._node.hostname,
                spec=spec,
                state=RunState.QUEUED,
                create_time=self._journal.clocks.begin(run_id),
                request_id=request_id or None,
                owner=caller().name,
                traceparent=current_traceparent(),
            )
            try:
                await self._journal.create(run, body_digest, [event_message(StateChanged(RunState.QUEUED))])
            except KernalyseError:
                self._journal.clocks.end(run_id)
                raise
            self._enqueue(run, placement)
        return run

    async def checked(self, spec: RunSpec) -> Run:
        """Return the run that `start` would create, without an id; nothing is queued. Raises as `Admission.check`."""
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
        """Return one run. Raises RunNotFoundError."""
        active = self._active.get(run_id)
        return (await self._journal.run(run_id))[0] if active is None else active.latest

    async def list(self, before_run_number: int | None, limit: int) -> RunsPage:
        """Return one page of runs, the newest first."""
        page = await self._journal.runs(before_run_number, limit)
        return replace(page, runs=tuple(active.latest if (active := self._active.get(run.run_id)) else run for run in page.runs))

    async def cancel(self, run_id: str) -> Run:
        """End a run that has not ended; return it as it is then, which for a running one is still RUNNING.

        Raises RunNotFoundError.
        """
        run = await self.get(run_id)
        active = self._active.get(run_id)
        if active is None:
            return run
        for queue in self._device_queues.values():
            if active in queue.pending:
                queue.pending.remove(active)
                await self._finalize(active, Outcome(RunState.CANCELLED))
                return await self.get(run_id)
        active.cancel()
        return run

    def directory(self, run_id: str) -> RunDirectory:
        """Return the directory of a run, whether it exists or not."""
        return RunDirectory(self._settings.directory, run_id)

    @property
    def running_run_ids(self) -> tuple[str, ...]:
        """Return the ids of the runs that are running."""
        return tuple(run_id for run_id, active in self._active.items() if active.run.state is RunState.RUNNING)

    @property
    def queued_run_ids(self) -> tuple[str, ...]:
        """Return the ids of the queued runs, queue by queue in their order."""
        return tuple(active.run.run_id for queue in self._device_queues.values() for active in queue.pending)

    @property
    def bundle_digests(self) -> frozenset[str]:
        """Return the digests of the bundles that queued and running runs name."""
        return frozenset(digest for active in self._active.values() if active.placement is not None for digest in active.placement.bundles)

    def check_complete(self, run_id: str) -> None:
        """Raise StorageFullError for a run whose end could not be journaled yet, so that its events are incomplete."""
        active = self._active.get(run_id)
        if active is not None and active.unjournaled is not None:
            raise StorageFullError(
                f"end of run {run_id}", found="a full disk", expected="room in the journal", remedy="Free space; then watch on from here."
            )

    async def record_telemetry(self, readings: Sequence[Telemetry]) -> None:
        """Journal readings with each run that has a process: the host's, and those of its device."""
        for active in [active for active in self._active.values() if active.process is not None]:
            events = [event_message(reading) for reading in readings if reading.device_id in (None, active.run.device_id)]
            try:
                await self._journal.append(active.run.run_id, events)
            except KernalyseError:
                return  # the run's own events meet the same journal, and end it

    # ------------------------------------------------------------ start and end of the service

    async def recover(self) -> asyncio.Task[None]:
        """Mark runs that were running before a restart as LOST, and queue queued ones again. No run is started a second time.

        Returns the task that opens the device queues once no process of a lost run is left.
        """
        lost: list[str] = []
        for run, last_event_unix_ns in await self._journal.unfinished():
            self._journal.clocks.begin(run.run_id, last_event_unix_ns)
            if run.state is RunState.RUNNING:
                lost.append(run.run_id)
                error = RunLostError(
                    f"run {run.run_id}",
                    found="the profiler service ended while it was running",
                    remedy="What was measured before is kept; submit it again for the rest.",
                )
                await self._finalize(self._activate(run), Outcome(RunState.LOST, run_error(error)))
            else:
                await self._requeue(run)
        return asyncio.create_task(self._open_queues_after(lost))

    async def _requeue(self, run: Run) -> None:
        try:
            placement = self._admission.place(run.spec)
        except KernalyseError as error:  # its device or bundle has gone
            await self._finalize(self._activate(run), Outcome(RunState.FAILED, run_error(error)))
        else:
            self._enqueue(run, placement)

    async def _open_queues_after(self, lost: Sequence[str]) -> None:
        for run_id in lost:
            if not await self.directory(run_id).wait_for_processes(self._settings.grace_s + 5.0):
                logger.warning("Processes of run %s, which was lost, are still there.", run_id)
            self.directory(run_id).keep_artifacts_only()
        for file in self._settings.directory.glob(f"*/{CLOCK_LOCK_NAME}"):
            await self._reset_clocks(self.directory(file.parent.name))
        self._is_open = True
        for queue in self._device_queues.values():
            self._feed(queue)

    async def drain(self, limit_s: float, force: asyncio.Event) -> None:
        """Let running runs end, for `limit_s` or until `force` is set; then cancel them. Queued ones stay queued in the journal."""
        self.is_draining = True
        if self.running_run_ids:
            logger.info("Waiting for %d run(s), %g s at most.", len(self.running_run_ids), limit_s)
        tasks = [queue.task for queue in self._device_queues.values() if queue.task is not None]
        if tasks:
            forced = asyncio.create_task(force.wait())
            ended = asyncio.create_task(asyncio.wait(tasks))
            await asyncio.wait((forced, ended), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            forced.cancel()
            for run_id in self.running_run_ids:
                self._active[run_id].cancel()
            await ended
        if self._rewriting is not None:
            self._rewriting.cancel()

    def _check_open(self) -> None:
        if self.is_draining:
            raise ShuttingDownError("this node", found="it is shutting down", remedy="Try again when it has restarted.")
        queued_count = sum(len(queue.pending) for queue in self._device_queues.values())
        if queued_count >= self._settings.max_queued_run_count:
            raise QueueFullError(
                "queue of this node",
                found=f"{queued_count} runs waiting",
                expected=f"fewer than {self._settings.max_queued_run_count}",
                remedy="Wait for some to end or cancel them.",
            )
        self._journal.check_space()

    # ------------------------------------------------------------ the life of a run

    def _activate(self, run: Run, placement: Placement | None = None) -> ActiveRun:
        active = self._active[run.run_id] = ActiveRun(run, placement)
        return active

    def _enqueue(self, run: Run, placement: Placement) -> None:
        queue = self._device_queues.setdefault(placement.queue_name, DeviceQueue())
        queue.pending.append(self._activate(run, placement))
        self._feed(queue)

    def _feed(self, queue: DeviceQueue) -> None:
        if queue.task is None and queue.pending and self._is_open and not self.is_draining:
            queue.task = asyncio.create_task(self._work(queue))

    async def _work(self, queue: DeviceQueue) -> None:
        while queue.pending and not self.is_draining:
            active = queue.pending.popleft()
            ids = {"run_id": active.run.run_id, "node_id": self._node.node_id}
            with logging_about(**ids), span("run", ids, parent=active.run.traceparent):
                outcome = await self._outcome(active)
                active.process = None
                await self._finalize(active, outcome)
                await self._look_after_device(active.run, outcome)
        queue.task = None

    async def _look_after_device(self, run: Run, outcome: Outcome) -> None:
        """Set the device of a run aside where the run has shown that it does not work any more, before the next one is to use it."""
        if outcome.stuck_process_ids and run.device_id is not None:
            ids = ", ".join(map(str, outcome.stuck_process_ids))
            ended = partial(self.directory(run.run_id).wait_for_processes, 0.0)
            self._watch.set_aside(run.device_id, f"processes {ids} of run {run.run_id} do not end although they were killed", ended)
        elif outcome.state is RunState.FAILED:
            await self._watch.look_after(run.device_id, run.run_id, outcome.error)

    async def _outcome(self, active: ActiveRun) -> Outcome:
        run_id = active.run.run_id
        try:
            return await self._execute(active)
        except KernalyseError as error:
            return Outcome(RunState.FAILED, run_error(error))
        except Exception as error:
            logger.exception("Run %s could not be carried out", run_id)
            return Outcome(RunState.FAILED, run_error(InternalError(f"run {run_id}", found=f"{type(error).__name__}: {error}")))

    async def _execute(self, active: ActiveRun) -> Outcome:
        placement = active.placement
        assert placement is not None
        self._watch.check(placement.device_id)
        running = replace(active.run, state=RunState.RUNNING, start_time=self._now(active), device_id=placement.device_id)
        await self._journal_state(running)
        active.run = running
        if active.is_cancel_requested:
            return Outcome(RunState.CANCELLED)
        directory = self.directory(active.run.run_id)
        directory.prepare(placement.spec, placement.bundles)
        notice = withheld_notice(placement.spec, os.environ)
        if notice is not None:
            await self._record(active, [event_message(LogLines(LogLevel.INFO, "service", (notice,)))])
        clock_lock_file = directory.clock_lock_file if _locks_clocks(placement.spec) else None
        worker = (
            *self._settings.worker_command,
            *("--spec", str(directory.spec_file), "--directory", str(directory.working_directory)),
            *(() if clock_lock_file is None else ("--clock-lock-file", str(clock_lock_file))),
        )
        environment = self._environment(placement.spec, directory)
        is_sandboxed = self._settings.sandbox.is_for(active.run.owner)
        if is_sandboxed:
            with storage_errors(f"caches of {active.run.owner or 'the owner'}"):
                caches = await asyncio.to_thread(self._settings.sandbox.hand_over, directory.working_directory, active.run.owner)
            places = RunPlaces(directory.working_directory, directory.spec_file, tuple(placement.bundles.values()), caches)
            worker = self._settings.sandbox.command(placement.spec, worker, places, environment)
        process = active.process = RunProcess(
            worker,
            directory.working_directory,
            ProcessLimits(
                time_limit_s=placement.limits.run_time_limit_ns / 1e9,
                memory_limit_bytes=placement.limits.run_memory_limit_bytes,
                silence_limit_s=self._settings.configuration_time_limit_s,
                grace_s=self._settings.grace_s,
                cancel_grace_s=self._settings.command_grace_s if isinstance(placement.spec.work, CommandProfile) else 0.0,
            ),
            record=lambda events: self._record(active, events),
            activity=lambda: active.run.activity,
            last_command=() if clock_lock_file is None else clock_locks.reset_command(clock_lock_file),
            is_sandboxed=is_sandboxed,
        )
        lock_file = directory.lock()
        try:
            with span("worker", {"run_id": active.run.run_id}):
                return await process.run(environment, lock_file)
        finally:
            os.close(lock_file)
            await self._reset_clocks(directory)
            await asyncio.to_thread(directory.keep_artifacts_only)

    async def _reset_clocks(self, directory: RunDirectory) -> None:
        """Undo a lock of clocks that the run has left: its supervisor was killed, or the driver has refused it."""
        problem = await clock_locks.reset_clocks(directory.clock_lock_file)
        if problem:
            logger.warning("%s", problem)

    def _environment(self, spec: RunSpec, directory: RunDirectory) -> dict[str, str]:
        """Return a worker's environment, with the silence limit, so that the worker ends its own children in time."""
        return {
            **inherited_environment(spec, os.environ),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(directory.temporary_directory),
            SILENCE_LIMIT_VARIABLE: str(self._settings.configuration_time_limit_s),
            **trace_environment(),
        }

    async def _record(self, active: ActiveRun, events: Sequence[run_pb2.RunEvent]) -> None:
        progress = next((event.progress for event in reversed(events) if event.WhichOneof("payload") == "progress"), None)
        if progress is None:
            await self._journal.append(active.run.run_id, events)
            return
        run = protobuf.decode(progress, Progress).of(active.run)
        await self._journal.append(run.run_id, events, run)
        active.run = run

    async def _journal_state(self, run: Run) -> None:
        await self._journal.append(run.run_id, [event_message(StateChanged(run.state, run.error))], run, is_synced=True)

    async def _finalize(self, active: ActiveRun, outcome: Outcome) -> None:
        """Set the final state of a run. This is the only place that does."""
        run = replace(active.run, state=outcome.state, error=outcome.error, end_time=self._now(active), activity="")
        try:
            await self._journal_state(run)
        except KernalyseError:
            active.unjournaled = run
            if self._rewriting is None:
                self._rewriting = asyncio.create_task(self._journal_final_states())
        else:
            self._leave(run.run_id)
        logger.info("Run %s %s%s", run.run_id, outcome.state.lower(), f": {outcome.error.message}" if outcome.error else "")

    async def _journal_final_states(self) -> None:
        """Retry at intervals to journal the final states that a full disk has rejected, until none is left."""
        while self._unjournaled_runs():
            await asyncio.sleep(REWRITE_INTERVAL_S)
            for run in self._unjournaled_runs():
                try:
                    await self._journal_state(run)
                except KernalyseError:
                    break
                self._leave(run.run_id)
        self._rewriting = None

    def _leave(self, run_id: str) -> None:
        del self._active[run_id]
        self._journal.clocks.end(run_id)

    def _now(self, active: ActiveRun) -> datetime:
        return self._journal.clocks.now(active.run.run_id)

    def _unjournaled_runs(self) -> tuple[Run, ...]:
        return tuple(active.unjournaled for active in self._active.values() if active.unjournaled is not None)


def _locks_clocks(spec: RunSpec) -> bool:
    return isinstance(spec.work, KernelSweep) and spec.work.clock_mode is not ClockMode.AS_IS


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
