"""analyzer.numeric: what is jitted does what Python does, is kept for later processes, and costs nobody else an import."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest

from kernalyse.services import analyzer
from kernalyse.services.analyzer.numeric import jit
from kernalyse.services.analyzer.readers.nsys.sqlite_pages import _big_endian_word, _word

Integers = npt.NDArray[np.int64]


@jit
def twice(value: int) -> int:
    return 2 * value


@jit
def weighed(values: Integers, weights: npt.NDArray[np.int32], flags: npt.NDArray[np.bool_], first: int) -> tuple[int, int]:
    """Return, of the rows from `first` on, the sum of value times weight over all columns, and how many rows are flagged."""
    total, count = 0, 0
    for row in range(first, values.shape[0]):
        count += flags[row]
        for column in range(values.shape[1]):
            total += twice(values[row, column]) * weights[row]
    return total // 2, count


@jit
def summed_squares(count: int) -> int:
    squares = np.arange(count) ** 2
    return int(squares.sum())


def test_arrays_of_any_layout_are_taken() -> None:
    values = np.arange(60, dtype=np.int64).reshape(12, 5)
    weights, flags = np.arange(12, dtype=np.int32) - 4, np.arange(12) % 3 == 0
    frozen = values.copy()
    frozen.flags.writeable = False
    expected = (int((values[2:] * weights[2:, np.newaxis]).sum()), 3)  # flagged: rows 3, 6 and 9
    for layout in (values, np.asfortranarray(values), np.repeat(values, 2, axis=1)[:, ::2], frozen):
        assert weighed(layout, weights, flags, 2) == expected


def test_a_function_may_allocate() -> None:
    assert summed_squares(5) == 30


def test_words_are_eight_bytes_at_any_offset() -> None:
    data = np.frombuffer(b"..\xf2345678\x80.", dtype=np.uint8)
    for offset in range(data.size - 7):
        part = data[offset : offset + 8].tobytes()
        assert int(_word(data, offset)) == int.from_bytes(part, "little")
        assert _big_endian_word(data, offset) == int.from_bytes(part, "big", signed=True)


def test_threads_that_come_at_once_share_one_compilation() -> None:
    @jit
    def thrice(value: int) -> int:
        return 3 * value

    with ThreadPoolExecutor(8) as pool:
        dispatchers = list(pool.map(lambda _: thrice.dispatcher, range(8)))  # type: ignore[attr-defined]
        assert list(pool.map(thrice, range(8))) == [3 * value for value in range(8)]
    assert len(set(map(id, dispatchers))) == 1
    assert len(dispatchers[0].signatures) == 1


# ---------------------------------------------------------------- kept for later processes

MODULE: Final = """
from kernalyse.services.analyzer.numeric import jit

@jit
def plus_one(value):
    return value + 1

@jit
def plus_two(value):
    return plus_one(plus_one(value))
"""

CALL: Final = """
import sys
sys.path.insert(0, sys.argv[1])
import counted
assert counted.plus_two(40) == 42
print(sum(counted.plus_two.dispatcher.stats.cache_hits.values()))
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of module `counted`."""
    found = tmp_path / "sources"
    found.mkdir()
    (found / "counted.py").write_text(MODULE)
    return found


def start(directory: Path, code: str = CALL, **environment: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return subprocess.Popen([sys.executable, "-c", code, str(directory)], stdout=subprocess.PIPE, text=True, env=inherited | environment)


def hits(process: subprocess.Popen[str]) -> int:
    """How often the process found compiled code on the disk."""
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return int(output)


@pytest.mark.slow
def test_processes_that_start_at_once_leave_code_for_later_ones(directory: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    for process in [start(directory, NUMBA_CACHE_DIR=cache) for _ in range(3)]:
        hits(process)
    assert hits(start(directory, NUMBA_CACHE_DIR=cache)) == 1
    (directory / "counted.py").write_text(MODULE.replace("value + 1", "value + 1 + 0"))
    assert hits(start(directory, NUMBA_CACHE_DIR=cache)) == 0  # of another source


def test_code_is_kept_for_the_user_where_the_sources_cannot_be_written_to(directory: Path, tmp_path: Path) -> None:
    (directory / "__pycache__").touch()  # a file: not even root can keep anything in it
    environment = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert hits(start(directory, **environment)) == 0
    assert hits(start(directory, **environment)) == 1


def test_without_any_place_for_code_it_is_compiled_each_time(directory: Path, tmp_path: Path) -> None:
    (directory / "__pycache__").touch()
    (tmp_path / "home").touch()
    for _ in range(2):
        assert hits(start(directory, HOME=str(tmp_path / "home"), XDG_CACHE_HOME=str(tmp_path / "home" / "cache"))) == 0


@pytest.mark.parametrize(("damaged", "suffix"), [("plus_one", "nbi"), ("plus_two", "nbc")])
def test_damaged_code_is_compiled_again(directory: Path, tmp_path: Path, damaged: str, suffix: str) -> None:
    cache = tmp_path / "cache"
    assert hits(start(directory, NUMBA_CACHE_DIR=str(cache))) == 0
    for file in cache.rglob("*.nb?"):
        if damaged in file.name:
            if file.suffix == f".{suffix}":
                file.write_bytes(file.read_bytes()[:-10])
        elif "plus_two" in file.name:
            file.unlink()  # else nobody looks at the one that it calls
    assert hits(start(directory, NUMBA_CACHE_DIR=str(cache))) == 0


def test_on_a_full_disk_it_is_compiled_and_not_kept(directory: Path, tmp_path: Path) -> None:
    """Stood for by a limit on the size of files."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
    assert hits(start(directory, limit + CALL, NUMBA_CACHE_DIR=str(tmp_path / "cache"))) == 0


# ---------------------------------------------------------------- rules

UNCHANGING: Final = {"NULL_INDEX"}
"""Constants of other modules that jitted functions may use: they never change, for files of stores hold them."""


def test_jitted_functions_use_what_their_own_file_defines() -> None:
    """Numba keeps compiled code until that file changes: a change in another one would not reach it."""
    found = 0
    for path in Path(analyzer.__file__).parent.rglob("*.py"):
        module = ast.parse(path.read_text())
        foreign = {
            name.asname or name.name
            for statement in module.body
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("services")
            for name in statement.names
        }
        for function in module.body:
            if isinstance(function, ast.FunctionDef) and any(isinstance(d, ast.Name) and d.id == "jit" for d in function.decorator_list):
                used = {node.id for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.Name)}
                assert not used & foreign - UNCHANGING, f"{path.name}, {function.name}"
                found += 1
    assert found > 20


@pytest.mark.parametrize(
    "imported", ["kernalyse.services.analyzer.server", "kernalyse.services.cli.file_tables", "kernalyse.services.cli.main"]
)
def test_numba_is_not_imported_before_something_is_to_be_computed(imported: str) -> None:
    """It takes longer to import than most commands take."""
    check = f"import sys, {imported}; sys.exit('numba' in sys.modules or 'llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
