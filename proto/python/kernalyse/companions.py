"""Files that belong to a trace. Apart from their upload, which loads gRPC: showing a file needs none."""

from __future__ import annotations

from pathlib import Path
from typing import Final

COMPANION_FOLDERS: Final = ("-bin", "-freqs-bin")
"""What NVBench's --jsonbin adds to the name of its document for the folders of binary samples beside it."""

COMPANION_FILE: Final = "roofline_config.json"
"""Beside a list of operations or kernels: what their device can do at most."""

LIST_HEAD_BYTES: Final = 1024


def companions_of(path: Path) -> list[Path]:
    """Return the files that belong to a trace by what they are called and where they lie. Raises OSError."""
    folders = (path.with_name(path.name + ending) for ending in COMPANION_FOLDERS)
    found = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir()) if file.is_file()]
    config = path.with_name(COMPANION_FILE)
    return [*found, *([config] if config != path and config.is_file() and _is_list(path) else [])]


def _is_list(path: Path) -> bool:
    """Return whether it is a JSON list or a CSV table: other traces that lie in the same folder have no use for ceilings."""
    if path.suffix.lower() == ".csv":
        return True
    with path.open("rb") as file:
        return file.read(LIST_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
