"""What a watcher that was slow is told of several changes at once."""

from __future__ import annotations

from datetime import UTC, datetime

from kernalyse.services.analyzer.collect.node_feed import Mailbox, NodesUpdate
from kernalyse.services.core.model import ImportedTrace, Run, RunSpec, RunState

RUN = Run(
    "imported-1",
    "",
    RunSpec(ImportedTrace("a.json", "sha256:0", "kineto")),
    RunState.SUCCEEDED,
    create_time=datetime(2026, 1, 1, tzinfo=UTC),
)


def test_of_a_run_that_was_deleted_and_imported_again_the_last_counts() -> None:
    mailbox = Mailbox()
    mailbox.put(NodesUpdate(deleted_run_ids=(RUN.run_id,)))
    mailbox.put(NodesUpdate(runs=(RUN,)))
    assert mailbox.take() == NodesUpdate(runs=(RUN,))
    mailbox.put(NodesUpdate(runs=(RUN,)))
    mailbox.put(NodesUpdate(deleted_run_ids=(RUN.run_id,)))
    assert mailbox.take() == NodesUpdate(deleted_run_ids=(RUN.run_id,))
