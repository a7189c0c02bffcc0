"""How many examples properties are tried with: `make test` a part of what each one names, `make fuzz` many times as many."""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import settings

SHARE: Final = float(os.environ.get("EXAMPLES_SHARE", "0.25"))
FEWEST: Final = 10


def examples(count: int, **others: Any) -> settings:
    """Settings for about that many examples, times EXAMPLES_SHARE; none has a time limit of its own."""
    return settings(max_examples=max(FEWEST, round(count * SHARE)), deadline=None, **others)
