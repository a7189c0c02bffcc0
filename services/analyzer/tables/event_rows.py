"""Conversion of events to rows of the canonical tables, and to the state of their run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import polars as pl

from kernalyse.services.analyzer.tables.base import Table
from kernalyse.services.analyzer.tables.derived import PAIRED_COMPARISONS
from kernalyse.services.analyzer.tables.runs import (
    ARTIFACTS,
    CEILINGS,
    CONFIGURATIONS,
    COUNTER_REPORTS,
    FAILURES,
    LOG_LINES,
    MEASUREMENTS,
    SAMPLES,
    TELEMETRY,
)
from kernalyse.services.core.disturbance import SEPARATOR
from kernalyse.services.core.model import (
    ArtifactStored,
    BackendName,
    CacheMode,
    Ceiling,
    CeilingsMeasured,
    Configuration,
    ConfigurationFailed,
    CountersStored,
    LogLevel,
    LogLines,
    Measurement,
    ModelRun,
    PairedComparison,
    ParameterValue,
    Progress,
    Run,
    RunEvent,
    RunState,
    SampleBatch,
    StateChanged,
    Telemetry,
    Work,
)

Row = dict[str, Any]
MAX_INT64: Final = 2**63 - 1
CONFIGURATION_COLUMNS: Final = tuple(name for name in CONFIGURATIONS.column_names if name in MEASUREMENTS.column_names)[2:]
"""Columns that a measurement's row copies from its configuration's; all but the keys."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

BACKEND_OF_DEVICE: Final = {"cuda": BackendName.PYCUDA, "opencl": BackendName.OPENCL}
"""The backend that AUTO selects, by the beginning of a device_id."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One batch of samples as it is stored: durations packed as little-endian float64."""

    run_id: str
    event_index: int
    configuration_index: int
    first_sample_index: int
    measured_unix_ns: int
    sample_count: int
    duration_ns: bytes = field(repr=False)
    sm_clock_hz: bytes | None = field(repr=False)  # packed little-endian int64, 0: not known; None: no sample's is
    discarded_positions: bytes | None = field(repr=False)  # packed little-endian int32; None: none was


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row with the table that it belongs to."""

    table: Table
    values: Row


def unix_ns(time: datetime | None) -> int | None:
    """Return nanoseconds since the Unix epoch, exact to the microsecond that a datetime holds."""
    return None if time is None else (time - EPOCH) // timedelta(microseconds=1) * 1000


def time_from_unix_ns(unix_time_ns: int | None) -> datetime | None:
    """Return the UTC time of nanoseconds since the Unix epoch, cut to microseconds."""
    return None if unix_time_ns is None else EPOCH + timedelta(microseconds=unix_time_ns // 1000)


# ---------------------------------------------------------------- state of a run


def apply_event(run: Run, event: RunEvent) -> Run:
    """Return the run after the event; the same object when the event does not concern its state."""
    match event.payload:
        case StateChanged(state, error):
            at = time_from_unix_ns(event.event_unix_ns)
            if at is not None and run.start_time is not None:  # the node's clock may have been set back meanwhile
                at = max(at, run.start_time)
            return replace(
                run,
                state=state,
                error=error or run.error,
                start_time=at if state is RunState.RUNNING else run.start_time,
                end_time=at if state.is_final else run.end_time,
                activity="" if state.is_final else run.activity,
            )
        case Progress() as progress:
            return progress.of(run)
        case _:
            return run


def initial_run(run: Run) -> Run:
    """Return the run as it was accepted: a snapshot taken later already contains the effects of its events."""
    return replace(
        run,
        state=RunState.QUEUED,
        start_time=None,
        end_time=None,
        error=None,
        completed_configuration_count=0,
        failed_configuration_count=0,
        total_configuration_count=None,
        activity="",
    )


def resolved_backend(run: Run) -> BackendName | None:
    """Return the backend that the request named; for AUTO, the one that the device_id implies; None: not known."""
    requested: BackendName | None = getattr(run.spec.work, "backend", None)
    if requested not in (None, BackendName.AUTO):
        return requested
    return BACKEND_OF_DEVICE.get((run.device_id or "").partition(":")[0])


# ---------------------------------------------------------------- rows


def table_rows(event: RunEvent, run: Run, configuration: Row | None, baseline: Row | None = None) -> Iterator[TableRow]:
    """Yield the rows of one event; none for samples and for events that only change the run.

    Args:
        run: as it is after the event.
        configuration: row of the configuration that a measurement, failure or comparison belongs to, if there was one.
        baseline: row of the configuration that a comparison compares with.
    """
    key = {"run_id": event.run_id, "event_index": event.event_index}
    match event.payload:
        case Configuration() as payload:
            yield TableRow(CONFIGURATIONS, key | _configuration(payload, run))
        case Measurement() as payload:
            yield TableRow(MEASUREMENTS, key | _measurement(payload, run, configuration or {}))
        case ConfigurationFailed(configuration_index, error):
            label = (configuration or {}).get("label")
            values = {"configuration_index": configuration_index, "label": label, "code": error.code, "reason": error.reason}
            yield TableRow(FAILURES, key | values | {"message": error.message})
        case PairedComparison() as payload:
            labels = {"label": (configuration or {}).get("label"), "baseline_label": (baseline or {}).get("label")}
            yield TableRow(PAIRED_COMPARISONS, key | _matching_fields(payload, PAIRED_COMPARISONS) | labels)
        case LogLines(level, source, lines):
            for line in lines:
                yield log_row(event, level, source, line)
        case Telemetry() as payload:
            yield TableRow(TELEMETRY, key | _matching_fields(payload, TELEMETRY))
        case CeilingsMeasured(ceilings):
            for ceiling in ceilings:
                yield TableRow(CEILINGS, ceiling_row(event.run_id, event.event_index, ceiling))
        case ArtifactStored() as payload:
            yield TableRow(ARTIFACTS, key | _matching_fields(payload, ARTIFACTS))
        case CountersStored() as payload:
            launch_count = {"launch_count": len(payload.configuration_indexes)}
            yield TableRow(COUNTER_REPORTS, key | _matching_fields(payload, COUNTER_REPORTS) | launch_count)


def log_row(event: RunEvent, level: LogLevel, source: str, line: str) -> TableRow:
    """Return the row of one line of the run's log that came with the event."""
    values = {"event_unix_ns": event.event_unix_ns, "level": level.value, "source": source, "line": line}
    return TableRow(LOG_LINES, {"run_id": event.run_id, "event_index": event.event_index} | values)


def sample_row(event: RunEvent, batch: SampleBatch) -> SampleRow:
    """Return a batch of samples as it is stored."""
    return SampleRow(
        run_id=event.run_id,
        event_index=event.event_index,
        configuration_index=batch.configuration_index,
        first_sample_index=batch.first_sample_index,
        measured_unix_ns=batch.measured_unix_ns,
        sample_count=len(batch.duration_ns),
        duration_ns=np.asarray(batch.duration_ns, dtype="<f8").tobytes(),
        sm_clock_hz=np.asarray(batch.sm_clock_hz, dtype="<i8").tobytes() if batch.sm_clock_hz else None,
        discarded_positions=np.asarray(batch.discarded_positions, dtype="<i4").tobytes() if batch.discarded_positions else None,
    )


def ceiling_row(run_id: str, event_index: int | None, ceiling: Ceiling) -> Row:
    """Return a ceiling as a row of table ceilings."""
    return {"run_id": run_id, "event_index": event_index} | _matching_fields(ceiling, CEILINGS)


def frame_from_rows(table: Table, rows: Sequence[Row]) -> pl.DataFrame:
    """Return rows as a frame of the table; a value that a row lacks is null."""
    return table.frame([row.get(name) for name in table.column_names] for row in rows)


def samples_frame(batches: Sequence[SampleRow]) -> pl.DataFrame:
    """Return batches unpacked to one row per sample, in their order."""
    if not batches:
        return SAMPLES.empty()
    counts = np.array([batch.sample_count for batch in batches])

    def repeated(values: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.repeat(np.array(values, dtype=np.int64), counts)

    position_in_batch = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    run_ids = pl.Series([batch.run_id for batch in batches], dtype=pl.String)
    return pl.DataFrame(
        {
            "run_id": run_ids.gather(np.repeat(np.arange(len(batches)), counts)),
            "event_index": repeated([batch.event_index for batch in batches]),
            "configuration_index": repeated([batch.configuration_index for batch in batches]),
            "sample_index": repeated([batch.first_sample_index for batch in batches]) + position_in_batch,
            "duration_ns": np.frombuffer(b"".join(batch.duration_ns for batch in batches), dtype="<f8"),
            "measured_unix_ns": repeated([batch.measured_unix_ns for batch in batches]),
            "sm_clock_hz": _clocks(batches),
            "is_discarded": _discarded(batches),
        },
        schema=SAMPLES.schema,
    )


def _clocks(batches: Sequence[SampleRow]) -> pl.Series:
    """Return the clock of each sample; null where it is not known."""
    parts = [
        np.zeros(batch.sample_count, "<i8") if batch.sm_clock_hz is None else np.frombuffer(batch.sm_clock_hz, "<i8") for batch in batches
    ]
    clocks = pl.Series(np.concatenate(parts), dtype=pl.Int64)
    return clocks.set(clocks == 0, None)


def _discarded(batches: Sequence[SampleRow]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    is_discarded = np.zeros(sum(batch.sample_count for batch in batches), dtype=np.bool_)
    start = 0
    for batch in batches:
        if batch.discarded_positions is not None:
            is_discarded[start + np.frombuffer(batch.discarded_positions, "<i4")] = True
        start += batch.sample_count
    return is_discarded


def _configuration(configuration: Configuration, run: Run) -> Row:
    return _matching_fields(configuration, CONFIGURATIONS) | {
        "label": configuration.label,
        "parameters": _json_values(configuration.parameters),
        "layer_path": configuration.layer_path or None,
        **_of_model(configuration, run.spec.work),
        "macros": _json_values(configuration.macros),
        "cache_mode": None if configuration.cache_mode is CacheMode.DEFAULT else configuration.cache_mode.value,
        "block": str(configuration.block),
        "grid": str(configuration.grid),
    }


def _of_model(configuration: Configuration, work: Work) -> Row:
    """Return the model columns. A request may call a model by a shorter name than its complete pass has."""
    if not isinstance(work, ModelRun):
        return {}
    return {"model_name": work.model_name if configuration.layer_path else configuration.kernel_name, "batch_size": work.batch_size}


def _json_values(values: Sequence[ParameterValue]) -> str:
    return json.dumps({value.name: value.value for value in values})


def _measurement(measurement: Measurement, run: Run, configuration: Row) -> Row:
    verification = measurement.verification
    backend = resolved_backend(run)
    return (
        {name: configuration.get(name) for name in CONFIGURATION_COLUMNS}
        | _matching_fields(measurement, MEASUREMENTS)
        | ({} if measurement.resources is None else _matching_fields(measurement.resources, MEASUREMENTS))
        | {
            "device_id": run.device_id,
            "backend": None if backend is None else backend.value,
            "verification_state": verification.state.value,
            "verification_max_absolute_error": verification.max_absolute_error,
            "verification_max_relative_error": verification.max_relative_error,
            "verification_message": verification.message,
            "recheck_state": None if measurement.recheck is None else measurement.recheck.state.value,
            "disturbance": SEPARATOR.join(measurement.disturbances) or None,
        }
    )


def _matching_fields(value: Any, table: Table) -> Row:
    """Return the fields of a dataclass that are columns of the table, as values that SQLite and polars accept."""
    names = set(table.column_names)
    return {item.name: _cell(getattr(value, item.name)) for item in fields(value) if item.name in names}


def _cell(value: Any) -> Any:
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    if isinstance(value, int) and value > MAX_INT64:
        return None  # no column holds an unsigned 64-bit number of this size, and failing would lose the rest of the run
    return getattr(value, "value", value) if isinstance(value, str) else value
