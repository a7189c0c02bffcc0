"""Views over all runs that are kept on disk: history and kernels."""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.history import history
from kernalyse.services.analyzer.queries.registry import PLAIN_QUESTION, answer_name
from kernalyse.services.analyzer.queries.run_tables import ceilings, run_table, thresholds
from kernalyse.services.analyzer.store.repositories import RunRecord
from kernalyse.services.analyzer.store.store import Store
from kernalyse.services.analyzer.tables.derived import HISTORY, HISTORY_ROWS, LAYERS, MODELS, ROOFLINE
from kernalyse.services.analyzer.tables.event_rows import unix_ns
from kernalyse.services.analyzer.tables.runs import KERNELS, MEASUREMENTS
from kernalyse.services.analyzer.tables.traces import TRACE_DEVICES
from kernalyse.services.core.formatting import LAYER_PARTS, REPEATED_WORDS
from kernalyse.services.core.model import ModelRun

# ---------------------------------------------------------------- history rows
# Every figure of every run in few files, so that a history need not open the files of thousands of runs.
#
# The rows follow from the store and are kept beside it: what is missing is added at the next question, what cannot be read is made
# anew.

MAX_PARTS: Final = 12
"""Files before they become one: each costs a question a millisecond, and a merge writes all rows anew."""

BATCH_SIZE: Final = 500  # runs read at once; more hold more memory, fewer take longer

KEY: Final = ("subject", "label", "model_name", "batch_size", "dtype", "cache_mode", "backend")
"""What makes two runs comparable, with the device that they ran on."""

STATE: Final = "state"
"""Column of the files: the run, and what it was imported from. An imported run may get other rows, and its old ones count no more."""

VERSION: Final = 3
"""Of what the rows mean; rows of another are made anew."""

logger = logging.getLogger(__name__)


class HistoryRows:
    """Of one store. Methods block; call them in threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        digest = hashlib.sha256(repr((VERSION, HISTORY_ROWS.schema)).encode()).hexdigest()[:12]
        self._folder = store.history_folder / digest
        self._lock = threading.Lock()
        self._covered: set[str] | None = None

    def rows(self, run_ids: Sequence[str] | None, conditions: Sequence[pl.Expr] = ()) -> pl.LazyFrame:
        """Table history_rows, of these runs or of all; those that go on or are still being read have what there is of them now.

        Args:
            conditions: on its columns; rows that do not meet them are not read.
        """
        records = self._store.runs.of(run_ids)
        with self._lock:  # to the end of the reading: a merge by another question would take the files away
            covered = self._covered if self._covered is not None else self._opened()
            lasting = [record for record in records if record.is_compacted and record.run.is_settled]
            self._add([record for record in lasting if _state(record) not in covered])
            passing = [record for record in records if _state(record) not in covered]
            kept = self._kept({_state(record) for record in records}, conditions)
        live = [_rows_of(self._store, [record]).filter(*conditions) for record in passing]
        return pl.concat([kept, *live]).lazy()

    def _kept(self, wanted: set[str], conditions: Sequence[pl.Expr]) -> pl.DataFrame:
        covered = self._covered or set()
        if not covered:
            return HISTORY_ROWS.empty()
        found = pl.scan_parquet(sorted(self._folder.glob("*.parquet"))).filter(pl.col("subject").is_not_null(), *conditions)
        if covered - wanted:  # some are not asked for, have been deleted, or have other rows now
            found = found.filter(pl.col(STATE).is_in(sorted(wanted & covered)))
        return found.select(HISTORY_ROWS.column_names).collect()

    def state(self) -> object | None:
        """Equal to what it was as long as all rows are; None: some run goes on."""
        records = self._store.runs.of(None)
        if not all(record.is_compacted and record.run.is_settled for record in records):
            return None
        return frozenset(map(_state, records))

    def _opened(self) -> set[str]:
        for other in self._folder.parent.glob("*"):
            if other != self._folder:
                shutil.rmtree(other, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        covered: set[str] = set()
        try:
            for path in self._folder.glob("*.parquet"):
                states = set(pl.scan_parquet(path).select(pl.col(STATE).unique()).collect()[STATE])
                if covered & states:  # a merge broke off after it had written
                    raise pl.exceptions.ComputeError("runs twice")
                covered |= states
        except (pl.exceptions.PolarsError, OSError) as error:
            logger.warning("Rows of the history are made anew: %s", error)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
            covered = set()
        self._covered = covered
        return covered

    def _add(self, records: Sequence[RunRecord]) -> None:
        """A file for runs that have none yet. A run without figures gets a row that says only that it has been looked at."""
        assert self._covered is not None
        for start in range(0, len(records), BATCH_SIZE):
            batch = records[start : start + BATCH_SIZE]
            found = _rows_of(self._store, batch)
            run_ids = [record.run.run_id for record in batch]
            empty = sorted(set(run_ids) - set(found["run_id"]))
            marks = HISTORY_ROWS.frame((run_id, *[None] * (len(HISTORY_ROWS.columns) - 1)) for run_id in empty)
            states = pl.DataFrame({"run_id": run_ids, STATE: list(map(_state, batch))})
            self._write(pl.concat([found, marks]).join(states, on="run_id", how="left", maintain_order="left"))
            self._covered.update(states[STATE])
        parts = list(self._folder.glob("*.parquet"))
        if len(parts) > MAX_PARTS:
            self._covered &= set(map(_state, self._store.runs.of(None)))
            merged = pl.scan_parquet(parts).filter(pl.col(STATE).is_in(sorted(self._covered))).collect()
            self._write(merged, parts)

    def _write(self, rows: pl.DataFrame, replaced: Sequence[Path] = ()) -> None:
        number = max((int(path.stem) for path in self._folder.glob("*.parquet")), default=0) + 1
        temporary = self._folder / f"{number}.part"
        # By series: a question for one of them skips the other groups of rows.
        rows.sort("kernel_name", "series", "measured_unix_ns").write_parquet(temporary, row_group_size=50_000)
        for path in replaced:
            path.unlink()  # should this break off, what is gone is read from the runs again
        temporary.rename(temporary.with_suffix(".parquet"))


def _state(record: RunRecord) -> str:
    return f"{record.run.run_id} {record.run.imported_digest}".rstrip()


def _rows_of(store: Store, records: Sequence[RunRecord]) -> pl.DataFrame:
    """Table history_rows of these runs."""
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
    work = run_table(store, ROOFLINE, run_ids).filter(pl.col("configuration_index").is_not_null())
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
        run_table(store, MODELS, [run_id])
        .select(*kept, "variant", "sequence_length")
        .with_columns(
            subject=pl.lit("model"),
            label=pl.concat_str("model_name", "variant", pl.format("sequence {}", "sequence_length"), separator=" ", ignore_nulls=True),
            kernel_name="model_name",
        )
    )
    kept = [name for name in HISTORY_ROWS.column_names if name in LAYERS.column_names]
    layers = (
        run_table(store, LAYERS, [run_id])
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
        run_table(store, KERNELS, [run_id])
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
    names = whole.select(pl.concat_str(*(pl.col(name).cast(pl.String).fill_null("") for name in KEY), device, separator="|")).to_series()
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


# ---------------------------------------------------------------- kept kernels
# What every settled run says of its kernels, in one file: a page of all runs is not worked out from millions of measurements.
#
# The rows follow from the store and are kept beside it: what is missing is worked out at the next question, and so is what cannot be
# read, and what was worked out under other ceilings or thresholds.

KEYS: Final = ["run_id", STATE]

SWEEPS_VERSION: Final = 1
"""Of what sweeps say of their kernels, as TraceAnalysis.version is of what traces say."""


class KeptKernels:
    """Of one store. Methods block; call them in threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: pl.DataFrame | None = None

    def rows(self) -> pl.LazyFrame:
        """Table kernels of all runs, oldest run first; those that go on have what there is of them now."""
        records = self._store.runs.of(None)
        lasting = [record for record in records if _is_lasting(record)]
        passing = [record.run.run_id for record in records if not _is_lasting(record)]
        kept = self._of(lasting).filter(pl.col("kernel_name").is_not_null()).select(KERNELS.column_names).lazy()
        return pl.concat([kept, run_table(self._store, KERNELS, passing)]) if passing else kept

    def _of(self, records: Sequence[RunRecord]) -> pl.DataFrame:
        states = self._states(records)
        with self._lock:
            kept = (self._read() if self._kept is None else self._kept).join(states, on=KEYS, how="semi", maintain_order="left")
            missing = states.join(kept, on=KEYS, how="anti", maintain_order="left")
            if missing.height > 0:
                kept = pl.concat([kept, self._worked_out(missing)])
                self._write(kept)
            self._kept = kept
        return states.select("run_id").join(kept, on="run_id", maintain_order="left_right")

    def _states(self, records: Sequence[RunRecord]) -> pl.DataFrame:
        """Columns run_id and state, in the order of the records."""
        runs = pl.DataFrame(
            [(record.run.run_id, f"{record.run.imported_digest} {record.next_event_index}") for record in records],
            schema={"run_id": pl.String, "rows": pl.String},
            orient="row",
        )
        for table in (ceilings, thresholds):
            content = table(self._store, None).group_by("run_id").agg(pl.struct(pl.exclude("run_id")).hash().sum().alias(table.__name__))
            runs = runs.join(content.collect(), on="run_id", how="left", maintain_order="left")
        return runs.select("run_id", pl.concat_str(pl.exclude("run_id").cast(pl.String).fill_null(""), separator=" ").alias(STATE))

    def _worked_out(self, states: pl.DataFrame) -> pl.DataFrame:
        """A run without kernels has one row that says only that it has been looked at."""
        found = run_table(self._store, KERNELS, states["run_id"].to_list()).collect()
        empty = states.join(found, on="run_id", how="anti")["run_id"]
        marks = KERNELS.frame((run_id, *[None] * (len(KERNELS.columns) - 1)) for run_id in empty)
        return pl.concat([found, marks]).join(states, on="run_id", maintain_order="left")

    # ------------------------------------------------------------ the file

    def _path(self) -> Path:
        return self._store.summary_folder / f"{answer_name(KERNELS.table_name, PLAIN_QUESTION)}-{SWEEPS_VERSION}.parquet"

    def _read(self) -> pl.DataFrame:
        try:
            return pl.read_parquet(self._path())
        except FileNotFoundError:
            pass
        except (pl.exceptions.PolarsError, OSError) as error:
            logger.warning("Kernels of all runs are worked out anew: %s", error)
        return KERNELS.empty().with_columns(pl.lit("").alias(STATE))

    def _write(self, rows: pl.DataFrame) -> None:
        path = self._path()
        temporary = path.with_suffix(".part")
        try:
            path.parent.mkdir(exist_ok=True)
            for other in path.parent.iterdir():
                if other != path:  # of other code
                    other.unlink()
            rows.write_parquet(temporary)
            temporary.replace(path)
        except (pl.exceptions.PolarsError, OSError) as error:
            logger.warning("Kernels of all runs are not kept: %s", error)


def _is_lasting(record: RunRecord) -> bool:
    return record.is_compacted and record.run.is_settled


# ---------------------------------------------------------------- run history
# The history of what a run measured: of the figures that earlier runs have too, those that its document shows.

METRIC: Final = "duration_median_ns"
MAX_SERIES_COUNT: Final = 4
MAX_RUN_COUNT: Final = 200  # of one of them, the newest ones: more points lie on each other
MAX_JUDGED_ROWS: Final = 20_000
"""Changes are looked for in so many rows, a second's work; in those of what takes longest, where a sweep has more."""


def run_history(rows: HistoryRows, run_id: str) -> pl.DataFrame:
    """Table history of the median time up to the run; those that changed most of late, else those that take longest, come first."""
    of_run = rows.rows([run_id]).filter(pl.col(METRIC) > 0).collect()
    time_ns = pl.coalesce("duration_sum_ns", METRIC)
    own = of_run.group_by("series").agg(until_unix_ns=pl.col("measured_unix_ns").max(), time_ns=time_ns.max())
    found = rows.rows(None, (pl.col("series").is_in(own["series"].implode()), pl.col(METRIC) > 0)).collect()
    earlier = (
        found.join(own, on="series")
        .filter((pl.col("measured_unix_ns") < pl.col("until_unix_ns")) | (pl.col("run_id") == run_id))
        .filter(pl.col("run_id").n_unique().over("series") > 1)
        .sort("time_ns", "series", "measured_unix_ns", descending=[True, False, False])
        .head(MAX_JUDGED_ROWS)
    )
    judged = history(earlier.lazy(), METRIC).collect()
    last_change = pl.col("change_ratio").drop_nulls().last().log().abs().fill_null(0.0)
    shown = (
        judged.group_by("series")
        .agg(last_change.alias("change_size"))
        .join(own, on="series")
        .sort("change_size", "time_ns", "series", descending=[True, True, False])
        .head(MAX_SERIES_COUNT)
        .with_row_index("place")
    )
    newest = judged.join(shown.select("series", "place"), on="series").sort("place", "measured_unix_ns", maintain_order=True)
    return HISTORY.conform(newest.group_by("series", maintain_order=True).tail(MAX_RUN_COUNT).lazy()).collect()
