"""How much of a sweep to measure, as people say it."""

from __future__ import annotations

from dataclasses import dataclass

from services.core.model import Pairing, SearchStrategy
from services.core.words.measuring_words import MAX_SECONDS
from services.core.words.usage import UsageError


@dataclass(frozen=True, slots=True)
class SearchWords:
    """How much of the sweep is measured, and how often. None: not given."""

    is_shuffled: bool = True
    strategy: SearchStrategy = SearchStrategy.ALL
    budget_s: float | None = None
    process_count: int = 1
    is_paired: bool = False
    paired_block_count: int | None = None
    with_counters: bool = False
    is_confirmed: bool = True

    def budget_ns(self) -> int | None:
        """Raises UsageError."""
        budget_ns = parse_budget(self.budget_s)
        if budget_ns is not None and self.strategy is SearchStrategy.ALL:
            raise UsageError(
                f"option --budget {self.budget_s:g}",
                found="the strategy all, which measures everything however long it takes",
                expected="a search that can leave something out",
                remedy="Add --strategy halving or --strategy random, or leave the budget out.",
            )
        return budget_ns

    def pairing(self) -> Pairing | None:
        if self.paired_block_count is not None:
            return Pairing(self.paired_block_count)
        return Pairing() if self.is_paired else None


def parse_budget(budget_s: float | None) -> int | None:
    """Nanoseconds. None: not given. Raises UsageError."""
    if budget_s is None:
        return None
    if not 0 < budget_s < MAX_SECONDS:
        raise UsageError(f"option --budget {budget_s:g}", found=f"{budget_s:g}", expected="seconds, more than 0", remedy="Say --budget 60.")
    return max(1, int(budget_s * 1e9))
