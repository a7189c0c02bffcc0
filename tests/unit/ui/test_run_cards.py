"""What a card says of a run that goes on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kernalyse.services.core.model import KernelSelection, KernelSweep, Run, RunSpec, RunState
from kernalyse.services.ui.data.memory import NodesMemory
from kernalyse.services.ui.data.runs import run_card

BEGIN_UNIX_S = 1_767_225_600.0


def going_on(done: int) -> Run:
    begin = datetime.fromtimestamp(BEGIN_UNIX_S, UTC)
    spec = RunSpec(KernelSweep((KernelSelection("saxpy"),)))
    run = Run("run-1", "node-1", spec, RunState.RUNNING, begin, start_time=begin)
    return replace(run, completed_configuration_count=done, total_configuration_count=400)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the memory reads, seconds."""
    now = [BEGIN_UNIX_S]
    monkeypatch.setattr("kernalyse.services.ui.data.memory.time.time", lambda: now[0])
    return now


def test_time_left_counts_down_between_two_configurations(clock: list[float]) -> None:
    nodes = NodesMemory()
    nodes.receive((), (going_on(9),), (), is_first=True)
    clock[0] += 20
    nodes.receive((), (going_on(10),), (), is_first=False)
    left = [run_card(going_on(10), nodes.overview(), clock[0] + later_s).left_s for later_s in (0, 1, 5, 10_000)]
    assert left == [780, 779, 775, 0]  # 2 s each, 390 of them


def test_time_left_is_not_known_before_the_first_configuration_and_after_the_end(clock: list[float]) -> None:
    nodes = NodesMemory()
    nodes.receive((), (going_on(0),), (), is_first=True)
    assert run_card(going_on(0), nodes.overview(), clock[0] + 5).left_s is None
    ended = replace(going_on(400), state=RunState.SUCCEEDED)
    nodes.receive((), (ended,), (), is_first=False)
    assert run_card(ended, nodes.overview(), clock[0] + 5).left_s is None
    assert nodes.overview().progress_unix_s == {}


def test_what_keeps_a_run_from_being_heard_of_stands_where_its_error_would() -> None:
    stalled = replace(going_on(9), problem="store /data: found database or disk is full.")
    assert run_card(stalled, NodesMemory().overview(), BEGIN_UNIX_S).problem == stalled.problem


def test_the_overview_is_the_same_object_until_something_changes() -> None:
    nodes = NodesMemory()
    nodes.receive((), (going_on(1),), (), is_first=True)
    first = nodes.overview()
    assert nodes.overview() is first
    nodes.receive((), (going_on(2),), (), is_first=False)
    second = nodes.overview()
    assert second is not first
    nodes.fail("The analyzer does not answer.")
    assert nodes.overview().problem
    nodes.receive((), (), (), is_first=False)
    assert nodes.overview().problem == ""
