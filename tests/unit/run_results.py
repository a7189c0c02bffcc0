"""Results of a run that a test journals: through a real store, as exports get them."""

from __future__ import annotations

from pathlib import Path

from services.analyzer.counter_reports import counter_report
from services.analyzer.run_tables import run_table
from services.analyzer.schema import table_named
from services.analyzer.store import Store
from services.analyzer.writers.results import TABLE_NAMES, RunResults
from services.core.model import CountersStored, EventPayload
from tests.integration.profiler_stand_in import H200, ProfilerStandIn, started


def results_of(folder: Path, *payloads: EventPayload, ncu_report: str = "") -> RunResults:
    """Of a run "run-1" on an H200 whose node journals these after its start.

    Args:
        folder: for the store.
        ncu_report: that every CountersStored names.
    """
    node = ProfilerStandIn("unix:none")
    node.add_run("run-1")
    node.journal("run-1", *started(), *payloads)
    store = Store(folder)
    try:
        reports = {
            event.event_index: counter_report(event, event.payload, ncu_report.encode())
            for event in node.events
            if isinstance(event.payload, CountersStored)
        }
        store.commit_events(node.node.node_id, node.node.journal_id, node.events, list(node.runs.values()), reports)
        return RunResults({name: run_table(store, table_named(name), ["run-1"]).collect() for name in TABLE_NAMES}, (H200,))
    finally:
        store.close()
