"""The process that executes one run: `python -m kernalyse.services.profiler.worker --spec FILE --events-fd N --directory DIRECTORY …`.

Only here are NumPy and the GPU runtimes loaded. What happens goes as events to the given descriptor; the exit status says
how it ended: 0 success, 1 a failure reported in the last event, 143 ended by SIGTERM. Anything else is a crash.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from kernalyse.discovery import start_ticks
from kernalyse.services.core.errors import InternalError, KernalyseError, NotBuiltYetError
from kernalyse.services.core.model import (
    BackendName,
    CeilingMeasurement,
    CommandProfile,
    DeviceCheck,
    EventPayload,
    KernelSweep,
    LogLevel,
    LogLines,
    ModelRun,
    Progress,
    RunLimits,
    RunSpec,
    RunState,
    SearchStrategy,
    StateChanged,
)
from kernalyse.services.core.protobuf import decode_bytes, encode_json
from kernalyse.services.profiler.processes.event_pipe import EventWriter
from kernalyse.services.profiler.workloads.events import EventSink, run_error

if TYPE_CHECKING:
    from kernalyse.services.profiler.backends.base import DeviceSession
    from kernalyse.services.profiler.workloads.events import ModelContext


FAILURE_EXIT_CODE: Final = 1
FINISHING_NS: Final = 30_000_000_000  # to open a device, compile and verify; a run over its limit loses what it was doing
MAX_FLUSH_S: Final = 1.0  # a service that no longer reads must not keep the worker from ending


@dataclass(frozen=True, slots=True)
class WorkerArguments:
    """The command-line arguments of the worker."""

    spec_file: Path
    events_fd: int
    directory: Path
    catalog_file: Path | None
    opencl_runtime: str | None
    ceilings_file: Path | None
    process_index: int | None  # which process of the run this is; None: nobody has divided it
    cache_directory: Path | None
    nsys_program: str | None
    command_grace_s: float
    clock_lock_file: Path | None
    recording_file: Path | None  # None: the run is measured
    environment: Mapping[str, str]  # of the service, before this process has added its own


class CloseableEventSink:
    """An event sink that can be closed from another thread between two events, never inside one."""

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._lock = threading.Lock()

    def write(self, payload: EventPayload) -> None:
        """Write one event; `close` waits for it."""
        with self._lock:
            self._writer.write(payload)

    def close(self) -> None:
        """Wait until the event being written is complete, and let no other begin."""
        self._lock.acquire(timeout=MAX_FLUSH_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute one run; return the exit status."""
    order = _read_command_line(arguments)
    # Read by NumPy when it is first imported. More threads would go on spinning after each reference product, beside the
    # very kernels that are being measured on a CPU device.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if order.opencl_runtime is not None:
        os.environ["OPENCL"] = order.opencl_runtime  # where the backends look for it
    sink = CloseableEventSink(EventWriter(order.events_fd))
    try:
        spec = decode_bytes(order.spec_file.read_bytes(), RunSpec)
        if order.recording_file is not None:
            _end_on_sigterm(sink)
            _replay(spec, order.recording_file, order, sink)
            return 0
        if order.process_index is None and isinstance(spec.work, KernelSweep) and spec.work.process_count > 1:
            return ProcessSeries(_process_commands(spec.work.process_count, arguments)).run()
        if isinstance(spec.work, CommandProfile):
            return _profile_command(spec, spec.work, order, sink)
        _end_on_sigterm(sink)
        _carry_out(spec, order, sink)
    except KernalyseError as error:
        sink.write(StateChanged(RunState.FAILED, run_error(error)))
        return FAILURE_EXIT_CODE
    except BrokenPipeError:  # the service is gone, so there is nobody to report to
        return FAILURE_EXIT_CODE
    except Exception as error:
        traceback.print_exc()
        unexpected = InternalError("the worker", found=f"{type(error).__name__}: {error}", remedy="The run's log has the traceback.")
        sink.write(StateChanged(RunState.FAILED, run_error(unexpected)))
        return FAILURE_EXIT_CODE
    return 0


def _replay(spec: RunSpec, recording_file: Path, order: WorkerArguments, sink: EventSink) -> None:
    from kernalyse.services.profiler.workloads.recording import Recording, replay

    replay(Recording.open(recording_file), spec, order.directory, sink)


def _process_commands(process_count: int, arguments: Sequence[str] | None) -> list[tuple[str, ...]]:
    own = sys.argv[1:] if arguments is None else arguments
    worker = (sys.executable, "-P", "-m", "kernalyse.services.profiler.worker", *own)
    return [(*worker, "--process-index", str(index)) for index in range(process_count)]


def _carry_out(spec: RunSpec, order: WorkerArguments, sink: EventSink) -> None:
    match spec.work:
        case KernelSweep():
            _sweep(spec, spec.work, order, sink)
        case CeilingMeasurement():
            _measure_ceilings(spec.work, order, sink)
        case DeviceCheck():
            _check_device(spec.work, order, sink)
        case ModelRun():
            _run_model(spec, spec.work, order, sink)
        case other:
            raise NotBuiltYetError(
                f"a run of kind {type(other).__name__}",
                found="no workload for it in this version",
                expected="KernelSweep, CommandProfile, ModelRun, CeilingMeasurement or DeviceCheck",
                remedy="Submit one of these.",
            )


def _sweep(spec: RunSpec, sweep: KernelSweep, order: WorkerArguments, sink: EventSink) -> None:
    from kernalyse.services.core.reruns import SPEC_ARTIFACT, bundle_artifact_name
    from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
    from kernalyse.services.profiler.processes.clock_locks import lock_clocks
    from kernalyse.services.profiler.workloads.ceilings import load_sources, report_ceilings_after_sweep, report_ceilings_before_sweep
    from kernalyse.services.profiler.workloads.counters import (
        CounterFiles,
        MeasurementRecorder,
        count_launches,
        prepare_counting,
        try_counting,
    )
    from kernalyse.services.profiler.workloads.events import store_artifact
    from kernalyse.services.profiler.workloads.sweeps.plan import plan_sweep, resolved_spec, stored_header_bundles
    from kernalyse.services.profiler.workloads.sweeps.run import run_sweep

    plan = plan_sweep(sweep, load_catalog(order.catalog_file), sys.maxsize)  # the service has checked the limit
    process_index = order.process_index or 0
    counts = FailureCounter(order.directory, len(sweep.failed_configuration_indexes))
    if process_index == 0:
        if plan.notices:
            sink.write(LogLines(LogLevel.INFO, "worker", plan.notices))
        sink.write(store_artifact(order.directory, SPEC_ARTIFACT, encode_json(resolved_spec(spec, plan))))
        for headers in stored_header_bundles(plan, order.directory):
            sink.write(store_artifact(order.directory, bundle_artifact_name(headers.digest), headers.data))
    sink.write(Progress(plan.completed_count(process_index), counts.read(), plan.configuration_count, "opening the device"))
    session = _open_session(sweep.backend, sweep.device_id, order.cache_directory)
    clocks = lock_clocks(sweep.clock_mode, session.device, order.clock_lock_file)
    if clocks.problem and process_index == 0:
        sink.write(LogLines(LogLevel.WARNING, "worker", (f"Clocks are not locked: {clocks.problem}.",)))
    sources = load_sources()
    # The first process reports the ceilings for all of them, and its configurations are the ones counted.
    are_complete = process_index > 0 or report_ceilings_before_sweep(session, sources, sink, order.ceilings_file, plan.configuration_count)
    counting = prepare_counting(session.device, sink) if sweep.with_counters and process_index == 0 else None
    if counting is not None:
        counting = try_counting(counting, sweep, order.directory, sink)
    measured = MeasurementRecorder(sink)
    counts.write(
        run_sweep(_budgeted(sweep, spec.limits), plan, session, measured, order.directory, process_index, counts.read(), clocks.description)
    )
    if not are_complete:
        report_ceilings_after_sweep(session, sources, sink, order.ceilings_file)
    if counting is not None:
        with suppress(Exception):  # a context that a faulty kernel has lost cannot be closed; this process ends soon
            session.close()  # a device in exclusive mode takes one process at a time, and this one has what it came for
        files = CounterFiles(order.spec_file, order.directory, order.catalog_file, order.cache_directory)
        count_launches(counting, plan, measured, files)


def _budgeted(sweep: KernelSweep, limits: RunLimits) -> KernelSweep:
    """Return the sweep with a budget for its search: the run's time limit less the time to finish a configuration."""
    if sweep.strategy is SearchStrategy.ALL or sweep.budget_ns is not None or limits.time_limit_ns is None:
        return sweep
    return replace(sweep, budget_ns=max(limits.time_limit_ns // 2, limits.time_limit_ns - sweep.measuring.max_duration_ns - FINISHING_NS))


class FailureCounter:
    """The number of failed configurations, passed from process to process through a file in the run's directory.

    Args:
        earlier_count: of an earlier run of the sweep.
    """

    def __init__(self, directory: Path, earlier_count: int) -> None:
        self._file = directory / "failed_configuration_count"
        self._earlier_count = earlier_count

    def read(self) -> int:
        """Return the number of failed configurations so far; before any is written, that of the earlier run."""
        return int(self._file.read_text()) if self._file.is_file() else self._earlier_count

    def write(self, count: int) -> None:
        """Store the number of failed configurations."""
        self._file.write_text(str(count))


def _profile_command(spec: RunSpec, profile: CommandProfile, order: WorkerArguments, sink: EventSink) -> int:
    """Profile a command; return the exit status. SIGTERM ends the program, and its trace is still reported."""
    from kernalyse.services.profiler.workloads.command import CommandSettings, run_command

    is_cancelled = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_cancelled.set())
    began = time.monotonic() - _own_age_s()
    settings = CommandSettings(order.directory, order.environment, began, order.nsys_program, order.command_grace_s, is_cancelled.is_set)
    run_command(profile, spec.limits, settings, sink)
    return TERMINATED_EXIT_CODE if is_cancelled.is_set() else 0


def _own_age_s() -> float:
    """Return how long the run has been going on, as its supervisor counts: this process is its first."""
    began_s = (start_ticks(os.getpid()) or 0) / os.sysconf("SC_CLK_TCK")  # since the machine was started, by a clock that nobody sets
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)


def _measure_ceilings(work: CeilingMeasurement, order: WorkerArguments, sink: EventSink) -> None:
    from kernalyse.services.profiler.workloads.ceilings import load_sources, run_ceilings

    sink.write(Progress(0, 0, 1, "opening the device"))
    session = _open_session(work.backend, work.device_id, order.cache_directory)
    run_ceilings(session, load_sources(), sink, order.ceilings_file)


def _check_device(work: DeviceCheck, order: WorkerArguments, sink: EventSink) -> None:
    from kernalyse.services.profiler.workloads.ceilings import load_sources
    from kernalyse.services.profiler.workloads.device_check import run_check

    sink.write(Progress(0, 0, 1, "opening the device"))
    run_check(_open_session(work.backend, work.device_id, order.cache_directory), load_sources(), work.block_count, sink)


def _run_model(spec: RunSpec, work: ModelRun, order: WorkerArguments, sink: EventSink) -> None:
    from kernalyse.services.profiler.workloads.events import ModelContext
    from kernalyse.services.profiler.workloads.models import find_model_spec

    context = ModelContext(
        open_session=lambda: _open_session(work.backend, work.device_id, order.cache_directory),
        sink=sink,
        directory=order.directory,
        limits=spec.limits,
        ceilings_file=order.ceilings_file,
        cache_directory=order.cache_directory,
    )
    MODEL_RUNNERS[find_model_spec(work).name](work, context)


def _run_gpt(work: ModelRun, context: ModelContext) -> None:
    from kernalyse.services.profiler.workloads.gpt.run import run_gpt

    run_gpt(work, context)


def _run_onnx(work: ModelRun, context: ModelContext) -> None:
    from kernalyse.services.profiler.workloads.onnx.run import run_onnx

    run_onnx(work, context)


MODEL_RUNNERS: Final = {"gpt": _run_gpt, "onnx": _run_onnx}
"""By the name of a model's kind (workloads/models.py). Each loads its runtime when it is called."""


def _open_session(backend: BackendName, device_id: str | None, cache_directory: Path | None) -> DeviceSession:
    from kernalyse.services.profiler.backends.discovery import open_backend_for

    return open_backend_for(backend, device_id, cache_directory).open(device_id)


# ---------------------------------------------------------------- termination


def _end_on_sigterm(sink: CloseableEventSink) -> None:
    """Let a thread end the process on SIGTERM, after the event being written.

    Python runs signal handlers on the main thread, which may sit in a runtime's library for as long as a kernel takes. So
    the handler does nothing, and the thread is woken through the pipe to which Python's own C handler writes.
    """
    wake_fd, signal_fd = os.pipe()
    os.set_blocking(signal_fd, False)
    signal.set_wakeup_fd(signal_fd, warn_on_full_buffer=False)  # first: what comes between the two must not be lost
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=_await_sigterm, args=(wake_fd, sink.close), name="sigterm", daemon=True).start()


def _await_sigterm(wake_fd: int, close: Callable[[], None]) -> None:
    while signal.SIGTERM not in os.read(wake_fd, 64):
        pass
    close()
    # Not sys.exit: the libraries' own clean-up would wait for the kernel that is running.
    os._exit(TERMINATED_EXIT_CODE)


def _exit(status: int) -> None:
    """Exit without the runtimes' clean-up, which may wait for kernels or crash after everything has been reported."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _read_command_line(arguments: Sequence[str] | None) -> WorkerArguments:
    parser = argparse.ArgumentParser(prog="python -m kernalyse.services.profiler.worker", description="Carries out one run.")
    parser.add_argument("--spec", type=Path, required=True, help="file with the serialized RunSpec")
    parser.add_argument("--events-fd", type=int, required=True, help="descriptor to write events to")
    parser.add_argument("--directory", type=Path, required=True, help="private working directory of the run")
    parser.add_argument("--catalog", type=Path, help="catalog file; the project's own if not given")
    parser.add_argument("--opencl-runtime", choices=("intel", "pocl"), help="the one OpenCL CPU runtime to use")
    parser.add_argument("--ceilings-file", type=Path, help="where measured ceilings are stored between runs")
    parser.add_argument("--process-index", type=int, help="which process of the run this is; all of it if not given")
    parser.add_argument("--cache-directory", type=Path, help="where compiled kernels are cached between runs")
    parser.add_argument("--nsys-program", help="the nsys to use; found by itself if not given")
    parser.add_argument("--command-grace-s", type=float, default=20.0, help="seconds for a command's report after SIGTERM")
    parser.add_argument("--clock-lock-file", type=Path, help="exists while clocks are locked; without it none are")
    parser.add_argument("--replay", type=Path, help="recording to replay the run from; the run is measured if not given")
    parsed = parser.parse_args(arguments)
    return WorkerArguments(
        spec_file=parsed.spec,
        events_fd=parsed.events_fd,
        directory=parsed.directory,
        catalog_file=parsed.catalog,
        opencl_runtime=parsed.opencl_runtime,
        ceilings_file=parsed.ceilings_file,
        process_index=parsed.process_index,
        cache_directory=parsed.cache_directory,
        nsys_program=parsed.nsys_program,
        command_grace_s=parsed.command_grace_s,
        clock_lock_file=parsed.clock_lock_file,
        recording_file=parsed.replay,
        environment=dict(os.environ),
    )


# ---------------------------------------------------------------- process series
# A run in several processes, one after the other: this process starts them and ends as the first one that fails.
#
# Each is a worker that opens the device anew, so that differences between processes show. They write to the same event pipe; this
# process writes nothing while one of them lives, because two writers could interleave their frames.

TERMINATED_EXIT_CODE: Final = 128 + signal.SIGTERM


class ProcessSeries:
    """The processes of a run, one after the other.

    Args:
        commands: of the processes, in their order.
    """

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self._child: subprocess.Popen[bytes] | None = None
        self._is_ended = False

    def run(self) -> int:
        """Run the processes; return 0, or the exit status of the first that failed. SIGTERM is passed on."""
        signal.signal(signal.SIGTERM, self._end)
        for command in self._commands:
            # Not close_fds: the event pipe, and the lock by which the service knows that a process of the run still lives.
            self._child = subprocess.Popen(command, close_fds=False)
            if self._is_ended:  # SIGTERM came while the process was being started
                self._child.terminate()
            exit_code = self._child.wait()
            if exit_code < 0:
                _end_by_signal(-exit_code)
            if exit_code != 0 or self._is_ended:
                return exit_code or TERMINATED_EXIT_CODE
        return 0

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._is_ended = True
        if self._child is not None:
            with suppress(ProcessLookupError):
                self._child.terminate()


def _end_by_signal(number: int) -> None:
    """End by the signal that has ended the child, so that the supervisor sees the crash."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left its own
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    _exit(main())
