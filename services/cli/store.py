"""The commands `kernalyse store`: the store of this machine's analyzer checked, copied, put back, and freed of what is old."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kernalyse.services.cli.options import JsonFlag, Server, with_server_options

if TYPE_CHECKING:
    from kernalyse.services.analyzer.store.upkeep import StorePlace

DAY_S: Final = 86_400.0
GIBIBYTE: Final = 1024**3

DirectoryOption = Annotated[
    Path | None, typer.Option("--data-directory", help="Of the store; without it the one of this user's analyzer, as the settings say.")
]


def verify_store(data_directory: DirectoryOption = None, json_output: JsonFlag = False) -> None:
    """Check the catalogue and the SHA-256 of each file of the store, while its analyzer goes on. Status 1: something is damaged."""
    from kernalyse.services.analyzer.store.upkeep import verify

    with _progress("Checking") as progress:
        found = verify(_place(data_directory), progress)
    damages = [{"run_id": damage.run_id, "path": str(damage.path), "found": damage.found} for damage in found.damages]
    if json_output:
        document = {"runs": found.run_count, "files": found.file_count, "without_digests": found.undigested_count, "damages": damages}
        typer.echo(json.dumps(document, indent=2))
    else:
        for damage in found.damages:
            typer.echo(f"damaged: {damage.path}: {damage.found}")
            if damage.run_id:
                typer.echo(f"         Put it back from a backup, or give the run up: kernalyse delete {damage.run_id}")
        told = f"{found.file_count} files of {found.run_count} runs checked, {len(damages)} damaged."
        old = f" {found.undigested_count} directories have no digests (written by an earlier version); their files were read."
        typer.echo(told + (old if found.undigested_count else ""))
    if damages:
        raise typer.Exit(1)


def backup_store(
    target: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="It must not exist, and appears when it is complete.")],
    data_directory: DirectoryOption = None,
) -> None:
    """Copy the store as it is at one moment, while its analyzer goes on. The copy has the nodes' tokens too: keep it private."""
    from kernalyse.services.analyzer.store.upkeep import backup

    begin = time.monotonic()
    with _progress("Copying") as progress:
        run_count, size_bytes = backup(_place(data_directory), target, version("kernalyse"), progress)
    typer.echo(f"{run_count} runs, {size_bytes / 2**20:,.1f} MiB in {time.monotonic() - begin:.1f} s: {target}")


def restore_store(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="Made by kernalyse store backup.")],
    data_directory: DirectoryOption = None,
) -> None:
    """Put a backup in the place of the store. It is checked first; the store that was there is kept beside it."""
    from kernalyse.services.analyzer.store.upkeep import restore

    directory = _place(data_directory).directory
    with _progress("Checking") as progress:
        before = restore(source, directory, progress)
    kept = "" if before is None else f" What was there is in {before}; delete it when you no longer need it."
    typer.echo(f"Restored {directory}.{kept}")


@with_server_options
def collect_garbage(
    older_than_days: Annotated[
        float | None, typer.Option("--older-than", metavar="DAYS", min=0, help="Runs that are older are deleted.")
    ] = None,
    max_gib: Annotated[
        float | None, typer.Option("--max-size", metavar="GIB", min=0, help="The oldest are deleted until all together take no more.")
    ] = None,
    keep_tags: Annotated[
        list[str] | None, typer.Option("--keep-tag", metavar="TAG", help="Runs with this tag stay. May be repeated; keep without it.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
    data_directory: DirectoryOption = None,
    *,
    server: Server,
) -> None:
    """Delete runs that have ended by age or by size, the oldest first; the analyzer deletes them, with all their rows."""
    from kernalyse.services.analyzer.store.upkeep import delete_orphans, expired, stored_runs
    from kernalyse.services.cli.session import analyzer_session
    from kernalyse.services.core.errors import UsageError

    if older_than_days is None and max_gib is None:
        raise UsageError("kernalyse store gc", found="no limit", expected="--older-than or --max-size", remedy="Say how much is to stay.")
    age_s = None if older_than_days is None else older_than_days * DAY_S
    size_bytes = None if max_gib is None else int(max_gib * GIBIBYTE)
    place = _place(data_directory)
    runs = stored_runs(place)
    chosen = list(expired(runs, time.time(), max_age_s=age_s, max_bytes=size_bytes, kept_tags=keep_tags or ["keep"]))
    for stored in chosen:
        day = time.strftime("%Y-%m-%d", time.gmtime(stored.create_unix_s))
        typer.echo(f"{stored.run.run_id}  {day}  {stored.size_bytes / 2**20:8.1f} MiB  {stored.run.title}")
    if not dry_run and chosen:
        with analyzer_session(server, with_profiler=False) as client:
            for stored in chosen:
                client.delete_run(stored.run.run_id)
    size = sum(stored.size_bytes for stored in chosen) / 2**20
    typer.echo(f"{len(chosen)} of {len(runs)} runs, {size:,.1f} MiB {'would be' if dry_run else 'were'} deleted.")
    if place.objects is not None:
        orphan_count = delete_orphans(place, time.time(), is_dry=dry_run)
        typer.echo(f"{orphan_count} directories of objects that no run names {'would be' if dry_run else 'were'} deleted.")


def migrate_store(
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="postgresql://USER:PASSWORD@HOST:PORT/DATABASE, which is empty.")
    ] = None,
    objects: Annotated[
        str | None, typer.Option("--objects", metavar="URL", help="s3://BUCKET/PREFIX, which is empty or of an attempt that broke off.")
    ] = None,
    objects_endpoint: Annotated[
        str, typer.Option("--objects-endpoint", metavar="URL", help="http://HOST:PORT of an object storage other than AWS.")
    ] = "",
    data_directory: DirectoryOption = None,
) -> None:
    """Copy the catalogue of a store from SQLite to PostgreSQL, or its files into an object storage. Its analyzer must not run."""
    from kernalyse.services.analyzer.store.objects import ObjectStore
    from kernalyse.services.analyzer.store.upkeep import StorePlace, migrate, migrate_objects
    from kernalyse.services.core.errors import UsageError

    if to is None and objects is None:
        raise UsageError("kernalyse store migrate", found="no target", expected="--to or --objects", remedy="Say where it is to go.")
    place = _place(data_directory)
    if objects is not None:
        with _progress("Putting") as progress:
            put_count, count = migrate_objects(place, ObjectStore(objects, objects_endpoint), progress)
        typer.echo(f"{put_count} of {count} directories put. Start the analyzer with the setting objects from now on.")
    if to is not None:
        count = migrate(StorePlace(place.directory), to)
        typer.echo(f"{count} rows copied. Start the analyzer with the setting catalogue from now on; the files stay where they are.")


def _place(data_directory: Path | None) -> StorePlace:
    """Return the store in a directory, or that of this user's analyzer."""
    from kernalyse.services.analyzer.store.objects import OBJECTS, ObjectStore
    from kernalyse.services.analyzer.store.upkeep import StorePlace
    from kernalyse.services.core.settings import AnalyzerSettings

    settings = AnalyzerSettings.load()
    directory, url = data_directory or settings.data_directory, settings.objects
    if data_directory is not None:  # perhaps of other objects than the settings say
        url = (directory / OBJECTS).read_text().strip() if (directory / OBJECTS).is_file() else ""
    objects = ObjectStore(url, settings.objects_endpoint) if url else None
    return StorePlace(directory.absolute(), "" if data_directory is not None else settings.catalogue, objects)


@contextmanager
def _progress(word: str) -> Iterator[Callable[[int, int], None]]:
    """Yield what is told how far the work is; a bar on a terminal, nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from kernalyse.services.cli.output import console

    with Progress(TextColumn(word), BarColumn(), MofNCompleteColumn(), console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(word, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
