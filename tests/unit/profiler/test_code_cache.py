"""The cache of cubins as a directory of files: limits, ages, and what other processes leave in it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from kernalyse.services.profiler.backends.cuda.compiler import MAX_WRITING_S, UNFINISHED, CodeCache, CompiledCode, cache_key


def cubin_of(size_bytes: int) -> CompiledCode:
    return CompiledCode(os.urandom(size_bytes), "entry", "a warning", {"ptx": b"text", "ptxas.txt": b"report"}, compile_ns=7)


def age(directory: Path, key: str, seconds: float) -> None:
    for path in directory.glob(f"{key}-*"):
        os.utime(path, (time.time() - seconds,) * 2)


def test_what_is_stored_is_found_without_its_compilation_time(tmp_path: Path) -> None:
    cache, compiled = CodeCache(tmp_path), cubin_of(100)
    assert cache.find("a", ()) is None
    cache.store("a", compiled, (), ())
    found = cache.find("a", ())
    assert found is not None
    assert (found.code, found.entry, found.log, found.listings) == (compiled.code, "entry", "a warning", compiled.listings)
    assert found.compile_ns == 0


def test_entries_used_longest_ago_go_first(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path, max_bytes=35_000)
    for seconds, key in ((30, "first"), (20, "second"), (10, "third")):
        cache.store(key, cubin_of(10_000), (), ())
        age(tmp_path, key, seconds)
    assert cache.find("first", ()) is not None, "all three fit"
    cache.store("fourth", cubin_of(10_000), (), ())
    assert cache.find("second", ()) is None, "the only one that was not used since"
    assert all(cache.find(key, ()) is not None for key in ("first", "third", "fourth"))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 35_000


def test_entry_larger_than_the_whole_cache_is_not_kept(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path, max_bytes=1_000)
    cache.store("a", cubin_of(5_000), (), ())
    assert cache.find("a", ()) is None
    assert not tuple(tmp_path.iterdir())


def test_header_counts_by_its_content_and_by_its_place_in_its_directory(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "cache")
    directories = [tmp_path / name for name in ("one", "two")]
    for directory in directories:
        directory.mkdir()
        (directory / "a.h").write_text("same")
    cache.store("a", cubin_of(10), [directories[0] / "a.h"], directories[:1])
    assert cache.find("a", directories[1:]) is not None, "the same header in another directory"
    assert cache.find("a", ()) is None, "a directory less"
    (directories[1] / "a.h").write_text("other")
    assert cache.find("a", directories[1:]) is None
    (directories[1] / "a.h").unlink()
    assert cache.find("a", directories[1:]) is None
    assert cache.find("a", directories[:1]) is not None, "a miss deletes nothing"


def test_header_outside_every_directory_counts_by_its_path(tmp_path: Path) -> None:
    cache, header = CodeCache(tmp_path / "cache"), tmp_path / "system.h"
    header.write_text("1")
    cache.store("a", cubin_of(10), [header], ())
    assert cache.find("a", ()) is not None
    header.write_text("2")
    assert cache.find("a", ()) is None


def test_builds_that_differ_only_in_headers_are_kept_side_by_side(tmp_path: Path) -> None:
    cache, header = CodeCache(tmp_path / "cache"), tmp_path / "a.h"
    compiled = {text: cubin_of(10) for text in ("1", "2")}
    for text, one in compiled.items():
        header.write_text(text)
        cache.store("a", one, [header], ())
    for text, one in compiled.items():
        header.write_text(text)
        found = cache.find("a", ())
        assert found is not None
        assert found.code == one.code


def test_damaged_entry_is_none_and_is_deleted(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    for damage in (b"", b"PK", b"not a zip file at all", None):
        cache.store("a", cubin_of(1000), (), ())
        (path,) = tmp_path.iterdir()
        path.write_bytes(path.read_bytes()[:300] if damage is None else damage)
        assert cache.find("a", ()) is None
        assert not path.exists()


def test_what_a_killed_process_was_writing_goes_after_a_while(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    old, new = tmp_path / f"old{UNFINISHED}", tmp_path / f"new{UNFINISHED}"
    old.touch()
    new.touch()
    os.utime(old, (time.time() - MAX_WRITING_S - 60,) * 2)
    cache.store("a", cubin_of(10), (), ())
    assert not old.exists()
    assert new.exists(), "another process may still be at it"


def test_directory_that_cannot_be_written_costs_nothing_but_the_cache(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = CodeCache(tmp_path / "file" / "below")
    cache.store("a", cubin_of(10), (), ())
    assert cache.find("a", ()) is None


def test_key_tells_where_its_parts_end() -> None:
    assert cache_key("ab", "c") != cache_key("a", "bc")
    assert cache_key("a", "b") == cache_key("a", "b")
