"""The table of runs."""

from __future__ import annotations

from typing import Final

from services.analyzer.table import COUNT, DEVICE_ID, FLAG, TEXT, Column, keyed_table

RUNS: Final = keyed_table(
    "runs",
    "One row per run; event_index is that of its last row.",
    Column("node_id", TEXT, "Node that it ran on; null: imported."),
    Column("host_name", TEXT, "Machine of that node; null: imported, or not known."),
    Column("title", TEXT, "Given, or made from the work."),
    Column("continues_run_id", TEXT, "The stopped run whose sweep this one continues; null: none."),
    Column("state", TEXT, "QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED or LOST."),
    Column("create_unix_ns", COUNT, "Submitted."),
    Column("start_unix_ns", COUNT, "Null: not started."),
    Column("end_unix_ns", COUNT, "Null: not ended."),
    DEVICE_ID,
    Column("completed_configuration_count", COUNT, "Measured or failed."),
    Column("failed_configuration_count", COUNT, "Of these, failed."),
    Column("total_configuration_count", COUNT, "Null until the sweep is expanded."),
    Column("error_reason", TEXT, "Why it failed or was lost."),
    Column("error_message", TEXT, "The same in words."),
    Column("git_commit", TEXT, "Of the checkout it was submitted from."),
    Column("git_is_dirty", FLAG, "Tracked files differed from the commit."),
    Column("tags", TEXT, "Comma-separated."),
    Column("notes", TEXT, "Free text."),
)
