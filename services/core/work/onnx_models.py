"""Which model tells the work of which node of an ONNX model, and what kind of operator it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.core.work.kinds import Work
from services.core.work.onnx_call import OnnxCall
from services.core.work.onnx_moves import MOVES
from services.core.work.onnx_passes import ELEMENTWISE, NORMS, REDUCTIONS
from services.core.work.onnx_products import ATTENTION, CONVOLUTIONS, MATRICES, OnnxModel

OTHER: Final = "other"
CATEGORIES: Final[Mapping[str, Mapping[str, OnnxModel]]] = {
    "matmul": MATRICES,
    "convolution": CONVOLUTIONS,
    "attention": ATTENTION,
    "normalization": NORMS,
    "elementwise": ELEMENTWISE,
    "reduction": REDUCTIONS,
    OTHER: MOVES,
}
"""Models by operator name, by the category that configurations and kernels have."""

ONNX_MODELS: Final[Mapping[str, OnnxModel]] = {name: model for models in CATEGORIES.values() for name, model in models.items()}
_CATEGORY: Final = {name: category for category, models in CATEGORIES.items() for name in models} | {"Transpose": "transpose"}


def onnx_work(call: OnnxCall) -> Work | None:
    """None: no model knows the operator, or its shapes do not tell."""
    model = ONNX_MODELS.get(call.operator)
    return None if model is None else model(call)


def onnx_category(operator: str) -> str:
    """E.g. matmul or elementwise; other for operators without a model."""
    return _CATEGORY.get(operator, OTHER)
