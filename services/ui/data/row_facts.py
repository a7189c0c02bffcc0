"""The figures of a chosen row as people read them, and where else it has a place: on other pages, and among the rows of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from kernalyse.services.core.formatting import REPEATED_WORDS
from kernalyse.services.core.model import Filter, FilterOperator, TableQuery
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts.metrics import configuration_key
from kernalyse.services.ui.charts.roofline import VERIFICATION_TEXTS
from kernalyse.services.ui.charts.strips import STOP_TEXTS
from kernalyse.services.ui.data.chosen_row import ChosenRow, RowKind
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.services.ui.data.diagnosis import point_key
from kernalyse.services.ui.data.filters import whole
from kernalyse.services.ui.data.question import Question

CACHE_TEXTS: Final = {"COLD": "cold: caches flushed before each sample", "HOT": "hot: what the launch before left in the caches"}

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fact:
    title: str
    text: str
    is_bad: bool = False


def facts_of(figures: Figures, kind: RowKind) -> list[Fact]:
    """In the order in which they are looked for.

    Args:
        figures: of a ChosenRow of this kind.
    """
    found = [(title, text(figures)) for title, text in _TOLD[kind]]
    bad = {"Failed", "Implausible", "Wrong results", "Disturbed", "Disturbed by"} | (
        {"Result"} if figures.get("verification_state") == "FAILED" else set()
    )
    return [Fact(title, text, title in bad) for title, text in found if text]


def _plain(column: str, show: Callable[[Any], str]) -> Callable[[Figures], str]:
    return lambda figures: "" if figures.get(column) is None else show(figures[column])


def _flop_rate(column: str) -> Callable[[Figures], str]:
    return lambda figures: "" if figures.get(column) is None else theme.flop_rate(figures[column], figures.get("dtype"))


def _median(figures: Figures) -> str:
    if figures.get("duration_median_ns") is None:
        return ""
    text = theme.duration(figures["duration_median_ns"])
    low, high = figures.get("duration_median_low_ns"), figures.get("duration_median_high_ns")
    return text if low is None or high is None else f"{text} (95 %: {theme.duration(low)} to {theme.duration(high)})"


def _range(low_column: str, high_column: str) -> Callable[[Figures], str]:
    def text(figures: Figures) -> str:
        low, high = figures.get(low_column), figures.get(high_column)
        return "" if low is None or high is None else f"{theme.duration(low)} to {theme.duration(high)}"

    return text


def _samples(figures: Figures) -> str:
    if figures.get("sample_count") is None:
        return ""
    discarded, warm_ups = figures.get("discarded_sample_count"), figures.get("warm_up_count")
    text = theme.count(figures["sample_count"])
    text += f", {theme.count(discarded)} discarded" if discarded else ""
    return text + (f", after {theme.count(warm_ups)} warm-ups" if warm_ups else "")


def _result(figures: Figures) -> str:
    state = figures.get("verification_state")
    if state is None:
        return ""
    error = figures.get("verification_max_relative_error")
    text = str(VERIFICATION_TEXTS.get(state, state.replace("_", " ").lower()))
    return text + (f", relative error {error:.2g}" if error is not None else "")


def _efficiency(of: str = "") -> Callable[[Figures], str]:
    """of: what the columns' names begin with."""

    def text(figures: Figures) -> str:
        if figures.get(f"{of}efficiency_ratio") is None:
            return ""
        attainable, bound = figures.get(f"{of}attainable_flop_per_s"), figures.get(f"{of}bound")
        reached = theme.percent(figures[f"{of}efficiency_ratio"])
        reached += f" of {theme.flop_rate(attainable, figures.get('dtype'))}" if attainable is not None else " of what is attainable"
        return reached + (f", {bound}-bound" if bound else "")

    return text


def _failed(figures: Figures) -> str:
    return f"{figures['reason']}: {figures.get('message', '')}" if figures.get("reason") and figures.get("message") else ""


def _spills(figures: Figures) -> str:
    stored, loaded = figures.get("spill_store_bytes"), figures.get("spill_load_bytes")
    return "" if stored is None or loaded is None else f"{theme.memory(stored)} stored, {theme.memory(loaded)} loaded a thread"


def _shared(figures: Figures) -> str:
    static, dynamic = figures.get("static_shared_memory_bytes"), figures.get("dynamic_shared_memory_bytes")
    known = [f"{theme.memory(value)} {kind}" for kind, value in (("static", static), ("dynamic", dynamic)) if value is not None]
    return ", ".join(known)


def _launch(figures: Figures) -> str:
    grid, block = figures.get("grid"), figures.get("block")
    return f"{grid} blocks of {block} threads" if grid and block else ""


def _occupancy(figures: Figures) -> str:
    if figures.get("theoretical_occupancy_ratio") is None:
        return ""
    blocks = figures.get("active_block_count")
    text = f"at most {theme.percent(figures['theoretical_occupancy_ratio'])}"
    return text + (f", {theme.count(blocks)} blocks a multiprocessor" if blocks is not None else "")


def _clock(figures: Figures) -> str:
    sm, memory = figures.get("sm_clock_hz"), figures.get("memory_clock_hz")
    known = [f"{name} {theme.frequency(value)}" for name, value in (("SM", sm), ("memory", memory)) if value is not None]
    return ", ".join(known)


def _throttled(figures: Figures) -> str:
    reasons = figures.get("throttle_reasons")
    return str(reasons).replace("_", " ").replace(",", ", ") if reasons else ""


def _took(figures: Figures) -> str:
    if figures.get("elapsed_ns") is None:
        return ""
    compiling = figures.get("compile_ns")
    return theme.duration(figures["elapsed_ns"]) + (f", of which compiling {theme.duration(compiling)}" if compiling else "")


def _software(figures: Figures) -> str:
    backend, driver, toolkit = figures.get("backend"), figures.get("driver_version"), figures.get("toolkit_version")
    known = [backend and str(backend).lower(), driver and f"driver {driver}", toolkit and f"toolkit {toolkit}"]
    return ", ".join(text for text in known if text)


def _configurations(figures: Figures) -> str:
    failed = figures.get("failed_configuration_count")
    return theme.count(figures["configuration_count"]) + (f", {theme.count(failed)} failed" if failed else "")


def _spread(figures: Figures) -> str:
    low, high = figures.get("duration_median_min_ns"), figures.get("duration_median_max_ns")
    if low is None or high is None:
        return ""
    return theme.duration(low) if low == high else f"{theme.duration(low)} to {theme.duration(high)}, {high / low:.3g} times as long"


def _spread_of_efficiency(figures: Figures) -> str:
    low, median, high = (figures.get(f"efficiency_ratio_{end}") for end in ("min", "median", "max"))
    if low is None or median is None or high is None or low == high:
        return ""
    return f"{theme.percent(low)} to {theme.percent(high)}, half of them at least {theme.percent(median)}"


def _count_of_some(column: str) -> Callable[[Figures], str]:
    """Nothing is said of none."""
    return lambda figures: theme.count(figures[column]) if figures.get(column) else ""


_OF_MEASUREMENT: Final[tuple[tuple[str, Callable[[Figures], str]], ...]] = (
    ("Failed", _failed),
    ("Median", _median),
    ("Fastest to slowest", _range("duration_min_ns", "duration_max_ns")),
    ("95th to 99th percentile", _range("duration_p95_ns", "duration_p99_ns")),
    ("Noise", _plain("noise_ratio", theme.percent)),
    ("Samples", _samples),
    ("Caches", _plain("cache_mode", lambda value: CACHE_TEXTS.get(value, str(value).lower()))),
    ("Stopped by", _plain("stop_reason", lambda value: STOP_TEXTS.get(value, str(value)))),
    ("Result", _result),
    ("Result, in words", _plain("verification_message", str)),
    ("Disturbed by", _plain("disturbance", str)),
)
_OF_TRACE: Final[tuple[tuple[str, Callable[[Figures], str]], ...]] = (
    ("Launches", _plain("launch_count", theme.count)),
    ("Time in all", _plain("duration_sum_ns", theme.duration)),
    ("Share of all kernels", _plain("share_ratio", theme.percent)),
    ("Median", _plain("duration_median_ns", theme.duration)),
    ("Shortest to longest", _range("duration_min_ns", "duration_max_ns")),
)
_OF_ROOF: Final[tuple[tuple[str, Callable[[Figures], str]], ...]] = (
    ("Flop a launch", _plain("flop", lambda value: theme.si(value, "flop"))),
    ("Bytes a launch", _plain("bytes", theme.memory)),
    ("Intensity", _plain("intensity_flop_per_byte", theme.intensity)),
    ("Flop rate", _flop_rate("achieved_flop_per_s")),
    ("Byte rate", _plain("achieved_bytes_per_s", theme.byte_rate)),
    ("Efficiency", _efficiency()),
    ("Implausible", _plain("implausible_reason", str)),
)
_OF_CIRCUMSTANCES: Final[tuple[tuple[str, Callable[[Figures], str]], ...]] = (
    ("Launch", _launch),
    ("Registers a thread", _plain("register_count", theme.count)),
    ("Spills", _spills),
    ("Local memory a thread", _plain("local_memory_bytes", theme.memory)),
    ("Shared memory a block", _shared),
    ("Occupancy", _occupancy),
    ("Clocks", _clock),
    ("Temperature", _plain("temperature_celsius", theme.temperature)),
    ("Power", _plain("power_watts", theme.power)),
    ("Throttled by", _throttled),
    ("Device", _plain("device_id", str)),
    ("Software", _software),
    ("Compiler options", _plain("compiler_options", str)),
    ("Took", _took),
)
_OF_SWEPT_KERNEL: Final[tuple[tuple[str, Callable[[Figures], str]], ...]] = (
    ("Best configuration", _plain("best_label", str)),
    ("Its median", _plain("best_duration_median_ns", theme.duration)),
    ("Its flop rate", _flop_rate("best_achieved_flop_per_s")),
    ("Its byte rate", _plain("best_achieved_bytes_per_s", theme.byte_rate)),
    ("Its intensity", _plain("best_intensity_flop_per_byte", theme.intensity)),
    ("Its efficiency", _efficiency("best_")),
    ("Configurations", _configurations),
    ("Their medians", _spread),
    ("Their efficiency", _spread_of_efficiency),
    ("Wrong results", _count_of_some("verification_failed_count")),
    ("Implausible", _count_of_some("implausible_count")),
    ("Disturbed", _count_of_some("disturbed_count")),
    ("Samples", _plain("sample_count", theme.count)),
    ("Category", _plain("category", str)),
    ("Data type", _plain("dtype", str)),
    ("Device", _plain("device_id", str)),
)
_TOLD: Final[dict[RowKind, tuple[tuple[str, Callable[[Figures], str]], ...]]] = {
    "configuration": (*_OF_MEASUREMENT, *_OF_ROOF, *_OF_CIRCUMSTANCES),
    "swept kernel": _OF_SWEPT_KERNEL,
    "traced kernel": (*_OF_TRACE, *_OF_ROOF),
}


WHOLE_PASS: Final = "model"
"""Category of what is no kernel: a pass of a model, which calls many."""


@dataclass(frozen=True, slots=True)
class RowLink:
    """To a page; without one, row is the key of another row to choose."""

    title: str
    href: str = ""
    row: str = ""


class RowLinks:
    """On the server's loop; asks whether there is a history."""

    def __init__(self, client: AnalyzerClient, wake: Callable[[], None]) -> None:
        self._client = client
        self._history: Question[str] = Question(wake)

    def stop(self) -> None:
        self._history.stop()

    def of(self, row: ChosenRow, reach: Hashable) -> list[RowLink]:
        """Those known by now. reach: of the overview."""
        self._history.ask(row.key, partial(self._ask_history, row), reach)
        links = [*_on_the_roofline(row), *_within_the_run(row)]
        if series := self._history.answer_to(row.key):
            chosen = series if row.kind == "configuration" else ""
            href = _href("history", kernel=whole(row.kernel_name), subject=_history_subject(row), series=chosen)
            links.append(RowLink("Its history", href))
        return links

    async def _ask_history(self, row: ChosenRow) -> str:
        """Key of the series where several runs have it; of a kernel of a sweep, of one of its configurations. Else empty."""
        of_configuration = (Filter("label", re.sub(REPEATED_WORDS, "", row.label)),) if row.kind == "configuration" else ()
        subject = (Filter("kernel_name", row.kernel_name), Filter("subject", _history_subject(row)))
        known = (*of_configuration, *subject, *_told_apart(row), Filter("run_count", "1", FilterOperator.GREATER))
        found = (await self._client.table(TableQuery("history_series", filters=known, limit=1))).rows
        return str(found["series"][0]) if found.height else ""


def artifact_href(run_id: str, artifact_name: str) -> str:
    return f"/download/artifact?{urlencode({'run': run_id, 'name': artifact_name})}"


def _on_the_roofline(row: ChosenRow) -> list[RowLink]:
    if row.configurations is not None:
        has_points = row.configurations["achieved_flop_per_s"].count() > 0
        return [RowLink("On the roofline", _href("roofline", runs=row.run_id, kernel=whole(row.kernel_name)))] if has_points else []
    if row.figures.get("achieved_flop_per_s") is None:
        return []
    point = point_key({name: row.figures.get(name) for name in ("run_id", "configuration_index", "label", "path", "device_id")})
    return [RowLink("On the roofline", _href("roofline", runs=row.run_id, point=point))]


def _within_the_run(row: ChosenRow) -> list[RowLink]:
    """Its layer, its kernel, its configurations, and when it ran."""
    links = []
    if layer := row.figures.get("layer_path"):
        links.append(RowLink(f"Layer {layer}", _href("layers", runs=row.run_id, layer=layer, variant=row.figures.get("variant") or "")))
    if row.kind == "configuration" and row.figures.get("category") != WHOLE_PASS:
        of_kernel = {"run_id": row.run_id, "configuration_index": None, "kernel_name": row.kernel_name}
        links.append(RowLink("Its kernel", row=configuration_key(of_kernel)))
    if row.kind == "swept kernel":
        href = _href("kernels", runs=row.run_id, table="measurements", kernel=whole(row.kernel_name), configuration=row.key)
        links.append(RowLink("All its configurations", href))
    if row.is_of_trace and row.samples["measured_unix_ns"].count() > 0:
        links.append(RowLink("On the timeline", _href("timeline", runs=row.run_id, search=whole(row.kernel_name))))
    return links


def _told_apart(row: ChosenRow) -> tuple[Filter, ...]:
    """Of configurations of one label: histories have those of a cache, a backend and a device apart, not those of processes."""
    names = ("cache_mode", "backend", "device_id") if row.kind == "configuration" else ()
    return tuple(Filter(name, str(value)) for name in names if (value := row.figures.get(name)))


def _history_subject(row: ChosenRow) -> str:
    return "kernel" if row.is_of_trace else "configuration"


def _href(page: str, **fields: str) -> str:
    return f"/{page}?{urlencode({name: text for name, text in fields.items() if text})}"
