"""Companion files of a trace, found by name. Separate from the upload, which loads gRPC: displaying a file does not need it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

COMPANION_DIRECTORIES: Final = ("-bin", "-freqs-bin")
"""Suffixes that NVBench's --jsonbin adds to the name of its document for the directories of binary samples."""

COMPANION_FILE: Final = "roofline_config.json"
"""The ceilings of the device, next to a list of operations or kernels."""

LIST_HEAD_BYTES: Final = 1024


def find_companions(path: Path) -> list[Path]:
    """Return the files that belong to a trace by their names and directories.

    Raises:
        OSError: a file or directory cannot be read.
    """
    directories = (path.with_name(path.name + ending) for ending in COMPANION_DIRECTORIES)
    found = [file for directory in directories if directory.is_dir() for file in sorted(directory.iterdir()) if file.is_file()]
    config = path.with_name(COMPANION_FILE)
    return [*found, *([config] if config != path and config.is_file() and _is_list(path) else [])]


def _is_list(path: Path) -> bool:
    """Return whether the file is a JSON list or a CSV table; other traces in the same directory have no use for ceilings."""
    if path.suffix.lower() == ".csv":
        return True
    with path.open("rb") as file:
        return file.read(LIST_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
