"""The canonical tables, and events as rows of them."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from kernalyse.services.analyzer.tables.event_rows import apply_event, frame_from_rows, initial_run, sample_row, samples_frame, table_rows
from kernalyse.services.analyzer.tables.runs import CEILINGS, CONFIGURATIONS, MEASUREMENTS, SAMPLES, TABLES, TELEMETRY, find_table
from kernalyse.services.core.errors import InvalidRequestError, TableNotFoundError
from kernalyse.services.core.model import (
    Ceiling,
    CeilingsMeasured,
    EventPayload,
    Progress,
    RunError,
    RunEvent,
    RunState,
    SampleBatch,
    StateChanged,
    Telemetry,
)
from tests.integration.profiler_stand_in import CREATED, ProfilerStandIn, configuration, measurement

RUN = ProfilerStandIn("unix:none").add_run("run-1")


def event(payload: EventPayload, event_index: int = 7) -> RunEvent:
    return RunEvent(event_index, "journal-1", "run-1", 1_777_863_722_000_000_000, payload)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.table_name)
def test_every_table_begins_with_its_keys_and_describes_each_column_once(table: object) -> None:
    assert isinstance(table, type(SAMPLES))
    assert table.column_names[:2] == ("run_id", "event_index")
    assert len(set(table.column_names)) == len(table.columns)
    assert all(column.description for column in table.columns)
    assert table.empty().schema == pl.Schema(table.schema)


def test_an_unknown_table_or_column_is_answered_with_those_there_are() -> None:
    with pytest.raises(TableNotFoundError, match="measurements"):
        find_table("nonsense")
    with pytest.raises(InvalidRequestError, match="duration_ns"):
        SAMPLES.column("nonsense")


def test_a_file_of_another_version_gets_the_columns_of_this_one() -> None:
    old = pl.LazyFrame({"run_id": ["a"], "event_index": [1], "gone": [2]})
    frame = TELEMETRY.conform(old).collect()
    assert frame.schema == pl.Schema(TELEMETRY.schema)
    assert frame.row(0, named=True)["load_average"] is None


def test_a_measurement_carries_its_configuration_and_circumstances() -> None:
    announced = next(iter(table_rows(event(configuration(3)), RUN, None)))
    assert announced.table is CONFIGURATIONS
    assert announced.values["parameters"] == '{"N": 1003}'
    assert (announced.values["block"], announced.values["grid"]) == ("256x1x1", "4x1x1")
    run = replace(RUN, device_id="opencl:intel:0")
    row = next(iter(table_rows(event(measurement(3)), run, announced.values)))
    frame = frame_from_rows(MEASUREMENTS, [row.values])
    assert frame.select("label", "backend", "device_id", "stop_reason", "verification_state", "flop").row(0) == (
        "saxpy N=1003",
        "OPENCL",
        "opencl:intel:0",
        "CONFIDENCE_REACHED",
        "PASSED",
        2e6,
    )
    assert frame["throttle_reasons"].to_list() == [""]
    assert frame["power_watts"].to_list() == [None]


def test_unknown_throttle_reasons_are_null_and_figures_past_64_bits_too() -> None:
    reading = Telemetry(1, memory_total_bytes=2**64 - 1)
    row = next(iter(table_rows(event(reading), RUN, None)))
    assert frame_from_rows(TELEMETRY, [row.values]).select("throttle_reasons", "memory_total_bytes").row(0) == (None, None)


def test_an_event_of_several_ceilings_is_as_many_rows() -> None:
    ceilings = (Ceiling("d", "dram", "bytes_per_s", 1.0, "copy", "measured"), Ceiling("d", "float32", "flop_per_s", 2.0, "fma", "measured"))
    rows = list(table_rows(event(CeilingsMeasured(ceilings)), RUN, None))
    assert [row.table for row in rows] == [CEILINGS, CEILINGS]
    assert frame_from_rows(CEILINGS, [row.values for row in rows])["value"].to_list() == [1.0, 2.0]


def test_batches_unpack_to_one_row_a_sample_in_order() -> None:
    clocked = SampleBatch(1, 0, (4.0, 9.0), 13, sm_clock_hz=(1_980_000_000, 0), discarded_positions=(1,))
    batches = [
        sample_row(event(SampleBatch(0, 5, (1.0, 2.5), 11), 7), SampleBatch(0, 5, (1.0, 2.5), 11)),
        sample_row(event(SampleBatch(1, 0, (), 12), 8), SampleBatch(1, 0, (), 12)),
        sample_row(event(clocked, 9), clocked),
    ]
    assert samples_frame(batches).rows() == [
        ("run-1", 7, 0, 5, 1.0, 11, None, False),
        ("run-1", 7, 0, 6, 2.5, 11, None, False),
        ("run-1", 9, 1, 0, 4.0, 13, 1_980_000_000, False),
        ("run-1", 9, 1, 1, 9.0, 13, None, True),
    ]
    assert samples_frame([]).schema == pl.Schema(SAMPLES.schema)


def test_a_run_follows_its_events() -> None:
    running = apply_event(RUN, event(StateChanged(RunState.RUNNING)))
    assert running.state is RunState.RUNNING
    assert running.start_time is not None
    busy = apply_event(running, event(Progress(1, 1, 3, "measuring", "cuda:0")))
    assert (busy.device_id, busy.total_configuration_count, busy.activity) == ("cuda:0", 3, "measuring")
    failed = apply_event(busy, event(StateChanged(RunState.FAILED, RunError("ABORTED", "WORKER_CRASHED", "SIGSEGV"))))
    assert (failed.state, failed.activity, failed.error is not None) == (RunState.FAILED, "", True)
    assert failed.end_time is not None
    assert failed.end_time >= CREATED
    assert initial_run(failed).state is RunState.QUEUED
    assert initial_run(failed).error is None
