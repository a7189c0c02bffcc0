"""A user's op_registry.py, run here: its answers travel with the list, so an analyzer that runs already can read it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernalyse.trace_upload import OutgoingTrace


@contextmanager
def with_registry(trace: OutgoingTrace, folder: Path | None) -> Iterator[OutgoingTrace]:
    """Yield the trace with the answers of the folder's registry to its operations; as it is where it is no list of operations.

    Args:
        folder: of op_registry.py; None: none is run.
    """
    answers = None if folder is None else _answers(trace.path, folder)
    if answers is None:
        yield trace
        return
    from services.analyzer.readers.registry_answers import FILE_NAME

    with tempfile.TemporaryDirectory(prefix="kernalyse-registry-") as own_folder:
        path = Path(own_folder) / FILE_NAME
        path.write_text(json.dumps(answers), encoding="utf-8")
        yield OutgoingTrace(trace.path, (*trace.companions, path))


def _answers(path: Path, folder: Path) -> dict[str, object] | None:
    """Return the registry's answers, or None for what is no list of operations, or one that the analyzer refuses with a reason."""
    from services.analyzer.readers.commands import CommandsReader, operations_of
    from services.analyzer.readers.registry import HEAD_BYTES
    from services.analyzer.readers.registry_answers import ask_registry
    from services.analyzer.readers.trace import TraceFiles
    from services.core.errors import InvalidTraceError

    if not path.is_file():
        return None
    with path.open("rb") as file:
        if not CommandsReader().matches(file.read(HEAD_BYTES)):
            return None
    try:
        operations = operations_of(TraceFiles(path.name, path, 0))
    except InvalidTraceError:
        return None
    return ask_registry(folder, operations).document()
