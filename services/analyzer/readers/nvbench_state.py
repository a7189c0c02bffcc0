"""One state of an NVBench benchmark: what was measured of one configuration on one device."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from services.analyzer.nvbench_format import INTERQUARTILE_TAGS, NO_VALUE
from services.analyzer.readers.json_document import JsonObject
from services.analyzer.readers.trace import TraceFiles
from services.core.errors import InvalidTraceError
from services.core.model import CacheMode, TimingMethod
from services.core.statistics import summarize

NS_PER_S: Final = 1e9
INT64: Final = "int64"

COLD_TIMES: Final = {
    "nv/cold/time/gpu/min": "duration_min_ns",
    "nv/cold/time/gpu/max": "duration_max_ns",
    "nv/cold/time/gpu/mean": "duration_mean_ns",
    "nv/cold/time/gpu/median": "duration_median_ns",
    "nv/cold/time/gpu/q1": "duration_lower_quartile_ns",
    "nv/cold/time/gpu/q3": "duration_upper_quartile_ns",
    "nv/cold/time/gpu/stdev/absolute": "duration_standard_deviation_ns",
}
"""Seconds in the file."""

NOISE: Final = "nv/cold/time/gpu/stdev/relative"
COLD_MEAN: Final = "nv/cold/time/gpu/mean"
COLD_COUNT: Final = "nv/cold/sample_size"
CLOCK: Final = "nv/cold/sm_clock_rate/mean"
BYTE_RATE: Final = "nv/cold/bw/global/bytes_per_second"
BATCH_MEAN: Final = "nv/batch/time/gpu/mean"
BATCH_COUNT: Final = "nv/batch/sample_size"
SAMPLE_TIMES: Final = "nv/json/bin:nv/cold/sample_times"
SAMPLE_CLOCKS: Final = "nv/json/freqs-bin:nv/cold/sample_freqs"
CLOCK_FOLDER: Final = "-freqs-bin"

COLD_TAGS: Final = frozenset({*COLD_TIMES, NOISE, COLD_COUNT, CLOCK, BYTE_RATE, SAMPLE_TIMES, SAMPLE_CLOCKS})
BATCH_TAGS: Final = frozenset({BATCH_MEAN, BATCH_COUNT})
"""What columns hold of isolated launches and of a batch; every other summary is kept as a line of the log."""

MODE_AXES: Final = {"cache": ("cache_mode", CacheMode.COLD.value), "timing": ("timing_method", TimingMethod.SINGLE.value)}
"""Axes that kernalyse adds to say what NVBench's format has no place for: their columns, and the values without them."""

OWN_TAGS: Final = "nv/"
READ_MEMBERS: Final = frozenset({"name", "device", "axis_values", "summaries", "is_skipped", "skip_reason"})
MAX_FIGURE: Final = 1e18
"""Of samples: larger ones are damage, and would not fit the 64 bits of a clock."""

Row = dict[str, Any]
Figures = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StateSamples:
    """Cold samples, from the files beside the document. sm_clock_hz: None without such a file."""

    duration_ns: Figures
    sm_clock_hz: Figures | None


@dataclass(slots=True)
class State:
    """A state and its summaries by tag; of several with one tag the first counts, the others are kept as they are."""

    source: JsonObject
    files: TraceFiles
    axis_texts: Mapping[str, Mapping[str, str]]  # how the benchmark's axes write a value, by axis and value
    has_modes: bool  # written by kernalyse: axes named cache and timing say how it was measured
    summaries: dict[str, JsonObject] = field(default_factory=dict)
    missing_files: dict[str, str] = field(default_factory=dict)  # not beside the document, by the tag that names them

    def __post_init__(self) -> None:
        for summary in self.source.optional_objects("summaries"):
            tag = summary.text("tag")
            while tag in self.summaries:
                tag += " (again)"
            self.summaries[tag] = summary

    @property
    def skip_reason(self) -> str | None:
        """Why it was not measured; None: it was not skipped."""
        if not self.source.optional_flag("is_skipped"):
            return None
        return self.source.optional_text("skip_reason") or "skipped without a reason"

    def parameters(self) -> dict[str, int]:
        """Axes of integers."""
        return {axis.text("name"): _integer(axis) for axis in self._axes() if axis.optional_text("type") == INT64}

    def variant(self) -> str:
        """Every other axis, as text: "T=F32 Duration=0.0001"."""
        return " ".join(f"{name}={text}" for name, text in self._texts().items() if not (self.has_modes and self._is_own(name, text)))

    @staticmethod
    def _is_own(name: str, text: str) -> bool:
        """What kernalyse adds to axes: how it was measured, and places of axes that other configurations have."""
        return name in MODE_AXES or text == NO_VALUE

    def _texts(self) -> dict[str, str]:
        values = {axis.text("name"): str(axis.members.get("value")) for axis in self._axes() if axis.optional_text("type") != INT64}
        return {name: self.axis_texts.get(name, {}).get(value, value) for name, value in values.items()}

    def _modes(self) -> Row:
        """NVBench's own are isolated and cold."""
        texts = self._texts() if self.has_modes else {}
        return {column: texts.get(axis, default) for axis, (column, default) in MODE_AXES.items()}

    def _axes(self) -> list[JsonObject]:
        return self.source.optional_objects("axis_values")

    # ------------------------------------------------------------ measurements

    def cold(self) -> tuple[Row, StateSamples | None] | None:
        """Columns of the isolated launches and their samples; None when there are none."""
        samples = self._samples()
        row: Row = {} if samples is None else _statistics(samples)
        row |= {column: value * NS_PER_S for tag, column in COLD_TIMES.items() if (value := self._figure(tag)) is not None}
        if row.get("duration_mean_ns") is None:
            return None
        noise = self._figure(NOISE)
        row |= {"noise_ratio": noise} if noise is not None else {}
        if noise is not None and self._figure("nv/cold/time/gpu/stdev/absolute") is None:
            row["duration_standard_deviation_ns"] = noise * row["duration_mean_ns"]  # noise is their ratio, by definition
        count, clock_hz = self._figure(COLD_COUNT), self._figure(CLOCK)
        row |= {"sample_count": self._whole(COLD_COUNT, count)} if count is not None else {}
        row |= {"sm_clock_hz": self._whole(CLOCK, clock_hz)} if clock_hz is not None else {}
        return row | self._modes(), samples

    def batch(self) -> Row | None:
        """Columns of the launches that followed each other between two events; None when there are none."""
        mean = self._figure(BATCH_MEAN)
        if mean is None:
            return None
        count = self._figure(BATCH_COUNT)
        return {
            "duration_mean_ns": mean * NS_PER_S,
            "sample_count": None if count is None else self._whole(BATCH_COUNT, count),
            "cache_mode": CacheMode.HOT.value,
            "timing_method": TimingMethod.BATCHED.value,
        }

    def bytes(self) -> float | None:
        """Of one launch. NVBench divides them by the mean to get its rate, so the product is a whole number."""
        rate, mean = self._figure(BYTE_RATE), self._figure(COLD_MEAN)
        return None if rate is None or mean is None else float(round(rate * mean))

    def leftovers(self, settings: Mapping[str, Any], *, has_cold: bool, has_batch: bool) -> dict[str, Any]:
        """What no column holds, as it stands in the file, by tag or name.

        settings: of the benchmark; the state's own are told where they differ. has_cold, has_batch: whether there are such
        measurements; without one its figures stand for themselves.
        """
        held = self._held_by_quartiles() | (COLD_TAGS if has_cold else frozenset()) | (BATCH_TAGS if has_batch else frozenset())
        kept = {tag: _content(summary) for tag, summary in self.summaries.items() if tag not in held or not self._is_read(tag)}
        for name, value in self.source.members.items():
            if name not in READ_MEMBERS and (name not in settings or settings[name] != value):
                kept[name] = value
        if (has_cold or has_batch) and self.skip_reason is not None:
            kept["skip_reason"] = self.skip_reason
        return kept

    def _held_by_quartiles(self) -> frozenset[str]:
        has_all = all(self._figure(f"nv/cold/time/gpu/{name}") is not None for name in ("q1", "median", "q3"))
        return frozenset(INTERQUARTILE_TAGS) if has_all else frozenset()

    def _is_read(self, tag: str) -> bool:
        return tag not in self.missing_files if tag in (SAMPLE_TIMES, SAMPLE_CLOCKS) else self._figure(tag) is not None

    def _whole(self, tag: str, figure: float) -> int:
        return round(figure) if 0 <= figure < MAX_FIGURE else self.summaries[tag].refuse("data", "a whole number of 64 bits")

    def _figure(self, tag: str) -> float | None:
        summary = self.summaries.get(tag)
        datum = None if summary is None else next((item for item in _data(summary) if item.text("name") == "value"), None)
        return None if datum is None else _number(datum)

    # ------------------------------------------------------------ samples

    def _samples(self) -> StateSamples | None:
        durations_s = self._companion(SAMPLE_TIMES)
        if durations_s is None:
            return None
        clocks_hz = self._companion(SAMPLE_CLOCKS)
        if clocks_hz is not None and clocks_hz.size != durations_s.size:
            raise InvalidTraceError(
                f"{self.source.place}: samples",
                found=f"{durations_s.size} times and {clocks_hz.size} clocks",
                expected="as many of one as of the other",
                remedy="The files beside the document are not of the same run: copy them again.",
            )
        return StateSamples(durations_s * NS_PER_S, clocks_hz)

    def _companion(self, tag: str) -> Figures | None:
        """Figures of a file beside the document; None when the summary or the file is missing."""
        summary = self.summaries.get(tag)
        members = {} if summary is None else {item.text("name"): item for item in _data(summary)}
        if "filename" not in members or "size" not in members:
            return None
        name, size = members["filename"].text("value"), _integer(members["size"])
        path = _beside(self.files, name)
        if path is None:
            self.missing_files[tag] = name
            return None
        figures = np.fromfile(path, dtype="<f4").astype(np.float64)
        usable_count = int(((figures >= 0) & (figures < MAX_FIGURE)).sum())  # NaN is neither
        if path.stat().st_size != 4 * size or usable_count != size:
            raise InvalidTraceError(
                f"{self.source.place}: file {name}",
                found=f"{path.stat().st_size} bytes with {usable_count} usable figures",
                expected=f"{size} figures of 4 bytes each",
                remedy="The file is damaged or of another run: copy it again.",
            )
        return figures


def _beside(files: TraceFiles, name: str) -> Path | None:
    """The file that lay beside the document. NVBench wrote other folders into names at times, and documents get renamed."""
    wanted = PurePosixPath(name.replace("\\", "/"))
    is_clock = wanted.parent.name.endswith(CLOCK_FOLDER)
    for companion, path in files.companions.items():
        found = PurePosixPath(companion)
        if found.name == wanted.name and found.parent.name.endswith(CLOCK_FOLDER) is is_clock:
            return path
    return None


def _statistics(samples: StateSamples) -> Row:
    """By samples; the file's own figures go before, for they stand on more digits than its samples have."""
    if samples.duration_ns.size < 2:
        return {"duration_mean_ns": float(samples.duration_ns[0])} if samples.duration_ns.size else {}
    return asdict(summarize(samples.duration_ns))


# ---------------------------------------------------------------- values


def _data(summary: JsonObject) -> list[JsonObject]:
    return summary.optional_objects("data")


def _content(summary: JsonObject) -> Any:
    """The value, or the values by name; of a benchmark's own summary also what it says of itself."""
    values = {item.text("name"): item.members.get("value") for item in _data(summary)}
    if summary.text("tag").startswith(OWN_TAGS):
        return values["value"] if set(values) == {"value"} else values
    return {name: value for name, value in summary.members.items() if name not in ("tag", "data")} | values


def _number(datum: JsonObject) -> float | None:
    """None for null, "nan" and "inf": NVBench writes them where there is no such figure."""
    value = datum.members.get("value")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        datum.refuse("value", "a number, as text or as it is")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        datum.refuse("value", "a number, as text or as it is")
    return number if math.isfinite(number) else None


def _integer(datum: JsonObject) -> int:
    value = datum.members.get("value")
    if isinstance(value, str | int) and not isinstance(value, bool):
        try:
            return int(value)
        except ValueError:
            pass
    datum.refuse("value", "a whole number, as text or as it is")


def as_line(subject: str, content: Any) -> str:
    """A line of the log: the subject, then the content as compact JSON."""
    return f"{subject}: {json.dumps(content, separators=(',', ':'))}"


def lines_of(subject: str, content: dict[str, Any]) -> Iterator[str]:
    if content:
        yield as_line(subject, content)
