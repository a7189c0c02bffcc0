"""What an operator has to do at the least, and how much of the arithmetic around it that decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from services.core.work.operator_call import OperatorCall

MODELLED: Final = "op model"
"""Source of a cost that was computed from the shapes of a call, not counted."""


class Weight(IntEnum):
    """How an operator counts beside those inside of it: only one that is as heavy takes its work away.

    A convolution's gradient that fills a buffer or sums a bias on its way is still that gradient.
    """

    MOVE = 1  # copies, fills, lookups
    PASS = 2  # arithmetic on each element: elementwise, reductions, norms, pooling
    PRODUCT = 3  # products of matrices, convolutions, attention; and whatever a recorder counted itself


@dataclass(frozen=True, slots=True)
class Work:
    """Of one call. flop, bytes: None is unknown. bytes: every input read and every output written once, whatever caches hold.

    dtype: of the arithmetic.
    """

    weight: Weight
    flop: float | None
    bytes: float | None
    dtype: str | None


Model = Callable[[OperatorCall], Work | None]
"""None: the shapes do not say what has to be done."""
