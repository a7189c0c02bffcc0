"""A file of the store that is not what was written: who asks is told which run it is of, and what helps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kernalyse.services.analyzer.queries.service import TableAnswers
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.runs import MEASUREMENTS, find_table
from kernalyse.services.core.errors import StoredRunDamagedError
from kernalyse.services.core.model import TableQuery
from tests.unit.analyzer.queries.test_history import add_runs


def damage(store: Store, run_id: str) -> None:
    """Zeros where its measurements lie; the table of contents at the end stays."""
    (path,) = store.history_directory.parent.glob(f"runs/{run_id}-*/measurements.parquet")
    content = bytearray(path.read_bytes())
    content[4:100] = bytes(96)
    path.write_bytes(content)


def row_count(store: Store, table_name: str, run_ids: Sequence[str] | None) -> int:
    return TableAnswers(store).answer(find_table(table_name), run_ids, TableQuery(table_name), frozenset()).total_row_count


@pytest.mark.parametrize("table_name", [MEASUREMENTS.table_name, "kernels", "history"])
@pytest.mark.parametrize("run_ids", [["run-001"], None])
def test_the_run_of_a_damaged_file_is_named_and_can_be_given_up(store: Store, table_name: str, run_ids: Sequence[str] | None) -> None:
    add_runs(store, [100.0, 101.0])
    damage(store, "run-001")
    told = r"run run-001: found .*/run-001-[0-9a-f]+/measurements\.parquet cannot be read: .*kernalyse delete run-001"
    with pytest.raises(StoredRunDamagedError, match=told):
        row_count(store, table_name, run_ids)
    assert row_count(store, table_name, ["run-000"]) > 0
    store.delete_run("run-001")
    assert row_count(store, table_name, None) > 0
