"""How configurations are shared out, which measurement counts, and what a device adds to all durations."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kernalyse.services.cli.many_devices import Target
from kernalyse.services.cli.split import (
    Split,
    device_effects,
    experiment_of,
    mark_late_runs,
    measured_of,
    plan_of,
    request_id_of,
    split_spec,
)
from kernalyse.services.core.model import Axis, KernelSelection, KernelSweep, Run, RunSpec, RunState

A, B, C = (Target(f"id-{name}", name) for name in "abc")
SPEC = RunSpec(KernelSweep((KernelSelection("saxpy"),), (Axis("N", tuple(range(1, 101))),)))


@pytest.mark.parametrize(("count", "device_count"), [(1, 2), (7, 3), (8, 2), (9, 2), (100, 4), (1000, 3), (5000, 32)])
def test_every_configuration_has_its_place_and_shares_are_small(count: int, device_count: int) -> None:
    plan = plan_of(count, device_count, seed=3)
    assert sorted([*plan.common, *(index for share in plan.shares for index in share)]) == list(range(count))
    assert len(plan.common) == min(count, max(8, math.ceil(count / 20)))
    assert all(1 <= len(share) <= 20 for share in plan.shares)
    assert plan == plan_of(count, device_count, seed=3)


def test_a_share_is_a_run_of_its_configurations_and_its_request_always_the_same() -> None:
    work = split_spec(SPEC, (3, 5), 100, "title").work
    assert isinstance(work, KernelSweep)
    assert set(range(100)) - set(work.done_configuration_indexes) == {3, 5}
    assert request_id_of(SPEC, (3, 5), None, 0) == request_id_of(SPEC, (5, 3), None, 0)
    others = [request_id_of(SPEC, (3, 5), A, 0), request_id_of(SPEC, (3, 5), B, 0), request_id_of(SPEC, (3, 5), None, 1)]
    assert len({request_id_of(SPEC, (3, 5), None, 0), *others}) == 4


def row(index: int, time_ns: int, median_ns: float = 1.0) -> dict[str, Any]:
    return {"configuration_index": index, "measured_unix_ns": time_ns, "duration_median_ns": median_ns, "label": str(index)}


def test_the_earliest_counts_and_all_processes_of_its_run() -> None:
    found = measured_of([(row(0, 9), A, "late"), (row(0, 5), B, "early"), (row(0, 6), B, "early"), (row(1, 7), A, "late")])
    assert [(one.row["measured_unix_ns"], one.counts) for one in found] == [(5, True), (6, True), (9, False), (7, True)]


class StandInClient:
    """Knows two runs, and what was written to them."""

    def __init__(self) -> None:
        made = datetime(2026, 1, 1, tzinfo=UTC)
        self.runs = {name: Run(name, "n", SPEC, RunState.SUCCEEDED, made, tags=("nightly",), notes="text") for name in ("early", "late")}

    def run(self, run_id: str) -> Run:
        return self.runs[run_id]

    def annotate_run(self, run_id: str, tags: tuple[str, ...], notes: str) -> Run:
        self.runs[run_id] = replace(self.runs[run_id], tags=tags, notes=notes)
        return self.runs[run_id]


def test_of_an_earlier_command_every_run_of_a_share_is_taken_over() -> None:
    """The second one came late: it is kept, and can be marked as such."""
    plan = plan_of(40, 2, seed=3)
    split = Split(StandInClient(), (A, B), SPEC, plan)  # type: ignore[arg-type]
    title = f"split {experiment_of(SPEC, plan)}: share 1 of {len(plan.shares)}"
    made = datetime(2026, 1, 1, tzinfo=UTC)
    done = [
        Run(f"run-{node}", f"id-{node}", replace(SPEC, title=title), RunState.SUCCEEDED, made, device_id="cuda:0")
        for node in ("a", "b", "x")
    ]
    assert split.take_over(done) == 3
    assert set(split.runs) == {"run-a", "run-b", "run-x"}


def test_a_run_that_came_late_is_tagged_in_the_store_and_keeps_what_it_had() -> None:
    client: Any = StandInClient()
    common = [(row(7, 1), A, "early"), (row(7, 2), B, "late")]  # every device measures it
    assert mark_late_runs(client, measured_of(common), common=[7]) == []
    late = measured_of([*common, (row(0, 9), B, "late"), (row(0, 5), A, "early")])
    for _ in range(2):
        assert mark_late_runs(client, late, common=[7]) == ["late"]
        assert (client.run("late").tags, client.run("late").notes) == (("nightly", "late"), "text")
        assert client.run("early").tags == ("nightly",)


def test_intervals_of_devices_hold_what_was_planted() -> None:
    """Of 95 % intervals over 300 experiments at least 90 % hold it, and the device is never taken for a faster one."""
    chance, factors, held = random.Random(7), {A: 1.0, B: 1.0, C: 1.03}, 0
    for _ in range(300):
        rows = [
            (row(index, 0, 1000 * (index + 1) * factor * chance.gauss(1, 0.002)), target, "r")
            for index in range(8)
            for target, factor in factors.items()
        ]
        effect = {found.label: found for found in device_effects(measured_of(rows), range(8))}["c"]
        held += effect.low <= 1.03 ** (2 / 3) <= effect.high
        assert effect.low > 1
    assert held >= 270


def test_a_device_that_lacks_common_configurations_has_no_effect() -> None:
    rows = [(row(index, 0), target, "r") for index in range(8) for target in (A, B, C) if target is not C or index < 5]
    assert [effect.label for effect in device_effects(measured_of(rows), range(8))] == ["a", "b"]
    assert device_effects(measured_of(rows[:1]), range(8)) == []
