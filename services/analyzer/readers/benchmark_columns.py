"""What a column of a list of benchmarks says, by its name: people write them in many ways."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from services.analyzer.readers.json_document import JsonObject, is_count


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
