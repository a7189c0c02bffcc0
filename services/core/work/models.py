"""Which model tells the work of which operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.core.work.attention import ATTENTION
from services.core.work.collectives import COLLECTIVES
from services.core.work.convolutions import CONVOLUTIONS
from services.core.work.elementwise import ELEMENTWISE
from services.core.work.grouped import GROUPED
from services.core.work.kinds import Model, Work
from services.core.work.moves import MOVES
from services.core.work.norms import NORMS
from services.core.work.operator_call import OperatorCall
from services.core.work.optimizers import OPTIMIZERS
from services.core.work.products import PRODUCTS
from services.core.work.reductions import REDUCTIONS

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
"""By the name that PyTorch records."""


def work_of(call: OperatorCall) -> Work | None:
    """None: no model knows the operator, or what was recorded of it does not tell."""
    model = MODELS.get(call.name)
    return None if model is None else model(call)


def work_of_call(name: str | None, shapes: str | None, dtypes: str | None, values: str | None) -> Work | None:
    """What a model says of a call as traces record it, in JSON."""
    call = None if name is None or shapes is None else OperatorCall.parsed(name, shapes, dtypes, values)
    return None if call is None else work_of(call)
