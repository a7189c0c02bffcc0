"""Which two runs the Compare page takes when nobody has chosen, and what it says that they differ in."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.model import ImportedTrace, ModelRun, Run, RunSpec, RunState
from kernalyse.services.ui.data.compared_rows import chosen_pair, facts
from kernalyse.services.ui.data.memory import Overview, RunMemory


def traced(file_name: str, tool: str, minute: int) -> Run:
    return Run(
        run_id=f"run-{minute}",
        node_id="",
        spec=RunSpec(ImportedTrace(file_name, f"sha256:{minute}", tool), title=file_name),
        state=RunState.SUCCEEDED,
        create_time=datetime(2026, 1, 2, tzinfo=UTC) + timedelta(minutes=minute),
    )


def overview_of(*runs: Run) -> Overview:
    return Overview(nodes=(), runs=runs)


def memory_of(run: Run, device_id: str) -> RunMemory:
    """Of a trace with one point."""
    memory = RunMemory(run.run_id)
    points = frame_from_rows(find_table("roofline"), [{"run_id": run.run_id, "device_id": device_id, "label": "gemm"}])
    memory.receive(run, {"roofline": points, "measurements": find_table("measurements").empty()}, 1)
    return memory


def test_a_trace_is_held_against_one_of_the_same_tool() -> None:
    older, counted, newest = traced("a.json", "kineto", 1), traced("b.csv", "ncu", 2), traced("c.json", "kineto", 3)
    assert chosen_pair(overview_of(newest, counted, older), "", "") == (older, newest)
    assert chosen_pair(overview_of(newest, counted), "", "") == (counted, newest)


def test_a_model_is_held_against_itself_before_another_model() -> None:
    def timed(model_name: str, minute: int, *variants: str) -> Run:
        return replace(traced("", "", minute), spec=RunSpec(ModelRun(model_name, variants)), completed_configuration_count=9)

    other, older, newest = timed("gpt-nano", 1, "baseline"), timed("gpt-mini", 2, "fused"), timed("gpt-mini", 3, "baseline", "fused")
    assert chosen_pair(overview_of(newest, other), "", "") == (newest, newest)
    assert chosen_pair(overview_of(newest, older, other), "", "") == (older, newest)
    assert chosen_pair(overview_of(older, other), "", "") == (other, older)


def test_runs_that_failed_at_their_beginning_are_not_taken_for_either_side() -> None:
    older, broken, newest = traced("a.json", "kineto", 1), traced("a.json", "kineto", 2), traced("a.json", "kineto", 3)
    failed = replace(broken, state=RunState.FAILED)
    assert chosen_pair(overview_of(newest, failed, older), "", "") == (older, newest)
    assert chosen_pair(overview_of(replace(newest, state=RunState.FAILED), failed, older), "", "") == (None, older)
    some = replace(failed, completed_configuration_count=3, failed_configuration_count=1)  # measured a part
    assert chosen_pair(overview_of(newest, some, older), "", "") == (some, newest)


def test_traces_of_two_devices_are_said_to_differ_in_them() -> None:
    before, after = memory_of(traced("a.json", "kineto", 1), "CPU"), memory_of(traced("a.json", "kineto", 2), "NVIDIA H100")
    differing = {fact.title: (fact.before, fact.after) for fact in facts(before, after, overview_of()) if fact.is_different}
    assert differing["Device"] == ("CPU", "NVIDIA H100")
