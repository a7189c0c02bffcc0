"""The cost models of all PyTorch operators, by operator name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kernalyse.services.core.costs.contractions import ATTENTION, CONVOLUTIONS, GROUPED, PRODUCTS
from kernalyse.services.core.costs.data_movement import COLLECTIVES, MOVES
from kernalyse.services.core.costs.elementwise import ELEMENTWISE, OPTIMIZERS
from kernalyse.services.core.costs.operator import Model, OperatorCall, Work
from kernalyse.services.core.costs.reductions import NORMS, REDUCTIONS

MODELS: Final[Mapping[str, Model]] = {
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


def work_of(call: OperatorCall) -> Work | None:
    """Return the cost of a call, or None where no model covers the operator or the record does not determine it."""
    model = MODELS.get(call.name)
    return None if model is None else model(call)


def work_of_call(name: str | None, shapes: str | None, dtypes: str | None, values: str | None) -> Work | None:
    """Return the cost of a call whose inputs a trace has recorded as JSON, or None."""
    call = None if name is None or shapes is None else OperatorCall.parsed(name, shapes, dtypes, values)
    return None if call is None else work_of(call)
