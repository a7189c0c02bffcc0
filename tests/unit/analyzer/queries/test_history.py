"""Figures over time: which runs agree, where they changed, and the tables that say so, on a real store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernalyse.services.analyzer.analysis.history import levels
from kernalyse.services.analyzer.queries import materialized
from kernalyse.services.analyzer.queries import materialized as run_history
from kernalyse.services.analyzer.queries.materialized import history_view
from kernalyse.services.analyzer.queries.service import TableAnswers
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import Filter, FilterOperator, Revision, RunState, StateChanged, TableQuery
from tests.integration.profiler_stand_in import ProfilerStandIn, configuration, measurement, started
from tests.unit.analyzer.analysis.test_hardware_settings import LIST_ID, add, add_list
from tests.unit.analyzer.analysis.test_trace_roofline import model_trace

UNKNOWN = float("nan")


def found(values: Sequence[float], margin_ratio: float = 0.01) -> list[tuple[int, bool]]:
    """Where each level begins, and whether it is confirmed."""
    given_values = np.asarray(values, dtype=np.float64)
    return [(level.begin, level.is_confirmed) for level in levels(given_values, np.full(given_values.size, UNKNOWN), margin_ratio)]


def noisy(middle: float, count: int, seed: int, noise: float = 0.004) -> list[float]:
    return list(middle * np.exp(np.random.default_rng(seed).normal(0, noise, count)))


# ---------------------------------------------------------------- change points


def test_a_lasting_step_is_a_change_and_one_slow_run_is_none() -> None:
    assert found([*noisy(100, 20, 1), *noisy(105, 10, 2)]) == [(0, True), (20, True)]
    assert found([*noisy(100, 12, 3), 160, *noisy(100, 12, 4)]) == [(0, True)]
    assert found([*noisy(100, 12, 5), 160, 150, *noisy(100, 12, 6)]) == [(0, True)]
    assert found([*noisy(100, 10, 7), *noisy(90, 10, 8), *noisy(100, 10, 9)]) == [(0, True), (10, True), (20, True)]


def test_the_first_runs_alone_are_no_level() -> None:
    """A first run on a cold host, or two, would make the rest a confirmed change of either kind."""
    for beginning in ([110.0], [110.0, 109.5], [91.0], [91.0, 90.5]):
        assert found([*beginning, *noisy(100, 12, 3)]) == [(0, True)]
    assert found([*noisy(110, 5, 1), *noisy(100, 12, 3)]) == [(0, True), (5, True)]


def test_the_newest_run_alone_may_be_a_change_that_is_not_confirmed() -> None:
    assert found([*noisy(100, 20, 1), 112]) == [(0, True), (20, False)]
    assert found([*noisy(100, 20, 1), 112, 112.4, 111.9]) == [(0, True), (20, False)]


@pytest.mark.parametrize("count", range(2, 9))
def test_a_change_is_not_forgotten_while_more_runs_confirm_it(count: int) -> None:
    assert found([*noisy(100, 5, 1), *noisy(120, count, 2)]) == [(0, True), (5, count >= 5)]


@pytest.mark.parametrize("values", [[5.0], [5.0, 9.0], [5.0, 5.0, 9.0, 9.0], [5.0] * 30])
def test_too_few_runs_and_equal_ones_are_one_level(values: list[float]) -> None:
    assert [begin for begin, _ in found(values)] == [0]


def test_a_change_below_the_margin_is_none_however_sure_it_is() -> None:
    values = [*noisy(100, 40, 1, 0.0005), *noisy(101.5, 40, 2, 0.0005)]
    assert [begin for begin, _ in found(values, 0.01)] == [0, 40]
    assert [begin for begin, _ in found(values, 0.02)] == [0]


def test_runs_with_wide_intervals_of_their_own_count_for_less() -> None:
    values = np.array([100.0] * 12 + [104.0] * 5)
    unsure = np.where(values > 100, 0.2, 0.001)
    assert len(levels(values, np.full(17, 0.001), 0.01)) == 2
    assert len(levels(values, unsure, 0.01)) == 1


def test_false_changes_are_rare_in_noise_alone() -> None:
    """A thousand runs in fifty histories; with p ≤ 0.001 of each test one history in fifty may claim something."""
    claims = sum(len(found(noisy(100, 20, seed, 0.02))) > 1 for seed in range(50))
    assert claims <= 3


@settings(max_examples=60)
@given(st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=60))
def test_levels_cover_every_run_once_and_their_band_holds_their_value(values: list[float]) -> None:
    parts = levels(np.array(values), np.full(len(values), UNKNOWN), 0.02)
    assert [part.begin for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == len(values)
    assert all(part.band_low <= part.value <= part.band_high for part in parts)


# ---------------------------------------------------------------- the tables


def add_runs(store: Store, durations_ns: Sequence[float], *, first: int = 0, is_compacted: bool = True) -> None:
    """One run a day of a small and of a large configuration, the large one ten times as long; each on its commit."""
    node = ProfilerStandIn("unix:none", expired_before=store.nodes.next_event_index("node-1", "journal-1"))
    for number, duration_ns in enumerate(durations_ns, first):
        run_id = f"run-{number:03}"
        run = node.add_run(run_id)
        node.runs[run_id] = replace(
            run,
            create_time=datetime(2026, 1, 1 + number // 24, number % 24, tzinfo=UTC),
            spec=replace(run.spec, revision=Revision(f"{number:040x}", number % 2 == 1)),
        )
        moment = 1_767_225_600_000_000_000 + number * 86_400_000_000_000
        node.journal(run_id, *started())
        for index, factor in ((0, 1), (1, 10)):
            measured = measurement(index, duration_ns=duration_ns * factor)
            node.journal(
                run_id, configuration(index), replace(measured, measured_unix_ns=moment, driver_version="550" if number < 20 else "560")
            )
        node.journal(run_id, StateChanged(RunState.SUCCEEDED))
    store.commit_events(node.node.node_id, node.node.journal_id, node.events, list(node.runs.values()))
    if is_compacted:
        for run_id in node.runs:
            store.compact(run_id)


def asked(store: Store, table_name: str = "history", **filters: str) -> pl.DataFrame:
    query = TableQuery(table_name, filters=tuple(Filter(name, value) for name, value in filters.items()))
    return TableAnswers(store).answer(find_table(table_name), None, query, frozenset()).frame


STEP = [*noisy(5000, 20, 1), *noisy(5600, 6, 2)]


def test_a_regression_is_marked_where_it_began_with_what_else_changed_there(store: Store) -> None:
    add_runs(store, STEP)
    rows = asked(store, label="saxpy N=1000")
    assert rows["run_id"].to_list() == [f"run-{number:03}" for number in range(26)]
    assert rows["level_index"].to_list() == [0] * 20 + [1] * 6
    change = rows.filter(pl.col("verdict").is_not_null())
    assert change["run_id"].to_list() == ["run-020"]
    row = change.row(0, named=True)
    assert (row["verdict"], row["is_confirmed"], row["baseline_run_id"]) == ("REGRESSION", True, "run-019")
    assert row["change_ratio_low"] < 1.12 < row["change_ratio_high"]
    assert "driver 550 to 560" in row["reason"]
    assert row["git_commit"].endswith("14")
    band = rows.filter(pl.col("level_index") == 0)
    inside = band.filter((pl.col("value") >= pl.col("level_low")) & (pl.col("value") <= pl.col("level_high")))
    assert inside.height >= 18


def test_of_a_rate_less_is_a_regression(store: Store) -> None:
    add_runs(store, STEP)
    row = asked(store, label="saxpy N=1000", metric="achieved_bytes_per_s").filter(pl.col("verdict").is_not_null()).row(0, named=True)
    assert (row["verdict"], round(row["change_ratio"], 2)) == ("REGRESSION", 0.89)


def test_series_are_listed_with_their_newest_figures(store: Store) -> None:
    add_runs(store, STEP)
    rows = asked(store, "history_series")
    assert sorted(rows["label"]) == ["saxpy N=1000", "saxpy N=1001"]
    assert set(rows["run_count"]) == {26}
    assert set(rows["run_id"]) == {"run-025"}
    assert rows.filter(pl.col("label") == "saxpy N=1001")["duration_median_ns"].item() == pytest.approx(STEP[-1] * 10)


def test_runs_that_come_go_or_are_still_measuring_are_in_the_next_answer(store: Store) -> None:
    add_runs(store, STEP[:3])
    assert asked(store, label="saxpy N=1000").height == 3
    add_runs(store, STEP[3:5], first=3)
    add_runs(store, STEP[5:6], first=5, is_compacted=False)
    assert asked(store, label="saxpy N=1000").height == 6
    store.delete_run("run-001")
    assert "run-001" not in asked(store, label="saxpy N=1000")["run_id"].to_list()


def test_a_run_has_the_history_that_led_to_it_and_the_first_of_its_kind_has_none(store: Store) -> None:
    add_runs(store, STEP)
    answers = TableAnswers(store)
    assert answers.history_of_run("run-000").is_empty()
    rows = answers.history_of_run("run-023")
    assert set(rows["label"]) == {"saxpy N=1000", "saxpy N=1001"}
    assert rows.filter(label="saxpy N=1000")["run_id"].to_list() == [f"run-{number:03}" for number in range(24)]
    assert rows.drop_nulls("verdict")["run_id"].to_list() == ["run-020", "run-020"]


def test_what_changed_of_late_comes_before_what_takes_longer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, day_ns = TableAnswers(store), 86_400_000_000_000
    for number, duration_ns in enumerate(STEP):
        node = ProfilerStandIn("unix:none", expired_before=store.nodes.next_event_index("node-1", "journal-1"))
        node.add_run(f"run-{number}")
        node.journal(f"run-{number}", *started())
        for index, median_ns in ((0, duration_ns), (1, 100_000.0 * (1 + number % 3 / 1e4))):
            measured = replace(measurement(index, duration_ns=median_ns), measured_unix_ns=1_767_225_600_000_000_000 + number * day_ns)
            node.journal(f"run-{number}", configuration(index), measured)
        node.journal(f"run-{number}", StateChanged(RunState.SUCCEEDED))
        store.commit_events(node.node.node_id, node.node.journal_id, node.events, list(node.runs.values()))
    assert answers.history_of_run("run-25")["label"].unique(maintain_order=True).to_list() == ["saxpy N=1000", "saxpy N=1001"]
    monkeypatch.setattr(run_history, "MAX_SERIES_COUNT", 1)
    assert answers.history_of_run("run-25")["label"].unique().to_list() == ["saxpy N=1000"]
    monkeypatch.setattr(run_history, "MAX_JUDGED_ROWS", 26)
    assert answers.history_of_run("run-25")["label"].unique().to_list() == ["saxpy N=1001"]


def test_files_that_cannot_be_read_are_made_anew(store: Store) -> None:
    add_runs(store, STEP[:3])
    before = asked(store)
    (path,) = store.history_directory.rglob("*.parquet")
    path.write_bytes(b"PAR1 no more")
    assert asked(store).equals(before)


def test_a_question_is_answered_while_another_one_merges_the_files(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialized, "MAX_PARTS", 2)
    rows = history_view(store)
    for number in range(2):
        add_runs(store, STEP[:1], first=number)
        asked_before = rows.rows(None)
    add_runs(store, STEP[:1], first=2)
    store.delete_run("run-000")
    assert rows.rows(None).collect().height == 2 * 2
    assert asked_before.collect().height == 2 * 2
    (path,) = store.history_directory.rglob("*.parquet")
    assert "run-000" not in pl.read_parquet(path)["run_id"].to_list()


def test_an_imported_run_that_gets_other_rows_has_their_figures_in_its_history(store: Store) -> None:
    answers = TableAnswers(store)

    def efficiencies(table_name: str) -> list[float]:
        filters = (Filter("metric", "efficiency_ratio"),) if table_name == "history" else ()
        frame = answers.answer(find_table(table_name), None, TableQuery(table_name, filters=filters), frozenset()).frame
        return frame["value" if table_name == "history" else "efficiency_ratio"].to_list()

    add_list(store, bytes_per_s=50e9, digest="sha256:0")
    assert (efficiencies("history"), efficiencies("history_series")) == ([0.1], [0.1])
    add_list(store, bytes_per_s=500e9, digest="sha256:1")
    assert (efficiencies("history"), efficiencies("history_series")) == ([0.01], [0.01])
    store.delete_run(LIST_ID)
    assert efficiencies("history") == []
    add_list(store, bytes_per_s=25e9, digest="sha256:2")
    assert (efficiencies("history"), efficiencies("history_series")) == ([0.2], [0.2])


def test_kernels_of_traces_of_other_devices_have_histories_of_their_own(store: Store) -> None:
    for run_id, device_name in (("imported-1", "A100"), ("imported-2", "V100"), ("imported-3", "A100")):
        trace = model_trace({"device_name": device_name})
        add(store, run_id, {name: frame.collect() for name, frame in trace.items()})
    rows = asked(store, "history_series", label="gemm").sort("device_name")
    assert rows.select("device_name", "run_count").rows() == [("A100", 2), ("V100", 1)]


def test_forward_and_backward_pass_of_a_layer_of_a_trace_have_histories_of_their_own(store: Store) -> None:
    trace = {name: frame.collect() for name, frame in model_trace().items()}
    launches = trace["kernel_launches"]
    source = pl.when(pl.col("start_ns") == launches["start_ns"][2]).then(pl.lit("forward")).otherwise("layer_source")
    for run_id in ("imported-1", "imported-2"):
        add(store, run_id, {**trace, "kernel_launches": launches.with_columns(layer_source=source)})
    rows = asked(store, kernel_name="mlp", metric="duration_sum_ns")
    assert sorted(rows.select("label", "value").rows()) == [("mlp", 500_000)] * 2 + [("mlp (backward pass)", 4_000)] * 2


def test_an_unknown_metric_is_answered_with_those_there_are(store: Store) -> None:
    with pytest.raises(InvalidRequestError, match="duration_median_ns"):
        asked(store, metric="speed")


def test_filters_by_part_of_a_name_hold(store: Store) -> None:
    add_runs(store, STEP[:3])
    query = TableQuery("history", filters=(Filter("label", "1001", FilterOperator.CONTAINS),))
    assert TableAnswers(store).answer(find_table("history"), None, query, frozenset()).total_row_count == 3
