"""Names of the files that a run leaves, and the layout of header bundles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# ---------------------------------------------------------------- listings
# What compilers leave of a kernel, as artifacts: how they are named.

LISTING_TITLES: Final[dict[str, str]] = {
    "ptx": "PTX",
    "sass": "SASS",
    "ptxas.txt": "ptxas report",
    "cl": "OpenCL source",
}
"""By what their names end in, in the order in which people look at them."""


def listing_stem(kernel_name: str) -> str:
    """A kernel's name as a file can have it: "scale<float, 4>" becomes scale_float_4."""
    words = "".join(letter if letter.isalnum() else " " for letter in kernel_name).split()
    return "_".join(words) if any(letter in kernel_name for letter in "<:") else kernel_name


def listing_variant(macros: Mapping[str, object]) -> str:
    """What tells listings of one kernel apart that was compiled with other constants."""
    return "_".join(f"{name}{value}" for name, value in macros.items())


# ---------------------------------------------------------------- header layout
# How an archive of headers says which of its folders are searched; nodes unpack it beside the source.

FOLDER_LIST: Final = ".kernalyse/include_folders"
"""One folder a line, in the order in which they are searched, relative to the archive's top."""
