"""Results of a run that a test journals: through a real store, as exports get them."""

from __future__ import annotations

from pathlib import Path

from services.analyzer.run_tables import run_table
from services.analyzer.schema import table_named
from services.analyzer.store import Store
from services.analyzer.writers.results import TABLE_NAMES, RunResults
from services.core.model import EventPayload
from tests.integration.profiler_stand_in import H200, ProfilerStandIn, started


def results_of(folder: Path, *payloads: EventPayload) -> RunResults:
    """Of a run "run-1" on an H200 whose node journals these after its start. folder: for the store."""
    node = ProfilerStandIn("unix:none")
    node.add_run("run-1")
    node.journal("run-1", *started(), *payloads)
    store = Store(folder)
    try:
        store.commit_events(node.node.node_id, node.node.journal_id, node.events, list(node.runs.values()))
        return RunResults({name: run_table(store, table_named(name), ["run-1"]).collect() for name in TABLE_NAMES}, (H200,))
    finally:
        store.close()
