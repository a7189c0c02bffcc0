"""What lists call a run that nobody has named."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from services.core.model import CeilingMeasurement, CommandProfile, KernelSelection, KernelSweep, ModelRun, Run, RunSpec, RunState, Work
from services.core.run_title import title_of


@pytest.mark.parametrize(
    ("work", "title"),
    [
        (KernelSweep(tuple(map(KernelSelection, "abcde"))), "a, b, c and 2 more"),
        (CommandProfile(("python", "a b.py"), "nsys"), "nsys: python 'a b.py'"),
        (CommandProfile(("sh", "-c", "x\n" * 200), ""), f"profile: sh -c '{'x ' * 51}x…"),
        (ModelRun("gpt-nano", ("baseline", "fused")), "gpt-nano baseline and fused"),
        (ModelRun("bert-tiny", prompt="The quick\nbrown fox"), "bert-tiny: The quick brown fox"),
        (CeilingMeasurement(), "ceilings of cuda:0"),
    ],
)
def test_a_title_says_what_the_run_does(work: Work, title: str) -> None:
    run = Run("r", "n", RunSpec(work), RunState.QUEUED, datetime(2026, 1, 1, tzinfo=UTC), device_id="cuda:0")
    assert title_of(run) == title
