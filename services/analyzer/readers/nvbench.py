"""Reads the JSON that NVBench writes (--json, --jsonbin; format version 1), all states of all devices.

A state becomes a configuration for its isolated launches (cold) and a second one for its batch (hot); axes of integers
become parameters, other axes the variant. A skipped state is a configuration that failed, for the reason given. What no
column holds is kept, as it stands in the file, as lines of the log.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles
from kernalyse.services.analyzer.readers.documents import JsonObject, read_document
from kernalyse.services.analyzer.readers.result_rows import ResultRows, label_of
from kernalyse.services.analyzer.tables.base import COUNT
from kernalyse.services.analyzer.tables.runs import SAMPLES
from kernalyse.services.core.errors import InvalidTraceError
from kernalyse.services.core.model import CacheMode, TimingMethod
from kernalyse.services.core.statistics import summarize

FORMAT: Final = "nvbench"
READ_MAJOR: Final = 1
WRITER: Final = "kernalyse"
"""Among the versions of a file that this project exported."""

SKIPPED: Final = "SKIPPED"
NOT_TIMED: Final = "NO_GPU_TIME"
KEPT_ELSEWHERE: Final = ("name", "states")
BANDWIDTH: Final = "global_memory_bus_bandwidth"


class NvbenchReader:
    """Reader of NVBench's JSON files."""

    format = FORMAT
    description = "NVBench JSON"

    def matches(self, head: bytes) -> bool:
        """Return whether a file begins as one of this format."""
        return re.match(rb"\s*\{", head) is not None and b'"devices"' in head and b'"benchmarks"' in head

    def read(self, files: TraceFiles) -> ReadResult:
        """Read the file. Raises InvalidTraceError."""
        document = read_document(files)
        version = _version(document)
        devices = _devices(document)
        rows = ResultRows(FORMAT, files.arrived_unix_ns, ceilings=_ceilings(devices))
        reading = _Reading(files, rows, devices, has_modes=WRITER in _versions(document))
        rows.add_lines(_document_lines(document, devices))
        for index, benchmark in enumerate(document.objects("benchmarks")):
            reading.add_benchmark(JsonObject(f"file {files.file_name}, benchmark {index}", benchmark.members))
        if not rows.configurations:
            raise InvalidTraceError(
                f"file {files.file_name}", found="no state of any benchmark", expected="at least one", remedy="Run the benchmarks first."
            )
        return ReadResult(
            frames=reading.frames(),
            notes="\n".join(reading.notes(version, document)),
            device_id=next(iter(reading.device_ids)) if len(reading.device_ids) == 1 else None,
        )


# ---------------------------------------------------------------- the file


def _version(document: JsonObject) -> str:
    """Of the format. A file without one is older than versions; its structure tells whether it can be read."""
    found = _versions(document).get("json")
    if not isinstance(found, dict):
        return "none"
    version = JsonObject(f"{document.place}: version of the format", found)
    if version.count("major") != READ_MAJOR:
        raise InvalidTraceError(
            document.place,
            found=f"NVBench JSON of version {version.optional_text('string') or version.count('major')}",
            expected=f"version {READ_MAJOR}",
            remedy="Import it with a version of kernalyse that knows it.",
        )
    return version.optional_text("string") or str(READ_MAJOR)


def _versions(document: JsonObject) -> dict[str, Any]:
    """Of the format and of what wrote it, by name."""
    meta = document.members.get("meta")
    found = meta.get("version") if isinstance(meta, dict) else None
    return found if isinstance(found, dict) else {}


def _axis_texts(benchmark: JsonObject) -> dict[str, dict[str, str]]:
    """How values are written, by axis and value: a float64 axis has 0.0003 where its states have 0.00030000000000000003."""
    return {
        axis.text("name"): {str(value.members.get("value")): value.text("input_string") for value in axis.objects("values")}
        for axis in benchmark.optional_objects("axes")
        if axis.optional_text("type") == "float64"
    }


@dataclass(frozen=True, slots=True)
class _Device:
    """device_id: its name, with its number where several have the same."""

    device_id: str
    source: JsonObject


def _devices(document: JsonObject) -> dict[int, _Device]:
    """By the number that states name them with."""
    sources = document.optional_objects("devices")
    counts = Counter(source.text("name") for source in sources)
    return {
        source.count("id"): _Device(
            source.text("name") if counts[source.text("name")] == 1 else f"{source.text('name')} [{source.count('id')}]", source
        )
        for source in sources
    }


def _document_lines(document: JsonObject, devices: dict[int, _Device]) -> list[str]:
    meta = document.members.get("meta")
    return [
        *([as_line("meta", meta)] if meta is not None else []),
        *(as_line(f"device {device.device_id}", device.source.members) for device in devices.values()),
        *lines_of("document", {name: value for name, value in document.members.items() if name not in ("meta", "devices", "benchmarks")}),
    ]


def _ceilings(devices: dict[int, _Device]) -> list[Row]:
    """The bandwidth that the driver states, which NVBench's own utilization refers to."""
    return [
        {
            "device_id": device.device_id,
            "ceiling_name": "dram",
            "unit": "bytes_per_s",
            "value": float(value),
            "path": "copy",
            "source": "clock",
            "confidence": "",
            "note": "NVBench: memory clock x bus width, as the driver states them",
        }
        for device in devices.values()
        if isinstance(value := device.source.members.get(BANDWIDTH), int | float) and 0 < value < MAX_FIGURE
    ]


# ---------------------------------------------------------------- benchmarks and states


@dataclass(slots=True)
class _Reading:
    """Rows as they are found."""

    files: TraceFiles
    rows: ResultRows
    devices: dict[int, _Device]
    has_modes: bool
    samples: list[pl.DataFrame] = field(default_factory=list)
    missing_files: list[str] = field(default_factory=list)
    leftover_names: Counter[str] = field(default_factory=Counter)
    device_ids: dict[str, None] = field(default_factory=dict)
    isolated_count: int = 0

    def add_benchmark(self, benchmark: JsonObject) -> None:
        name = benchmark.text("name")
        settings = {key: value for key, value in benchmark.members.items() if key not in KEPT_ELSEWHERE}
        self.rows.add_lines(lines_of(f"benchmark {name}", settings))
        axis_texts = _axis_texts(benchmark)
        for index, source in enumerate(benchmark.optional_objects("states")):
            place = f"file {self.files.file_name}, benchmark {name}, state {index}"
            self._add_state(name, State(JsonObject(place, source.members), self.files, axis_texts, self.has_modes), settings)

    def _add_state(self, kernel_name: str, state: State, settings: dict[str, Any]) -> None:
        device_id = self._device_id(state.source)
        cold, batch = state.cold(), state.batch()
        both = cold is not None and batch is not None
        if cold is not None:
            row, samples = cold
            self._add_measurement(kernel_name, state, device_id, row, "cold" if both else "")
            self._add_samples(samples)
            self.isolated_count += 1
        if batch is not None:
            self._add_measurement(kernel_name, state, device_id, batch, "hot" if both else "")
        if cold is None and batch is None:
            self._add_failure(kernel_name, state)
        leftovers = state.leftovers(settings, has_cold=cold is not None, has_batch=batch is not None)
        self.leftover_names.update(leftovers.keys())
        self.missing_files += state.missing_files.values()
        self.rows.add_lines(lines_of(f"{kernel_name} {state.source.optional_text('name') or ''}".rstrip(), leftovers))

    def _device_id(self, source: JsonObject) -> str | None:
        number = source.optional_count("device")
        if number is None:
            return None
        if number not in self.devices:
            source.refuse("device", f"one of {', '.join(map(str, self.devices)) or 'none: the file has no devices'}")
        device_id = self.devices[number].device_id
        self.device_ids[device_id] = None
        return device_id

    def _configuration(self, kernel_name: str, state: State, extra: str = "") -> Row:
        parameters = state.parameters()
        variant = " ".join(part for part in (state.variant(), extra) if part)
        return {
            "kernel_name": kernel_name,
            "label": label_of(kernel_name, parameters, variant),
            "parameters": parameters,
            "variant": variant,
            "category": None,  # the name is a benchmark's, not a kernel's
            "bytes": state.bytes(),
        }

    def _add_measurement(self, kernel_name: str, state: State, device_id: str | None, columns: Row, extra: str) -> None:
        configuration = self._configuration(kernel_name, state, extra) | {"cache_mode": columns["cache_mode"]}
        self.rows.add(configuration, {"device_id": device_id} | columns)

    def _add_samples(self, samples: StateSamples | None) -> None:
        """Of the configuration added last."""
        if samples is None:
            return
        count = samples.duration_ns.size
        columns = {
            "configuration_index": pl.repeat(len(self.rows.configurations) - 1, count, dtype=COUNT, eager=True),
            "sample_index": np.arange(count),
            "duration_ns": samples.duration_ns,
            "is_discarded": np.zeros(count, dtype=np.bool_),
        }
        if samples.sm_clock_hz is not None:
            columns["sm_clock_hz"] = np.rint(samples.sm_clock_hz).astype(np.int64)
        self.samples.append(SAMPLES.conform(pl.LazyFrame(columns)).collect())

    def _add_failure(self, kernel_name: str, state: State) -> None:
        message, reason = (
            (state.skip_reason, SKIPPED) if state.skip_reason else ("The state has no GPU time; its figures are in the log.", NOT_TIMED)
        )
        self.rows.add_unmeasured(self._configuration(kernel_name, state), message, reason)

    # ------------------------------------------------------------ all of it

    def frames(self) -> dict[str, pl.DataFrame]:
        return self.rows.frames(self.files.file_name) | {SAMPLES.table_name: pl.concat([SAMPLES.empty(), *self.samples])}

    def notes(self, version: str, document: JsonObject) -> Iterator[str]:
        meta = document.members.get("meta")
        command = meta.get("argv") if isinstance(meta, dict) else None
        yield f"NVBench JSON, version {version}."
        if isinstance(command, list) and command:
            yield f"Command: {' '.join(map(str, command))}"
        yield f"Devices: {', '.join(self.device_ids) or 'none'}."
        batch_count, failure_count = len(self.rows.measurements) - self.isolated_count, len(self.rows.failures)
        yield f"{self.isolated_count} isolated and {batch_count} batch measurements; {failure_count} states without a measurement."
        if any(row.get("duration_median_ns") is None for row in self.rows.measurements):
            yield "Where the file has no median, rates are over the mean."
        if self.missing_files:
            yield f"{len(self.missing_files)} files of samples were not beside it, e.g. {self.missing_files[0]}."
        if self.leftover_names:
            names = ", ".join(f"{name} ({count})" for name, count in sorted(self.leftover_names.items()))
            yield f"Kept as log lines, for no column holds them: {names}."


# ---------------------------------------------------------------- nvbench state
# One state of an NVBench benchmark: what was measured of one configuration on one device.

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
CLOCK_DIRECTORY: Final = "-freqs-bin"

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
    """The file that lay beside the document. NVBench wrote other directories into names at times, and documents get renamed."""
    wanted = PurePosixPath(name.replace("\\", "/"))
    is_clock = wanted.parent.name.endswith(CLOCK_DIRECTORY)
    for companion, path in files.companions.items():
        found = PurePosixPath(companion)
        if found.name == wanted.name and found.parent.name.endswith(CLOCK_DIRECTORY) is is_clock:
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
    """Yield the line that keeps content as JSON under a subject; none where there is no content."""
    if content:
        yield as_line(subject, content)


# ---------------------------------------------------------------- nvbench format
# What both sides of NVBench's format share: the reader takes back what the writer has put in.

NO_VALUE: Final = "-"
"""In files that kernalyse wrote: of an axis that the configuration has not got, and others of its kernel have."""

INTERQUARTILE_TAGS: Final = tuple(f"nv/cold/time/gpu/{name}/{kind}" for name in ("iqr", "ir") for kind in ("absolute", "relative"))
"""They follow from median and quartiles. The name changed: NVBench's tools of 2026 read the one or the other."""
