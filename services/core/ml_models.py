"""The built-in GPT architectures, and how the layers of a model run are timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernalyse.services.core.formatting import duration
from kernalyse.services.core.model import ModelRun, Work


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder-only transformer: pre-norm blocks, an MLP of four times the width, logits by the token embedding."""

    model_name: str
    layer_count: int
    head_count: int
    width: int  # of the residual stream; head_count divides it

    @property
    def head_width(self) -> int:
        """Return the width of one attention head."""
        return self.width // self.head_count

    @property
    def mlp_width(self) -> int:
        """Return the width of the hidden layer of the MLP."""
        return 4 * self.width


ARCHITECTURES: Final = (
    Architecture("gpt-nano", layer_count=3, head_count=3, width=48),
    Architecture("gpt-micro", layer_count=4, head_count=4, width=128),
    Architecture("gpt-mini", layer_count=6, head_count=6, width=192),
    Architecture("gpt-tile-small", layer_count=4, head_count=4, width=64),
    Architecture("gpt-tile-medium", layer_count=6, head_count=4, width=128),
    Architecture("gpt-tile-large", layer_count=8, head_count=8, width=256),
)
MODEL_NAMES: Final = tuple(architecture.model_name for architecture in ARCHITECTURES)


def find_architecture(model_name: str) -> Architecture | None:
    """Return the architecture of this name, or None.

    "gpt" may be missing, case does not matter, - and _ are equal: "tile_medium" is gpt-tile-medium.
    """
    words = model_name.strip().lower().replace("_", "-")
    normalized = words if words.startswith("gpt-") else f"gpt-{words}"
    return next((architecture for architecture in ARCHITECTURES if architecture.model_name == normalized), None)


# ---------------------------------------------------------------- layer timing

BY_EVENTS: Final = "with events around each launch"
BY_PROFILE: Final = "under ONNX Runtime's profile"
ONE_BY_ONE: Final = "one by one"  # for imported files, which record no more


def timing_description(work: Work | None) -> str:
    """Return, in words, how the layers of a run were timed; `work` is None where it is not known."""
    if not isinstance(work, ModelRun):
        return ONE_BY_ONE
    return BY_PROFILE if find_architecture(work.model_name) is None else BY_EVENTS


def layers_note(work: Work | None, layers_ns: float | None, pass_ns: float | None) -> str:
    """Return a sentence that relates the sum of all layers to the time of an entire pass, which is timed separately.

    Args:
        work: of the run; None where it is not known.
        layers_ns: sum over all layers of one variant.
        pass_ns: median of its entire passes.

    Returns:
        The sentence, or an empty text where one of the two times is not known.
    """
    if not layers_ns or not pass_ns:
        return ""
    together = (
        f"{duration(layers_ns)} together, ×{layers_ns / pass_ns:.3g} of the {duration(pass_ns)} that a complete pass takes without it"
    )
    return f"Layers are timed {timing_description(work)}, in passes of their own: {together}. Shares are of their sum, not of the pass."
