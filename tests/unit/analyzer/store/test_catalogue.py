"""The catalogue on SQLite and on PostgreSQL: versions of its tables, its lock, its list of runs, outages."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from kernalyse.services.analyzer.store.database import Database, catalogue_url, upgrade
from kernalyse.services.analyzer.store.node_secrets import NodeSecret
from kernalyse.services.analyzer.store.schema import metadata
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.store.upkeep import StorePlace, backup, migrate, stored_runs, verify
from kernalyse.services.analyzer.tables.runs import LOG_LINES, MEASUREMENTS, SAMPLES
from kernalyse.services.core.errors import (
    InvalidSettingError,
    NotFoundError,
    StorageFullError,
    StoreLockedError,
    UnavailableError,
    UnmetConditionError,
)
from kernalyse.services.core.model import LogLevel, LogLines, RunState, StateChanged
from tests.integration.profiler_stand_in import ProfilerStandIn, configuration, samples, started
from tests.postgresql import PostgresqlServer

OLD_CATALOGUE = Path(__file__).with_name("catalogue_0_1.sql")
"""Written by version 0.1: a run that has ended and one that goes on, a node without the column client_certificate."""


def old_store(directory: Path) -> Path:
    directory.mkdir()
    with closing(sqlite3.connect(directory / "catalogue.sqlite")) as connection:
        connection.executescript(OLD_CATALOGUE.read_text())
    (directory / "node_tokens.json").write_text('{"gpu-host:7001": "the token"}')
    return directory


def node_with_runs(*run_ids: str) -> ProfilerStandIn:
    """Nothing listens: only its journal is used."""
    node = ProfilerStandIn("unix:none")
    for number, run_id in enumerate(run_ids):
        node.add_run(run_id, created_after_s=number)
        node.journal(run_id, *started(), configuration(0), samples(0, 0, 10), LogLines(LogLevel.INFO, "worker", ("a", "b")))
    return node


def commit(store: Store, node: ProfilerStandIn) -> None:
    store.commit_events(node.node.node_id, node.node.journal_id, node.events, list(node.runs.values()))


# ---------------------------------------------------------------- versions


def test_a_store_of_version_0_1_opens_with_everything_that_it_has(tmp_path: Path) -> None:
    with closing(Store(old_store(tmp_path / "store"))) as store:
        listed = store.runs.listing(None)
        assert listed["run_id"].to_list() == ["run-1", "run-2"]
        assert listed["state"].to_list() == ["SUCCEEDED", "RUNNING"]
        assert listed["tags"].to_list() == ["nightly", ""]
        assert store.runs.get("run-1").run.notes == "some notes"
        assert store.read(LOG_LINES, ["run-2"]).collect()["line"].to_list() == ["first", "second"]
        assert store.read(SAMPLES, ["run-2"]).collect()["sample_index"].to_list() == list(range(20))
        assert store.read(MEASUREMENTS, ["run-1"]).collect().height == 1
        (node,) = store.nodes.all()
        assert (node.address, node.ca_certificate, node.client_certificate) == ("gpu-host:7001", b"ca", None)
        assert store.secrets.secret("gpu-host:7001") == NodeSecret("the token")
        store.compact("run-1")
        assert store.read(MEASUREMENTS, ["run-1"]).collect().height == 1


def test_an_upgraded_catalogue_has_the_tables_of_a_new_one(tmp_path: Path, catalogue: str) -> None:
    """Whoever changes schema.py without a migration is told so here."""
    url = catalogue_url(old_store(tmp_path / "store"), catalogue)
    with closing(Database(url)) as database, database.writing() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_all_migrations_run_on_postgresql_too(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    engine = sa.create_engine(catalogue_url(tmp_path, postgresql.new_database()))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE runs (run_id TEXT PRIMARY KEY, node_id TEXT NOT NULL, run BYTEA NOT NULL)"))
        upgrade(connection, "the catalogue")
        assert [table for kind, table, *_ in map(_described, compare_metadata(MigrationContext.configure(connection), metadata))] == []
    engine.dispose()


def _described(difference: object) -> tuple[str, str]:
    return ("", "") if not isinstance(difference, tuple) else (str(difference[0]), str(difference[1:]))


def test_a_catalogue_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path, catalogue: str) -> None:
    Store(tmp_path, catalogue).close()
    engine = sa.create_engine(catalogue_url(tmp_path, catalogue))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(
        UnmetConditionError, match=r"version 9999 of its tables, which a newer kernalyse has written; expected version \d{4}"
    ):
        Store(tmp_path, catalogue)
    engine.dispose()


def rows_of(catalogue: Path) -> list[str]:
    with closing(sqlite3.connect(catalogue)) as connection:
        return list(connection.iterdump())


def test_before_a_migration_sqlites_file_is_copied_for_its_owner_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalogue = old_store(tmp_path / "store") / "catalogue.sqlite"
    before = rows_of(catalogue)
    Database(catalogue_url(catalogue.parent, "")).close()
    kept = catalogue.with_name("catalogue.revision-0000.sqlite")
    assert rows_of(kept) == before != rows_of(catalogue)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert f"{kept}, the catalogue as it was, can be put back: deploy/README.md, Upgrades." in caplog.text
    assert {path.name for path in catalogue.parent.glob("catalogue*")} == {catalogue.name, kept.name}

    with closing(sqlite3.connect(catalogue)) as connection:  # one migration back
        connection.executescript("UPDATE alembic_version SET version_num = '0003'; DROP TABLE analyzers; DROP TABLE node_leases")
    before = rows_of(catalogue)
    Database(catalogue_url(catalogue.parent, "")).close()
    assert rows_of(catalogue.with_name("catalogue.revision-0003.sqlite")) == before


def test_a_catalogue_that_needs_no_migration_is_not_copied(tmp_path: Path) -> None:
    for _ in range(2):
        Store(tmp_path).close()
    assert list(tmp_path.glob("catalogue*")) == [tmp_path / "catalogue.sqlite"]


def test_the_copy_is_of_the_last_upgrade(tmp_path: Path) -> None:
    catalogue = old_store(tmp_path / "store") / "catalogue.sqlite"
    kept = catalogue.with_name("catalogue.revision-0000.sqlite")
    for notes in ("first", "second"):
        catalogue.unlink()
        with closing(sqlite3.connect(catalogue)) as connection:
            connection.executescript(OLD_CATALOGUE.read_text())
            connection.execute("UPDATE nodes SET node_id = ?", (notes,))
            connection.commit()
        Database(catalogue_url(catalogue.parent, "")).close()
        with closing(sqlite3.connect(kept)) as connection:
            assert connection.execute("SELECT node_id FROM nodes").fetchall() == [(notes,)]


def test_a_catalogue_that_cannot_be_copied_stays_as_it_is(tmp_path: Path) -> None:
    catalogue = old_store(tmp_path / "store") / "catalogue.sqlite"
    before = rows_of(catalogue)
    (catalogue.parent / "catalogue.revision-0000.sqlite" / "in the way").mkdir(parents=True)
    with pytest.raises(StorageFullError, match=r"no copy of catalogue.sqlite could be written.*room for [\d,]+ bytes"):
        Database(catalogue_url(catalogue.parent, ""))
    assert rows_of(catalogue) == before
    assert list(catalogue.parent.glob("*.part")) == []


def test_the_server_of_a_catalogue_is_not_copied_and_the_log_says_so(
    postgresql: PostgresqlServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = catalogue_url(tmp_path, postgresql.new_database())
    Database(url).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE analyzers, node_leases"))
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0003'"))
    with pytest.raises(UnmetConditionError, match=r"found version 0003 of its tables; expected version \d{4}, that of this kernalyse"):
        backup(StorePlace(tmp_path, url.render_as_string(hide_password=False)), tmp_path / "backup", "1")
    Database(url).close()
    assert "from version 0003" in caplog.text
    assert "only a backup from before can be put back" in caplog.text
    engine.dispose()


@pytest.mark.parametrize("setting", ["mysql://host/db", "catalogue.sqlite", "postgres"])
def test_another_kind_of_catalogue_is_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(InvalidSettingError, match=r"setting catalogue: found .*expected postgresql://"):
        Store(tmp_path, setting)


# ---------------------------------------------------------------- lists


def test_the_list_follows_every_change_of_a_run(store: Store) -> None:
    assert store.runs.listing(None).is_empty()
    node = node_with_runs("run-1", "run-2")
    commit(store, node)
    assert store.runs.listing(None)["state"].to_list() == ["RUNNING", "RUNNING"]
    node.journal("run-2", StateChanged(RunState.SUCCEEDED))
    commit(store, node)
    store.runs.annotate("run-1", ("a", "b"), "text")
    listed = store.runs.listing(None)
    assert listed.select("state", "tags", "notes", "is_compacted").rows() == [
        ("RUNNING", "a,b", "text", False),
        ("SUCCEEDED", "", "", False),
    ]
    store.compact("run-2")
    assert store.runs.listing(None)["is_compacted"].to_list() == [False, True]
    assert store.runs.listing(["run-2"]).equals(store.runs.listing(None)[1:])
    store.delete_run("run-2")
    assert store.runs.listing(None)["run_id"].to_list() == ["run-1"]


def test_characters_that_postgresql_does_not_take_do_not_stop_collecting(store: Store) -> None:
    node = node_with_runs("run-1")
    node.journal("run-1", LogLines(LogLevel.INFO, "program", ("before\x00after",)))
    commit(store, node)
    line = store.read(LOG_LINES, None).collect()["line"].to_list()[-1]
    assert line in ("before\x00after", "before\ufffdafter")


# ---------------------------------------------------------------- PostgreSQL alone


def test_a_second_analyzer_is_refused_and_told_who_writes(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    catalogue = postgresql.new_database()
    with (
        closing(Store(tmp_path / "one", catalogue)),
        pytest.raises(StoreLockedError, match=r"in use by kernalyse on .*, process \d+"),
    ):
        Store(tmp_path / "two", catalogue)
    Store(tmp_path / "two", catalogue).close()


def test_a_server_that_is_away_is_named_and_when_it_is_back_nothing_is_lost(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    catalogue = postgresql.new_database()
    with closing(Store(tmp_path, catalogue)) as store:
        node = node_with_runs("run-1")
        commit(store, node)
        postgresql.stop()
        try:
            node.journal("run-1", samples(0, 10, 5))
            with pytest.raises(UnavailableError, match=r"catalogue postgresql\+psycopg://postgres@/kn_\w+.*expected a PostgreSQL server"):
                commit(store, node)
            with pytest.raises(UnavailableError):
                store.runs.listing(None)
        finally:
            postgresql.start()
        commit(store, node)
        assert store.read(SAMPLES, None).collect()["sample_index"].to_list() == list(range(15))


def test_a_store_moves_from_sqlite_to_postgresql_and_its_backup_is_sqlite_again(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    directory = old_store(tmp_path / "store")
    with closing(Store(directory)) as store:
        store.compact("run-1")
    with closing(Store(directory)) as store:
        lines = store.read(LOG_LINES, None).collect()
    catalogue = postgresql.new_database()
    assert migrate(StorePlace(directory), catalogue) > 0
    with pytest.raises(NotFoundError, match=r"no catalogue\.sqlite"):
        migrate(StorePlace(directory), catalogue)
    with pytest.raises(UnmetConditionError, match="expected an empty catalogue"):
        migrate(StorePlace(old_store(tmp_path / "another")), catalogue)
    place = StorePlace(directory, catalogue)
    with closing(Store(directory, catalogue)) as store:
        assert store.read(LOG_LINES, None).collect().equals(lines)
        assert store.runs.listing(None)["run_id"].to_list() == ["run-1", "run-2"]
        assert verify(place).damages == ()
        assert [stored.run.run_id for stored in stored_runs(place)] == ["run-1"]
        assert backup(place, tmp_path / "backup", "1")[0] == 2
    with closing(Store(tmp_path / "backup")) as copy:
        assert copy.read(LOG_LINES, None).collect().equals(lines)
        assert copy.read(MEASUREMENTS, None).collect().height == 1


def test_files_of_runs_are_never_held_against_the_catalogue_of_another_store(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    """What a catalogue does not name is deleted at the start: a forgotten or a wrong setting must not come so far."""
    directory, catalogue = old_store(tmp_path / "store"), postgresql.new_database()
    with pytest.raises(InvalidSettingError, match="found a new one, while the directory has files of runs"):
        Store(directory, catalogue)
    with closing(Store(directory)) as store:
        store.compact("run-1")
    files = sorted((directory / "runs").rglob("*.parquet"))
    assert files
    migrate(StorePlace(directory), catalogue)
    Store(directory, catalogue).close()
    for wrong in ("", postgresql.new_database()):
        with pytest.raises(InvalidSettingError, match="found a new one, while the directory has files of runs"):
            Store(directory, wrong)
    other = postgresql.new_database()
    Store(tmp_path / "other", other).close()
    with pytest.raises(InvalidSettingError, match="found one of another store"):
        Store(directory, other)
    assert sorted((directory / "runs").rglob("*.parquet")) == files
    with closing(Store(directory, catalogue)) as store:
        assert store.read(MEASUREMENTS, None).collect().height == 1


def test_files_stay_when_the_server_goes_away_while_they_are_made_visible(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    """The server may have taken the row that names them."""
    node = node_with_runs("run-1")
    node.journal("run-1", StateChanged(RunState.SUCCEEDED))
    with closing(Store(tmp_path, postgresql.new_database())) as store:
        commit(store, node)
        postgresql.stop()
        try:
            directory = store._files.reserve("run-1")
            directory.mkdir()
            with pytest.raises(UnavailableError), store._files.publishing("run-1", directory):
                pass
            assert directory.exists()
        finally:
            postgresql.start()
        store.compact("run-1")
        assert store.read(SAMPLES, None).collect().height == 10


def test_two_runs_of_one_moment_keep_the_order_of_their_names(store: Store) -> None:
    node = node_with_runs("run-b", "run-a")
    node.runs = {run_id: replace(run, create_time=node.runs["run-a"].create_time) for run_id, run in node.runs.items()}
    commit(store, node)
    assert store.runs.listing(None)["run_id"].to_list() == ["run-a", "run-b"]
