"""The best configurations of a run, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from services.core.quantities import duration, percentage

if TYPE_CHECKING:
    import polars as pl

MAX_PROBLEM_COUNT: Final = 10
"""More fill the screen; the table has them all."""


def best_lines(best: pl.DataFrame) -> Iterator[str]:
    """Yield one line for each problem with more than one configuration. Input: table best of one run."""
    contested = best.filter(best["candidate_count"] > 1)
    for row in contested.head(MAX_PROBLEM_COUNT).iter_rows(named=True):
        yield _line(row)
    left = contested.height - MAX_PROBLEM_COUNT
    if left > 0:
        yield f"… and the best of {left} more: kernalyse show {best['run_id'][0]} best"


def _without_parameters(label: str, parameters: str) -> str:
    """Return what tells the runner-up from the best: parameters are those of the problem, and the same for both."""
    shown = "".join(f" {name}={value}" for name, value in json.loads(parameters).items())
    return label.replace(shown, "", 1)


def _line(row: dict[str, Any]) -> str:
    name = f"best of {row['candidate_count']}: {row['label']}, {duration(row['duration_median_ns'])}"
    interval = f"{percentage(row['margin_ratio_low'])} to {percentage(row['margin_ratio_high'])}"
    margin = f"{percentage(row['margin_ratio'])} ({interval}) ahead of {_without_parameters(row['runner_up_label'], row['parameters'])}"
    return f"{name}, {margin}; {'real' if row['is_real'] else 'not shown to be real'}: {row['reason']}"
