"""The service's side of a run's processes: their supervision, and the environment that they inherit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import InternalError, KernalyseError, MemoryLimitError, TimeLimitError, WorkerCrashedError
from kernalyse.services.core.model import (
    CommandProfile,
    ConfigurationFailed,
    EventPayload,
    LogLevel,
    LogLines,
    Progress,
    RunError,
    RunSpec,
    RunState,
    StateChanged,
)
from kernalyse.services.core.rpc import run_error
from kernalyse.services.profiler.processes import supervisor
from kernalyse.services.profiler.processes.children import OutputLines
from kernalyse.services.profiler.processes.event_pipe import event_message, open_pipe, read_crash_marker, read_events
from kernalyse.v1 import run_pb2

# ---------------------------------------------------------------- run process
# The service's view of a run's processes, from exec to the end of the last of them.

CANCELLED: Final = "cancelled"
HUNG: Final = "hung"
CRASH_ADVICE: Final = "PLEASE submit a bug report"  # of LLVM, to its own makers: the fault is the kernel's
PROBLEM: Final = "problem"  # the service cannot go on with the run; RunProcess.problem says why

Record = Callable[[Sequence[run_pb2.RunEvent]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits of time, memory and silence for the processes of a run."""

    time_limit_s: float
    memory_limit_bytes: int
    silence_limit_s: float  # without any event from the worker
    grace_s: float  # between TERM and KILL
    cancel_grace_s: float = 0.0  # for the worker of a cancelled run, to end by itself what it has started


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final state of a run, and why."""

    state: RunState
    error: RunError | None = None
    is_over_configuration: bool = False  # what was being measured has ended the worker, which could not say so itself
    stuck_process_ids: tuple[int, ...] = ()  # of processes that do not end, although they were killed


class RunProcess:
    """The processes of one run: a worker under a supervisor, and the events of both.

    Args:
        command: the worker's, without the descriptor of its event pipe.
        record: journals events; one that raises a KernalyseError ends the run.
        activity: what the run is doing, for messages.
        last_command: run by the supervisor when no other process of the run is left. Empty: none.
        is_sandboxed: the command is bubblewrap's.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        limits: ProcessLimits,
        *,
        record: Record,
        activity: Callable[[], str],
        last_command: Sequence[str] = (),
        is_sandboxed: bool = False,
    ) -> None:
        self._is_sandboxed = is_sandboxed
        self._command = command
        self._last_command = last_command
        self._directory = directory
        self._limits = limits
        self._record = record
        self._activity = activity
        self._control_fd: int | None = None
        self._cause_to_send: str | None = None
        self._problem: KernalyseError | None = None
        self._reported_error: RunError | None = None
        self._stderr = OutputLines()
        self._last_event_time = time.monotonic()
        self._progress: run_pb2.Progress | None = None  # the last; hardly ever asked for, so not decoded

    def end(self, cause: str) -> None:
        """Ask the supervisor to end the run: TERM, grace, KILL. The first cause counts."""
        if self._cause_to_send is None:
            self._cause_to_send = cause
            self._send_cause()

    async def run(self, environment: dict[str, str], lock_file: int) -> Outcome:
        """Run the worker; return when no process of the run is left and all its events are recorded."""
        events_fd, worker_events_fd = open_pipe()
        status_fd, supervisor_status_fd = os.pipe()
        supervisor_control_fd, control_fd = os.pipe()
        inherited_fds = (worker_events_fd, supervisor_status_fd, supervisor_control_fd)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", supervisor.__file__),
                *(str(supervisor_status_fd), str(supervisor_control_fd), str(worker_events_fd)),
                *(str(self._limits.time_limit_s), str(self._limits.memory_limit_bytes), str(self._limits.grace_s)),
                *(json.dumps(self._last_command), str(int(self._is_sandboxed))),
                *(*self._command, "--events-fd", str(worker_events_fd)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=self._directory,
                env=environment,
                pass_fds=(*inherited_fds, lock_file),
                start_new_session=True,
            )
        except BaseException:
            for fd in (events_fd, status_fd, control_fd):
                os.close(fd)
            raise
        finally:
            for fd in inherited_fds:
                os.close(fd)
        self._control_fd = control_fd
        self._last_event_time = time.monotonic()
        self._send_cause()
        silence = asyncio.create_task(self._watch_silence())
        ending = asyncio.create_task(self._follow(process, events_fd))
        telling = asyncio.create_task(_read_line(status_fd))
        try:
            await asyncio.wait({telling, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not telling.done() or not _is_stuck(telling.result()):  # what processes that do not end hold open has no end either
                await ending
            status_line = await telling
        finally:
            silence.cancel()
            telling.cancel()
            ending.cancel()
            self._control_fd = None
            os.close(control_fd)
        outcome = self._outcome(status_line)
        if outcome.is_over_configuration and outcome.error is not None:
            await self._report_failed(outcome.error)
        return outcome

    async def _follow(self, process: asyncio.subprocess.Process, events_fd: int) -> None:
        """Pass on all that the run says, until its supervisor has ended."""
        await asyncio.gather(
            self._pass_events(events_fd),
            self._pass_log(process.stdout, OutputLines(), LogLevel.INFO, "program"),
            self._pass_log(process.stderr, self._stderr, LogLevel.WARNING, "worker"),
            process.wait(),
        )

    def _send_cause(self) -> None:
        if self._control_fd is not None and self._cause_to_send is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended by itself
                grace = f" {self._limits.cancel_grace_s}" if self._cause_to_send == CANCELLED else ""
                os.write(self._control_fd, f"end {self._cause_to_send}{grace}\n".encode())

    # ------------------------------------------------------------ what the run says

    async def _pass_events(self, events_fd: int) -> None:
        reader, transport = await _open_reader(events_fd)
        try:
            async for events in read_events(reader):
                self._last_event_time = time.monotonic()
                self._note_progress(events)
                await self._pass_on([event for event in events if not self._is_outcome(event)])
        except WorkerCrashedError as error:
            self._give_up(error)
            while await reader.read(65536):
                pass  # so that the worker does not hang on a full pipe while it is being ended
        finally:
            transport.close()

    def _note_progress(self, events: Sequence[run_pb2.RunEvent]) -> None:
        progresses = (event.progress for event in reversed(events) if event.WhichOneof("payload") == "progress")
        self._progress = next(progresses, self._progress)

    async def _report_failed(self, error: RunError) -> None:
        """Report the configuration in progress, if any, as failed."""
        progress = None if self._progress is None else protobuf.decode(self._progress, Progress)
        if progress is None:
            return
        trial = read_crash_marker(self._directory)
        failed_index = trial.configuration_index if trial is not None and trial.is_measurement else progress.configuration_index
        if failed_index is None:
            return
        await self._pass_payload(ConfigurationFailed(failed_index, error))
        completed_count, failed_count = progress.completed_configuration_count + 1, progress.failed_configuration_count + 1
        await self._pass_payload(
            replace(
                progress,
                completed_configuration_count=completed_count,
                failed_configuration_count=failed_count,
                activity="",
                configuration_index=None,
            )
        )

    def _is_outcome(self, event: run_pb2.RunEvent) -> bool:
        """Return whether the event is the worker's final error, which is held back: the service sets the final state at the end."""
        if event.WhichOneof("payload") != "state_changed":
            return False
        changed = protobuf.decode(event.state_changed, StateChanged)
        if changed.state is RunState.FAILED and changed.error is not None:
            self._reported_error = changed.error
        return True

    async def _pass_log(self, reader: asyncio.StreamReader | None, output: OutputLines, level: LogLevel, source: str) -> None:
        assert reader is not None
        while data := await reader.read(65536):
            await self._pass_lines(output.take(data), level, source)
        await self._pass_lines(output.end(), level, source)

    async def _pass_lines(self, lines: tuple[str, ...], level: LogLevel, source: str) -> None:
        if lines:
            await self._pass_payload(LogLines(level, source, lines))

    async def _pass_payload(self, payload: EventPayload) -> None:
        await self._pass_on([event_message(payload)])

    async def _pass_on(self, events: list[run_pb2.RunEvent]) -> None:
        if not events or self._problem is not None:
            return
        try:
            await self._record(events)
        except KernalyseError as error:
            self._give_up(error)

    def _give_up(self, problem: KernalyseError) -> None:
        self._problem = self._problem or problem
        self.end(PROBLEM)

    async def _watch_silence(self) -> None:
        while (left_s := self._last_event_time + self._limits.silence_limit_s - time.monotonic()) > 0:
            await asyncio.sleep(left_s)
        self.end(HUNG)

    # ------------------------------------------------------------ what it comes to

    def _outcome(self, status_line: bytes) -> Outcome:
        if not status_line:
            return _failed(
                InternalError("supervisor of the run", found="it ended without a word", remedy="Perhaps something has killed it.")
            )
        status: dict[str, Any] = json.loads(status_line)
        if "stuck" in status:
            process_ids = tuple(status["stuck"])
            error = WorkerCrashedError(
                f"worker while {self._doing()}",
                found=f"processes that do not end although they were killed: {', '.join(map(str, process_ids))}",
                expected="an end",
                remedy="A driver holds them: look at the kernel's log; the device may need a reset.",
            )
            return replace(_failed_over_configuration(error), stuck_process_ids=process_ids)
        match status["cause"]:
            case supervisor.EXITED:
                return self._outcome_of_exit(status["exit_code"], status["signal"])
            case "cancelled":
                return Outcome(RunState.CANCELLED)
            case supervisor.TIME_LIMIT:
                return _failed(
                    TimeLimitError(
                        "the run",
                        found=f"still {self._activity() or 'at work'} after {self._limits.time_limit_s:g} s",
                        expected=f"an end within {self._limits.time_limit_s:g} s",
                        remedy="Raise the run's time limit, or the node's run_time_limit_s; or split the sweep.",
                    )
                )
            case "hung":
                return _failed_over_configuration(
                    TimeLimitError(
                        f"worker while {self._doing()}",
                        found=f"no sign of life for {self._limits.silence_limit_s:g} s",
                        expected=f"a launch within {self._limits.silence_limit_s:g} s",
                        remedy="Look for an endless loop in the kernel; for a slow one raise the node's configuration_time_limit_s.",
                    )
                )
            case supervisor.MEMORY_LIMIT:
                return _failed_over_configuration(
                    MemoryLimitError(
                        f"run while {self._doing()}",
                        found=f"{status['peak_resident_bytes']} bytes resident",
                        expected=f"at most {self._limits.memory_limit_bytes}",
                        remedy="Choose smaller parameters, or raise the node's run_memory_limit_bytes.",
                    )
                )
            case _:
                return _failed(self._problem or InternalError("the run", found=f"ended for {status['cause']}"))

    def _doing(self) -> str:
        activity, trial = self._activity() or "starting", read_crash_marker(self._directory)
        return activity if trial is None else f"{activity}, in a trial of {trial.label}"

    def _outcome_of_exit(self, exit_code: int | None, signal_number: int | None) -> Outcome:
        if self._reported_error is not None:
            return Outcome(RunState.FAILED, self._reported_error)
        if self._problem is not None:
            return _failed(self._problem)
        if exit_code == 0:
            return Outcome(RunState.SUCCEEDED)
        ending = f"exit code {exit_code}" if signal_number is None else _signal_name(signal_number)
        tail = "\n".join(line for line in self._stderr.tail if not line.startswith(CRASH_ADVICE))
        return _failed_over_configuration(
            WorkerCrashedError(
                f"worker while {self._doing()}",
                found=f"{ending}{'; it last said:' if tail else ''}\n{tail}".rstrip(),
                expected="exit code 0",
                remedy="Look for writes out of bounds in the kernel; what was measured before is kept.",
            )
        )


def _failed(error: KernalyseError) -> Outcome:
    return Outcome(RunState.FAILED, run_error(error))


def _failed_over_configuration(error: KernalyseError) -> Outcome:
    return replace(_failed(error), is_over_configuration=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def _open_reader(fd: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader(limit=1024 * 1024)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb"))
    return reader, transport


def _is_stuck(status_line: bytes) -> bool:
    """Return whether the supervisor has told of processes that do not end, before its own end."""
    return bool(status_line) and "stuck" in json.loads(status_line)


async def _read_line(fd: int) -> bytes:
    """Return the first line, or what there is of one at the end."""
    reader, transport = await _open_reader(fd)
    try:
        return await reader.readline()
    finally:
        transport.close()


# ---------------------------------------------------------------- run environment
# A run executes code that somebody has sent, so variables of the service's environment whose names look like secrets are withheld. A
# run that needs such a variable brings its own value.

OWN_PREFIX: Final = "KERNALYSE_"
SECRET_NAME: Final = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|_KEY$|(^|_)JWT$|^SSH_AUTH_SOCK$", re.IGNORECASE)
NO_SECRETS: Final = frozenset({"TOKENIZERS_PARALLELISM", "NV_TPS_LAUNCH_TOKEN"})
"""Names like a secret's that programs need: a setting of Hugging Face's tokenizers, and what Nsight Compute leaves in what it starts."""

WORKER_NAMES: Final = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "LANG", "LANGUAGE", "TZ", "TERM", "VIRTUAL_ENV",
    "CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "SOURCE_DATE_EPOCH",
})  # fmt: skip
WORKER_PREFIXES: Final = (
    "LC_", "LD_", "XDG_", "PYTHON", "CONDA_", "MALLOC_",
    "CUDA", "NV", "NSYS_", "QUADD_", "CUPTI_", "NCCL_",
    "OCL_", "OPENCL", "CL_", "POCL_", "PYOPENCL_", "INTEL_", "TBB_", "SYCL_", "ONEAPI_", "ROCR_", "HIP_", "HSA_",
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "ORT_",
)  # fmt: skip
"""What loaders, Python, compilers, CUDA (NVCC_, NVIDIA_, NVTX_ and profilers around a service among it), OpenCL runtimes and thread
pools read. One too few, and a toolkit that only a variable leads to is not found; one too many, and kernels see what is none of theirs."""


def is_secret(name: str) -> bool:
    """Return whether a variable's name looks like that of a secret."""
    return SECRET_NAME.search(name) is not None and name not in NO_SECRETS


def worker_environment(service: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the service's environment that workers of kernels and ML models need."""
    return {
        name: value for name, value in service.items() if (name in WORKER_NAMES or name.startswith(WORKER_PREFIXES)) and not is_secret(name)
    }


def withheld_names(service: Mapping[str, str]) -> list[str]:
    """Return the variables of the service that a command does not get, in alphabetical order."""
    return sorted(name for name in service if name.startswith(OWN_PREFIX) or is_secret(name))


def inherited_environment(spec: RunSpec, service: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the service's environment that a run's processes inherit."""
    if not isinstance(spec.work, CommandProfile):
        return worker_environment(service)
    withheld = set(withheld_names(service))
    return {name: value for name, value in service.items() if name not in withheld}


def withheld_notice(spec: RunSpec, service: Mapping[str, str]) -> str | None:
    """Return the log line that names the withheld variables; None where there are none."""
    if not isinstance(spec.work, CommandProfile):
        return None
    given: Collection[str] = {variable.name for variable in spec.work.environment}
    missing = [name for name in withheld_names(service) if name not in given]
    if not missing:
        return None
    return (
        f"Withheld from the command, for their names look like secrets or settings of this node: {', '.join(missing)}. "
        "What it needs of them, give with the run: kernalyse profile --env NAME."
    )
