"""Tables and columns: names, types and descriptions, and the columns that several tables share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kernalyse.services.core.errors import InvalidRequestError

# ---------------------------------------------------------------- types

DataType = type[pl.String] | type[pl.Int64] | type[pl.Int32] | type[pl.Float64] | type[pl.Boolean]

TEXT: Final = pl.String
COUNT: Final = pl.Int64
INDEX: Final = pl.Int32  # half the size of a count: for row numbers in tables of ten million rows
NUMBER: Final = pl.Float64
FLAG: Final = pl.Boolean


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; its name contains the unit."""

    name: str
    dtype: DataType
    description: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table by name; its columns begin with run_id and event_index."""

    table_name: str
    description: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> dict[str, DataType]:
        """Polars types by column name."""
        return {column.name: column.dtype for column in self.columns}

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of all columns, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """Return a column by name. Raises InvalidRequestError, which lists the columns."""
        for column in self.columns:
            if column.name == name:
                return column
        raise InvalidRequestError(
            f"column {name!r} of table {self.table_name}",
            found="no such column",
            expected=f"one of {', '.join(self.column_names)}",
            remedy="Choose a column of the table.",
        )

    def empty(self) -> pl.DataFrame:
        """Return a frame without rows."""
        return pl.DataFrame(schema=self.schema)

    def frame(self, rows: Iterable[Sequence[Any]]) -> pl.DataFrame:
        """Return a frame of rows whose values are in column order."""
        return pl.DataFrame(list(rows), schema=self.schema, orient="row", strict=False)

    def own_rows(self, rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
        """Return a frame of rows by column name, without run_id and event_index, which are set when the rows are stored.

        Values that a row lacks, or that do not fit the column, are null.
        """
        given = list(rows)
        wide = {column.name: COUNT if column.dtype is INDEX else column.dtype for column in self.columns[2:]}
        columns = [pl.Series(name, [row.get(name) for row in given], dtype=dtype, strict=False) for name, dtype in wide.items()]
        return pl.DataFrame([column.cast(self.schema[column.name], strict=False) for column in columns])

    def conform(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Return the rows with exactly this table's columns: missing ones null, unknown ones dropped.

        Files written by another version have other columns.
        """
        present = set(frame.collect_schema().names())
        return frame.select(
            pl.col(name).cast(dtype) if name in present else pl.lit(None, dtype=dtype).alias(name) for name, dtype in self.schema.items()
        )


def concat_frames(table: Table, frames: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
    """Return the rows of all frames, one after the other.

    A single frame is returned as it is: polars pushes a page into one scan, but not into a concatenation.
    """
    if len(frames) == 1:
        return frames[0]
    return pl.concat(frames) if frames else table.empty().lazy()


def keyed_table(table_name: str, description: str, *columns: Column) -> Table:
    """Return a table whose rows belong to a run and came with one of its events."""
    return Table(table_name, description, (RUN_ID, EVENT_INDEX, *columns))


# ---------------------------------------------------------------- shared columns

RUN_ID: Final = Column("run_id", TEXT, "Run that the row belongs to.")
EVENT_INDEX: Final = Column("event_index", COUNT, "Journal entry that caused the row.")
DEVICE_ID: Final = Column("device_id", TEXT, "Device on its node, e.g. cuda:0.")
CONFIGURATION_INDEX: Final = Column("configuration_index", COUNT, "Configuration within the run, from 0.")
KERNEL_NAME: Final = Column("kernel_name", TEXT, "Name of the kernel in its catalog or source.")
MEASURED_UNIX_NS: Final = Column(
    "measured_unix_ns", COUNT, "Time of the measurement, nanoseconds since the Unix epoch by the node's clock."
)
LABEL: Final = Column("label", TEXT, "Kernel and parameters, e.g. matmul_naive N=128 M=128.")


PARAMETERS: Final = Column("parameters", TEXT, "JSON object of integers.")
CATEGORY: Final = Column("category", TEXT, "Kind of kernel, e.g. matmul.")
DTYPE: Final = Column("dtype", TEXT, "Data type of the arithmetic.")
PATH: Final = Column("path", TEXT, "fma or tensor: selects the compute ceiling.")
MACROS: Final = Column("macros", TEXT, "JSON object of compile-time constants.")
PROCESS_INDEX: Final = Column("process_index", COUNT, "Process of the run that measured it, from 0.")
VARIANT: Final = Column("variant", TEXT, "Distinguishes it from others of the same kernel and parameters, e.g. TILE=16.")
FLOP: Final = Column("flop", NUMBER, "Floating-point operations of one launch.")
BYTES: Final = Column("bytes", NUMBER, "Bytes one launch must move to and from device memory.")
VERIFICATION_STATE: Final = Column("verification_state", TEXT, "Result against the reference.")
DURATION_MEDIAN_NS: Final = Column("duration_median_ns", NUMBER, "Median device time of one launch.")
REASON: Final = Column("reason", TEXT, "Name of the error, e.g. COMPILE_FAILED.")
MESSAGE: Final = Column("message", TEXT, "Subject, found, expected, remedy.")
MODEL_NAME: Final = Column("model_name", TEXT, "ML model that it belongs to; null: none, or not known.")
BATCH_SIZE: Final = Column("batch_size", COUNT, "Batch size of the model's input; null: not known.")
SYMBOL: Final = Column("symbol", TEXT, "Marker in charts, by Plotly's names, e.g. square; star: its costs are not known; null: any.")
LAYER_PATH: Final = Column("layer_path", TEXT, "Layer of the model that it belongs to, e.g. blocks.3.attn.qkv; null: none.")
DISTURBANCE: Final = Column(
    "disturbance",
    TEXT,
    "Disturbance of the measurement or of its ceilings, e.g. host 98 % busy; null: none known.",
)
THROTTLE_REASONS: Final = Column("throttle_reasons", TEXT, "Comma-separated; null: not known.")
