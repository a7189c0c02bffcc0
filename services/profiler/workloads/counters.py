"""Hardware counters of a sweep: every measured configuration is launched once more, in a process under ncu.

Whatever stands in the way costs the run its counters and nothing else: it is said in a warning, and the timings stay.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from kernalyse.services.core.errors import KernalyseError, TimeLimitError, UnmetConditionError
from kernalyse.services.core.model import (
    Axis,
    BackendName,
    CacheMode,
    CountersStored,
    Device,
    EventPayload,
    KernelSelection,
    KernelSweep,
    LogLevel,
    LogLines,
    Measurement,
    Progress,
    RunSpec,
)
from kernalyse.services.core.protobuf import encode_bytes
from kernalyse.services.profiler.backends.base import UNDER_PROFILER
from kernalyse.services.profiler.collectors.ncu import (
    DCGM_REMEDY,
    NcuCall,
    check_ncu,
    counter_error,
    dcgm_process_id,
    is_permanent_failure,
    metric_names,
    ncu_cache_control,
    rejected_metrics,
    skipped_metrics_notice,
)
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.processes.children import ProcessEnd, SupervisedProcess
from kernalyse.services.profiler.workloads.events import EventSink, NullSink, store_artifact
from kernalyse.services.profiler.workloads.sweeps.plan import SweepPlan

CLOCK_CONTROL: Final = "none"  # as the sweep was timed; a clock locked to its base would need rights and disturb others
SILENCE_LIMIT_S: Final = 300.0  # replays of one launch with much memory take minutes; a tool that hangs must not hold the device
POLL_S: Final = 0.2
HEARTBEAT_S: Final = 5.0  # the service counts a worker without any event as hung
MAX_REJECTION_COUNT: Final = 12  # of metrics, one after the other; each costs a start of ncu
MAX_FAILURE_COUNT: Final = 10  # reported one by one; the rest are only counted
TABLE_MARK: Final = b'"Kernel Name"'  # in the header of ncu's table, and nowhere in its messages


@dataclass(frozen=True, slots=True)
class CounterFiles:
    """Input files of counted launches. spec_file: the run's. directory: the worker works in it. cache_directory: of compiled kernels."""

    spec_file: Path
    directory: Path
    catalog_file: Path | None = None
    cache_directory: Path | None = None


@dataclass(frozen=True, slots=True)
class CounterCollector:
    """The way hardware counters are collected, after checks that it can work.

    has_ranges: the launching process marks what counts, for it launches itself. The NVCC backend launches in a process of
    its own, which knows nothing of ranges: there every launch counts.
    """

    program: str
    metrics: tuple[str, ...]
    has_ranges: bool
    silence_limit_s: float

    def of(self, metrics: tuple[str, ...]) -> CounterCollector:
        """Return the same counting for other metrics."""
        return replace(self, metrics=metrics)


@dataclass(slots=True)
class MeasurementRecorder:
    """An event sink that passes everything on and remembers the measured configurations and the progress."""

    sink: EventSink
    indexes: dict[CacheMode, list[int]] = field(default_factory=dict)
    progress: Progress | None = None

    def write(self, payload: EventPayload) -> None:
        """Pass an event on, and remember the indexes and the progress in it."""
        if isinstance(payload, Measurement):
            self.indexes.setdefault(payload.cache_mode, []).append(payload.configuration_index)
        elif isinstance(payload, Progress):
            self.progress = payload
        self.sink.write(payload)

    def report_activity(self, activity: str) -> None:
        """Report the last progress again with another status message."""
        if self.progress is not None:
            self.sink.write(replace(self.progress, activity=activity))


def prepare_counting(device: Device, sink: EventSink) -> CounterCollector | None:
    """Check that counting can work, and prepare it; return None after a warning where it cannot."""
    try:
        metrics, program = metric_names(check_countable_device(device)), check_ncu()
    except KernalyseError as error:
        _warn(sink, f"No counters, timings alone: {error.message}")
        return None
    if (process_id := dcgm_process_id()) is not None:
        _warn(sink, f"DCGM runs here as process {process_id}, and while it profiles this GPU, ncu gets no counters. {DCGM_REMEDY}")
    return CounterCollector(program, metrics, BackendName.PYCUDA in device.backends, SILENCE_LIMIT_S)


def check_countable_device(device: Device) -> str:
    """Return the compute capability of a device that ncu can count on. Raises UnmetConditionError for any other."""
    if device.compute_capability is None or BackendName.OPENCL in device.backends:
        raise UnmetConditionError(
            "hardware counters",
            found=f"{device.device_id}, {device.name}",
            expected="an NVIDIA GPU through CUDA",
            remedy="Choose a device cuda:…, or leave out --counters.",
        )
    return device.compute_capability


def count_launches(counting: CounterCollector, plan: SweepPlan, measured: MeasurementRecorder, files: CounterFiles) -> None:
    """Count the measured configurations, cold and hot ones in separate reports. Reports ArtifactStored and CountersStored.

    Of several processes that measured the same configurations, those of the first are counted: they launch the same.
    """
    first = {planned.configuration_index: planned for planned in plan.configurations() if planned.process_index == 0}
    todo = {mode: [index for index in indexes if index in first] for mode, indexes in measured.indexes.items()}
    for cache_mode, indexes in todo.items():
        if not indexes:
            continue
        name = "counters" if len([mode for mode in todo if todo[mode]]) == 1 else f"counters_{cache_mode.lower()}"
        functions = {index: first[index].kernel.definition.function for index in indexes}
        try:
            _Pass(counting, cache_mode, functions, measured, files, name).run()
        except KernalyseError as error:
            _warn(measured, f"No counters of {cache_mode.lower()} configurations: {error.message}")
        except OSError as error:
            _warn(measured, f"No counters of {cache_mode.lower()} configurations: {error}.")
    measured.report_activity("")


def count_one(
    counting: CounterCollector, cache_mode: CacheMode, function_name: str, measured: MeasurementRecorder, files: CounterFiles
) -> None:
    """Count the first configuration of the sweep in `files`. Raises UnmetConditionError, TimeLimitError, OSError."""
    _Pass(counting, cache_mode, {0: function_name}, measured, files, "counters").run()


@dataclass(slots=True)
class _Pass:
    """One pass over the launches: a call of ncu, repeated without the metrics that it rejects.

    functions: name of the __global__ function by configuration_index, in the order of launching.
    """

    counting: CounterCollector
    cache_mode: CacheMode
    functions: dict[int, str]
    measured: MeasurementRecorder
    files: CounterFiles
    name: str
    launched: list[int] = field(default_factory=list)
    failed: list[LaunchLogEntry] = field(default_factory=list)

    def run(self) -> None:
        """Count the launches. Raises UnmetConditionError: ncu gave no report; TimeLimitError: it hung."""
        metrics = self.counting.metrics
        for _ in range(MAX_REJECTION_COUNT + 1):
            directory = self._directory()
            call = self._call(metrics, directory)
            end = self._watch(call, directory)
            report = call.log_file.read_bytes() if call.log_file.exists() else b""
            output = (report + b"\n" + (directory / "output").read_bytes()).decode(errors="replace")
            refused = frozenset[str]() if TABLE_MARK in report else rejected_metrics(output, metrics)
            if not refused:
                self._report(call, report, end, output)
                return
            metrics = tuple(metric for metric in metrics if metric not in refused)
            _warn(self.measured, skipped_metrics_notice(refused))
        raise counter_error(output, end.exit_code)

    def _directory(self) -> Path:
        """Return a separate working directory, so that compiling again leaves no second artifacts in the run's own."""
        directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=self.files.directory))
        bundles = self.files.directory / "bundles"
        if bundles.is_dir():
            (directory / "bundles").symlink_to(bundles, target_is_directory=True)
        (directory / "configurations.json").write_text(json.dumps(list(self.functions)))
        return directory

    def _call(self, metrics: tuple[str, ...], directory: Path) -> NcuCall:
        return NcuCall(
            program=self.counting.program,
            metrics=metrics,
            function_names=tuple(dict.fromkeys(map(base_name, self.functions.values()))),
            cache_control=ncu_cache_control(self.cache_mode),
            clock_control=CLOCK_CONTROL,
            has_ranges=self.counting.has_ranges,
            log_file=directory / "counters.csv",
        )

    def _watch(self, call: NcuCall, directory: Path) -> ProcessEnd:
        """Wait for the end of ncu, and report which launch is being counted. Raises TimeLimitError."""
        self.launched, self.failed = [], []
        record = LaunchLog(directory / "record")
        command = call.command(self._target(directory))
        environment = {**os.environ, UNDER_PROFILER: "1", "LC_ALL": "C.UTF-8"}  # numbers of another locale would be ambiguous
        with (
            (directory / "output").open("ab") as output,
            SupervisedProcess(command, directory=directory, environment=environment, output_fd=output.fileno()) as process,
        ):
            timer = _ReportTimer(self.counting.silence_limit_s)
            activity = "counting"
            self.measured.report_activity(activity)
            while not process.wait(POLL_S):
                notes = record.read()
                self._take(notes)
                if notes:
                    activity = f"counting {notes[-1].label}"
                if timer.is_report_due(bool(notes)):
                    self.measured.report_activity(activity)
                if timer.is_over:
                    process.end("silent")
                    process.result()
                    raise TimeLimitError(
                        f"ncu while {activity}",
                        found=f"no further launch within {self.counting.silence_limit_s:g} s",
                        remedy="Count fewer or smaller configurations.",
                    )
            self._take(record.read())
            return process.result()

    def _target(self, directory: Path) -> list[str]:
        catalog = () if self.files.catalog_file is None else ("--catalog", str(self.files.catalog_file))
        cache = () if self.files.cache_directory is None else ("--cache-directory", str(self.files.cache_directory))
        return [
            *(sys.executable, "-P", "-m", "kernalyse.services.profiler.workloads.counter_launcher"),
            *("--spec", str(self.files.spec_file), "--configurations", str(directory / "configurations.json")),
            *("--record", str(directory / "record"), "--directory", str(directory), *catalog, *cache),
        ]

    def _take(self, notes: Sequence[LaunchLogEntry]) -> None:
        self.launched += [note.configuration_index for note in notes if note.step is LaunchStep.LAUNCHED]
        self.failed += [note for note in notes if note.step is LaunchStep.FAILED]

    def _report(self, call: NcuCall, report: bytes, end: ProcessEnd, output: str) -> None:
        """Report the counters, and warnings for what went wrong. Raises UnmetConditionError where there are no counters."""
        for note in self.failed[:MAX_FAILURE_COUNT]:
            _warn(self.measured, f"No counters of {note.label}: {note.message}")
        if len(self.failed) > MAX_FAILURE_COUNT:
            _warn(self.measured, f"No counters of {len(self.failed) - MAX_FAILURE_COUNT} further configurations.")
        if TABLE_MARK not in report or not self.launched:
            raise counter_error(output, end.exit_code)
        if not end.is_success:
            _warn(self.measured, f"ncu did not end well, so its report may be incomplete. {counter_error(output, end.exit_code).message}")
        artifact_name = f"{self.name}.csv"
        self.measured.write(store_artifact(self.files.directory, artifact_name, report))
        names = tuple(self.functions[index] for index in self.launched)
        self.measured.write(CountersStored(artifact_name, tuple(self.launched), call.cache_control, call.clock_control, names))


class _ReportTimer:
    """Timers: how long nothing has been launched, and when the next sign of life is due."""

    def __init__(self, limit_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock_s = clock_s
        self._last_note_s = self._last_report_s = clock_s()

    def is_report_due(self, has_notes: bool) -> bool:
        """Return whether to report now: there are new launches, or the service has heard nothing for a while."""
        now_s = self._clock_s()
        if has_notes:
            self._last_note_s = now_s
        if has_notes or now_s - self._last_report_s >= HEARTBEAT_S:
            self._last_report_s = now_s
            return True
        return False

    @property
    def is_over(self) -> bool:
        return self._clock_s() - self._last_note_s > self._limit_s


def base_name(function_name: str) -> str:
    """Return the name as ncu's filter has it: without namespaces and template arguments."""
    return function_name.partition("<")[0].rpartition("::")[2].strip()


def _warn(sink: EventSink, text: str) -> None:
    sink.write(LogLines(LogLevel.WARNING, "worker", tuple(text.splitlines())))


# ---------------------------------------------------------------- trial count
# A small kernel is counted before the sweep: problems that only ncu can show are reported before the hours that a sweep may take.

KERNEL_NAME: Final = "saxpy"
SIZE: Final = 1_024
METRIC: Final = "dram__bytes.sum"  # one that takes the lock which other programs may hold; more would only cost replays


def try_counting(counting: CounterCollector, sweep: KernelSweep, directory: Path, sink: EventSink) -> CounterCollector | None:
    """Count a small kernel; return the counting, or None after a warning where ncu fails for a permanent reason.

    Whatever else goes wrong says little of the sweep's own kernels, and is left to them.

    Args:
        sweep: that is to be counted; the trial runs on its device.
        directory: of the run; files of the trial go below it.
    """
    place = directory / "counting_trial"
    place.mkdir()
    trial = KernelSweep((KernelSelection(KERNEL_NAME),), (Axis("N", (SIZE,)),), backend=sweep.backend, device_id=sweep.device_id)
    files = CounterFiles(place / "spec", place)
    files.spec_file.write_bytes(encode_bytes(RunSpec(trial)))
    function_name = load_catalog().definition(KERNEL_NAME).function
    try:
        count_one(counting.of((METRIC,)), CacheMode.HOT, function_name, MeasurementRecorder(NullSink()), files)
    except KernalyseError as error:
        if is_permanent_failure(error.found):
            sink.write(LogLines(LogLevel.WARNING, "worker", tuple(f"No counters, timings alone: {error.message}".splitlines())))
            return None
    except OSError:  # the program or the directory; the sweep's own counting says which
        pass
    return counting


# ---------------------------------------------------------------- launch log
# Counted launches are logged to a file, because ncu stands between their process and the worker.


class LaunchStep(StrEnum):
    """The state of a counted launch."""

    PREPARING = "preparing"
    LAUNCHED = "launched"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LaunchLogEntry:
    """One line of the launch log."""

    configuration_index: int
    step: LaunchStep
    label: str
    message: str = ""  # why it failed


class LaunchLog:
    """The log file of counted launches, which is read while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def write(self, note: LaunchLogEntry) -> None:
        """Append one line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(note)) + "\n")

    def read(self) -> list[LaunchLogEntry]:
        """Return the lines added since the last call. A line that is still being written comes with the next call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            whole, _, _ = file.read().rpartition(b"\n")
        self._position += len(whole) + 1 if whole else 0
        entries = [json.loads(line) for line in whole.splitlines()]
        return [LaunchLogEntry(**{**entry, "step": LaunchStep(entry["step"])}) for entry in entries]
