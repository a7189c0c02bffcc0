"""Reasons that several rows of a table give: said once, below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def shared_reasons(reasons: Iterable[str | None]) -> dict[str, str]:
    """What stands in a row for each reason that more than one row gives: "note 1" for the first of them, and so on."""
    counts = Counter(reason for reason in reasons if reason)
    return {reason: f"note {number}" for number, reason in enumerate((reason for reason, count in counts.items() if count > 1), start=1)}


def notes(marks: dict[str, str]) -> tuple[str, ...]:
    """Sentences below the table. marks: what `shared_reasons` says."""
    return tuple(f"{mark.capitalize()}: {reason}" for reason, mark in marks.items())
