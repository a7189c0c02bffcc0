"""A user's command under a collector: preflight, run, report, export, and how it ended."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kernalyse.services.core.errors import CollectorUnavailableError, CommandFailedError, KernalyseError, StorageFullError, TimeLimitError
from kernalyse.services.core.model import CommandProfile, LogLevel, LogLines, Progress, RunLimits, TraceStored
from kernalyse.services.profiler.collectors.base import Collector, CollectorContext, CollectorResult, ToolExit, last_lines
from kernalyse.services.profiler.collectors.ncu import open_ncu
from kernalyse.services.profiler.collectors.nsys import INSTALL_REMEDY, locate_nsys, open_nsys
from kernalyse.services.profiler.collectors.preflight import check_command, check_directory, check_room, find_command
from kernalyse.services.profiler.collectors.python_collector import INTERPRETER, open_python_collector
from kernalyse.services.profiler.processes.children import SILENCE_LIMIT_VARIABLE, command_limit_s
from kernalyse.services.profiler.workloads.events import EventSink, keep_artifact
from kernalyse.services.profiler.workloads.monitored_program import Cancellation, EndCause, ProgramEnd, TimeBudget, ToolSupervisor

MAX_LABEL_LENGTH: Final = 80
MAX_HEARTBEAT_S: Final = 2.0
MAX_START_COUNT: Final = 13
"""Of a program whose collector is asked for less each time: ncu may name the metrics that it does not know one by one."""

MAX_START_WAIT_S: Final = 60.0
START_POLL_S: Final = 0.1  # between looks whether the run is cancelled
NOTED_DELAY_S: Final = 0.1

SIGNAL_STATUS: Final = 128  # a shell's status, and nsys's, of a program that a signal has ended, is this and its number


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """The node's settings for commands.

    directory: of the run. environment: of the service. began: on the monotonic clock, from when the run's time limit counts.
    is_cancelled: whether the run is being cancelled; then there are `grace_s` seconds left.
    """

    directory: Path
    environment: Mapping[str, str]
    began: float
    nsys_program: str | None = None
    grace_s: float = 20.0
    is_cancelled: Callable[[], bool] = lambda: False


def run_command(profile: CommandProfile, limits: RunLimits, order: CommandSettings, sink: EventSink) -> None:
    """Run the command; report its output, its artifacts, and TraceStored for each trace.

    Raises:
        CommandNotFoundError, CollectorUnavailableError, StorageFullError: before it starts.
        CommandFailedError: it ended with a status other than 0; its trace is stored all the same.
        TimeLimitError: it, or its collector, did not end in time; what was collected is stored.
        CollectorFailedError: there is no trace that can be read.
    """
    activity = _StatusReporter(sink, min(MAX_HEARTBEAT_S, command_limit_s(order.environment) / 4))
    activity.report("preparing the command")
    context = _collector_context(profile, order)
    check_directory(order.directory)
    find_command(profile.arguments[0], context.program, context.environment)
    profile = select_collector(profile, context.environment, order.nsys_program)
    collector = _open_collector(profile, context, order, sink)
    assert limits.time_limit_ns is not None  # the service settles it
    budget = TimeBudget.of(limits.time_limit_ns / 1e9, order.began)
    watcher = ToolSupervisor(context, budget, sink, activity.report, Cancellation(order.is_cancelled, order.grace_s))
    label = _label(profile)
    max_duration_s = None if profile.max_duration_ns is None else profile.max_duration_ns / 1e9
    _wait_for_start(profile, order, sink, activity.report)
    for _ in range(MAX_START_COUNT):
        end = watcher.run_program(collector, profile.arguments, label, max_duration_s)
        collected = collector.collect(end.tool, watcher)
        if collected.again is None or end.cause is not EndCause.ITSELF:
            break
        collector = collected.again
        _warn(sink, (*collected.notices, f"{label} is started again without them."))
    _store(collected, collector.name, order.directory, sink, activity.report)
    problem = _problem(label, limits, end, collected, order.directory)
    if problem is not None:
        raise problem
    activity.report("")


def _wait_for_start(profile: CommandProfile, order: CommandSettings, sink: EventSink, report_activity: Callable[[str], None]) -> None:
    """Wait for the instant at which other nodes start the program too, and warn where that is not possible."""
    if profile.start_unix_ns is None:
        return
    ahead_s = (profile.start_unix_ns - time.time_ns()) / 1e9
    if -MAX_START_WAIT_S < ahead_s < -NOTED_DELAY_S:  # a longer time ago it was that of a run which is repeated
        _warn(sink, (f"Started {-ahead_s:.1f} s after the instant set for all nodes: this one was not ready earlier.",))
    if ahead_s > MAX_START_WAIT_S:
        _warn(sink, (f"Started at once: the instant set for all nodes is {ahead_s:.0f} s ahead of this node's clock, which may be wrong.",))
        return
    report_activity("waiting for the start on all nodes")
    while (left_s := (profile.start_unix_ns - time.time_ns()) / 1e9) > 0 and not order.is_cancelled():
        time.sleep(min(left_s, START_POLL_S))


def _collector_context(profile: CommandProfile, order: CommandSettings) -> CollectorContext:
    """Create the private directories of the run; the bundle is copied, for the program may write into it."""
    program, collected = order.directory / "program", order.directory / "collected"
    if profile.bundle_digest is None:
        program.mkdir()
    else:
        bundle = order.directory / "bundles" / profile.bundle_digest.removeprefix("sha256:")
        check_room(order.directory, "Free space there.")
        shutil.copytree(bundle, program)
    collected.mkdir()
    inherited = {name: value for name, value in order.environment.items() if name != SILENCE_LIMIT_VARIABLE}
    given = {variable.name: variable.value for variable in profile.environment}
    environment = {**inherited, **given}
    temporary = Path(environment.get("TMPDIR", str(order.directory / "tmp")))
    return CollectorContext(program, collected, temporary, environment)


def _open_collector(profile: CommandProfile, context: CollectorContext, order: CommandSettings, sink: EventSink) -> Collector:
    match profile.collector:
        case "nsys":
            return open_nsys(profile, context, order.nsys_program)
        case "ncu":
            collector, notices = open_ncu(profile, context, _compute_capability)
            _warn(sink, notices)
            return collector
        case _:
            return open_python_collector(profile, context)


def _compute_capability() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError:
        return None
    return f"{major}.{minor}"


def _store(collected: CollectorResult, collector: str, directory: Path, sink: EventSink, report_activity: Callable[[str], None]) -> None:
    for file in collected.files:
        report_activity("storing the report")
        try:
            sink.write(keep_artifact(directory, file.artifact_name, file.path))
        except OSError as error:
            raise StorageFullError(
                f"artifact {file.artifact_name}", found=str(error), expected="room for it", remedy="Free space."
            ) from error
    for artifact_names in collected.traces:
        sink.write(TraceStored(artifact_names, collector))
    _warn(sink, collected.notices)


def _problem(label: str, limits: RunLimits, end: ProgramEnd, collected: CollectorResult, directory: Path) -> KernalyseError | None:
    """Return the most important error of the run, or None."""
    if end.cause is EndCause.CANCELLED:
        return None
    if end.tool.is_over_time or end.cause is EndCause.TIME_LIMIT:
        return _time_limit(label, limits, end, collected)
    has_failed = end.cause is EndCause.ITSELF and end.tool.exit_code != 0
    if has_failed and (collected.traces or collected.is_within_program):
        return _command_failed(label, end.tool, collected)
    if collected.problem is not None:
        if not isinstance(collected.problem, CollectorUnavailableError):
            try:
                check_room(directory, f"Free space there, then run it again. {collected.problem.message}")
            except StorageFullError as error:
                return error
        return collected.problem
    return None


def _time_limit(label: str, limits: RunLimits, end: ProgramEnd, collected: CollectorResult) -> TimeLimitError:
    limit_s = (limits.time_limit_ns or 0) / 1e9
    what = (
        "its collector, which did not end"
        if end.cause is EndCause.ITSELF
        else "still running, and was ended so that its trace could be kept"
    )
    left = "; what was collected is stored" if collected.traces else f"; {collected.problem.message}" if collected.problem else ""
    said = last_lines(end.tool.output)
    return TimeLimitError(
        f"command {label}",
        found=f"{what}{left}{'; it last said:' if said else ''}\n{said}".rstrip(),
        expected=f"an end, and a report, within {limit_s:g} s",
        remedy="Give --duration to profile a part of it, or raise the run's time limit.",
    )


def _command_failed(label: str, tool: ToolExit, collected: CollectorResult) -> CommandFailedError:
    status = tool.exit_code
    ending = "the end by a signal" if status is None else f"status {status}"
    if status is not None and status > SIGNAL_STATUS:
        ending += f" (signal {status - SIGNAL_STATUS})"
    said = last_lines(tool.output)
    nothing = "" if collected.problem is None else f"It left no trace: {collected.problem.found}. "
    return CommandFailedError(
        f"command {label}",
        found=f"{ending}{'; it last said:' if said else ''}\n{said}".rstrip(),
        expected="status 0",
        remedy=f"{nothing or 'Its trace is stored all the same. '}The run's log has what it printed.",
    )


class _StatusReporter:
    """The status messages of a command: sent at each change, and at intervals, for a silent worker counts as hung."""

    def __init__(self, sink: EventSink, interval_s: float) -> None:
        self._sink = sink
        self._interval_s = interval_s
        self._kind = self._text = ""
        self._last_report_time = 0.0

    def report(self, text: str) -> None:
        now = time.monotonic()
        kind = text.partition(" for ")[0]  # that another second has passed is no news
        if kind != self._kind or now - self._last_report_time >= self._interval_s:
            self._kind, self._last_report_time = kind, now
            self._sink.write(Progress(0, 0, 0, text))


def _warn(sink: EventSink, texts: tuple[str, ...]) -> None:
    for text in texts:
        sink.write(LogLines(LogLevel.WARNING, "worker", tuple(text.splitlines())))


def _label(profile: CommandProfile) -> str:
    text = " ".join(shlex.join(profile.arguments).split())
    return text if len(text) <= MAX_LABEL_LENGTH else f"{text[: MAX_LABEL_LENGTH - 1]}…"


# ---------------------------------------------------------------- choice of a collector


def select_collector(profile: CommandProfile, environment: Mapping[str, str], nsys_program: str | None) -> CommandProfile:
    """Return the profile with a collector: nsys where the node has it, else kineto for a Python program.

    Args:
        environment: of the program.
        nsys_program: the node's setting.

    Raises:
        CollectorUnavailableError: the node has no nsys, and the program is not Python.
        InvalidParameterError: an option that the chosen one does not have.
    """
    if profile.collector:
        return profile
    chosen = replace(profile, collector=_chosen(profile.arguments, has_nsys=locate_nsys(nsys_program, environment) is not None))
    check_command(chosen)
    return chosen


def _chosen(arguments: Sequence[str], *, has_nsys: bool) -> str:
    if has_nsys:
        return "nsys"
    if INTERPRETER.fullmatch(Path(arguments[0]).name):
        return "kineto"
    raise CollectorUnavailableError(
        f"a collector for {arguments[0]}",
        found="no nsys on this node, and a program that is not Python",
        expected="nsys",
        remedy=INSTALL_REMEDY,
    )
