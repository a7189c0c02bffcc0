"""The results of `kernalyse.bench` and `kernalyse.compare`, and their export as a run."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from kernalyse.services.callables.timers import CallTimer
from kernalyse.services.core.formatting import duration, median_with_interval, percentage, rate
from kernalyse.services.core.model import (
    Configuration,
    Device,
    EventPayload,
    ImportedTrace,
    LogLevel,
    LogLines,
    Measurement,
    PairedComparison,
    Revision,
    Run,
    RunEvent,
    RunSpec,
    RunState,
    SampleBatch,
)

if TYPE_CHECKING:
    from kernalyse.client import Client
    from kernalyse.runs import Run as ClientRun
    from kernalyse.services.analyzer.export.results import RunResults


@dataclass(frozen=True, slots=True)
class Bench:
    """The measurement of one function.

    Attributes:
        configuration: the function, its parameters and its cost, with the columns of the table configurations.
        measurement: all statistics, with the columns of the table measurements.
        device: whose clock was used.
        timed_by: which clock: "CUDA events on the current stream of PyTorch", or the host's.
        notice: what that clock does not measure.
    """

    configuration: Configuration
    measurement: Measurement
    device: Device
    timed_by: str
    notice: str
    _record: Record = field(repr=False, compare=False)

    @property
    def label(self) -> str:
        """Return the function's name and parameters."""
        return self.configuration.label

    @property
    def median_ns(self) -> float:
        """Return the median duration of a call."""
        return self.measurement.duration_median_ns

    @property
    def median_interval_ns(self) -> tuple[float, float]:
        """Return the 95 % confidence interval of the median."""
        return self.measurement.duration_median_low_ns, self.measurement.duration_median_high_ns

    @property
    def stop_reason(self) -> str:
        """Return why sampling ended, e.g. "CONFIDENCE_REACHED"."""
        return self.measurement.stop_reason.value

    @property
    def flop_per_s(self) -> float | None:
        """Return the rate at the median duration; None: flop is not known."""
        return None if self.configuration.flop is None else self.configuration.flop / self.median_ns * 1e9

    @property
    def bytes_per_s(self) -> float | None:
        """Return the rate at the median duration; None: bytes is not known."""
        return None if self.configuration.bytes is None else self.configuration.bytes / self.median_ns * 1e9

    def samples_ns(self) -> npt.NDArray[np.float64]:
        """Return all samples in the order taken, shape (n,), without throttled ones, which do not count."""
        batches = self._record.batches(self.configuration.configuration_index)
        return np.concatenate([np.delete(batch.duration_ns, batch.discarded_positions) for batch in batches])

    def save(self, path: Path | str) -> Path:
        """Write the results document (docs/results_json.md) and return its path; needs the extra analyzer."""
        return self._record.save(Path(path))

    def send(self, client: Client) -> ClientRun:
        """Store the measurement in the analyzer as a run, which the dashboard shows like any other; needs the extra analyzer."""
        return self._record.send(client)

    def __repr__(self) -> str:
        measured = self.measurement
        per_sample = "" if measured.launches_per_sample == 1 else f" of {measured.launches_per_sample} calls"
        discarded = f", {measured.discarded_sample_count} discarded" if measured.discarded_sample_count else ""
        rates = [rate(self.flop_per_s, "FLOP/s"), rate(self.bytes_per_s, "B/s")]
        known = [text for text, value in zip(rates, (self.flop_per_s, self.bytes_per_s), strict=True) if value is not None]
        return "\n".join(
            (
                f"{self.label}: {median_with_interval(self.median_ns, *self.median_interval_ns)}{''.join(f', {text}' for text in known)}",
                f"  {measured.sample_count} samples{per_sample}{discarded}, {measured.cache_mode.lower()}, "
                f"fastest {duration(measured.duration_min_ns)}, p95 {duration(measured.duration_p95_ns)}, "
                f"noise {percentage(measured.noise_ratio)}; stopped: {_words(self.stop_reason)}",
                f"  {self.device.name}; timed by {self.timed_by}",
            )
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two functions, measured in alternating blocks."""

    candidate: Bench
    baseline: Bench
    paired: PairedComparison
    _record: Record = field(repr=False, compare=False)

    @property
    def verdict(self) -> str:
        """Return how `candidate` compares with `baseline`: FASTER, SLOWER, SAME or UNDECIDED."""
        return self.paired.verdict.value

    @property
    def reason(self) -> str:
        """Return the reason for the verdict, one sentence."""
        return self.paired.reason

    @property
    def duration_ratio(self) -> float:
        """Return the duration of `candidate` over that of `baseline`: the median over the pairs of blocks."""
        return self.paired.duration_ratio

    @property
    def duration_ratio_interval(self) -> tuple[float, float]:
        """Return the 99 % confidence interval of the ratio."""
        return self.paired.duration_ratio_low, self.paired.duration_ratio_high

    def save(self, path: Path | str) -> Path:
        """Write both measurements and the verdict as one results document and return its path; needs the extra analyzer."""
        return self._record.save(Path(path))

    def send(self, client: Client) -> ClientRun:
        """Store both measurements and the verdict in the analyzer as one run; needs the extra analyzer."""
        return self._record.send(client)

    def __repr__(self) -> str:
        preposition = {"FASTER": "than", "SLOWER": "than", "SAME": "as", "UNDECIDED": "against"}[self.verdict]
        return "\n".join(
            (
                f"{self.candidate.label}: {self.verdict.lower()} {preposition} {self.baseline.label}: {self.reason}",
                f"  {self.paired.block_count} interleaved blocks of each",
                *(f"  {line}" for bench in (self.candidate, self.baseline) for line in repr(bench).splitlines()),
            )
        )


def _words(name: str) -> str:
    return name.lower().replace("_", " ")


# ---------------------------------------------------------------- record
# The measurement as the events of a run, and as a file that the analyzer reads.

SOURCE: Final = "kernalyse.bench"
JOURNAL_ID: Final = ""  # these events are in no journal


class Record:
    """The events of a measurement with their times; the first one describes how it is timed."""

    def __init__(self, title: str, call_timer: CallTimer, revision: Revision | None) -> None:
        self.title = title
        self.device = call_timer.device
        self._revision = revision
        self._start_unix_ns = time.time_ns()
        self.run_id = f"bench-{self._start_unix_ns}"
        self._events: list[RunEvent] = []
        self.write(LogLines(LogLevel.INFO, SOURCE, (f"Timed by {call_timer.description}.", call_timer.notice)))

    def write(self, payload: EventPayload) -> None:
        """Append an event."""
        self._events.append(RunEvent(len(self._events), JOURNAL_ID, self.run_id, time.time_ns(), payload))

    def batches(self, configuration_index: int) -> list[SampleBatch]:
        """Return the samples of one configuration."""
        payloads = (event.payload for event in self._events)
        return [one for one in payloads if isinstance(one, SampleBatch) and one.configuration_index == configuration_index]

    def document(self) -> str:
        """Return the results document (docs/results_json.md).

        Raises:
            ModuleNotFoundError: polars is not installed.
        """
        try:
            from kernalyse.services.analyzer.export.results import results_document
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{error.name} is not installed, and writing results needs it: pip install 'kernalyse[analyzer]'", name=error.name
            ) from error
        return results_document(self._results())

    def save(self, path: Path) -> Path:
        """Write the results document and return its path."""
        path.write_text(self.document(), encoding="utf-8")
        return path

    def send(self, client: Client) -> ClientRun:
        """Import the results document into the analyzer and return the run."""
        with tempfile.TemporaryDirectory(prefix="kernalyse-") as directory:
            return client.import_trace(self.save(Path(directory) / f"{self.run_id}.json")).run

    # ------------------------------------------------------------ as tables

    def _results(self) -> RunResults:
        from kernalyse.services.analyzer.export.results import RunResults
        from kernalyse.services.analyzer.tables.event_rows import (
            SampleRow,
            TableRow,
            frame_from_rows,
            sample_row,
            samples_frame,
            table_rows,
            time_from_unix_ns,
        )
        from kernalyse.services.analyzer.tables.results_document import ROW_TABLES
        from kernalyse.services.analyzer.tables.runs import CONFIGURATIONS, MEASUREMENTS, RUNS, SAMPLES

        start_time = time_from_unix_ns(self._start_unix_ns)
        assert start_time is not None
        work = ImportedTrace(file_name=self.run_id, digest="", format=SOURCE)
        run = Run(self.run_id, "", RunSpec(work), RunState.SUCCEEDED, create_time=start_time, device_id=self.device.device_id)
        rows: list[TableRow] = []
        samples: list[SampleRow] = []
        configurations: dict[int, dict[str, object]] = {}
        for event in self._events:
            index = getattr(event.payload, "configuration_index", None)
            baseline = getattr(event.payload, "baseline_configuration_index", None)
            if isinstance(event.payload, SampleBatch):
                samples.append(sample_row(event, event.payload))
                continue
            known, compared = configurations.get(index or 0), None if baseline is None else configurations[baseline]
            of_event = list(table_rows(event, run, known, compared))
            rows += of_event
            if isinstance(event.payload, Configuration):
                configurations[event.payload.configuration_index] = of_event[0].values
        for row in rows:
            if row.table in (CONFIGURATIONS, MEASUREMENTS):
                row.values.update({"block": None, "grid": None, "backend": None})  # of kernels
        frames = {table.table_name: frame_from_rows(table, [row.values for row in rows if row.table is table]) for table in ROW_TABLES}
        frames |= {SAMPLES.table_name: samples_frame(samples), RUNS.table_name: frame_from_rows(RUNS, [self._run_row()])}
        return RunResults(frames, (self.device,))

    def _run_row(self) -> dict[str, object]:
        count = sum(isinstance(event.payload, Configuration) for event in self._events)
        return {
            "run_id": self.run_id,
            "title": self.title,
            "state": RunState.SUCCEEDED.value,
            "create_unix_ns": self._start_unix_ns,
            "start_unix_ns": self._start_unix_ns,
            "end_unix_ns": self._events[-1].event_unix_ns,
            "device_id": self.device.device_id,
            "completed_configuration_count": count,
            "failed_configuration_count": 0,
            "total_configuration_count": count,
            "git_commit": None if self._revision is None else self._revision.commit,
            "git_is_dirty": None if self._revision is None else self._revision.is_dirty,
            "tags": "",
            "notes": "",
        }
