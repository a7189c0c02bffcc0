"""How many examples properties are tried with: `make test` a part of what each one names, `make soak` many times as many."""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import HealthCheck, settings

SHARE: Final = float(os.environ.get("EXAMPLES_SHARE", "0.25"))
FEWEST: Final = 10


def load_profile() -> None:
    """What holds for every property: no time limits, and below a share of 1 the same examples at each run."""
    # A change is judged by what it changes, on a machine as loaded as it may be; make soak looks for what nobody has seen.
    slow = [HealthCheck.too_slow]
    settings.register_profile("kernalyse", deadline=None, derandomize=SHARE < 1, suppress_health_check=slow, max_examples=_share_of(100))
    settings.load_profile("kernalyse")


def examples(count: int, **others: Any) -> settings:
    """Settings for about that many examples, times EXAMPLES_SHARE."""
    return settings(max_examples=_share_of(count), **others)


def _share_of(count: int) -> int:
    return max(FEWEST, round(count * SHARE))
