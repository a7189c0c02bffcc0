"""Code that is kept on disk is that of today's sources, and does what numba's does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from services.analyzer import compiled as compiling
from services.analyzer import correlation
from services.analyzer.compiled import compiled, word
from services.analyzer.readers.kineto import attribution

Integers = npt.NDArray[np.int64]


@compiled
def twice(value: int) -> int:
    return 2 * value


@compiled
def weighed(values: Integers, weights: npt.NDArray[np.int32], flags: npt.NDArray[np.bool_], first: int) -> tuple[int, int]:
    """Of the rows from `first` on: the sum of value times weight over all columns, and how many rows are flagged."""
    total, count = 0, 0
    for row in range(first, values.shape[0]):
        count += flags[row]
        for column in range(values.shape[1]):
            total += twice(values[row, column]) * weights[row]
    return total // 2, count


@compiled
def negate(values: Integers) -> None:
    for row in range(values.size):
        values[row] = -values[row]


@compiled
def is_word(data: npt.NDArray[np.uint8], offset: int, wanted: int) -> bool:
    return bool(word(data, offset) == np.uint64(wanted))


@compiled
def summed_squares(count: int) -> int:
    squares = np.arange(count) ** 2  # allocated: such code needs numba
    return int(squares.sum())


def anew(function: Callable[..., Any]) -> Any:
    """As a later process has it."""
    written: FunctionType = function.__wrapped__  # type: ignore[attr-defined]
    return compiled(FunctionType(written.__code__, written.__globals__))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of kept code, empty."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path / "machine_code"


def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_numba", lambda: pytest.fail("numba was asked for"))


def test_kept_code_is_called_without_numba(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(60, dtype=np.int64).reshape(12, 5)
    weights, flags = np.arange(12, dtype=np.int32) - 4, np.arange(12) % 3 == 0
    frozen = values.copy()
    frozen.flags.writeable = False
    layouts = [values, np.asfortranarray(values), np.repeat(values, 2, axis=1)[:, ::2], frozen]
    expected = (int((values[2:] * weights[2:, np.newaxis]).sum()), 3)  # flagged: rows 3, 6 and 9
    data = np.frombuffer(b"..12345678", dtype=np.uint8)
    first, later = ([anew(function) for function in (weighed, negate, is_word)] for _ in range(2))
    for of_weights, negating, of_words in (first, later):
        for layout in layouts:
            assert of_weights(layout, weights, flags, 2) == expected
        numbers = np.array([3, -4, 5])
        assert negating(numbers) is None
        assert numbers.tolist() == [-3, 4, -5]
        assert of_words(data, 2, int.from_bytes(b"12345678", "little")) is True
        assert of_words(data, 1, 5) is False
        without_numba(monkeypatch)  # for the later one
    assert len(list(kept.iterdir())) == len(layouts) + 2


def test_damaged_code_is_made_again(kept: Path) -> None:
    negating = [anew(negate), anew(negate)]
    for function in negating:
        numbers = np.array([1, 2])
        function(numbers)
        assert numbers.tolist() == [-1, -2]
        (file,) = kept.iterdir()
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # calling this would do anything
    assert file.read_bytes() != content


def test_a_function_that_allocates_runs_all_the_same(kept: Path) -> None:
    assert anew(summed_squares)(5) == 30
    assert anew(summed_squares)(np.int64(4)) == 14
    assert not kept.exists()


def test_readers_load_no_compiler() -> None:
    """Not before there is something to compile: numba takes longer to load than most traces take to read."""
    check = "import sys, services.analyzer.readers.registry, services.analyzer.trace_answers; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


DRAWING = """
import sys
from services.analyzer.trace_answers import TRACE_ANALYSES, TraceQuestion
from tests.unit.trace_rows import names, trace_of
of_stream = {"process_id": 1, "device_index": 0, "stream_index": 7}
kernels = [of_stream | {"name_index": 0, "start_ns": 10 * place, "duration_ns": 5} for place in range(200)]
trace = trace_of(kernel_launches=kernels, trace_names=names("gemm"))
for table_name in ("timeline", "window_summary", "gaps"):
    assert TRACE_ANALYSES[table_name].answer(trace, TraceQuestion(pixel_count=10)).collect().height
sys.exit("numba" in sys.modules)
"""


def test_a_timeline_whose_code_was_kept_loads_no_compiler(kept: Path) -> None:
    """It would double what a full collection of garbage looks through, which a drawing may have to wait for."""
    first, later = (subprocess.run([sys.executable, "-c", DRAWING], check=False) for _ in range(2))
    assert (first.returncode, later.returncode) == (1, 0)


def test_kept_code_stands_for_every_source_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, a constant that changes in one file stays as it was in the code of another one."""
    digest_of, source_of = compiling.sources_digest, compiling._source
    before = [digest_of(module.__name__) for module in (attribution, correlation)]
    changed = "services.analyzer.readers.kineto.events"
    monkeypatch.setattr(compiling, "_source", lambda module: source_of(module) + (b"# changed" if module == changed else b""))
    digest_of.cache_clear()
    try:
        after = [digest_of(module.__name__) for module in (attribution, correlation)]
        assert after[0] != before[0]
        assert after[1] == before[1]  # it does not use the other module
    finally:
        digest_of.cache_clear()
