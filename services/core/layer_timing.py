"""What the layers of a model's run are timed with, and what their sum has to do with the time of a whole pass."""

from __future__ import annotations

from typing import Final

from services.core.gpt_models import find_architecture
from services.core.model import ModelRun, Work
from services.core.quantities import duration

BY_EVENTS: Final = "with events around each launch"
BY_PROFILE: Final = "under ONNX Runtime's profile"
ONE_BY_ONE: Final = "one by one"  # of files, which do not tell more


def timed_with(work: Work | None) -> str:
    """Return how the layers of a run were timed, in words. work: None where it is not known."""
    if not isinstance(work, ModelRun):
        return ONE_BY_ONE
    return BY_PROFILE if find_architecture(work.model_name) is None else BY_EVENTS


def layers_note(work: Work | None, layers_ns: float | None, pass_ns: float | None) -> str:
    """Return what all layers take beside a whole pass, which is timed by itself; empty where one of them is not known.

    Args:
        work: of the run; None where it is not known.
        layers_ns: sum over all layers of one variant.
        pass_ns: median of its whole passes.
    """
    if not layers_ns or not pass_ns:
        return ""
    together = f"{duration(layers_ns)} together, ×{layers_ns / pass_ns:.3g} of the {duration(pass_ns)} that a whole pass takes without that"
    return f"Layers are timed {timed_with(work)}, in passes of their own: {together}. Shares are of their sum, not of the pass."
