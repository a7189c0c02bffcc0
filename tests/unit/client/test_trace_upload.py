"""What goes with a trace when it is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernalyse.companions import find_companions


@pytest.mark.parametrize(
    ("name", "content", "goes_with_it"),
    [
        ("commands.json", b'[{"type": "ID_MM"}]', True),
        ("commands.json", b"\xef\xbb\xbf\n [ {}]", True),
        ("kernels.csv", b"name,tflops\n", True),
        ("trace.json", b'{"traceEvents": []}', False),
        ("trace.sqlite", b"SQLite format 3\0", False),
        ("roofline_config.json", b"[]", False),
    ],
)
def test_ceilings_go_with_lists_alone(tmp_path: Path, name: str, content: bytes, goes_with_it: bool) -> None:
    (tmp_path / "roofline_config.json").write_text("{}")
    (tmp_path / name).write_bytes(content)
    assert [path.name for path in find_companions(tmp_path / name)] == (["roofline_config.json"] if goes_with_it else [])


def test_samples_go_with_the_document_that_they_are_named_after(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    for directory in ("a.json-bin", "a.json-freqs-bin", "b.json-bin"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "0.bin").write_bytes(b"")
    found = [path.relative_to(tmp_path).as_posix() for path in find_companions(tmp_path / "a.json")]
    assert found == ["a.json-bin/0.bin", "a.json-freqs-bin/0.bin"]


def test_a_trace_without_anything_beside_it_goes_alone(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    assert find_companions(tmp_path / "a.json") == []
