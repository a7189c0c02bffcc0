"""The store's catalogue in a database: SQLite in the store's directory, or PostgreSQL; its transactions and its version."""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
import sqlalchemy.exc
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, Engine, make_url

from kernalyse.services.analyzer.store.schema import metadata, stores
from kernalyse.services.core.errors import InvalidSettingError, StorageFullError, StoreLockedError, UnavailableError, UnmetConditionError

CATALOGUE: Final = "catalogue.sqlite"
"""Name of SQLite's file in the store's directory."""

KEPT_CATALOGUE: Final = "catalogue.revision-{}.sqlite"
"""Name of the copy of SQLite's file as it was before a migration, with the revision that it has."""

UNVERSIONED: Final = "0000"
"""In place of the revision of catalogues from before Alembic."""

POSTGRESQL: Final = "postgresql"
DRIVER: Final = "postgresql+psycopg"
LOCK_KEY: Final = 0x6B65726E
"""Of the advisory lock that the writing connection holds: by an analyzer alone, or shared by several that know of each other."""

WRITE_LOCK_KEY: Final = LOCK_KEY + 1
"""Of the advisory lock for one transaction: of several analyzers one writes at a time, as with SQLite. What one has read in it stays true,
and the revisions of runs become visible in their order."""

HOLDERS: Final = "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND objid = %s"
CONNECT_TIMEOUT_S: Final = 5
MIGRATIONS: Final = "kernalyse.services.analyzer.store:migrations"
VERSION_TABLE: Final = "alembic_version"
IDLE_TRANSACTION_MS: Final = 5_000
DISK_FULL: Final = "53100"  # of PostgreSQL's error codes
KEEPALIVES: Final = {"idle": 30, "interval": 10, "count": 3}
"""Seconds and probes after which a dead peer is given up: a session of a machine that was switched off must not hold the lock."""

USER_TIMEOUT_MS: Final = 60_000
"""For bytes that were sent to be acknowledged. While some are on their way no keepalive is sent: without it, a statement to a machine that
was switched off would hang for a quarter of an hour, as long as the kernel sends it again."""

logger = logging.getLogger(__name__)


class Database:
    """The open catalogue: one writer at a time and any number of readers, from any thread.

    Args:
        is_shared: other analyzers may have it open too, if they say so as well.

    Raises:
        InvalidSettingError: the URL is none of PostgreSQL.
        StorageFullError: a catalogue of an earlier version cannot be copied.
        StoreLockedError: another analyzer writes to it.
        UnavailableError: its server does not answer.
        UnmetConditionError: a newer version has written it.
    """

    def __init__(self, url: URL, *, is_shared: bool = False) -> None:
        is_sqlite = url.get_backend_name() == "sqlite"
        self._subject = f"store {Path(url.database or '').parent}" if is_sqlite else f"catalogue {url.render_as_string()}"
        self._connections: set[Any] = set()  # of the driver, open ones to PostgreSQL
        self._is_abandoned = False
        self._use_count = 0
        self._count_lock = threading.Lock()
        self._writer, self._reader = (
            _sqlite_engines(url) if is_sqlite else _postgresql_engines(url, self._subject, is_shared, self._connections)
        )
        self._write_lock = threading.Lock()
        try:
            with self.writing() as connection:
                upgrade(connection, self._subject)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Yield a connection in one write transaction, rolled back on any error.

        Raises:
            StorageFullError: the disk is full.
            UnavailableError: the database's server does not answer.
        """
        with self._counted(), self._write_lock, self._translated(), self._begun(self._writer) as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection with one consistent view. Raises UnavailableError."""
        with self._counted(), self._translated(), self._begun(self._reader) as connection:
            yield connection

    @property
    def is_in_use(self) -> bool:
        """Return whether a thread is in a transaction, or waits for one."""
        return self._use_count > 0

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._count_lock:
            self._use_count += 1
        try:
            yield
        finally:
            with self._count_lock:
                self._use_count -= 1

    @contextmanager
    def _begun(self, engine: Engine) -> Iterator[Connection]:
        if self._is_abandoned:
            raise UnavailableError(
                self._subject,
                found="the analyzer stops and has given its server up",
                expected="a PostgreSQL server that answers",
                remedy="Start the analyzer when the server is back; nothing is lost.",
            )
        with engine.begin() as connection:
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
            cause = getattr(error, "orig", None) or error
            is_server = self._writer.dialect.name == POSTGRESQL
            if getattr(cause, "sqlstate", None) == DISK_FULL if is_server else "full" in str(cause):
                raise StorageFullError(
                    self._subject,
                    found=str(cause),
                    expected="room for the rows that arrive",
                    remedy="Free space on that disk or delete runs; collecting goes on by itself then, and nothing is lost.",
                ) from error
            if not is_server:
                raise
            raise UnavailableError(
                self._subject,
                found=(str(cause).strip() or type(cause).__name__).splitlines()[0],
                expected="a PostgreSQL server that answers",
                remedy="Look after the server; collecting goes on by itself when it is back, and nothing is lost.",
            ) from error

    def abandon(self) -> None:
        """Cut all connections to a server, so that who waits for it on any thread, maybe for ever, is told UnavailableError.

        Nothing new is begun from then on. SQLite has no server, and is left alone.
        """
        if self._writer.dialect.name != POSTGRESQL:
            return
        import psycopg  # of an extra

        self._is_abandoned = True
        for connection in list(self._connections):
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all connections."""
        self._writer.dispose()
        self._reader.dispose()


def catalogue_url(directory: Path, setting: str) -> URL:
    """Return where the catalogue of a store is.

    Args:
        directory: of the store.
        setting: postgresql://USER:PASSWORD@HOST:PORT/DATABASE; empty: SQLite in the directory.

    Raises:
        InvalidSettingError: neither of the two.
    """
    if not setting:
        return URL.create("sqlite", database=str(directory / CATALOGUE))
    try:
        url = make_url(setting)
    except sa.exc.ArgumentError:
        url = URL.create("unreadable")
    if url.get_backend_name() != POSTGRESQL:
        raise InvalidSettingError(
            "setting catalogue",
            found=setting.partition("://")[0] + "://…" if "://" in setting else "no URL",
            expected="postgresql://USER:PASSWORD@HOST:PORT/DATABASE, or nothing for SQLite in the store's directory",
            remedy="Correct it; a password may also stand in a password file of PostgreSQL (PGPASSFILE).",
        )
    return url.set(drivername=DRIVER)


def _sqlite_engines(url: URL) -> tuple[Engine, Engine]:
    return _sqlite_engine(url, "BEGIN IMMEDIATE"), _sqlite_engine(url, "BEGIN")


def _sqlite_engine(url: URL, begin: str) -> Engine:
    engine = sa.create_engine(url, connect_args={"check_same_thread": False, "timeout": 30.0})

    def configure(connection: Any, _record: object) -> None:
        # SQLAlchemy begins transactions below: a reader needs one for a consistent view, which sqlite3 would not open.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode = WAL")
        # After a power cut the last transactions may be gone, but each with its cursor: they are collected again from the
        # profiler's journal. FULL would wait for the disk at every batch.
        connection.execute("PRAGMA synchronous = NORMAL")

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def _postgresql_engines(url: URL, subject: str, is_shared: bool, connections: set[Any]) -> tuple[Engine, Engine]:
    """Return engines whose connections are made anew when the server was away; the only writing one holds the lock.

    Args:
        connections: has those that are open from then on.
    """
    lock_function = "pg_try_advisory_lock_shared" if is_shared else "pg_try_advisory_lock"
    try:
        import psycopg  # noqa: F401  # SQLAlchemy's own message names no extra
    except ImportError as error:
        raise InvalidSettingError(
            "setting catalogue",
            found="the Python package psycopg is missing",
            expected="the extra postgresql",
            remedy="pip install 'kernalyse[postgresql]'",
        ) from error
    named = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": f"kernalyse on {socket.gethostname()}, process {os.getpid()}",
        **{f"keepalives_{name}": value for name, value in KEEPALIVES.items()},
        "tcp_user_timeout": USER_TIMEOUT_MS,
        "options": " ".join(f"-c tcp_keepalives_{name}={value}" for name, value in KEEPALIVES.items()),
    }
    # A process that was stopped in a transaction must not keep the others from theirs.
    ending = {"options": f"{named['options']} -c idle_in_transaction_session_timeout={IDLE_TRANSACTION_MS}"} if is_shared else {}
    writer = sa.create_engine(url, pool_pre_ping=True, pool_size=1, max_overflow=0, connect_args=named | ending)
    reader = sa.create_engine(url, pool_pre_ping=True, isolation_level="REPEATABLE READ", connect_args=named)

    def lock(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {lock_function}(%s)", (LOCK_KEY,))
            if cursor.fetchone()[0]:
                connection.commit()
                return
            cursor.execute(HOLDERS, (LOCK_KEY,))
            holders = [name for (name,) in cursor.fetchall()]
        raise StoreLockedError(
            subject,
            found=f"in use by {', '.join(holders) or 'another analyzer'}",
            expected="a catalogue that no other analyzer writes to",
            remedy="Use that analyzer, stop it, or give this one a database of its own. Several share one if each has a peer_address.",
        )

    for engine in (writer, reader):
        event.listen(engine, "connect", lambda connection, _record: connections.add(connection))  # before one waits for the lock
        for name in ("close", "close_detached"):
            event.listen(engine, name, lambda connection, *_record: connections.discard(connection))
    event.listen(writer, "connect", lock)
    if is_shared:
        event.listen(writer, "begin", lambda connection: connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITE_LOCK_KEY})"))
    return writer, reader


def store_id(connection: Connection) -> str | None:
    """Return the id of the store that the catalogue belongs to; None: it is new."""
    found: str | None = connection.scalar(sa.select(stores.c.store_id))
    return found


def upsert(connection: Connection, table: sa.Table, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, or replace those of the same primary key."""
    statement = _insert(connection, table)
    keys = [column.name for column in table.primary_key.columns]
    first = rows if isinstance(rows, Mapping) else rows[0]
    changed = {name: statement.excluded[name] for name in first if name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed), rows)


def insert_missing(connection: Connection, table: sa.Table, row: Mapping[str, Any]) -> None:
    """Insert a row unless there is one of its primary key."""
    connection.execute(_insert(connection, table).on_conflict_do_nothing(), row)


def _insert(connection: Connection, table: sa.Table) -> Any:
    return postgresql.insert(table) if connection.dialect.name == POSTGRESQL else sqlite.insert(table)


# ---------------------------------------------------------------- versions


def upgrade(connection: Connection, subject: str) -> None:
    """Bring the catalogue to this version's tables; an empty one gets them all. SQLite's file is copied before.

    Args:
        connection: in a write transaction that has changed nothing yet.

    Raises:
        StorageFullError: the copy cannot be written.
        UnmetConditionError: a newer version has written it.
    """
    config = _alembic_config()
    config.attributes["connection"] = connection
    known = [revision.revision for revision in ScriptDirectory.from_config(config).walk_revisions()]
    found = _version(connection)
    if found is not None and found not in known:
        raise UnmetConditionError(
            subject,
            found=f"version {found} of its tables, which a newer kernalyse has written",
            expected=f"version {known[0]} or an older one",
            remedy="Use that version of kernalyse or a newer one, put back the catalogue.revision-….sqlite that it has kept"
            " (deploy/README.md, Upgrades), or restore a backup.",
        )
    if found is None and not sa.inspect(connection).has_table("runs"):
        metadata.create_all(connection)
        command.stamp(config, "head")
    elif found != known[0]:
        kept = _keep(connection, subject, found or UNVERSIONED)
        way_back = "only a backup from before" if kept is None else f"{kept}, the catalogue as it was,"
        told = "%s: its tables are brought from version %s to %s. For an earlier kernalyse %s can be put back: deploy/README.md, Upgrades."
        logger.warning(told, subject, found or UNVERSIONED, known[0], way_back)
        command.upgrade(config, "head")


def check_version(connection: Connection, subject: str) -> None:
    """Check that the catalogue has this version's tables. Raises UnmetConditionError."""
    expected, found = ScriptDirectory.from_config(_alembic_config()).get_current_head(), _version(connection) or UNVERSIONED
    if found != expected:
        raise UnmetConditionError(
            subject,
            found=f"version {found} of its tables",
            expected=f"version {expected}, that of this kernalyse",
            remedy="Use the kernalyse that has written it, or start this one's analyzer once: deploy/README.md, Upgrades.",
        )


def _alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", MIGRATIONS)
    config.set_main_option("path_separator", "os")
    return config


def _keep(connection: Connection, subject: str, revision: str) -> Path | None:
    """Copy SQLite's file beside itself, and return where; None: the catalogue is on a server. Raises StorageFullError."""
    if connection.dialect.name == POSTGRESQL:
        return None
    file = Path(connection.engine.url.database or "")
    kept = file.with_name(KEPT_CATALOGUE.format(revision))
    part = kept.with_suffix(".part")
    try:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        # By a connection of its own: SQLite copies nothing through one that holds the lock for writing.
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(part)) as target:
            source.backup(target)
        part.replace(kept)
        os.sync()  # it must be there before the tables change
    except (OSError, sqlite3.Error) as error:
        part.unlink(missing_ok=True)
        raise StorageFullError(
            subject,
            found=f"no copy of {file.name} could be written before its tables are changed: {error}",
            expected=f"room for {file.stat().st_size:,} bytes in {file.parent}",
            remedy="Free space on that disk and start again; the catalogue is as it was.",
        ) from error
    return kept


def _version(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    version: str | None = connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}"))
    return version
