"""Reads lists of benchmarked kernels, JSON or CSV: a name, sizes, and a rate or a time for each.

A list that states a rate but neither time nor work keeps the rate as stated; the roofline takes it so. Where it has M, N and
K, and neither flop nor bytes, the work is that of one matrix product.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.documents import Dtype, JsonObject, dtype_of, header_of, is_count, read_csv, read_objects
from kernalyse.services.analyzer.readers.operation_costs import FLOP_PER_MAC
from kernalyse.services.analyzer.readers.result_rows import ResultRows, Row, label_of, roofline_config
from kernalyse.services.core.errors import InvalidTraceError
from kernalyse.services.core.file_formats import BANDWIDTH, FILE_NAME, PEAK

FORMAT: Final = "benchmark_list"
LIST_OPENING: Final = re.compile(rb"\s*+(?:\xef\xbb\xbf)?\s*+\[\s*\{")
DEVICE_ID: Final = "device"
"""Of a list that names none, but has ceilings beside it."""

NO_DEVICE: Final = (
    "No device is named, so nothing has a roof: add a column device, with the GPU's name as its driver writes it "
    f"(NVIDIA A100-SXM4-80GB) or any other name; else give {PEAK} (10^12 operations/s) and {BANDWIDTH} (GB/s) in a {FILE_NAME} beside it."
)
MATMUL_SIZES: Final = ("M", "N", "K")


class BenchmarkListReader:
    """Reader of lists of benchmarks."""

    format = FORMAT
    description = "a list of benchmarked kernels with rates or times, JSON or CSV"

    def matches(self, head: bytes) -> bool:
        """Return whether a file begins as one of this format."""
        opening = LIST_OPENING.match(head)
        if opening is not None:
            return BenchmarkColumns.of(_first_members(head[opening.end() - 1 :])).is_benchmark
        text = head.decode("utf-8", errors="replace")
        return "\0" not in text and BenchmarkColumns.of(header_of(text)[0]).is_benchmark

    def read(self, files: TraceFiles) -> ReadResult:
        """Read the file. Raises InvalidTraceError."""
        with files.path.open("rb") as file:
            is_json = LIST_OPENING.match(file.read(1024)) is not None
        records = _json_records(files) if is_json else _csv_records(files)
        config = roofline_config(files)
        rows = ResultRows(FORMAT, files.arrived_unix_ns, None if config is None else DEVICE_ID)
        reading = _Reading(rows)
        for record, columns in records:
            reading.add(record, columns)
        device_ids = reading.device_ids or ([rows.device_id] if rows.device_id else [])
        if config is not None:
            dtypes = list(dict.fromkeys(row["dtype"] for row in rows.configurations if row["dtype"] is not None))
            rows.ceilings = [row for device_id in device_ids for row in config.ceilings(device_id, dtypes)]
            rows.thresholds = [row for device_id in device_ids for row in config.thresholds(device_id)]
        return ReadResult(
            frames=rows.frames(files.file_name),
            notes="\n".join(
                (
                    *reading.notes(),
                    *([NO_DEVICE] if not device_ids else ()),
                    *(() if config is None else config.notes),
                    *rows.problem_notes(),
                )
            ),
            device_id=device_ids[0] if len(device_ids) == 1 else None,
        )


def _first_members(head: bytes) -> list[str]:
    """Of the object that the head begins with; none when it does not end within it."""
    try:
        first, _ = json.JSONDecoder().raw_decode(head.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return []
    return list(first)


def _json_records(files: TraceFiles) -> Iterator[tuple[JsonObject, BenchmarkColumns]]:
    known: dict[tuple[str, ...], BenchmarkColumns] = {}
    for record in read_objects(files):
        header = tuple(record.members)
        if header not in known:
            known[header] = BenchmarkColumns.of(header)
        yield record, known[header]


def _csv_records(files: TraceFiles) -> Iterator[tuple[JsonObject, BenchmarkColumns]]:
    table = read_csv(files)
    # Where semicolons separate, a comma may be what others write as a point.
    columns = BenchmarkColumns.of(table.header, has_decimal_comma=table.separator == ";")
    _check_columns(files, table.header, columns)
    for record in table.records:
        yield record, columns


def _check_columns(files: TraceFiles, header: Sequence[str], columns: BenchmarkColumns) -> None:
    missing = [
        *([] if "name" in columns.known else ["the kernel's name (kernel, name)"]),
        *([] if columns.has_figure else ["its time or rate (time_ms, median_us, tflops)"]),
    ]
    if missing:
        raise InvalidTraceError(
            f"file {files.file_name}, line 1",
            found=f"the columns {', '.join(header)}",
            expected=f"a column for {' and one for '.join(missing)}",
            remedy="Name the column so, with its unit.",
        )


class _Reading:
    def __init__(self, rows: ResultRows) -> None:
        self._rows = rows
        self._matmul_count = 0
        self._stated_count = 0
        self.device_ids: list[str] = []

    def add(self, record: JsonObject, columns: BenchmarkColumns) -> None:
        kernel_name = columns.text(record, "name")
        if not kernel_name:
            raise InvalidTraceError(
                record.place,
                found="no name",
                expected=f"a kernel in column {columns.known.get('name', 'name')}",
                remedy="Name the kernel, or leave that row out.",
            )
        parameters, words = _sizes(record, columns.rest)
        dtype_text = columns.text(record, "dtype")
        dtype = dtype_of(dtype_text)
        variant = " ".join((*words, *([f"dtype={dtype_text}"] if dtype_text else ())))
        configuration: Row = {
            "kernel_name": kernel_name,
            "parameters": parameters,
            "variant": variant,
            "dtype": dtype_text if dtype is None else dtype.name,
            "flop": columns.figure(record, "flop"),
            "bytes": columns.figure(record, "bytes"),
            "model_name": columns.text(record, "model"),
            "batch_size": columns.count(record, "batch"),
        }
        configuration["label"] = _label(configuration, parameters)
        intensity = columns.figure(record, "flop_per_byte")
        configuration |= self._matmul_work(configuration, parameters, dtype, has_intensity=intensity is not None)
        measured = {
            "duration_median_ns": columns.figure(record, "median_ns"),
            "duration_mean_ns": columns.figure(record, "mean_ns"),
            "stated_flop_per_s": columns.figure(record, "flop_per_s"),
            "stated_flop_per_byte": intensity,
        }
        self._add(configuration, {name: value for name, value in measured.items() if value is not None}, columns.text(record, "device"))

    def _add(self, configuration: Row, measured: Row, device_id: str | None) -> None:
        if not any(name in measured for name in ("duration_median_ns", "duration_mean_ns", "stated_flop_per_s")):
            self._rows.add_unmeasured(configuration, "The row has neither a time nor a rate.")
            return
        self._stated_count += "duration_median_ns" not in measured and "duration_mean_ns" not in measured
        if device_id is not None and device_id not in self.device_ids:
            self.device_ids.append(device_id)
        self._rows.add(configuration, measured | ({} if device_id is None else {"device_id": device_id}))

    def _matmul_work(self, configuration: Row, parameters: dict[str, int], dtype: Dtype | None, *, has_intensity: bool) -> Row:
        """Of one product where the row says no work of its own. Its bytes: both factors and the product, once."""
        if configuration["flop"] is not None or configuration["bytes"] is not None:
            return {}
        if not all(parameters.get(name, 0) > 0 for name in MATMUL_SIZES):
            return {}
        m, n, k = (float(parameters[name]) for name in MATMUL_SIZES)
        self._matmul_count += 1
        moved_bytes = None if dtype is None or has_intensity else (m * k + k * n + m * n) * dtype.element_bytes
        return {"flop": FLOP_PER_MAC * m * n * k, "bytes": moved_bytes, "category": "matmul"}

    def notes(self) -> Iterator[str]:
        yield f"{len(self._rows.configurations)} kernels, {len(self._rows.failures)} of them without a time or a rate."
        if self._stated_count:
            yield f"{self._stated_count} have no time: their rates are as the file states them."
        if self._matmul_count:
            yield f"{self._matmul_count} have M, N and K but no flop: their work is that of one matrix product (2 M N K flop)."


def _label(configuration: Row, parameters: dict[str, int]) -> str:
    words = (configuration["variant"], *(f"{short}={value}" for short, value in _belonging(configuration)))
    return label_of(configuration["kernel_name"], parameters, " ".join(word for word in words if word))


def _belonging(configuration: Row) -> list[tuple[str, object]]:
    named = (("model", configuration["model_name"]), ("batch", configuration["batch_size"]))
    return [(name, value) for name, value in named if value is not None]


def _sizes(record: JsonObject, names: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Whole numbers as parameters, everything else in words."""
    parameters: dict[str, int] = {}
    words: list[str] = []
    for name in names:
        value = record.members.get(name)
        number = whole_number(value)
        if number is not None:
            parameters[name] = number
        elif value is not None:
            words.append(f"{name}={value}")
    return parameters, words


# ---------------------------------------------------------------- benchmark columns
# What a column of a list of benchmarks says, by its name: people write them in many ways.


def _named(*names: str, **others: tuple[str, ...]) -> dict[str, str]:
    return {name: name for name in names} | {other: name for name, written in others.items() for other in written}


TEXTS: Final[Mapping[str, str]] = _named(
    name=("kernel", "kernel_name", "name", "benchmark", "benchmark_name"),
    model=("model", "model_name"),
    dtype=("dtype", "data_type", "precision"),
    device=("device", "device_name", "gpu", "gpu_name"),
)
COUNTS: Final[Mapping[str, str]] = _named(batch=("batch", "batch_size"))

RATES: Final = ("performance", "throughput", "achieved", "")
TIMES: Final = ("time", "duration", "latency", "execution_time", "mean_time", "mean", "mean_duration", "elapsed")
MEDIANS: Final = ("median", "median_time", "duration_median", "time_median")
FLOP_UNITS: Final = {
    "tflops": 1e12,
    "tflop_s": 1e12,
    "tflop_per_s": 1e12,
    "gflops": 1e9,
    "gflop_s": 1e9,
    "gflop_per_s": 1e9,
    "flop_per_s": 1.0,
}
TIME_UNITS: Final = {
    "ns": 1.0,
    "us": 1e3,
    "ms": 1e6,
    "s": 1e9,
    "nanoseconds": 1.0,
    "microseconds": 1e3,
    "milliseconds": 1e6,
    "seconds": 1e9,
}


def _figures() -> dict[str, tuple[str, float]]:
    """What the figure is and its factor, by the name of a column."""
    rates = {
        "_".join(part for part in (what, unit) if part): ("flop_per_s", factor) for what in RATES for unit, factor in FLOP_UNITS.items()
    }
    times = {f"{what}_{unit}": ("mean_ns", factor) for what in TIMES for unit, factor in TIME_UNITS.items()}
    medians = {f"{what}_{unit}": ("median_ns", factor) for what in MEDIANS for unit, factor in TIME_UNITS.items()}
    intensities = ("arithmetic_intensity", "intensity", "intensity_flop_per_byte", "arithmetic_intensity_flop_byte", "ai")
    return {
        **rates,
        "performance": ("flop_per_s", 1e12),  # the seed of such lists draws it in TFLOP/s
        **times,
        **medians,
        **dict.fromkeys(intensities, ("flop_per_byte", 1.0)),
        **dict.fromkeys(("flop", "flops", "flop_count", "total_flops"), ("flop", 1.0)),
        **dict.fromkeys(("bytes", "bytes_moved", "total_bytes"), ("bytes", 1.0)),
    }


FIGURES: Final = _figures()
POINT_FIGURES: Final = ("flop_per_s", "mean_ns", "median_ns")
"""One of them makes a table a list of benchmarks."""

CIRCUMSTANCES: Final = ("model", "batch", "dtype")
"""Of benchmarks; lists of anything else with a name seldom have one."""


@dataclass(frozen=True, slots=True)
class BenchmarkColumns:
    """Columns of a list by what they say, as the file names them. rest: those that say nothing known."""

    known: Mapping[str, str]
    factors: Mapping[str, float]
    rest: tuple[str, ...]
    has_decimal_comma: bool = False

    @classmethod
    def of(cls, header: Iterable[str], has_decimal_comma: bool = False) -> BenchmarkColumns:
        """Of two columns that say the same the first counts."""
        known: dict[str, str] = {}
        factors: dict[str, float] = {}
        rest: list[str] = []
        for column in header:
            name = re.sub(r"[^a-z0-9]+", "_", column.lower().replace("µ", "u")).strip("_")
            what, factor = FIGURES.get(name, (TEXTS.get(name) or COUNTS.get(name) or "", 1.0))
            if not what or what in known:
                rest.append(column)
                continue
            known[what], factors[what] = column, factor
        return cls(known, factors, tuple(rest), has_decimal_comma)

    @property
    def has_figure(self) -> bool:
        """A time or a rate."""
        return any(figure in self.known for figure in POINT_FIGURES)

    @property
    def is_benchmark(self) -> bool:
        """Or is meant as one: what it lacks is said when it is read."""
        return self.has_figure or ("name" in self.known and any(what in self.known for what in CIRCUMSTANCES))

    def text(self, record: JsonObject, what: str) -> str | None:
        """Return a record's text in the column of that meaning; None: it has none."""
        column = self.known.get(what)
        value = None if column is None else record.members.get(column)
        return None if value is None else value if isinstance(value, str) else str(value)

    def figure(self, record: JsonObject, what: str) -> float | None:
        """In this project's unit, over zero; None: not stated. Raises InvalidTraceError that names line and column."""
        column = self.known.get(what)
        value = None if column is None else record.members.get(column)
        if column is None or value is None:
            return None
        number = self._number(value)
        if number is None or not 0 < number * self.factors[what] < math.inf:
            record.refuse(column, "a number over zero")
        return number * self.factors[what]

    def count(self, record: JsonObject, what: str) -> int | None:
        """A whole number not below zero; None: not stated."""
        column = self.known.get(what)
        value = None if column is None else record.members.get(column)
        if column is None or value is None:
            return None
        number = whole_number(value)
        if number is None or number < 0:
            record.refuse(column, "a whole number")
        return number

    def _number(self, value: object) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return None
        if isinstance(value, str) and self.has_decimal_comma and value.count(",") == 1 and "." not in value:
            value = value.replace(",", ".")
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None


def whole_number(value: object) -> int | None:
    """Of JSON, or written in digits; None: it is none of 64 bits."""
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"[+-]?[0-9]{1,19}", value) else None
    return value if is_count(value) else None
