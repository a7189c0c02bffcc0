"""Upkeep of a store from outside of its analyzer: digests are checked, a backup is made or put back, what is old is chosen.

A backup is a directory like a store's: the catalogue as SQLite's own backup has it at one moment, and the files that this
catalogue names. Files of runs never change, so that nobody has to wait for the copying.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import polars as pl

from kernalyse.services.analyzer.store.parquet import CACHED_RESULTS, DIGESTS, sync
from kernalyse.services.analyzer.store.store import StoreLock
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import InvalidSettingError, NotFoundError, UnmetConditionError
from kernalyse.services.core.model import Run

CATALOGUE: Final = "catalogue.sqlite"
SECRETS: Final = "node_tokens.json"
ROOTS: Final = {"rows": "runs", "traces": "traces"}
"""Directories of files by the kind that the catalogue gives them."""

BACKUP_FILE: Final = "backup.json"
BACKUP_VERSION: Final = 1
Progress = Callable[[int, int], None]
"""Called with how many runs are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of a store that is not as it was written. run_id: empty: it is the catalogue."""

    run_id: str
    path: Path
    found: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What was checked. undigested_count: runs of earlier versions, whose files could only be read."""

    run_count: int
    file_count: int
    undigested_count: int
    damages: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run of the catalogue, as far as retention asks for it."""

    run: Run
    create_unix_s: float
    size_bytes: int


def _open(directory: Path) -> sqlite3.Connection:
    path = directory / CATALOGUE
    if not path.is_file():
        raise NotFoundError(
            f"store {directory}", found=f"no {CATALOGUE}", expected="the data directory of an analyzer", remedy="Correct it."
        )
    return sqlite3.connect(path, timeout=30.0)


def _prefixes(connection: sqlite3.Connection, directory: Path) -> list[tuple[str, Path]]:
    """Return the runs that have files, each with a directory of them."""
    rows = connection.execute("SELECT kind, run_id, prefix FROM parquet_prefixes ORDER BY run_id, kind")
    return [(run_id, directory / ROOTS[kind] / prefix) for kind, run_id, prefix in rows]


# ---------------------------------------------------------------- verify


def verify(directory: Path, progress: Progress = lambda _done, _total: None) -> Verified:
    """Check the catalogue and the digest of each file. Raises NotFoundError: there is no store."""
    damages: list[Damage] = []
    with closing(_open(directory)) as connection:
        try:
            told = [str(row[0]) for row in connection.execute("PRAGMA quick_check")]
            found = _prefixes(connection, directory)
        except sqlite3.DatabaseError as error:
            return Verified(0, 0, 0, (Damage("", directory / CATALOGUE, str(error)),))
    damages += [Damage("", directory / CATALOGUE, line) for line in told if line != "ok"]
    file_count = undigested_count = 0
    for place, (run_id, path) in enumerate(found):
        digests = _digests(path)
        undigested_count += digests is None
        checked = _checked(path, digests)
        file_count += len(checked)
        gone = not path.is_dir() and _is_named(directory, path)
        damages += [Damage(run_id, path, "missing")] if gone else [Damage(run_id, *part) for part in checked if part[1]]
        progress(place + 1, len(found))
    return Verified(len({run_id for run_id, _ in found}), file_count, undigested_count, tuple(damages))


def _is_named(directory: Path, path: Path) -> bool:
    """Return whether the catalogue still names a directory: a run may have been deleted or replaced meanwhile."""
    with closing(_open(directory)) as connection:
        return connection.execute("SELECT 1 FROM parquet_prefixes WHERE prefix = ?", (path.name,)).fetchone() is not None


def _digests(path: Path) -> dict[str, str] | None:
    try:
        found = json.loads((path / DIGESTS).read_text())
    except (OSError, ValueError):
        return None
    return {str(name): str(digest) for name, digest in found.items()}


def _checked(path: Path, digests: dict[str, str] | None) -> list[tuple[Path, str]]:
    """Return each file with what is wrong with it; empty: nothing."""
    if digests is None:
        return [(file, _unreadable(file)) for file in sorted(path.glob("*.parquet"))]
    return [(path / name, _wrong(path / name, digest)) for name, digest in sorted(digests.items())]


def _wrong(file: Path, digest: str) -> str:
    try:
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        return error.strerror or str(error)
    return "" if found == digest else f"SHA-256 {found[:12]}…, where {digest[:12]}… was written"


def _unreadable(file: Path) -> str:
    try:
        pl.read_parquet(file)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        return str(error)
    return ""


# ---------------------------------------------------------------- backup and restore


def backup(directory: Path, target: Path, version: str, progress: Progress = lambda _done, _total: None) -> tuple[int, int]:
    """Copy the store as it is at one moment, and return how many runs and bytes the copy has.

    Args:
        directory: of the store, which an analyzer may have open.
        target: must not exist; it appears when it is complete.
        version: of this kernalyse.

    Raises:
        NotFoundError: there is no store.
        InvalidSettingError: the target is there already.
        OSError: the copy cannot be written.
    """
    _check_absent(target)
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True, mode=0o700)
    with closing(_open(directory)) as source, closing(sqlite3.connect(part / CATALOGUE)) as copy:
        source.backup(copy)  # of one moment; in WAL mode its analyzer writes on meanwhile
        found = _prefixes(copy, directory)
        gone = []
        for place, (run_id, path) in enumerate(found):
            try:
                shutil.copytree(path, part / path.relative_to(directory), ignore=shutil.ignore_patterns(CACHED_RESULTS))
            except FileNotFoundError:
                gone.append(run_id)  # deleted since the catalogue was copied
            progress(place + 1, len(found))
        _forget(copy, gone)
        run_count = int(copy.execute("SELECT COUNT(*) FROM runs").fetchone()[0])
    for root in ROOTS.values():
        (part / root).mkdir(exist_ok=True)
    if (directory / SECRETS).exists():
        shutil.copy2(directory / SECRETS, part / SECRETS)
    size_bytes = sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
    told = {"version": BACKUP_VERSION, "kernalyse": version, "time": datetime.now(UTC).isoformat(timespec="seconds"), "runs": run_count}
    (part / BACKUP_FILE).write_text(json.dumps(told, indent=1) + "\n")
    os.sync()
    part.rename(target)
    sync(target.parent)
    return run_count, size_bytes


def _check_absent(target: Path) -> None:
    if target.exists():
        raise InvalidSettingError(
            f"directory {target}",
            found="something there already",
            expected="a name that is free",
            remedy="Choose another, as one with the date.",
        )


def _forget(connection: sqlite3.Connection, run_ids: Collection[str]) -> None:
    """Delete all rows of runs from a copy of the catalogue."""
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    with connection:
        for table in tables:
            if any(column[1] == "run_id" for column in connection.execute(f"PRAGMA table_info({table})")):
                connection.executemany(f"DELETE FROM {table} WHERE run_id = ?", [(run_id,) for run_id in run_ids])


def restore(source: Path, directory: Path, progress: Progress = lambda _done, _total: None) -> Path | None:
    """Put a backup in the place of a store, and return where the store that was there has gone; None: there was none.

    Until the last moment the store stays as it is; what is copied lies beside it.

    Args:
        source: a backup.
        directory: of the store, which no analyzer may have open.

    Raises:
        NotFoundError: there is no backup.
        StoreLockedError: an analyzer has the store open.
        UnmetConditionError: the backup is damaged, or of a newer version.
        OSError: the copy cannot be written.
    """
    _check_backup(source, progress)
    lock = StoreLock(directory / "store.lock") if directory.is_dir() else None
    try:
        part = directory.with_name(f".{directory.name}.restoring")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(source, part, ignore=shutil.ignore_patterns(BACKUP_FILE))
        part.chmod(0o700)
        os.sync()
        before = None
        if directory.exists():
            before = directory.with_name(f"{directory.name}.before-{datetime.now(UTC):%Y%m%d-%H%M%S}")
            directory.rename(before)
        part.rename(directory)
        sync(directory.parent)
        return before
    finally:
        if lock is not None:
            lock.release()


def _check_backup(source: Path, progress: Progress) -> None:
    try:
        told = json.loads((source / BACKUP_FILE).read_text())
    except (OSError, ValueError) as error:
        raise NotFoundError(
            f"backup {source}",
            found=f"no {BACKUP_FILE} that can be read",
            expected="what `kernalyse store backup` has made",
            remedy="Correct the path.",
        ) from error
    if told.get("version") != BACKUP_VERSION:
        raise UnmetConditionError(
            f"backup {source}",
            found=f"version {told.get('version')}",
            expected=f"version {BACKUP_VERSION}",
            remedy="Use the kernalyse that made it.",
        )
    damages = verify(source, progress).damages
    if damages:
        raise UnmetConditionError(
            f"backup {source}",
            found=f"{damages[0].path.relative_to(source)}: {damages[0].found}"
            + (f", and {len(damages) - 1} more" if len(damages) > 1 else ""),
            expected="all files as they were written",
            remedy="Use another backup.",
        )


# ---------------------------------------------------------------- retention


def stored_runs(directory: Path) -> list[StoredRun]:
    """Return the runs that have ended, oldest first. Raises NotFoundError: there is no store."""
    with closing(_open(directory)) as connection:
        rows = connection.execute("SELECT run, create_unix_ns, stored_bytes FROM runs WHERE is_final ORDER BY create_unix_ns").fetchall()
    return [StoredRun(protobuf.decode_bytes(run, Run), create_ns / 1e9, size or 0) for run, create_ns, size in rows]


def expired(
    runs: Sequence[StoredRun], now_unix_s: float, *, max_age_s: float | None, max_bytes: int | None, kept_tags: Collection[str]
) -> Iterator[StoredRun]:
    """Yield the runs that are too old, then the oldest of those that are too much.

    Args:
        runs: oldest first.
        max_age_s: None: no run is too old.
        max_bytes: of all runs together; None: there is no limit.
        kept_tags: runs with one of these tags stay.
    """
    left_bytes = sum(run.size_bytes for run in runs)
    for stored in runs:
        is_old = max_age_s is not None and now_unix_s - stored.create_unix_s > max_age_s
        is_too_much = max_bytes is not None and left_bytes > max_bytes
        if (is_old or is_too_much) and not set(stored.run.tags) & set(kept_tags):
            left_bytes -= stored.size_bytes
            yield stored
