"""What every settled run says of its kernels, in one file: a page of all runs is not worked out from millions of measurements.

The rows follow from the store and are kept beside it: what is missing is worked out at the next question, and so is what
cannot be read, and what was worked out under other ceilings or thresholds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from services.analyzer.run_hardware import ceilings, thresholds
from services.analyzer.run_records import RunRecord
from services.analyzer.run_tables import run_table
from services.analyzer.schema import KERNELS
from services.analyzer.store import Store
from services.analyzer.trace_answers import PLAIN_QUESTION, answer_name

STATE: Final = "state"
"""Column of the file: what the rows of a run were worked out from."""

KEYS: Final = ["run_id", STATE]

SWEEPS_VERSION: Final = 1
"""Of what sweeps say of their kernels, as TraceAnalysis.version is of what traces say."""

logger = logging.getLogger(__name__)


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
