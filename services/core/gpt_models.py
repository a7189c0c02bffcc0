"""The built-in GPT models: what they are made of, and by which names they are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder-only transformer: pre-norm blocks, MLP of four times the width, logits by the token embedding."""

    model_name: str
    layer_count: int
    head_count: int
    width: int  # of the residual stream; head_count divides it

    @property
    def head_width(self) -> int:
        return self.width // self.head_count

    @property
    def mlp_width(self) -> int:
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
    """By its name, with or without "gpt", in any case, with - or _: "tile_medium" is gpt-tile-medium. None: there is none."""
    words = model_name.strip().lower().replace("_", "-")
    wanted = words if words.startswith("gpt-") else f"gpt-{words}"
    return next((architecture for architecture in ARCHITECTURES if architecture.model_name == wanted), None)
