"""How a service tells other programs of its user where it is; `kernalyse.discovery` finds it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from kernalyse.discovery import Announcement, find_service, read_announcement, start_ticks

__all__ = ["Announcement", "announced", "find_service"]


@contextmanager
def announced(path: Path, service: str, address: str, token_file: Path, ca_file: Path | None = None) -> Iterator[Announcement]:
    """Writes the file while the block runs; removes it after, unless another service has replaced it."""
    own = Announcement(
        service, address, os.getpid(), start_ticks(os.getpid()) or 0, str(token_file), None if ca_file is None else str(ca_file)
    )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(own)))
    temporary.replace(path)
    try:
        yield own
    finally:
        if read_announcement(path) == own:
            path.unlink(missing_ok=True)
