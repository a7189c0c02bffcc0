"""What was measured of Python functions, as the events of a run and as a file that the analyzer reads."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.callables.session import Stopwatch
from services.core.model import (
    Configuration,
    EventPayload,
    ImportedTrace,
    LogLevel,
    LogLines,
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
    from services.analyzer.writers.results import RunResults

SOURCE: Final = "kernalyse.bench"
JOURNAL_ID: Final = ""  # no journal has these events


class Record:
    """Takes events with their times. How they are timed is the first of them."""

    def __init__(self, title: str, stopwatch: Stopwatch, revision: Revision | None) -> None:
        self.title = title
        self.device = stopwatch.device
        self._revision = revision
        self._start_unix_ns = time.time_ns()
        self.run_id = f"bench-{self._start_unix_ns}"
        self._events: list[RunEvent] = []
        self.write(LogLines(LogLevel.INFO, SOURCE, (f"Timed by {stopwatch.description}.", stopwatch.notice)))

    def write(self, payload: EventPayload) -> None:
        self._events.append(RunEvent(len(self._events), JOURNAL_ID, self.run_id, time.time_ns(), payload))

    def batches(self, configuration_index: int) -> list[SampleBatch]:
        payloads = (event.payload for event in self._events)
        return [one for one in payloads if isinstance(one, SampleBatch) and one.configuration_index == configuration_index]

    def document(self) -> str:
        """The results document (docs/results_json.md). Raises ModuleNotFoundError without polars."""
        try:
            from services.analyzer.writers.results import results_document
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{error.name} is not installed, and writing results needs it: pip install 'kernalyse[analyzer]'", name=error.name
            ) from error
        return results_document(self._results())

    def save(self, path: Path) -> Path:
        path.write_text(self.document(), encoding="utf-8")
        return path

    def send(self, client: Client) -> ClientRun:
        with tempfile.TemporaryDirectory(prefix="kernalyse-") as folder:
            return client.import_trace(self.save(Path(folder) / f"{self.run_id}.json")).run

    # ------------------------------------------------------------ as tables

    def _results(self) -> RunResults:
        from services.analyzer.event_rows import SampleRow, TableRow, frame_of, sample_row, samples_frame, table_rows, time_of
        from services.analyzer.results_schema import ROW_TABLES
        from services.analyzer.runs_table import RUNS
        from services.analyzer.schema import CONFIGURATIONS, MEASUREMENTS, SAMPLES
        from services.analyzer.writers.results import RunResults

        start_time = time_of(self._start_unix_ns)
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
        frames = {table.table_name: frame_of(table, [row.values for row in rows if row.table is table]) for table in ROW_TABLES}
        frames |= {SAMPLES.table_name: samples_frame(samples), RUNS.table_name: frame_of(RUNS, [self._run_row()])}
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
