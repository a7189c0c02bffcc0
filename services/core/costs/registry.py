"""The cost models of all PyTorch operators, by operator name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kernalyse.services.core.costs.contractions import ATTENTION, CONVOLUTIONS, GROUPED, PRODUCTS
from kernalyse.services.core.costs.data_movement import COLLECTIVES, MOVES
from kernalyse.services.core.costs.elementwise import ELEMENTWISE, OPTIMIZERS
from kernalyse.services.core.costs.operator import CostModel, OperatorCall, OperatorCost
from kernalyse.services.core.costs.reductions import NORMS, REDUCTIONS

MODELS: Final[Mapping[str, CostModel]] = {
    **PRODUCTS,
    **GROUPED,
    **CONVOLUTIONS,
    **ATTENTION,
    **NORMS,
    **ELEMENTWISE,
    **REDUCTIONS,
    **OPTIMIZERS,
    **MOVES,
    **COLLECTIVES,
}
"""Cost models, by the operator name that PyTorch records."""


def operator_cost(call: OperatorCall) -> OperatorCost | None:
    """Return the cost of a call, or None where no model covers the operator or the record does not determine it."""
    model = MODELS.get(call.name)
    return None if model is None else model(call)


def recorded_call_cost(name: str | None, shapes: str | None, dtypes: str | None, values: str | None) -> OperatorCost | None:
    """Return the cost of a call whose inputs a trace has recorded as JSON, or None."""
    call = None if name is None or shapes is None else OperatorCall.parsed(name, shapes, dtypes, values)
    return None if call is None else operator_cost(call)
