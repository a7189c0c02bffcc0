"""Compiled kernels kept on disk by the content that they were made from.

An entry is found by all that goes into a compilation and is known before it: source, options, architecture, compiler. Which
headers were read is known only afterwards; so an entry lists them with their digests, and counts only while they are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

MAX_CACHE_BYTES: Final = 2**30  # a cubin with its listings takes 20 KB to a few MB: thousands of builds, and no disk is full of them

UNFINISHED: Final = ".unfinished"
MAX_WRITING_S: Final = 600.0  # an entry that is still being written after that was left by a process that is gone


@dataclass(frozen=True, slots=True)
class CompiledCode:
    """The result of compiling a .cu text."""

    code: bytes  # a cubin, an object file or a program
    entry: str | None  # of the template instance that was asked for; None: a function without template arguments
    log: str  # warnings; empty: none
    listings: Mapping[str, bytes] = field(repr=False)  # "ptx", "ptxas.txt", "sass"
    compile_ns: int = 0  # wall-clock time of the compiler; 0: from the cache


class CodeCache:
    """Entries in one folder, shared by every process that likes: an entry is written aside and renamed.

    Args:
        max_bytes: of all entries; those that were used longest ago go first.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def find(self, key: str, header_folders: Sequence[Path]) -> CompiledCode | None:
        for path in sorted(self._folder.glob(f"{key}-*.zip")):
            try:
                compiled = _read(path, header_folders)
            except (OSError, zipfile.BadZipFile, KeyError, ValueError):  # torn by a crash, or of another version: as good as none
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            if compiled is not None:
                with contextlib.suppress(OSError):
                    os.utime(path)  # used now
                return compiled
        return None

    def store(self, key: str, compiled: CompiledCode, headers: Sequence[Path], header_folders: Sequence[Path]) -> None:
        """Store an entry. What cannot be written only costs the next compilation its time."""
        with contextlib.suppress(OSError):
            listed = [(*_place(header, header_folders), _digest(header)) for header in headers]
            name = f"{key}-{hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]}.zip"
            self._folder.mkdir(parents=True, exist_ok=True)
            file, unfinished = tempfile.mkstemp(dir=self._folder, suffix=UNFINISHED)
            try:
                with os.fdopen(file, "wb") as target:
                    _write(target, compiled, listed)
                Path(unfinished).replace(self._folder / name)
            except BaseException:
                Path(unfinished).unlink(missing_ok=True)
                raise
            self._shrink()

    def _shrink(self) -> None:
        for path in self._folder.glob(f"*{UNFINISHED}"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > MAX_WRITING_S:
                    path.unlink()
        entries = []
        for path in self._folder.glob("*.zip"):
            with contextlib.suppress(OSError):  # another process was faster
                status = path.stat()
                entries.append((status.st_mtime_ns, status.st_size, path))
        excess_bytes = sum(size_bytes for _, size_bytes, _ in entries) - self._max_bytes
        for _, size_bytes, path in sorted(entries):
            if excess_bytes <= 0:
                return
            path.unlink(missing_ok=True)
            excess_bytes -= size_bytes


def cache_key(*parts: str) -> str:
    """Return a digest of all parts; where one ends and the next begins counts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _place(header: Path, header_folders: Sequence[Path]) -> tuple[int | None, str]:
    """Return a header by its folder's position and its name below: the folder of a run's bundle has another path in every run."""
    for index, folder in enumerate(header_folders):
        if header.is_relative_to(folder):
            return index, str(header.relative_to(folder))
    return None, str(header)


def _digest(header: Path) -> str:
    return hashlib.sha256(header.read_bytes()).hexdigest()


def _write(target: IO[bytes], compiled: CompiledCode, headers: Sequence[tuple[int | None, str, str]]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("about.json", json.dumps({"entry": compiled.entry, "log": compiled.log, "headers": headers}))
        archive.writestr("code", compiled.code)
        for suffix, data in compiled.listings.items():
            archive.writestr(f"listing/{suffix}", data)


def _read(path: Path, header_folders: Sequence[Path]) -> CompiledCode | None:
    """Read an entry. None: a header has changed since."""
    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read("about.json"))
        if any(digest != found for digest, found in _compared(about["headers"], header_folders)):
            return None
        listings = {name.removeprefix("listing/"): archive.read(name) for name in archive.namelist() if name.startswith("listing/")}
        return CompiledCode(archive.read("code"), about["entry"], about["log"], listings)


def _compared(headers: Sequence[tuple[int | None, str, str]], header_folders: Sequence[Path]) -> Iterator[tuple[str, str | None]]:
    for index, name, digest in headers:
        if index is not None and index >= len(header_folders):
            yield digest, None
            continue
        header = Path(name) if index is None else header_folders[index] / name
        yield digest, _digest(header) if header.is_file() else None
