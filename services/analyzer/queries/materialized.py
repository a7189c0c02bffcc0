"""Views over all runs that are kept on disk: history and kernels."""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.history import history
from kernalyse.services.analyzer.hardware import tables_digest
from kernalyse.services.analyzer.queries.registry import DERIVED, resolve_table
from kernalyse.services.analyzer.queries.run_tables import StoreSource, ceilings, thresholds
from kernalyse.services.analyzer.store.repositories import RunRecord
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.base import Table
from kernalyse.services.analyzer.tables.derived import HISTORY, HISTORY_ROWS, LAYERS, MODELS, ROOFLINE
from kernalyse.services.analyzer.tables.event_rows import unix_ns
from kernalyse.services.analyzer.tables.runs import KERNELS, MEASUREMENTS
from kernalyse.services.analyzer.tables.traces import TRACE_DEVICES
from kernalyse.services.core.formatting import LAYER_PARTS, REPEATED_WORDS
from kernalyse.services.core.model import ModelRun

# ---------------------------------------------------------------- materialized
# Materialized views: rows of all runs, computed once and kept in few files, so that no question opens the files of thousands of runs.
#
# The rows follow from the store: what is missing is computed at the next question, and so is what cannot be read.

MAX_PARTS: Final = 12
"""Files before they become one: each costs a question a millisecond, and a merge writes all rows anew."""

BATCH_SIZE: Final = 500  # runs computed at once; more hold more memory, fewer take longer

STATE: Final = "state"
"""Column of the files: the run, and what its rows were computed from. Rows of another state count no more."""

HISTORY_VERSION: Final = 3
"""Of what the rows of the history mean."""

HISTORY_KEY: Final = ("subject", "label", "model_name", "batch_size", "dtype", "cache_mode", "backend")
"""What makes two runs comparable, with the device that they ran on."""

IS_FINISHED: Final = pl.col("is_compacted") & pl.col("is_settled")
"""Of a run of the listing: its rows stay as they are."""

NO_STATES: Final = pl.Series(STATE, [], dtype=pl.String)

UNREADABLE: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)

RowsOf = Callable[[Store, Sequence[RunRecord]], pl.DataFrame]
StatesOf = Callable[[Store, pl.DataFrame], pl.Series]
"""Of runs of the store's listing, which has a row for each."""

logger = logging.getLogger(__name__)


class MaterializedView:
    """A table of all runs of one store, in a directory of its own. Methods block; call them in threads."""

    def __init__(
        self,
        store: Store,
        directory: Path,
        table: Table,
        version: object,
        rows_of: RowsOf,
        states_of: StatesOf,
        sort_by: Sequence[str] = (),
    ) -> None:
        """Open nothing yet: the files are looked at by the first question.

        Args:
            table: of the rows; its first column after run_id and event_index is null in none of them.
            version: rows of another version, or of other columns, are computed anew.
            rows_of: rows of runs, whether they have ended or not.
            states_of: of each run a text that is another one when its rows are.
            sort_by: order of rows within a file, so that conditions on these columns skip most of it; empty: by run, oldest first.
        """
        self._store, self._table, self._rows_of, self._states_of, self._sort_by = store, table, rows_of, states_of, sort_by
        self._directory = directory / hashlib.sha256(repr((version, table.schema)).encode()).hexdigest()[:12]
        self._lock = threading.Lock()
        self._covered: pl.Series | None = None  # states that the files have rows of; None: not looked at yet

    def rows(self, run_ids: Sequence[str] | None = None, conditions: Sequence[pl.Expr] = ()) -> pl.LazyFrame:
        """Return the rows of these runs, or of all; runs that go on or are still being read have what there is of them now.

        Args:
            conditions: on the table's columns; rows that do not meet them are not read.
        """
        listed = self._store.runs.listing(run_ids)
        finished, live = listed.filter(IS_FINISHED), listed.filter(~IS_FINISHED)
        states = self._states(finished)
        with self._lock:  # to the end of the reading: a merge by another question would take the files away
            try:
                frames = self._cached(finished["run_id"], states, conditions)
            except UNREADABLE as error:
                logger.warning("Rows of %s are computed anew: %s", self._table.table_name, error)
                self._clear()
                frames = self._cached(finished["run_id"], states, conditions)
        if live.height:
            frames.append(self._rows_of(self._store, self._store.runs.of(live["run_id"].to_list())).filter(*conditions))
        return pl.concat(frames).lazy()

    def state(self) -> object | None:
        """Return what stays equal as long as all rows do; None: some run goes on."""
        listed = self._store.runs.listing(None)
        return (listed.height, self._states(listed).hash().sum()) if listed.select(IS_FINISHED.all()).item() else None

    def _states(self, listed: pl.DataFrame) -> pl.Series:
        """Return a text for each run that is another one when its rows are."""
        told = pl.DataFrame({"run_id": listed["run_id"], "state": self._states_of(self._store, listed)})
        return told.select(pl.concat_str("run_id", "state", separator=" ").str.strip_chars_end()).to_series()

    def _cached(self, run_ids: pl.Series, states: pl.Series, conditions: Sequence[pl.Expr]) -> list[pl.DataFrame]:
        """Return the rows of finished runs, after computing those that the files lack. states: one for each of the runs."""
        self._covered = self._opened() if self._covered is None else self._covered
        missing = pl.DataFrame({"run_id": run_ids, STATE: states}).filter(~states.is_in(self._covered.implode()))
        unwritten = self._add(missing)
        found = [frame.lazy() for frame in unwritten]
        if self._covered.len():
            written = pl.scan_parquet(self._parts())
            if not self._covered.is_in(states.implode()).all():  # some are not asked for, have been deleted, or have other rows now
                written = written.filter(pl.col(STATE).is_in(states.implode()))
            found.append(written)
        is_row = pl.col(self._table.columns[2].name).is_not_null()  # others only say that their run has none
        frames = [rows.filter(is_row, *conditions).select(self._table.column_names).collect() for rows in found]
        if len(parts := self._parts()) > MAX_PARTS:
            self._merge(parts)
        whole = pl.concat([self._table.empty(), *frames])
        if self._sort_by:
            return [whole]
        return [pl.DataFrame({"run_id": run_ids}).join(whole, on="run_id", maintain_order="left_right")]

    # ------------------------------------------------------------ the files

    def _parts(self) -> list[Path]:
        return sorted(self._directory.glob("*.parquet"))

    def _opened(self) -> pl.Series:
        """Return the states that the files have rows of; what other versions left is deleted."""
        for other in self._directory.parent.glob("*"):
            if other.is_dir() and other != self._directory:
                shutil.rmtree(other, ignore_errors=True)
            elif other != self._directory:
                with suppress(OSError):
                    other.unlink()
        covered = [pl.scan_parquet(path).select(pl.col(STATE).unique()).collect()[STATE] for path in self._parts()]
        whole = pl.concat([NO_STATES, *covered])
        if whole.n_unique() < whole.len():  # a merge broke off after it had written
            raise pl.exceptions.ComputeError("runs twice")
        return whole

    def _clear(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._covered = NO_STATES

    def _add(self, missing: pl.DataFrame) -> list[pl.DataFrame]:
        """Write a file for runs that have none yet, and return the rows that could not be written.

        A run without rows gets one that says only that it has been looked at.

        Args:
            missing: run_id and STATE of each run.
        """
        assert self._covered is not None
        unwritten = []
        for states in missing.iter_slices(BATCH_SIZE):
            found = self._rows_of(self._store, self._store.runs.of(states["run_id"].to_list()))
            empty = states.join(found, on="run_id", how="anti", maintain_order="left")["run_id"]
            marks = self._table.frame((run_id, *[None] * (len(self._table.columns) - 1)) for run_id in empty)
            rows = pl.concat([found, marks]).join(states, on="run_id", maintain_order="left")
            if self._is_written(rows):
                self._covered = pl.concat([self._covered, states[STATE]])
            else:
                unwritten.append(rows)
        return unwritten

    def _merge(self, parts: list[Path]) -> None:
        """Write one part in the place of all, without runs that have been deleted or have other rows now."""
        assert self._covered is not None
        states = self._states(self._store.runs.listing(None))
        self._covered = self._covered.filter(self._covered.is_in(states.implode()))
        self._is_written(pl.scan_parquet(parts).filter(pl.col(STATE).is_in(self._covered.implode())).collect(), parts)

    def _is_written(self, rows: pl.DataFrame, replaced: Sequence[Path] = ()) -> bool:
        """Write a part in the place of others, and return whether the disk took it."""
        if self._sort_by:
            rows = rows.sort(*self._sort_by)
        temporary = self._directory / f"{max((int(path.stem) for path in self._parts()), default=0) + 1}.part"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            rows.write_parquet(temporary, row_group_size=50_000)
        except (pl.exceptions.PolarsError, OSError) as error:
            logger.warning("Rows of %s are not kept: %s", self._table.table_name, error)
            with suppress(OSError):
                temporary.unlink()
            return False
        for path in replaced:
            path.unlink()  # should this break off, what is gone is computed again
        temporary.rename(temporary.with_suffix(".parquet"))
        return True


# ---------------------------------------------------------------- kernels


def kernels_view(store: Store) -> MaterializedView:
    """Return the view of table kernels: a page of all runs is not computed from millions of measurements."""
    version = (*(derived.version for derived in DERIVED[KERNELS.table_name]), tables_digest())
    return MaterializedView(store, store.summary_directory, KERNELS, version, _kernels, _kernel_states)


def _kernels(store: Store, records: Sequence[RunRecord]) -> pl.DataFrame:
    return resolve_table(KERNELS, StoreSource(store, [record.run.run_id for record in records])).collect()


def _kernel_states(store: Store, listed: pl.DataFrame) -> pl.Series:
    """Return other states for other ceilings and thresholds too."""
    runs = listed.select("run_id", rows=pl.concat_str("imported_digest", "next_event_index", separator=" "))
    for table in (ceilings, thresholds):
        content = table(store, None).group_by("run_id").agg(pl.struct(pl.exclude("run_id")).hash().sum().alias(table.__name__))
        runs = runs.join(content.collect(), on="run_id", how="left", maintain_order="left")
    return runs.select(pl.concat_str(pl.exclude("run_id").cast(pl.String).fill_null(""), separator=" ")).to_series()


# ---------------------------------------------------------------- history


def history_view(store: Store) -> MaterializedView:
    """Return the view of table history_rows: every figure of every run."""
    order = ("kernel_name", "series", "measured_unix_ns")  # a question for one of them skips the other groups of rows
    return MaterializedView(store, store.history_directory, HISTORY_ROWS, HISTORY_VERSION, _history_rows, _history_states, order)


def _history_states(_store: Store, listed: pl.DataFrame) -> pl.Series:
    """Return the digest of what a run was imported from: imported again, it may have other rows."""
    return listed["imported_digest"]


def _history_rows(store: Store, records: Sequence[RunRecord]) -> pl.DataFrame:
    """Return table history_rows of these runs."""
    run_ids = [record.run.run_id for record in records]
    traced = set(store.trace_run_ids(run_ids))
    frames = [_of_configurations(store, run_ids)]
    for record in records:
        run_id = record.run.run_id
        if run_id in traced or isinstance(record.run.spec.work, ModelRun):
            frames += _of_models(store, run_id)
        if run_id in traced and record.run.is_trace:
            frames.append(_of_trace_kernels(store, run_id))
    return _described(pl.concat(frames, how="diagonal_relaxed"), store, records)


def _of_configurations(store: Store, run_ids: Sequence[str]) -> pl.DataFrame:
    """One row per run and configuration, whichever processes measured it."""
    work = resolve_table(ROOFLINE, StoreSource(store, run_ids)).filter(pl.col("configuration_index").is_not_null())
    rates = work.select("run_id", "configuration_index", "achieved_flop_per_s", "achieved_bytes_per_s", "efficiency_ratio").unique(
        ["run_id", "configuration_index"], keep="last"
    )
    names = [name for name in HISTORY_ROWS.column_names if name in MEASUREMENTS.column_names and name not in ("run_id", "label")]
    middles = [name for name in names if name.startswith("duration_") or name in ("noise_ratio", "tokens_per_s")]
    rated = ["achieved_flop_per_s", "achieved_bytes_per_s", "efficiency_ratio"]
    keys = ["run_id", "label", "cache_mode", "backend", "device_id", "device_uuid", "dtype"]
    rest = [name for name in names if name not in (*middles, *keys, "event_index", "measured_unix_ns")]
    return (
        store.read(MEASUREMENTS, run_ids)
        .filter(pl.col("verification_state").fill_null("") != "FAILED")
        .join(rates, on=["run_id", "configuration_index"], how="left")
        .with_columns(pl.col("label").str.replace_all(REPEATED_WORDS, ""))
        .group_by(keys)
        .agg(
            pl.col("event_index", "measured_unix_ns").max(),
            pl.col(*[name for name in middles if not name.endswith(("_low_ns", "_high_ns"))], *rated).median(),
            pl.col("duration_median_low_ns").min(),
            pl.col("duration_median_high_ns").max(),
            pl.col(rest).first(),
        )
        .with_columns(subject=pl.lit("configuration"))
        .collect()
    )


def _of_models(store: Store, run_id: str) -> list[pl.DataFrame]:
    """Whole passes, and layers of models and traces."""
    kept = [name for name in HISTORY_ROWS.column_names if name in MODELS.column_names]
    passes = (
        resolve_table(MODELS, StoreSource(store, [run_id]))
        .select(*kept, "variant", "sequence_length")
        .with_columns(
            subject=pl.lit("model"),
            label=pl.concat_str("model_name", "variant", pl.format("sequence {}", "sequence_length"), separator=" ", ignore_nulls=True),
            kernel_name="model_name",
        )
    )
    kept = [name for name in HISTORY_ROWS.column_names if name in LAYERS.column_names]
    layers = (
        resolve_table(LAYERS, StoreSource(store, [run_id]))
        .filter(pl.col("layer").is_not_null())
        .select(*kept, "layer", "variant", "source")
        .with_columns(
            pl.col("duration_sum_ns").cast(pl.Float64),
            subject=pl.lit("layer"),
            label=pl.concat_str("layer", "variant", _told_apart("source"), separator=" ", ignore_nulls=True),
            kernel_name="layer",
        )
    )
    return [frame.drop("variant", "layer", "source", "sequence_length", strict=False).collect() for frame in (passes, layers)]


def _told_apart(source: str) -> pl.Expr:
    """Null but of layers of which a trace may have two rows."""
    return pl.col(source).replace_strict(LAYER_PARTS, default=None, return_dtype=pl.String)


def _of_trace_kernels(store: Store, run_id: str) -> pl.DataFrame:
    kept = [name for name in HISTORY_ROWS.column_names if name in KERNELS.column_names]
    return (
        resolve_table(KERNELS, StoreSource(store, [run_id]))
        .filter(pl.col("launch_count") > 0)
        .select(kept)
        .with_columns(pl.col("duration_sum_ns", "duration_median_ns").cast(pl.Float64), subject=pl.lit("kernel"), label="kernel_name")
        .collect()
    )


def _described(rows: pl.DataFrame, store: Store, records: Iterable[RunRecord]) -> pl.DataFrame:
    """With what the runs themselves tell, and the key of each row's series."""
    described = pl.DataFrame(
        [_described_run(record, store) for record in records],
        schema={"run_id": pl.String, "run_unix_ns": pl.Int64, "run_device_id": pl.String, "run_model": pl.String, "run_batch": pl.Int64}
        | {name: HISTORY_ROWS.schema[name] for name in ("device_name", "node_id", "git_commit", "git_is_dirty")},
        orient="row",
    )
    joined = HISTORY_ROWS.conform(rows.lazy()).drop("device_name", "node_id", "git_commit", "git_is_dirty").collect()
    uuids = rows["device_uuid"] if "device_uuid" in rows.columns else pl.Series([None] * rows.height, dtype=pl.String)
    whole = (
        joined.with_columns(device_uuid=uuids)
        .join(described, on="run_id", how="left", maintain_order="left")
        .with_columns(
            measured_unix_ns=pl.coalesce("measured_unix_ns", "run_unix_ns"),
            device_id=pl.coalesce("device_id", "run_device_id"),
            model_name=pl.coalesce("model_name", "run_model"),
            batch_size=pl.coalesce("batch_size", "run_batch"),
        )
    )
    # A trace has no device_id: what its devices are called tells it from those of other ones.
    known = pl.coalesce("device_id", "device_name")
    device = pl.coalesce("device_uuid", pl.concat_str("node_id", known, separator=" ", ignore_nulls=True))
    names = whole.select(
        pl.concat_str(*(pl.col(name).cast(pl.String).fill_null("") for name in HISTORY_KEY), device, separator="|")
    ).to_series()
    return whole.with_columns(series=_keys(names)).select(HISTORY_ROWS.column_names)


def _keys(names: pl.Series) -> pl.Series:
    """Short enough for a URL, whatever the kernel is called."""
    known = {name: hashlib.blake2b(name.encode(), digest_size=8).hexdigest() for name in names.unique() if name is not None}
    return names.replace_strict(known, default=None, return_dtype=pl.String) if known else names


def _described_run(record: RunRecord, store: Store) -> tuple[object, ...]:
    run = record.run
    revision = run.spec.revision
    device = store.hardware.device(run.node_id, run.device_id or "")
    device_name = _recorded_devices(store, run.run_id) if device is None and run.is_trace else device and device.name
    model = (run.spec.work.model_name, run.spec.work.batch_size) if isinstance(run.spec.work, ModelRun) else (None, None)
    time_unix_ns = unix_ns(run.start_time or run.create_time)
    commit = (None, None) if revision is None else (revision.commit, revision.is_dirty)
    return (run.run_id, time_unix_ns, run.device_id, *model, device_name, run.node_id or None, *commit)


def _recorded_devices(store: Store, run_id: str) -> str | None:
    """Names of those that a trace is of."""
    names = store.read(TRACE_DEVICES, [run_id]).select("device_name").collect().to_series().drop_nulls().unique().sort()
    return ", ".join(names) or None


# ---------------------------------------------------------------- run history
# The history of what a run measured: of the figures that earlier runs have too, those that its document shows.

METRIC: Final = "duration_median_ns"
MAX_SERIES_COUNT: Final = 4
MAX_RUN_COUNT: Final = 200  # of one of them, the newest ones: more points lie on each other
MAX_JUDGED_ROWS: Final = 20_000
"""Changes are looked for in so many rows, a second's work; in those of what takes longest, where a sweep has more."""


def run_history(history_rows: MaterializedView, run_id: str) -> pl.DataFrame:
    """Return table history of the median time up to the run; those that changed most of late, else those that take longest, come first."""
    of_run = history_rows.rows([run_id]).filter(pl.col(METRIC) > 0).collect()
    time_ns = pl.coalesce("duration_sum_ns", METRIC)
    own = of_run.group_by("series").agg(until_unix_ns=pl.col("measured_unix_ns").max(), time_ns=time_ns.max())
    found = history_rows.rows(None, (pl.col("series").is_in(own["series"].implode()), pl.col(METRIC) > 0)).collect()
    earlier = (
        found.join(own, on="series")
        .filter((pl.col("measured_unix_ns") < pl.col("until_unix_ns")) | (pl.col("run_id") == run_id))
        .filter(pl.col("run_id").n_unique().over("series") > 1)
        .sort("time_ns", "series", "measured_unix_ns", descending=[True, False, False])
        .head(MAX_JUDGED_ROWS)
    )
    histories = history(earlier.lazy(), METRIC).collect()
    last_change = pl.col("change_ratio").drop_nulls().last().log().abs().fill_null(0.0)
    shown = (
        histories.group_by("series")
        .agg(last_change.alias("change_size"))
        .join(own, on="series")
        .sort("change_size", "time_ns", "series", descending=[True, True, False])
        .head(MAX_SERIES_COUNT)
        .with_row_index("place")
    )
    newest = histories.join(shown.select("series", "place"), on="series").sort("place", "measured_unix_ns", maintain_order=True)
    return HISTORY.conform(newest.group_by("series", maintain_order=True).tail(MAX_RUN_COUNT).lazy()).collect()
