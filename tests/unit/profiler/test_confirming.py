"""How much time the comparison of the best with its runner-up may take."""

from __future__ import annotations

import pytest

from kernalyse.services.profiler.workloads.sweeps.paired import SearchBudget, confirmation_budget_ns

SECONDS = 1_000_000_000


@pytest.mark.parametrize(("measuring_s", "confirming_s"), [(0.2, 0.2), (2, 2), (20, 3), (300, 30)])
def test_a_small_sweep_is_at_most_doubled_and_a_large_one_takes_a_tenth_more(measuring_s: float, confirming_s: float) -> None:
    assert confirmation_budget_ns(measuring_s * SECONDS) == confirming_s * SECONDS


def test_shares_too_small_for_anything_become_as_large_as_needed_while_there_is_time() -> None:
    budget = SearchBudget.of(10 * SECONDS, lambda: 0)
    assert budget.part(1 / 20, least_ns=2 * SECONDS).left_ns() == 2 * SECONDS
    assert budget.part(1 / 2, least_ns=2 * SECONDS).left_ns() == 5 * SECONDS
    assert budget.part(1 / 20, least_ns=20 * SECONDS).left_ns() == 10 * SECONDS
