"""Upkeep of a store from outside of its analyzer: digests are checked, a backup is made or put back, what is old is chosen.

A backup is a directory like a store's: the catalogue as it is at one moment, in SQLite wherever the store has it, and the files that this
catalogue names. Files of runs never change, so that nobody has to wait for the copying.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, Final

import polars as pl
import sqlalchemy as sa
import sqlalchemy.exc
from sqlalchemy.engine import URL, Connection

from kernalyse.services.analyzer.store.database import CATALOGUE, POSTGRESQL, Database, catalogue_url, check_version, store_id
from kernalyse.services.analyzer.store.leases import StoreLock
from kernalyse.services.analyzer.store.object_cache import FETCHING, ORPHAN_AGE_S
from kernalyse.services.analyzer.store.objects import ObjectStore, read_digests
from kernalyse.services.analyzer.store.parquet import CACHED_RESULTS, sync
from kernalyse.services.analyzer.store.schema import metadata, parquet_prefixes, runs
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import InvalidSettingError, NotFoundError, UnmetConditionError
from kernalyse.services.core.model import Run

SECRETS: Final = "node_tokens.json"
LOCK: Final = "store.lock"
ROW_ID: Final = "row_id"
ROOTS: Final = {"rows": "runs", "traces": "traces"}
"""Directories of files by the kind that the catalogue gives them."""

BACKUP_FILE: Final = "backup.json"
BACKUP_VERSION: Final = 1
COPIED_AT_ONCE: Final = 1_000  # rows of a catalogue; more take memory, fewer a round trip each
Progress = Callable[[int, int], None]
"""Called with how many runs are done, and of how many."""


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where a store is.

    Args:
        directory: of its files.
        catalogue: the analyzer's setting of that name; empty: SQLite in the directory.
        objects: where the files of finished runs are; None: in the directory alone.
    """

    directory: Path
    catalogue: str = ""
    objects: ObjectStore | None = None

    @property
    def url(self) -> URL:
        """Return the address of its catalogue. Raises InvalidSettingError."""
        return catalogue_url(self.directory, self.catalogue)


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of a store that is not as it was written. run_id: empty: it is the catalogue. path: the URL of an object, too."""

    run_id: str
    path: Path | str
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


@contextmanager
def _reading(place: StorePlace) -> Iterator[Connection]:
    """Yield a connection with one consistent view of the catalogue, beside the analyzer that has it open.

    Raises:
        NotFoundError: there is no store.
    """
    url = place.url
    if url.get_backend_name() != POSTGRESQL and not (place.directory / CATALOGUE).is_file():
        raise NotFoundError(
            f"store {place.directory}", found=f"no {CATALOGUE}", expected="the data directory of an analyzer", remedy="Correct it."
        )
    engine = sa.create_engine(url, **({"isolation_level": "REPEATABLE READ"} if url.get_backend_name() == POSTGRESQL else {}))
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _directories(connection: Connection, directory: Path) -> list[tuple[str, Path]]:
    """Return the runs that have files, each with a directory of them."""
    columns = parquet_prefixes.c
    rows = connection.execute(sa.select(columns.kind, columns.run_id, columns.prefix).order_by(columns.run_id, columns.kind))
    return [(run_id, directory / ROOTS[kind] / prefix) for kind, run_id, prefix in rows]


# ---------------------------------------------------------------- verify


def verify(place: StorePlace, progress: Progress = lambda _done, _total: None) -> Verified:
    """Check the catalogue and the digest of each file, of objects and of their local copies.

    Raises:
        NotFoundError: there is no store.
        InvalidSettingError: the objects are not those of the store.
        ObjectsUnavailableError: they cannot be reached.
    """
    damages: list[Damage] = []
    catalogue = place.directory / CATALOGUE
    with _reading(place) as connection:
        try:
            if connection.dialect.name != POSTGRESQL:  # whose server checks its pages itself
                told = [str(line) for line in connection.exec_driver_sql("PRAGMA quick_check").scalars()]
                damages += [Damage("", catalogue, line) for line in told if line != "ok"]
            found = _directories(connection, place.directory)
            check_objects(place, connection)
        except sa.exc.DatabaseError as error:
            return Verified(0, 0, 0, (Damage("", catalogue, str(error.orig)),))
    file_count = undigested_count = 0
    for number, (run_id, path) in enumerate(found, start=1):
        digests = read_digests(path)
        is_local = place.objects is None or path.is_dir()
        undigested_count += is_local and digests is None
        checked: list[tuple[Path | str, str]] = [*_checked(path, digests)] if is_local else []
        file_count += len(checked) if place.objects is None else 0
        gone = place.objects is None and not path.is_dir()
        if place.objects is not None:
            objects = place.objects.damages(path)
            checked += objects
            file_count += len(objects)
        damaged = [Damage(run_id, path, "missing")] if gone else [Damage(run_id, *part) for part in checked if part[1]]
        damages += damaged if damaged and _is_named(place, path) else []
        progress(number, len(found))
    return Verified(len({run_id for run_id, _ in found}), file_count, undigested_count, tuple(damages))


def _is_named(place: StorePlace, path: Path) -> bool:
    """Return whether the catalogue still names a directory: a run may have been deleted or replaced meanwhile."""
    with _reading(place) as connection:
        return connection.scalar(sa.select(sa.func.count()).where(parquet_prefixes.c.prefix == path.name)) != 0


def check_objects(place: StorePlace, connection: Connection) -> None:
    """Check that the objects of a store are its own. Raises what ObjectStore.claim does."""
    if place.objects is not None and (known := store_id(connection)) is not None:
        has_files = connection.scalar(sa.select(parquet_prefixes.c.prefix).limit(1)) is not None
        place.objects.claim(known, has_files=has_files)


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


def backup(place: StorePlace, target: Path, version: str, progress: Progress = lambda _done, _total: None) -> tuple[int, int]:
    """Copy the store as it is at one moment, and return how many runs and bytes the copy has.

    Args:
        place: of the store, which an analyzer may have open.
        target: must not exist; it appears when it is complete.
        version: of this kernalyse.

    Raises:
        NotFoundError: there is no store.
        InvalidSettingError: the target is there already, or the objects are not those of the store.
        UnmetConditionError: another version has written its catalogue on PostgreSQL.
        ObjectsUnavailableError, StoredRunDamagedError: objects cannot be reached, or are not as they were put.
        OSError: the copy cannot be written.
    """
    _check_absent(target)
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True, mode=0o700)
    copy = StorePlace(part)
    for root in ROOTS.values():
        (part / root).mkdir()
    with _reading(place) as source:
        if source.dialect.name == POSTGRESQL:
            check_version(source, f"catalogue of the store {place.directory}")
            with closing(Database(copy.url)) as database, database.writing() as connection:
                copy_catalogue(source, connection)
        else:
            with closing(sqlite3.connect(part / CATALOGUE)) as file:
                sqlite: Any = source.connection.driver_connection
                sqlite.backup(file)  # of one moment; its analyzer writes on meanwhile
    with _reading(copy) as connection:
        found = _directories(connection, place.directory)
        check_objects(place, connection)
    gone, size_bytes = [], 0
    for number, (run_id, path) in enumerate(found, start=1):
        copy_path = part / path.relative_to(place.directory)
        copied_bytes = _copy_files(path, copy_path)
        if copied_bytes is None and place.objects is not None and _is_named(place, path):
            copy_path.mkdir()
            copied_bytes = place.objects.fetch_directory(path, copy_path)
        if copied_bytes is None:
            gone.append(run_id)  # deleted since the catalogue was copied
        size_bytes += copied_bytes or 0
        progress(number, len(found))
    _forget(copy, gone)
    with _reading(copy) as connection:
        run_count = int(connection.scalar(sa.select(sa.func.count()).select_from(runs)) or 0)
    if (place.directory / SECRETS).exists():
        shutil.copy2(place.directory / SECRETS, part / SECRETS)
    size_bytes += (part / CATALOGUE).stat().st_size
    told = {"version": BACKUP_VERSION, "kernalyse": version, "time": datetime.now(UTC).isoformat(timespec="seconds"), "runs": run_count}
    (part / BACKUP_FILE).write_text(json.dumps(told, indent=1) + "\n")
    os.sync()
    part.rename(target)
    sync(target.parent)
    return run_count, size_bytes


def _copy_files(source: Path, target: Path) -> int | None:
    """Copy the files of a run without results that can be computed anew, and return their bytes; None: the directory is gone.

    By system calls: what shutil looks at besides takes half of the time of files as small as these.
    """
    size_bytes = 0
    try:
        target.mkdir()
        with os.scandir(source) as entries:
            for entry in entries:
                if entry.name != CACHED_RESULTS:
                    size_bytes += _copy_file(entry.path, f"{target}/{entry.name}")
    except FileNotFoundError:
        shutil.rmtree(target, ignore_errors=True)
        return None
    return size_bytes


def _copy_file(source: str, target: str) -> int:
    with FileIO(source) as read, FileIO(target, "x") as written:
        size_bytes = os.fstat(read.fileno()).st_size
        offset = 0
        while offset < size_bytes and (sent := os.sendfile(written.fileno(), read.fileno(), offset, size_bytes - offset)):
            offset += sent
    return offset


def copy_catalogue(source: Connection, target: Connection) -> int:
    """Copy every row of a catalogue into an empty one of this version, and return how many.

    Raises:
        UnmetConditionError: the target has runs or nodes already.
    """
    count = 0
    for table in metadata.sorted_tables:
        if target.scalar(sa.select(sa.func.count()).select_from(table)):
            raise UnmetConditionError(
                f"table {table.name} of the catalogue to copy to", found="rows", expected="an empty catalogue", remedy="Choose another one."
            )
        columns = [column for column in table.columns if column.name != ROW_ID]
        order = [table.c[ROW_ID]] if ROW_ID in table.c else []
        rows = source.execute(sa.select(*columns).order_by(*order), execution_options={"yield_per": COPIED_AT_ONCE})
        for part in rows.partitions():
            target.execute(sa.insert(table), [dict(row._mapping) for row in part])
            count += len(part)
    return count


def migrate(place: StorePlace, catalogue: str) -> int:
    """Copy the catalogue of a store to another one, and return how many rows it has. The files stay where they are.

    Args:
        place: of the store, which no analyzer may have open.
        catalogue: postgresql://…, which must be empty.

    Raises:
        NotFoundError: there is no catalogue in the directory.
        StoreLockedError: an analyzer has the store open.
        UnmetConditionError: there is something in the other one already.
        What Database raises.
    """
    with _reading(place):
        pass  # there is one
    lock = StoreLock(place.directory / LOCK)
    try:
        with closing(Database(place.url)):
            pass  # an older one is brought to this version
        other = catalogue_url(place.directory, catalogue)
        with _reading(place) as source, closing(Database(other)) as database, database.writing() as target:
            count = copy_catalogue(source, target)
        # Opened by mistake, it would know nothing of later runs.
        (place.directory / CATALOGUE).rename(place.directory / f"{CATALOGUE}.migrated")
        return count
    finally:
        lock.release()


def migrate_objects(place: StorePlace, target: ObjectStore, progress: Progress = lambda _done, _total: None) -> tuple[int, int]:
    """Put the files of a store into objects, and return how many directories were put, and of how many. It goes on where it broke off.

    Args:
        place: of the store, which no analyzer may have open. Its files are read from its present objects where they are not local.
        target: empty, or of an earlier attempt.

    Raises:
        NotFoundError: there is no store.
        StoreLockedError: an analyzer has the store open.
        UnmetConditionError: a file of the store is damaged.
        InvalidSettingError: the target has objects of another store.
        ObjectsUnavailableError: one of the two cannot be reached.
        OSError: there is no room.
    """
    with _reading(place):
        pass  # there is one
    lock = StoreLock(place.directory / LOCK)
    try:
        with closing(Database(place.url)) as database, database.reading() as connection:
            target.claim(store_id(connection) or _no_id(place), has_files=False)
            named = _directories(connection, place.directory)
            present = {
                place.directory / root / prefix
                for root in ROOTS.values()
                for prefix, stored in target.prefixes(root).items()
                if stored.is_complete
            }
            waiting = [(run_id, path) for run_id, path in named if path not in present]
            for number, (run_id, path) in enumerate(waiting, start=1):
                if not path.is_dir() and place.objects is not None:
                    _fetch(place.objects, path)
                damaged = [] if path.is_dir() else [(path, "missing")]
                damaged += [part for part in _checked(path, read_digests(path)) if part[1]]
                if damaged:
                    raise UnmetConditionError(
                        f"run {run_id}",
                        found=f"{damaged[0][0]}: {damaged[0][1]}",
                        expected="the file as it was written",
                        remedy=f"Put it back from a backup, or give the run up: kernalyse delete {run_id}.",
                    )
                target.put_directory(path)
                progress(number, len(waiting))
        return len(waiting), len(named)
    finally:
        lock.release()


def _fetch(objects: ObjectStore, directory: Path) -> None:
    part = directory.with_name(f"{FETCHING}{directory.name}")  # left behind, it is deleted at the analyzer's next start
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    objects.fetch_directory(directory, part)
    part.rename(directory)


def _no_id(place: StorePlace) -> str:
    raise UnmetConditionError(
        f"store {place.directory}", found="no id", expected="one that its analyzer has opened", remedy="Start the analyzer once."
    )


def delete_orphans(place: StorePlace, now_unix_s: float, *, is_dry: bool = False) -> int:
    """Delete the objects that no row of the catalogue names, and return of how many directories; young ones stay.

    Args:
        is_dry: only count.

    Raises:
        InvalidSettingError, ObjectsUnavailableError: as `verify`.
    """
    if place.objects is None:
        return 0
    # The objects first: what was put since then is young, and what is named since then is in the catalogue.
    stored = {
        place.directory / root / prefix: found.put_unix_s
        for root in ROOTS.values()
        for prefix, found in place.objects.prefixes(root).items()
    }
    with _reading(place) as connection:
        check_objects(place, connection)
        named = {path for _, path in _directories(connection, place.directory)}
    orphans = [path for path, put_unix_s in stored.items() if path not in named and now_unix_s - put_unix_s > ORPHAN_AGE_S]
    for path in () if is_dry else orphans:
        place.objects.delete_directory(path)
    return len(orphans)


def _check_absent(target: Path) -> None:
    if target.exists():
        raise InvalidSettingError(
            f"directory {target}",
            found="something there already",
            expected="a name that is free",
            remedy="Choose another, as one with the date.",
        )


def _forget(copy: StorePlace, run_ids: Collection[str]) -> None:
    """Delete all rows of runs from a copy of the catalogue."""
    if run_ids:
        with closing(Database(copy.url)) as database, database.writing() as connection:
            for table in metadata.tables.values():
                if "run_id" in table.c:
                    connection.execute(sa.delete(table).where(table.c.run_id.in_(run_ids)))


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
    lock = StoreLock(directory / LOCK) if directory.is_dir() else None
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
    damages = verify(StorePlace(source), progress).damages
    if damages:
        raise UnmetConditionError(
            f"backup {source}",
            found=f"{Path(damages[0].path).relative_to(source)}: {damages[0].found}"
            + (f", and {len(damages) - 1} more" if len(damages) > 1 else ""),
            expected="all files as they were written",
            remedy="Use another backup.",
        )


# ---------------------------------------------------------------- retention


def stored_runs(place: StorePlace) -> list[StoredRun]:
    """Return the runs that have ended, oldest first.

    Raises:
        NotFoundError: there is no store.
        UnmetConditionError: its catalogue is of another version, which may not know their sizes.
    """
    columns = (runs.c.run, runs.c.create_unix_ns, runs.c.stored_bytes)
    with _reading(place) as connection:
        check_version(connection, f"store {place.directory}")
        rows = connection.execute(sa.select(*columns).where(runs.c.is_final).order_by(runs.c.create_unix_ns)).all()
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
