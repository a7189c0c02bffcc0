"""Names of the files that runs leave behind, and the layout of header bundles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# ---------------------------------------------------------------- compiler output

LISTING_TITLES: Final[dict[str, str]] = {
    "ptx": "PTX",
    "sass": "SASS",
    "ptxas.txt": "ptxas report",
    "cl": "OpenCL source",
}
"""Titles by file suffix, in the order in which people look at them."""


def listing_stem(kernel_name: str) -> str:
    """Return a kernel's name in a form that file names allow: "scale<float, 4>" becomes scale_float_4."""
    words = "".join(letter if letter.isalnum() else " " for letter in kernel_name).split()
    return "_".join(words) if any(letter in kernel_name for letter in "<:") else kernel_name


def listing_variant(macros: Mapping[str, object]) -> str:
    """Return the macros as a file name suffix, which distinguishes variants of one kernel compiled with different constants."""
    return "_".join(f"{name}{value}" for name, value in macros.items())


# ---------------------------------------------------------------- header bundles
# Nodes unpack a bundle of headers next to the kernel source and search the directories that DIRECTORY_LIST names.

DIRECTORY_LIST: Final = ".kernalyse/include_folders"  # clients of 0.1.0 write this name
"""A file with one include directory per line, in the order of the search, relative to the archive's root."""
