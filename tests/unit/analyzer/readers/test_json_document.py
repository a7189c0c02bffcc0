"""kernalyse.services.analyzer.readers.documents: text that tables cannot hold, in documents of several readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.analyzer.readers.documents import read_document
from tests.unit.read_file import files_of, read_as, rows_of

HALF = "\ud83d"
REPLACED = "\N{REPLACEMENT CHARACTER}"


def test_half_of_a_character_becomes_a_replacement_and_a_whole_one_stays(tmp_path: Path) -> None:
    content = '{"\\ud83d": ["\\ud83d\\ude00", "a\\udc00", "\\\\ud83d", NaN, 1e999], "n": 12345678901234567890}'
    assert read_document(files_of(tmp_path, content)).members == {
        REPLACED: ["\N{GRINNING FACE}", f"a{REPLACED}", "\\ud83d", None, float("inf")],
        "n": 12345678901234567890,
    }


@pytest.mark.parametrize(
    ("expected_format", "content"),
    [
        ("commands", [{"type": "ID_ADD", "name": "n", "data_type": "INT8", "input_self": [3], "time_ns": 1, "word": HALF}]),
        ("commands", [{"type": HALF, "name": "n", "data_type": "INT8", "time_ns": 1}]),
        ("benchmark_list", [{"name": HALF, "time_ms": 1.0, "device": "d"}]),
        ("kernel_benchmarker", {"benchmarks": [{"kernel": HALF, "parameters": {}, "execution_time_ms": 1.0}]}),
        ("model_profiles", {"benchmarks": {"m": {"config": {"x": HALF}, "timing": {"mean": 1.0}}}}),
    ],
)
def test_half_of_a_character_ends_no_import(tmp_path: Path, expected_format: str, content: Any) -> None:
    (row,) = rows_of(read_as(expected_format, files_of(tmp_path, content)), "configurations")
    assert REPLACED in f"{row['kernel_name']} {row['variant']}"
