"""Two runs side by side: which they are when nobody has chosen, what they differ in, down to lines of their sources, and their rows."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import polars as pl

from kernalyse.services.core.disturbance import comparison_disturbance_notes
from kernalyse.services.core.formatting import footnote_marks
from kernalyse.services.core.model import ImportedTrace, KernelSweep, ModelRun, Run, RunState, TableQuery
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import compare
from kernalyse.services.ui.charts.roofline import PointsOf
from kernalyse.services.ui.components.chart import LegendEntry, hidden_names, hideable
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.services.ui.data.memory import Overview, RunMemory
from kernalyse.services.ui.theme import Palette

MAX_NAMED_VALUES: Final = 4
STARTED: Final = "Started (UTC)"  # differs always, and tells nothing

MEASURED_FACTS: Final[Mapping[str, str]] = {
    "device_id": "Device",
    "device_uuid": "Device UUID",
    "driver_version": "Driver",
    "toolkit_version": "Toolkit",
    "backend": "Backend",
    "compiler_options": "Compiler options",
    "cache_mode": "Cache",
    "timing_method": "Timing",
    "clocks": "Clocks",
    "input_distribution": "Inputs",
    "seed": "Seed",
}
"""Columns of table measurements whose values a comparison should name."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of what both runs are. Values are text, an en dash where unknown."""

    title: str
    before: str
    after: str
    is_different: bool


def chosen_pair(overview: Overview, baseline: str, candidate: str, overlaid: Sequence[str] = ()) -> tuple[Run | None, Run | None]:
    """Return both runs: those named, else the two that other pages overlay, else the newest and the last one like it.

    Args:
        baseline, candidate: ids; empty: nobody has chosen.
        overlaid: ids of the runs of other pages.
    """
    runs = {run.run_id: run for run in overview.runs}
    first, second = (*overlaid, "", "")[:2]
    after = runs.get(candidate or second) or (None if candidate else _newest(overview.runs, baseline))
    if baseline or (second and not candidate):
        return runs.get(baseline or first), after
    return (None if after is None else _like(after, overview.runs)), after


def _newest(runs: Iterable[Run], other_run_id: str) -> Run | None:
    return next((run for run in runs if run.state.is_final and run.run_id != other_run_id and _can_compare(run)), None)


def _can_compare(run: Run) -> bool:
    """Whether it has something to compare, as far as the list of runs tells: what has failed at its beginning has nothing."""
    has_results = run.state is RunState.SUCCEEDED or run.completed_configuration_count > run.failed_configuration_count
    return has_results and (run.is_trace or isinstance(run.spec.work, KernelSweep | ModelRun | ImportedTrace))


def _like(candidate: Run, runs: Iterable[Run]) -> Run | None:
    """The newest of the older runs of the same kind: of the same work if there is one, else of the same tool.

    Another model has hardly a launch in common with this one: rather than with that, variants are compared within their run.
    """
    older = [
        run
        for run in runs
        if run.create_time <= candidate.create_time
        and run.run_id != candidate.run_id
        and run.is_trace == candidate.is_trace
        and run.state.is_final
        and _can_compare(run)
    ]
    alike = next((run for run in older if _names(run) == _names(candidate)), None)
    if alike is None and isinstance(candidate.spec.work, ModelRun) and len(candidate.spec.work.variants) > 1:
        return candidate
    return alike or next((run for run in older if _format(run) == _format(candidate)), next(iter(older), None))


def _names(run: Run) -> tuple[str, ...]:
    """What tells one kind of work from another."""
    match run.spec.work:
        case KernelSweep(kernels):
            return tuple(sorted({kernel.kernel_name for kernel in kernels}))
        case ModelRun(model_name):
            return (model_name,)
        case _:
            return (run.title,)


def _format(run: Run) -> str:
    """Of what was imported: a profile of one tool hardly has a kernel in common with that of another."""
    return run.spec.work.format if isinstance(run.spec.work, ImportedTrace) else ""


def facts(before: RunMemory, after: RunMemory, overview: Overview) -> list[Fact]:
    """Of both runs, what differs first."""
    device_names = {
        (status.node.node_id, device.device_id): device.name
        for status in overview.nodes
        if status.node is not None
        for device in status.node.devices
    }
    sides = [_values(memory, device_names) for memory in (before, after)]
    found = []
    for title in dict.fromkeys(title for side in sides for title in side):
        first, second = (side.get(title) or theme.UNKNOWN for side in sides)
        found.append(Fact(title, first, second, title != STARTED and first != second))
    return sorted(
        (fact for fact in found if not fact.before == fact.after == theme.UNKNOWN), key=lambda fact: not fact.is_different
    )  # stable: the order above within each half


def _values(memory: RunMemory, device_names: Mapping[tuple[str, str], str]) -> dict[str, str]:
    run = memory.run
    measurements = memory.table("measurements")
    values: dict[str, str] = {}
    if run is not None:
        revision = run.spec.revision
        values[STARTED] = theme.moment(int((run.start_time or run.create_time).timestamp() * 1e9))
        values["Commit"] = "" if revision is None else revision.commit[:12] + (" with changes" if revision.is_dirty else "")
        values["Node"] = run.node_name
        values["Device name"] = device_names.get((run.node_id, run.device_id or ""), "")
    for column, title in MEASURED_FACTS.items():
        values[title] = "" if measurements is None else _listed(measurements[column])
    points = memory.table("roofline")
    if points is not None and not values["Device"]:
        values["Device"] = _listed(points["device_id"])  # traces have points, and no measurements
    return values


def _listed(column: pl.Series) -> str:
    values = column.drop_nulls().unique().sort().cast(pl.String).to_list()
    more = f" and {len(values) - MAX_NAMED_VALUES} more" if len(values) > MAX_NAMED_VALUES else ""
    return ", ".join(value for value in values[:MAX_NAMED_VALUES] if value) + more


ALL_DIFFERENCES: Final = ("device", "method", "cache", "inputs")
"""What runs may differ in; the page itself asks before it shows ratios that tell of them too."""

FILTERED_BY: Final = ("configuration_index", "category", "dtype", "model_name", "batch_size", "device_id")


@dataclass(frozen=True, slots=True, eq=False)  # one answer is another than the next, whatever is in it
class Compared:
    """rows: table comparison with what the page filters by, or of traces table kernel_comparison or layer_comparison.

    name_column: of what rows are about.
    """

    rows: pl.DataFrame
    is_of_traces: bool
    name_column: str
    is_of_one_run: bool = False

    @property
    def is_of_nothing(self) -> bool:
        """Whether both sides are one run, of which nothing has been compared with anything."""
        return self.is_of_one_run and self.rows.is_empty()

    @property
    def differences(self) -> tuple[str, ...]:
        """What both runs differ in beyond the kernel."""
        if "allowed_differences" not in self.rows.columns:
            return ()
        return tuple(self.rows["allowed_differences"].drop_nulls().str.split(",").explode().replace("", None).drop_nulls().unique().sort())


async def compared(client: AnalyzerClient, before: Run, after: Run, points: PointsOf) -> Compared:
    """Raises KernalyseError."""
    if before.run_id == after.run_id:
        of_one_run = _layers_of_one_run if points == "layer" and has_layers(before, after) else _of_one_run
        medians_ratio = pl.col("duration_median_ns") / pl.col("baseline_duration_median_ns")
        rows = (await of_one_run(client, before.run_id)).with_columns(median_ratio=medians_ratio)
        return Compared(rows, False, "label", is_of_one_run=True)
    run_ids = (before.run_id, after.run_id)
    if before.is_trace and after.is_trace:
        name_column = "layer" if points == "layer" else "kernel_name"
        rows = (await client.table(TableQuery("layer_comparison" if points == "layer" else "kernel_comparison", run_ids))).rows
        return Compared(rows, True, name_column)
    rows = (await client.table(TableQuery("comparison", run_ids, allowed_differences=ALL_DIFFERENCES))).rows
    known = [(await client.table(TableQuery("measurements", (run_id,), columns=FILTERED_BY))).rows for run_id in run_ids]
    of_before = known[0].rename(lambda name: f"{name}_before" if name != "configuration_index" else "baseline_configuration_index")
    joined = rows.join(known[1], on="configuration_index", how="left").join(of_before, on="baseline_configuration_index", how="left")
    return Compared(joined.with_columns(pl.coalesce(name, f"{name}_before") for name in FILTERED_BY[1:]), False, "label")


async def _of_one_run(client: AnalyzerClient, run_id: str) -> pl.DataFrame:
    """Configurations of one run that were measured in alternating blocks, as rows of table comparison."""
    pairs = await client.run_table("paired_comparisons", (run_id,))
    measured = await client.run_table("measurements", (run_id,))
    medians = measured.select("configuration_index", "kernel_name", "duration_median_ns", "disturbance", *FILTERED_BY[1:])
    before = measured.select(
        baseline_configuration_index="configuration_index",
        baseline_duration_median_ns="duration_median_ns",
        baseline_disturbance="disturbance",
    )
    return (
        pairs.join(medians, on="configuration_index", how="left")
        .join(before, on="baseline_configuration_index", how="left")
        .with_columns(label=pl.format("{}, before: {}", "label", "baseline_label"), occurrence=pl.lit("MATCHED"))
    )


async def _layers_of_one_run(client: AnalyzerClient, run_id: str) -> pl.DataFrame:
    """Layers of a model's variants, by batches of passes that took turns, as rows of table comparison."""
    layers = await client.run_table("layer_variants", (run_id,))
    is_of_two = layers.select("variant", "baseline_variant").n_unique() <= 1
    label = pl.col("layer") if is_of_two else pl.format("{} {}, before: {}", "layer", "variant", "baseline_variant")
    unknown = {name: pl.lit(None, pl.Int64) for name in ("configuration_index", "baseline_configuration_index")}
    unknown |= {name: pl.lit(None, pl.String) for name in FILTERED_BY[1:]}
    return layers.select(
        label.alias("label"),
        "occurrence",
        "verdict",
        "reason",
        pl.col("layer").alias("kernel_name"),
        pl.col("duration_sum_ns").alias("duration_median_ns"),
        pl.col("baseline_duration_sum_ns").alias("baseline_duration_median_ns"),
        pl.coalesce("paired_ratio", "duration_ratio").alias("duration_ratio"),
        pl.col("paired_ratio_low").alias("duration_ratio_low"),
        pl.col("paired_ratio_high").alias("duration_ratio_high"),
        pl.lit(None, pl.Float64).alias("cycle_ratio"),
        **unknown,
    )


def has_layers(before: Run, after: Run) -> bool:
    """Whether rows may be layers: of traces, and of the variants of a model."""
    return after.is_trace or (before.run_id == after.run_id and isinstance(after.spec.work, ModelRun))


# ---------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """show: of a row's value. is_text: not a number."""

    name: str
    title: str
    show: Callable[[Any], str]
    is_text: bool = False


def _text(value: Any) -> str:
    return theme.UNKNOWN if value in (None, "") else str(value)


MEASURED_COLUMNS: Final = (
    ComparedColumn("label", "Configuration", _text, True),
    ComparedColumn("verdict", "Verdict", _text, True),
    ComparedColumn("baseline_duration_median_ns", "Before", theme.duration),
    ComparedColumn("duration_median_ns", "After", theme.duration),
    ComparedColumn("duration_ratio", "Change", compare.change),
    ComparedColumn("interval", "Interval, 99 %", _text),
    ComparedColumn("median_ratio", "Change of these medians", compare.change),
    ComparedColumn("cycle_ratio", "In cycles", compare.change),
    ComparedColumn("processes", "Processes", _text),
)
IN_TURNS: Final = {"duration_ratio": "Change in turns", "verdict": "Verdict in turns"}
"""Columns of one run's own comparisons, whose figures are of blocks that took turns."""
_CHANGE: Final = (
    ComparedColumn("occurrence", "In", lambda value: {"NEW": "new", "GONE": "gone"}.get(value, "both"), True),
    ComparedColumn("baseline_duration_sum_ns", "Time before", theme.duration),
    ComparedColumn("duration_sum_ns", "Time after", theme.duration),
    ComparedColumn("duration_delta_ns", "Change", compare.signed_duration),
    ComparedColumn("delta_share_ratio", "Of all change", theme.percent),
    ComparedColumn("duration_ratio", "After ÷ before", compare.change),
    ComparedColumn("duration_per_launch_ratio", "Mean launch", compare.change),
)
_MEDIAN_CHANGE: Final = ComparedColumn("duration_median_ratio", "Median launch", compare.change)
_COUNTS: Final = (
    ComparedColumn("baseline_launch_count", "Launches before", theme.count),
    ComparedColumn("launch_count", "Launches after", theme.count),
)
TRACE_COLUMNS: Final[Mapping[str, tuple[ComparedColumn, ...]]] = {
    "kernel_name": (ComparedColumn("kernel_name", "Kernel", _text, True), *_CHANGE, _MEDIAN_CHANGE, *_COUNTS),
    "layer": (ComparedColumn("layer", "Layer", _text, True), *_CHANGE, *_COUNTS),
}


def columns_of(answer: Compared) -> tuple[ComparedColumn, ...]:
    if answer.is_of_traces:
        return TRACE_COLUMNS[answer.name_column]
    # Of two runs the change is that of the medians themselves.
    missing = {"processes"} if answer.is_of_one_run else {"median_ratio"}
    if answer.rows["cycle_ratio"].null_count() == answer.rows.height:
        missing.add("cycle_ratio")
    columns = (column for column in MEASURED_COLUMNS if column.name not in missing)
    return tuple(replace(column, title=IN_TURNS.get(column.name, column.title)) if answer.is_of_one_run else column for column in columns)


def disturbances(rows: pl.DataFrame) -> tuple[str, ...]:
    """What disturbed the measuring of either side; traces tell of none."""
    if "disturbance" not in rows.columns:
        return ()
    return comparison_disturbance_notes(*(rows.drop_nulls(f"{side}duration_median_ns")[f"{side}disturbance"] for side in ("baseline_", "")))


def reason_marks(rows: pl.DataFrame) -> dict[str, str]:
    """What stands in the table for reasons that several rows share."""
    return footnote_marks(rows["reason"]) if "reason" in rows.columns else {}


def table_rows(answer: Compared, rows: pl.DataFrame, marks: Mapping[str, str], palette: Palette) -> list[dict[str, Any]]:
    """For compared_table.html: each with cells, its verdict's look and the sentence that says why, or its mark."""
    names = compare.compared_names(rows, answer.name_column) if answer.is_of_traces else []
    shown = []
    for place, row in enumerate(rows.iter_rows(named=True)):
        if answer.is_of_traces:
            row[answer.name_column] = names[place]
        else:
            row["interval"] = compare.interval(row["duration_ratio_low"], row["duration_ratio_high"])
            counts = (row.get("baseline_process_count"), row.get("process_count"))
            row["processes"] = ", ".join(str(count) for count in counts if count is not None)
        shown.append(
            {
                "cells": [column.show(row.get(column.name)) for column in columns_of(answer)],
                "verdict": None if answer.is_of_traces else _verdict(row, palette),
                "reason": marks.get(row["reason"], row["reason"]) if row.get("reason") else "",
            }
        )
    return shown


def _verdict(row: Mapping[str, Any], palette: Palette) -> dict[str, str]:
    if row["verdict"] is None:
        return {"word": row["occurrence"].lower(), "symbol": "+" if row["occurrence"] == "NEW" else "−", "color": palette.muted}
    style = compare.verdict_style(row["verdict"], palette)
    return {"word": row["verdict"].lower(), "symbol": compare.verdict_symbol(row["verdict"], style), "color": style.color}


def verdict_legend(rows: pl.DataFrame, palette: Palette, hidden: Collection[str]) -> list[LegendEntry]:
    """The verdicts that occur."""
    return hideable((LegendEntry(*entry) for entry in compare.legend_of(rows, palette)), hidden)


def with_shown_verdicts(rows: pl.DataFrame, hidden: Collection[str]) -> pl.DataFrame:
    """Those that no click in the legend took away."""
    verdicts = hidden_names((verdict.lower() for verdict in compare.VERDICTS), hidden)
    return rows.filter(~pl.col("verdict").str.to_lowercase().is_in(list(verdicts)).fill_null(value=False)) if verdicts else rows


# ---------------------------------------------------------------- what it comes to


def tiles(answer: Compared) -> list[dict[str, str]]:
    if answer.is_of_traces:
        return _trace_tiles(answer.rows)
    counts = compare.verdict_counts(answer.rows)
    mean = [
        {"name": "Mean ratio of times, geometric", "value": compare.change(counts.mean_ratio)},
        {"name": "Its interval, 99 %", "value": compare.interval(counts.low, counts.high)},
    ]
    found = [{"name": verdict.capitalize(), "value": theme.count(count)} for verdict, count in counts.by_verdict.items()]
    only = [{"name": "New", "value": theme.count(counts.new)}, {"name": "Gone", "value": theme.count(counts.gone)}]
    return [*(mean if counts.mean_ratio is not None else []), *found, *only]


def _trace_tiles(rows: pl.DataFrame) -> list[dict[str, str]]:
    before, after = (float(rows[name].fill_null(0).sum()) for name in ("baseline_duration_sum_ns", "duration_sum_ns"))
    occurrences = {name: rows.filter(pl.col("occurrence") == name).height for name in ("MATCHED", "NEW", "GONE")}
    return [
        {"name": "Device time before", "value": theme.duration(before)},
        {"name": "Device time after", "value": theme.duration(after)},
        {"name": "Change", "value": f"{compare.signed_duration(after - before)} ({compare.change(after / before if before else None)})"},
        *({"name": name.capitalize(), "value": theme.count(count)} for name, count in occurrences.items()),
    ]


CONTEXT_LINES: Final = 3
MAX_SHOWN_LINES: Final = 2_000
"""Of one file: a page with more is slow to lay out, and nobody reads them in a browser."""

MAX_EXACT_LINES: Final = 4_000
"""Of one file: beyond, lines that come again and again are no anchors any more, else it would take seconds."""

LineKind = Literal["same", "removed", "added", "gap"]


@dataclass(frozen=True, slots=True)
class SourceLine:
    """Line numbers begin with 1; None: the side does not have the line."""

    kind: LineKind
    text: str
    number_before: int | None = None
    number_after: int | None = None


@dataclass(frozen=True, slots=True)
class FileDifference:
    """What became of one file. lines: changed ones with CONTEXT_LINES around them; none when both are the same."""

    name: str
    lines: tuple[SourceLine, ...]
    added_count: int
    removed_count: int
    hidden_count: int = 0  # lines beyond MAX_SHOWN_LINES

    @property
    def is_same(self) -> bool:
        return not self.added_count and not self.removed_count


def source_difference(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[FileDifference, ...]:
    """Of texts by file name. A single file on each side is one file, whatever it is called."""
    if len(before) == len(after) == 1 and set(before) != set(after):
        (old_name, old), (new_name, new) = *before.items(), *after.items()
        return (_file(f"{old_name} → {new_name}", old, new),)
    names = sorted({*before, *after})
    return tuple(_file(name, before.get(name, ""), after.get(name, "")) for name in names)


def _file(name: str, before: str, after: str) -> FileDifference:
    lines = tuple(_lines(before.splitlines(), after.splitlines()))
    return FileDifference(
        name,
        lines[:MAX_SHOWN_LINES],
        sum(line.kind == "added" for line in lines),
        sum(line.kind == "removed" for line in lines),
        max(0, len(lines) - MAX_SHOWN_LINES),
    )


def _lines(before: list[str], after: list[str]) -> Iterator[SourceLine]:
    is_long = max(len(before), len(after)) > MAX_EXACT_LINES
    groups = difflib.SequenceMatcher(None, before, after, autojunk=is_long).get_grouped_opcodes(CONTEXT_LINES)
    for place, group in enumerate(groups):
        if place:
            yield SourceLine("gap", "")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (SourceLine("same", before[i], i + 1, j + 1) for i, j in zip(range(i1, i2), range(j1, j2), strict=True))
            else:
                yield from (SourceLine("removed", before[i], i + 1, None) for i in range(i1, i2))
                yield from (SourceLine("added", after[j], None, j + 1) for j in range(j1, j2))
