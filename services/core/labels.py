"""What labels say beside the problem or the layer: words that columns tell too."""

from __future__ import annotations

from typing import Final

REPEATED_WORDS: Final = r" (process=\d+|cold|hot)\b"
"""Runs agree on labels without these, as histories have them."""

MODULE_PREFIX: Final = "nn.Module: "
"""Of PyTorch's ranges around modules: that a layer is a module is told by its source."""

PATH_SEPARATOR: Final = " / "
"""Between the names in the path of a layer of a trace."""

LAYER_PARTS: Final = {"forward": "(backward pass)", "graph": "(in graphs)"}
"""What is told of a layer by these sources, beside what the same layer launched itself."""


def layer_label(layer: str, source: str | None) -> str:
    """What a layer is called where its rows by different sources stand side by side."""
    part = LAYER_PARTS.get(source or "")
    return " ".join(word for word in (layer.removeprefix(MODULE_PREFIX), part) if word)


def name_inside(layer: str, parent_path: str | None) -> str:
    """The name of a layer where it stands inside of the one with this path: "attn" of "blocks.0.attn" inside of "blocks.0"."""
    around = (parent_path or "").rpartition(PATH_SEPARATOR)[-1].removeprefix(MODULE_PREFIX)
    name = layer.removeprefix(MODULE_PREFIX)
    return name.removeprefix(f"{around}.") or name
