"""Tables of hardware properties that need no query of the device."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources


@cache
def tables_digest() -> str:
    """Return a digest that changes with any value in the tables."""
    digest = hashlib.sha256()
    for file in sorted(resources.files(__name__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".csv"):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
