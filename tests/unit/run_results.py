"""Results of a run that a test journals: through a real store, as exports get them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kernalyse.services.analyzer.export.results import TABLE_NAMES, RunResults
from kernalyse.services.analyzer.queries.registry import resolve_table
from kernalyse.services.analyzer.queries.run_tables import StoreSource
from kernalyse.services.analyzer.readers.ncu.run_counters import counter_report
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.model import (
    Ceiling,
    CeilingsMeasured,
    ConfigurationFailed,
    CountersStored,
    EventPayload,
    LogLevel,
    LogLines,
    PairedComparison,
    ParameterValue,
    RunError,
    RunState,
    SampleBatch,
    StateChanged,
    Telemetry,
    Verdict,
)
from tests.integration.profiler_stand_in import H200, ProfilerStandIn, configuration, measurement, samples, started

CLOCKED = SampleBatch(1, 0, (4.0, 9.0, 5.5), 13, sm_clock_hz=(1_980_000_000, 0, 1_970_000_000), discarded_positions=(1,))
COMPARISON = PairedComparison(1, 0, 20, 1.05, 1.04, 1.06, 0.95, Verdict.SLOWER, "the interval leaves out 1", 14)


NCU_REPORT = """"ID","Kernel Name","Block Size","Grid Size","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","saxpy","(256, 1, 1)","(4, 1, 1)","9.0","Command line profiler metrics","dram__bytes.sum","Mbyte","12.000000"
"0","saxpy","(256, 1, 1)","(4, 1, 1)","9.0","Command line profiler metrics","gpu__time_duration.sum","ns","4,000.000000"
"0","saxpy","(256, 1, 1)","(4, 1, 1)","9.0","Command line profiler metrics","launch__func_cache_config","","CachePreferNone"
"""


def results_of(directory: Path, *payloads: EventPayload, ncu_report: str = "") -> RunResults:
    """Of a run "run-1" on an H200 whose node journals these after its start.

    Args:
        directory: for the store.
        ncu_report: that every CountersStored names.
    """
    node = ProfilerStandIn("unix:none")
    node.add_run("run-1")
    node.journal("run-1", *started(), *payloads)
    store = Store(directory)
    try:
        reports = {
            event.event_index: counter_report(event, event.payload, ncu_report.encode())
            for event in node.events
            if isinstance(event.payload, CountersStored)
        }
        store.commit_events(node.node.node_id, node.node.journal_id, node.events, list(node.runs.values()), reports)
        return RunResults({name: resolve_table(find_table(name), StoreSource(store, ["run-1"])).collect() for name in TABLE_NAMES}, (H200,))
    finally:
        store.close()


def sweep_results(directory: Path) -> RunResults:
    """With a row in every table of the results document: two measurements, one of them clocked, and one failure."""
    return results_of(
        directory,
        replace(configuration(0), macros=(ParameterValue("TILE", 16),), variant="TILE=16"),
        samples(0, 0, 3),
        samples(0, 3, 2),
        measurement(0, duration_ns=5000),
        configuration(1),
        CLOCKED,
        measurement(1, duration_ns=5250),
        configuration(2),
        ConfigurationFailed(2, RunError("FAILED_PRECONDITION", "COMPILE_FAILED", "line 3: expected ;")),
        COMPARISON,
        CeilingsMeasured((Ceiling("cuda:0", "dram", "bytes_per_s", 4e12, "copy", "measured"),)),
        CountersStored("counters.csv", (0,), "all", "base"),
        Telemetry(15, "cuda:0", power_watts=512.5, throttle_reasons=("power_cap",)),
        LogLines(LogLevel.WARNING, "worker", ("warm", "warmer")),
        StateChanged(RunState.SUCCEEDED),
        ncu_report=NCU_REPORT,
    )
