"""Code that is kept on disk is that of today's sources."""

from __future__ import annotations

import pytest

from services.analyzer import compiled
from services.analyzer.readers import json_scan, kineto_scan


def test_the_name_of_kept_code_stands_for_every_source_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, a constant that changes in one file stays as it was in the code of another one."""
    name = kineto_scan.scan.__qualname__
    source_of = compiled._source
    changed = "services.analyzer.readers.kineto_fields"
    monkeypatch.setattr(compiled, "_source", lambda module: source_of(module) + (b"# changed" if module == changed else b""))
    compiled.sources_digest.cache_clear()
    try:
        assert name == f"scan_{name.removeprefix('scan_')}"
        assert not name.endswith(compiled.sources_digest(kineto_scan.__name__))
        assert json_scan.after_value.__qualname__.endswith(compiled.sources_digest(json_scan.__name__))  # does not use it
    finally:
        compiled.sources_digest.cache_clear()
