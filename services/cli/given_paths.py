"""What a user names on the command line where a run or a file may stand."""

from __future__ import annotations

from pathlib import Path


def is_trace_path(text: str) -> bool:
    """Return whether it is a path of a trace, and not a run that has the name of a folder that happens to be here."""
    path = Path(text)
    if not path.is_dir():
        return path.is_file()
    from services.analyzer.readers.trace_paths import is_trace

    return "/" in text or is_trace(path)
