"""Writes a run as NVBench does (JSON format 1.0.0), for tools that read NVBench's files.

A kernel becomes a benchmark; parameters and compile-time constants become integer axes, other differences between
configurations text axes. Tools look under nv/cold/…, so every measurement is there; an axis marks a hot one. Only a batch
that was measured together with isolated cold launches goes where NVBench has it, under nv/batch/…. Samples become files of
32-bit floats, as --jsonbin writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

import polars as pl

from kernalyse.services.analyzer.export.results import RunResults
from kernalyse.services.analyzer.readers.nvbench import INTERQUARTILE_TAGS, NO_VALUE
from kernalyse.services.analyzer.tables.runs import CONFIGURATIONS, FAILURES, MEASUREMENTS, SAMPLES
from kernalyse.services.core.model import CacheMode, Device, TimingMethod

NS_PER_S: Final = 1e9
INT64: Final = "int64"
FLOAT64: Final = "float64"
STRING: Final = "string"
SAMPLE_DTYPE: Final = "<f4"
CACHE_TOKENS: Final = tuple(mode.value.lower() for mode in (CacheMode.COLD, CacheMode.HOT))
"""Words that distinguish the two measurements of one problem in a variant; here an axis or the tags do."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SummaryColumn:
    """A column that becomes a summary.

    is_duration: the column is in nanoseconds, the summary in seconds. is_hidden: not shown in NVBench's tables.
    """

    column: str
    tag: str
    name: str
    hint: str
    kind: str = FLOAT64
    is_duration: bool = True
    is_hidden: bool = False


NOISE: Final = SummaryColumn("noise_ratio", "nv/cold/time/gpu/stdev/relative", "Noise", "percentage", is_duration=False)

COLD_SUMMARIES: Final = (
    SummaryColumn("sample_count", "nv/cold/sample_size", "Samples", "sample_size", INT64, is_duration=False),
    SummaryColumn("duration_min_ns", "nv/cold/time/gpu/min", "Min GPU Time", "duration", is_hidden=True),
    SummaryColumn("duration_max_ns", "nv/cold/time/gpu/max", "Max GPU Time", "duration", is_hidden=True),
    SummaryColumn("duration_mean_ns", "nv/cold/time/gpu/mean", "GPU Time", "duration"),
    SummaryColumn("duration_median_ns", "nv/cold/time/gpu/median", "Median GPU Time", "duration"),
    SummaryColumn("duration_lower_quartile_ns", "nv/cold/time/gpu/q1", "Q1 GPU Time", "duration", is_hidden=True),
    SummaryColumn("duration_upper_quartile_ns", "nv/cold/time/gpu/q3", "Q3 GPU Time", "duration", is_hidden=True),
    SummaryColumn("duration_standard_deviation_ns", "nv/cold/time/gpu/stdev/absolute", "Noise", "duration", is_hidden=True),
    NOISE,
    SummaryColumn("sm_clock_hz", "nv/cold/sm_clock_rate/mean", "Clock Rate", "frequency", is_duration=False),
)
BATCH_SUMMARIES: Final = (
    SummaryColumn("sample_count", "nv/batch/sample_size", "Samples", "sample_size", INT64, is_duration=False),
    SummaryColumn("duration_mean_ns", "nv/batch/time/gpu/mean", "Batch GPU", "duration"),
)
EXPORTED_COLUMNS: Final = frozenset(summary.column for summary in COLD_SUMMARIES) | {
    "run_id", "event_index", "configuration_index", "kernel_name", "label", "parameters", "macros", "variant", "device_id", "bytes",
    "cache_mode", "timing_method", "process_index",
}  # fmt: skip
"""Columns of measurements that become summaries, axes or names; the first three mean nothing outside the store."""


@dataclass(frozen=True, slots=True)
class NvbenchDocument:
    """The document with its files.

    files: samples, by path relative to the document's directory. notices: one sentence for each thing that the format cannot hold.
    """

    text: str
    files: Mapping[str, bytes]
    notices: tuple[str, ...]


def nvbench_document(results: RunResults, file_name: str | None) -> NvbenchDocument:
    """Return the run as an NVBench document.

    Args:
        results: the run.
        file_name: of the document, which its files of samples are named after; None: without samples.
    """
    writer = _DocumentWriter(results, file_name)
    benchmarks = [writer.benchmark(index, name) for index, name in enumerate(writer.kernel_names())]
    omitted = writer.omitted_columns()
    document = {
        "meta": {
            "argv": ["kernalyse", "export", results.run["run_id"], "--format", "nvbench"],
            "version": {
                "json": {"major": 1, "minor": 0, "patch": 0, "string": "1.0.0"},
                "kernalyse": {"string": version("kernalyse")},
            },
            "kernalyse": {"run_id": results.run["run_id"], "title": results.run["title"], "left_out_columns": omitted},
        },
        "devices": writer.devices(),
        "benchmarks": benchmarks,
    }
    return NvbenchDocument(json.dumps(document, indent=1) + "\n", writer.files, tuple(writer.notices(omitted)))


@dataclass(slots=True)
class _State:
    """A configuration, which becomes one state, and the batch that was measured with it."""

    configuration: Row
    measurement: Row | None
    failure: Row | None
    batch: Row | None = None

    @property
    def cache_mode(self) -> str:
        """Cache mode of the measurement, COLD where none is known."""
        return str((self.measurement or {}).get("cache_mode") or self.configuration["cache_mode"] or CacheMode.COLD.value)

    @property
    def timing_method(self) -> str:
        """Timing method of the measurement, SINGLE where none is known."""
        return str((self.measurement or {}).get("timing_method") or TimingMethod.SINGLE.value)

    @property
    def is_isolated_cold(self) -> bool:
        """Whether single launches with cold caches were measured."""
        return self.measurement is not None and (self.cache_mode, self.timing_method) == ("COLD", "SINGLE")

    @property
    def is_batch(self) -> bool:
        """Whether a batch or graph of launches with hot caches was measured."""
        return self.measurement is not None and self.cache_mode == "HOT" and self.timing_method in ("BATCHED", "GRAPH")

    @property
    def problem(self) -> tuple[object, ...]:
        """Values that two measurements of one problem have in common."""
        columns = ("kernel_name", "parameters", "macros", "process_index")
        device_id = (self.measurement or {}).get("device_id")
        return (*(self.configuration[name] for name in columns), tuple(self.variant_parts()), device_id)

    def variant_parts(self) -> Iterator[tuple[str, str]]:
        """Yield the variant as names and values, without compile-time constants and caches, which have axes of their own."""
        macros = _integers(self.configuration["macros"])
        for part in re.split(r" (?=[^ =]+=)| (?=(?:cold|hot)(?: |$))", self.configuration["variant"] or ""):
            name, is_named, value = part.partition("=")
            if name in macros or part in ("", *CACHE_TOKENS):
                continue
            yield (name, value) if is_named else ("variant", part)


@dataclass(slots=True)
class _DocumentWriter:
    """A document that is being written."""

    results: RunResults
    file_name: str | None
    files: dict[str, bytes] = field(default_factory=dict)
    _states: list[_State] = field(default_factory=list)
    _device_ids: list[str | None] = field(default_factory=list)
    _samples: dict[int, pl.DataFrame] = field(default_factory=dict)
    _unmeasured_count: int = 0

    def __post_init__(self) -> None:
        measurements, failures = (
            {row["configuration_index"]: row for row in self.results.frames[table.table_name].iter_rows(named=True)}
            for table in (MEASUREMENTS, FAILURES)
        )
        configurations = self.results.frames[CONFIGURATIONS.table_name].sort("configuration_index")
        for row in configurations.iter_rows(named=True):
            index = row["configuration_index"]
            if index in measurements or index in failures:
                self._states.append(_State(row, measurements.get(index), failures.get(index)))
        self._unmeasured_count = configurations.height - len(self._states)
        self._join_batches()
        # A failure names no device: it gets the run's, which therefore is number 0.
        named = [self.results.run["device_id"], *(state.measurement["device_id"] for state in self._states if state.measurement)]
        self._device_ids = list(dict.fromkeys(device_id for device_id in named if device_id is not None)) or [None]
        samples = self.results.frames[SAMPLES.table_name].filter(~pl.col("is_discarded").fill_null(False))
        self._samples = {
            int(str(key[0])): part for key, part in samples.sort("sample_index").partition_by("configuration_index", as_dict=True).items()
        }

    def _join_batches(self) -> None:
        """Move each batch into the state of the isolated cold launches of the same problem, if there is one."""
        cold = {state.problem: state for state in self._states if state.is_isolated_cold}
        for state in [state for state in self._states if state.is_batch and state.problem in cold]:
            if cold[state.problem].batch is None:
                cold[state.problem].batch = state.measurement
                self._states.remove(state)

    # ------------------------------------------------------------ contents

    def kernel_names(self) -> list[str]:
        """Return the names of the benchmarks."""
        return list(dict.fromkeys(state.configuration["kernel_name"] for state in self._states))

    def devices(self) -> list[Row]:
        """Return the devices by number."""
        known = {device.device_id: device for device in self.results.devices}
        return [_device(number, device_id, known.get(device_id or "")) for number, device_id in enumerate(self._device_ids)]

    def benchmark(self, index: int, kernel_name: str) -> Row:
        """Return the benchmark of one kernel with its axes and states."""
        states = [state for state in self._states if state.configuration["kernel_name"] == kernel_name]
        has_cache = any(state.cache_mode != CacheMode.COLD for state in states if state.measurement)
        has_timing = any(state.timing_method != TimingMethod.SINGLE for state in states if state.measurement)
        values = _aligned([_axis_values(state, has_cache=has_cache, has_timing=has_timing) for state in states])
        written = [self._state(state, axis_values) for state, axis_values in zip(states, values, strict=True)]
        devices = sorted({state["device"] for state in written})
        return {"name": kernel_name, "index": index, "devices": devices, "axes": _axes(values) or None, "states": written}

    def _state(self, state: _State, axis_values: list[Row]) -> Row:
        device_id = None if state.measurement is None else state.measurement["device_id"]
        device = self._device_ids.index(device_id) if device_id in self._device_ids else 0
        row: Row = {
            "name": " ".join(
                (f"Device={device}", *(f"{value['name']}={value['value']}" for value in axis_values if value["value"] != NO_VALUE))
            ),
            "device": device,
            "axis_values": axis_values or None,
            "summaries": [],
            "is_skipped": state.measurement is None,
        }
        if state.measurement is not None:
            row["summaries"] = [*_summaries(state), *self._sample_summaries(state.configuration["configuration_index"])]
        elif state.failure is not None:
            row["skip_reason"] = ": ".join(part for part in (state.failure["reason"], state.failure["message"]) if part)
        return row

    def _sample_summaries(self, configuration_index: int) -> Iterator[Row]:
        samples = self._samples.get(configuration_index)
        if samples is None or self.file_name is None:
            return
        number = len({name for name in self.files if "-freqs-bin/" not in name})
        times = (samples["duration_ns"] / NS_PER_S).to_numpy().astype(SAMPLE_DTYPE)
        yield self._sample_file("sample_times", "nv/json/bin:nv/cold/sample_times", f"{self.file_name}-bin/{number}.bin", times)
        if samples["sm_clock_hz"].null_count() == 0:
            clocks = samples["sm_clock_hz"].to_numpy().astype(SAMPLE_DTYPE)
            yield self._sample_file(
                "sample_freqs", "nv/json/freqs-bin:nv/cold/sample_freqs", f"{self.file_name}-freqs-bin/{number}.bin", clocks
            )

    def _sample_file(self, hint: str, tag: str, name: str, values: Any) -> Row:
        self.files[name] = values.tobytes()
        data = [_datum("filename", STRING, name), _datum("size", INT64, values.size)]
        return {"tag": tag, "name": hint, "hint": f"file/{hint}", "hide": "Not needed in tables.", "data": data}

    # ------------------------------------------------------------ omissions

    def omitted_columns(self) -> list[str]:
        """Return the columns of measurements that have values but no place in NVBench's format."""
        measurements = self.results.frames[MEASUREMENTS.table_name]
        return [
            name for name in measurements.columns if name not in EXPORTED_COLUMNS and measurements[name].null_count() < measurements.height
        ]

    def notices(self, omitted_columns: list[str]) -> Iterator[str]:
        """Yield a sentence for each thing that the format cannot hold."""
        if omitted_columns:
            yield f"NVBench's format has no place for these columns: {', '.join(omitted_columns)}."
        if any(state.cache_mode == CacheMode.HOT for state in self._states if state.measurement):
            yield "Hot measurements stand under nv/cold/, where NVBench's tools look; their states say cache=HOT."
        if any(state.batch is not None and state.batch["duration_median_ns"] is not None for state in self._states):
            yield "Of a batch measured with cold launches NVBench has the mean and the count: its other statistics are left out."
        if self._unmeasured_count:
            yield f"{self._unmeasured_count} configurations that were neither measured nor failed are left out."
        if self._samples and self.file_name is None:
            yield "Samples are left out: they go into files next to the document (-o FILE)."


def _integers(text: str | None) -> dict[str, int]:
    values: dict[str, int] = json.loads(text) if text else {}
    return values


def _axis_values(state: _State, *, has_cache: bool, has_timing: bool) -> list[Row]:
    integers = _integers(state.configuration["parameters"]) | _integers(state.configuration["macros"])
    texts = dict(state.variant_parts())
    if has_cache:
        texts["cache"] = state.cache_mode
    if has_timing:
        texts["timing"] = state.timing_method
    return [
        *(_datum(name, INT64, value) for name, value in integers.items()),
        *(_datum(name, STRING, text) for name, text in texts.items()),
    ]


def _aligned(values_of_states: list[list[Row]]) -> list[list[Row]]:
    """Return the states' values in one order of axes: NVBench's tools show values under their axes by position.

    An axis that some state lacks is a text axis, with NO_VALUE there.
    """
    names = list(dict.fromkeys(value["name"] for values in values_of_states for value in values))
    by_name = [{value["name"]: value for value in values} for values in values_of_states]
    partial = {name for name in names if any(name not in values for values in by_name)}
    return [
        [_datum(name, STRING, values[name]["value"] if name in values else NO_VALUE) if name in partial else values[name] for name in names]
        for values in by_name
    ]


def _axes(values_of_states: list[list[Row]]) -> list[Row]:
    """Return every axis with its values in order of first appearance."""
    axes: dict[str, Row] = {}
    for values in values_of_states:
        for value in values:
            axis = axes.setdefault(value["name"], {"name": value["name"], "type": value["type"], "flags": "", "values": {}})
            axis["values"][value["value"]] = {
                "input_string": value["value"],
                "description": "",
                "value": int(value["value"]) if value["type"] == INT64 else value["value"],
            }
    return [axis | {"values": list(axis["values"].values())} for axis in axes.values()]


def _summaries(state: _State) -> Iterator[Row]:
    measurement = state.measurement or {}
    yield from _measured_summaries(COLD_SUMMARIES, measurement, state)
    if measurement.get("noise_ratio") is None and measurement.get("duration_mean_ns") is not None:
        yield _summary(NOISE, None, "Not known")  # without one NVBench's comparison passes the state over
    yield from _interquartile_range(measurement)
    mean_ns, moved_bytes = measurement.get("duration_mean_ns"), measurement.get("bytes")
    if mean_ns and moved_bytes:
        rate = SummaryColumn("bytes", "nv/cold/bw/global/bytes_per_second", "GlobalMem BW", "byte_rate", is_duration=False)
        yield _summary(rate, moved_bytes / (mean_ns / NS_PER_S), "Bytes that a launch must move over its mean time")
    if state.batch is not None:
        yield from _measured_summaries(BATCH_SUMMARIES, state.batch, state)


def _interquartile_range(measurement: Row) -> Iterator[Row]:
    """Yield the interquartile range, which newer tools of NVBench take for the noise."""
    lower, median, upper = (measurement.get(f"duration_{name}_ns") for name in ("lower_quartile", "median", "upper_quartile"))
    if lower is not None and upper is not None and median:
        for tag in INTERQUARTILE_TAGS:
            is_relative = tag.endswith("/relative")
            summary = SummaryColumn("", tag, "Noise", "percentage" if is_relative else "duration", is_duration=False, is_hidden=True)
            yield _summary(summary, (upper - lower) / (median if is_relative else NS_PER_S), "Interquartile range")


def _measured_summaries(summaries: tuple[SummaryColumn, ...], measurement: Row, state: _State) -> Iterator[Row]:
    for summary in summaries:
        value = measurement.get(summary.column)
        if value is not None:
            description = (
                f"{summary.column} of kernalyse, cache {state.cache_mode.lower()}" if summaries is COLD_SUMMARIES else summary.column
            )
            yield _summary(summary, value / NS_PER_S if summary.is_duration else value, description)


def _summary(summary: SummaryColumn, value: float | None, description: str) -> Row:
    """Return a summary. value: None for infinite or not known, as NVBench writes it."""
    datum = _datum("value", summary.kind, value if value is None else int(value) if summary.kind == INT64 else float(value))
    hidden = {"hide": "Hidden by default."} if summary.is_hidden else {}
    return {"tag": summary.tag, "name": summary.name, "description": description, "hint": summary.hint, **hidden, "data": [datum]}


def _datum(name: str, kind: str, value: object) -> Row:
    return {"name": name, "type": kind, "value": None if value is None else str(value)}


def _device(number: int, device_id: str | None, device: Device | None) -> Row:
    """Return a device in NVBench's terms; values that are not known are null."""
    if device is None:
        return {"id": number, "name": device_id or "unknown"}
    major, _, minor = (device.compute_capability or "").partition(".")
    return {
        "id": number,
        "name": device.name,
        "sm_version": int(major) * 100 + int(minor) * 10 if major and minor else None,
        "sm_default_clock_rate": device.max_clock_hz,
        "number_of_sms": device.compute_unit_count,
        "max_threads_per_block": device.max_threads_per_block,
        "global_memory_size": device.memory_bytes,
        "l2_cache_size": device.l2_cache_bytes,
        "shared_memory_per_block": device.max_shared_memory_bytes,
    }
