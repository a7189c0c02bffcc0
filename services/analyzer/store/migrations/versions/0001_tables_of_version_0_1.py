"""The tables of version 0.1. Catalogues of it that came before Alembic lack columns that were added since: they get them here.

Revision ID: 0001
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TYPES: Final = {"text": sa.Text, "integer": sa.BigInteger, "number": sa.Double, "flag": sa.Boolean, "blob": sa.LargeBinary}

TABLES: Final = {
    "cursors": """
        node_id:text* journal_id:text* next_event_index:integer!
    """,
    "device_ceilings": """
        node_id:text* device_id:text* source:text* ceiling_name:text* unit:text* path:text* value:number! confidence:text! note:text!
        clock_hz:integer measured_unix_ns:integer host_busy_ratio:number
    """,
    "device_descriptions": """
        node_id:text* device_id:text* device:blob!
    """,
    "device_thresholds": """
        node_id:text* device_id:text* memory_inefficient_ratio:number! compute_inefficient_ratio:number!
    """,
    "nodes": """
        address:text* node_id:text! ca_certificate:blob node:blob! client_certificate:blob origin:text server_name:text
        unreachable_since_unix_ns:integer
    """,
    "parquet_prefixes": """
        kind:text* run_id:text* prefix:text!
    """,
    "rows_artifacts": """
        run_id:text! event_index:integer artifact_name:text digest:text size_bytes:integer media_type:text
    """,
    "rows_ceilings": """
        run_id:text! event_index:integer device_id:text ceiling_name:text unit:text value:number path:text source:text
        confidence:text note:text clock_hz:integer measured_unix_ns:integer host_busy_ratio:number
    """,
    "rows_configurations": """
        run_id:text! event_index:integer configuration_index:integer kernel_name:text label:text parameters:text block:text grid:text
        dynamic_shared_memory_bytes:integer category:text dtype:text path:text flop:number bytes:number macros:text cache_mode:text
        process_index:integer variant:text model_name:text batch_size:integer symbol:text layer_path:text
    """,
    "rows_counter_reports": """
        run_id:text! event_index:integer artifact_name:text launch_count:integer cache_control:text clock_control:text
    """,
    "rows_counters": """
        run_id:text! event_index:integer configuration_index:integer launch_index:integer kernel_name:text block:text grid:text
        compute_capability:text section_name:text metric_name:text unit:text value:number text:text
    """,
    "rows_failures": """
        run_id:text! event_index:integer configuration_index:integer label:text code:text reason:text message:text
    """,
    "rows_log_lines": """
        run_id:text! event_index:integer event_unix_ns:integer level:text source:text line:text
    """,
    "rows_measurements": """
        run_id:text! event_index:integer configuration_index:integer kernel_name:text label:text parameters:text category:text
        dtype:text path:text block:text grid:text dynamic_shared_memory_bytes:integer macros:text process_index:integer variant:text
        device_id:text backend:text flop:number bytes:number sample_count:integer discarded_sample_count:integer
        warm_up_count:integer duration_median_ns:number duration_median_low_ns:number duration_median_high_ns:number
        duration_min_ns:number duration_max_ns:number duration_mean_ns:number duration_lower_quartile_ns:number
        duration_upper_quartile_ns:number duration_p95_ns:number duration_p99_ns:number duration_standard_deviation_ns:number
        duration_median_absolute_deviation_ns:number noise_ratio:number timing_method:text launches_per_sample:integer
        is_blocked:flag stopping_criterion:text stop_reason:text cache_mode:text verification_state:text
        verification_max_absolute_error:number verification_max_relative_error:number verification_message:text
        measured_unix_ns:integer elapsed_ns:integer compile_ns:integer input_distribution:text seed:integer compiler_options:text
        driver_version:text toolkit_version:text device_uuid:text sm_clock_hz:integer memory_clock_hz:integer
        temperature_celsius:number power_watts:number throttle_reasons:text register_count:integer static_shared_memory_bytes:integer
        local_memory_bytes:integer spill_store_bytes:integer spill_load_bytes:integer constant_memory_bytes:integer
        max_threads_per_block:integer active_block_count:integer theoretical_occupancy_ratio:number other_process_count:integer
        host_busy_ratio:number recheck_state:text model_name:text batch_size:integer symbol:text stated_flop_per_s:number
        stated_flop_per_byte:number tokens_per_s:number layer_path:text device_memory_bytes:integer disturbance:text
    """,
    "rows_paired_comparisons": """
        run_id:text! event_index:integer configuration_index:integer label:text baseline_configuration_index:integer
        baseline_label:text block_count:integer duration_ratio:number duration_ratio_low:number duration_ratio_high:number
        cycle_ratio:number cycle_ratio_low:number cycle_ratio_high:number confidence_ratio:number verdict:text reason:text
        measured_unix_ns:integer
    """,
    "rows_telemetry": """
        run_id:text! event_index:integer measured_unix_ns:integer device_id:text utilization_ratio:number memory_used_bytes:integer
        memory_total_bytes:integer clock_hz:integer memory_clock_hz:integer temperature_celsius:number power_watts:number
        throttle_reasons:text load_average:number
    """,
    "runs": """
        run_id:text* node_id:text! journal_id:text run:blob! create_unix_ns:integer! is_final:flag! is_compacted:flag!
        next_event_index:integer! device_event_index:integer owner:text stored_bytes:integer
    """,
    "sample_batches": """
        run_id:text! event_index:integer! configuration_index:integer! first_sample_index:integer! measured_unix_ns:integer!
        sample_count:integer! duration_ns:blob! sm_clock_hz:blob discarded_positions:blob
    """,
    "traces": """
        run_id:text* event_index:integer* artifact_names:text! collector:text! is_read:flag!
    """,
}
"""Columns as NAME:TYPE; * is of the primary key, ! is not null."""

INDEXES: Final = {
    "ix_runs_node_id": ("runs", "node_id"),
    "ix_runs_owner": ("runs", "owner"),
    "ix_runs_create_unix_ns": ("runs", "create_unix_ns"),
    "configurations_by_index": ("rows_configurations", "run_id", "configuration_index"),
    "sample_batches_by_run": ("sample_batches", "run_id", "event_index"),
    **{f"{name}_by_run": (name, "run_id", "event_index") for name in TABLES if name.startswith("rows_")},
}


def upgrade() -> None:
    """Make what is missing of these tables."""
    connection = op.get_bind()
    present = sa.inspect(connection)
    for name, words in TABLES.items():
        columns = [_column(word) for word in words.split()]
        if not present.has_table(name):
            op.create_table(name, *columns)
            continue
        known = {column["name"] for column in present.get_columns(name)}
        for column in columns:
            if column.name not in known:
                op.add_column(name, column)
    for name, (table, *indexed) in INDEXES.items():
        op.create_index(name, table, indexed, if_not_exists=True)


def _column(word: str) -> sa.Column[object]:
    name, _, kind = word.partition(":")
    is_key, is_required = kind.endswith("*"), kind.endswith(("*", "!"))
    return sa.Column(name, TYPES[kind.rstrip("*!")](), primary_key=is_key, nullable=not is_required)
