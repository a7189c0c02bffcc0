"""Joins reports of ncu with the launches that they count: their own, or those of a trace of the same program.

Report and trace share no identifiers. A kernel is matched by its name, in the most detailed form that both have; its launches
by launch configuration, and within one configuration by their order. ncu often profiles some launches only: where a trace repeats
them step by step, each repetition gets the counters of the launch that it repeats; the others of the same name and configuration
get the mean of those found, and say so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

import polars as pl

from kernalyse.services.analyzer.analysis.counters import LAUNCH_KEYS, counted_work, first_metric, in_project_units
from kernalyse.services.analyzer.readers.base import ReadResult
from kernalyse.services.analyzer.readers.ncu.csv_report import NcuReport
from kernalyse.services.analyzer.readers.ncu.reader import parse_dimensions, report_counters
from kernalyse.services.analyzer.readers.ncu.run_counters import KernelNameSpellings, qualifiers, template_spelling
from kernalyse.services.analyzer.tables.base import COUNT, INDEX, TEXT
from kernalyse.services.analyzer.tables.runs import CONFIGURATIONS, COUNTER_REPORTS, COUNTERS
from kernalyse.services.analyzer.tables.traces import KERNEL_LAUNCHES, LAUNCH_WORK, TRACE_NAMES
from kernalyse.services.core.costs.operator import MODELLED
from kernalyse.services.core.errors import InvalidTraceError

COUNTERS_SOURCE: Final = "counters"
CONFIGURATION_SOURCE: Final = "counters of the same launch configuration"

LAUNCH_CONFIGURATION_COLUMNS: Final = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in ("x", "y", "z"))
LAUNCH_SHAPE: Final = ("key", *LAUNCH_CONFIGURATION_COLUMNS)
"""Columns that identify launches of one kernel with one launch configuration, which are alike."""

PLACE: Final = ("shape_index", "process", "order")
"""Columns of launches by which those of trace and report are equal: kernel and configuration, process, and the order within."""

JOIN_INPUT: Final = {
    KERNEL_LAUNCHES.table_name: ("launch_index", "name_index", "process_id", "duration_ns", *LAUNCH_CONFIGURATION_COLUMNS),
    TRACE_NAMES.table_name: ("name_index", "name"),
}
"""Columns of a trace that joining needs, by table."""

COST_COLUMNS: Final = ("flop", "bytes", "l2_bytes", "l1_bytes")
COST_KIND_COLUMNS: Final = ("dtype", "path")

LAUNCH_STATISTICS: Final = {
    "registers_per_thread": "launch__registers_per_thread",
    "static_shared_bytes": "launch__shared_mem_per_block_static",
    "dynamic_shared_bytes": "launch__shared_mem_per_block_dynamic",
}
MAX_NAMED_KERNELS: Final = 5


def with_own_counters(tables: ReadResult) -> ReadResult:
    """Return a report that is a trace itself with durations, sizes and costs of its launches; other tables as they are."""
    counters, launches = tables.frames.get(COUNTERS.table_name), tables.frames.get(KERNEL_LAUNCHES.table_name)
    if counters is None or launches is None:
        return tables
    counted = _counted(counters)
    statistics = _launch_statistics(counters)
    filled = launches.join(
        counted.select("launch_index", duration_ns=pl.col("duration_ns").round().cast(COUNT)), on="launch_index", how="left"
    ).join(statistics, on="launch_index", how="left")
    untimed_count = filled["duration_ns"].null_count()
    notes = [tables.notes]
    if untimed_count:
        notes.append(f"{untimed_count} of its {filled.height} launches have no duration: it has to count gpu__time_duration.sum.")
    work = _known_costs(counted).with_columns(work_source=pl.lit(COUNTERS_SOURCE))
    frames = {**tables.frames, KERNEL_LAUNCHES.table_name: filled.sort("launch_index"), LAUNCH_WORK.table_name: _merge_work([work])}
    return replace(tables, frames=frames, notes="\n".join(notes))


def with_reports(tables: ReadResult, reports: Mapping[str, NcuReport]) -> ReadResult:
    """Return a trace with the costs that reports of the same program count. Of several, the first that knows a value gives it.

    Args:
        reports: by file name.

    Raises:
        InvalidTraceError: none of a report's kernels is in the trace.
    """
    launches, names = (tables.frames[table.table_name] for table in (KERNEL_LAUNCHES, TRACE_NAMES))
    own = tables.frames.get(LAUNCH_WORK.table_name, LAUNCH_WORK.empty())
    is_modelled = pl.col("work_source") == MODELLED
    found = [own.filter(~is_modelled)]
    notes = [tables.notes]
    for file_name, report in reports.items():
        joined = _JoinedCounters.of(launches, names, report)
        if joined.work.is_empty():
            raise _unrelated_report(file_name, report)
        found.append(joined.work)
        notes += [f"{file_name}: {note}" for note in (*joined.notes(), *report.notes)]
    frames = {**tables.frames, LAUNCH_WORK.table_name: _merge_work([*found, own.filter(is_modelled)])}
    return replace(tables, frames=frames, notes="\n".join(notes))


# ---------------------------------------------------------------- costs in a report


def _counted(counters: pl.DataFrame) -> pl.DataFrame:
    """Return table counted_work for the rows of one report."""
    return counted_work(_as_store_rows(counters), COUNTER_REPORTS.empty().lazy(), CONFIGURATIONS.empty().lazy()).collect()


def _as_store_rows(counters: pl.DataFrame) -> pl.LazyFrame:
    """Return the rows with run_id and event_index, which the rows of a report share in a store."""
    return COUNTERS.conform(counters.lazy().with_columns(run_id=pl.lit(""), event_index=pl.lit(0)))


def _launch_statistics(counters: pl.DataFrame) -> pl.DataFrame:
    return (
        in_project_units(_as_store_rows(counters))
        .group_by(LAUNCH_KEYS)
        .agg(first_metric(metric).round().alias(column) for column, metric in LAUNCH_STATISTICS.items())
        .select(
            pl.col("launch_index").cast(INDEX),
            *(pl.col(column).cast(KERNEL_LAUNCHES.column(column).dtype, strict=False) for column in LAUNCH_STATISTICS),
        )
        .collect()
    )


def _known_costs(counted: pl.DataFrame) -> pl.DataFrame:
    """Return the launches of which some cost is known."""
    return counted.select(
        pl.col("launch_index").cast(INDEX), "flop", pl.col("dram_bytes").alias("bytes"), "l2_bytes", "l1_bytes", *COST_KIND_COLUMNS
    ).filter(_is_known())


def _is_known() -> pl.Expr:
    return pl.any_horizontal(pl.col(name).is_not_null() for name in COST_COLUMNS)


def _merge_work(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return one row per launch; each value is from the first part that knows it."""
    columns = LAUNCH_WORK.column_names[2:]
    together = pl.concat([LAUNCH_WORK.empty().select(columns), *(part.select(columns) for part in parts)])
    return (
        together.group_by("launch_index", maintain_order=True)
        .agg(pl.col(*COST_COLUMNS, *COST_KIND_COLUMNS, "work_source").drop_nulls().first())
        .sort("launch_index")
        .select(columns)
    )


# ---------------------------------------------------------------- matching of launches


@dataclass(frozen=True, slots=True)
class _JoinedCounters:
    """A report joined with a trace.

    work: rows of launch_work for launches of the trace. ordered_count: launches with counters of their own. repeated_count: those that
    repeat a launch of the report. time_ratio: device time of launches with counters over that of all; None: no time is known. used_count:
    launches of the report found in the trace. missing: kernels that are not.
    """

    work: pl.DataFrame
    launch_count: int
    ordered_count: int
    repeated_count: int
    time_ratio: float | None
    report_launch_count: int
    used_count: int
    missing: tuple[str, ...]

    @classmethod
    def of(cls, launches: pl.DataFrame, names: pl.DataFrame, report: NcuReport) -> _JoinedCounters:
        keys = _shared_keys(names["name"].to_list(), report.launches["kernel_name"].unique(maintain_order=True).to_list())
        traced, counted = _of_trace(launches, names, keys), _of_report(report, keys)
        traced, counted = _with_key_and_order(traced, counted)
        by_order = traced.join(counted, on=PLACE, maintain_order="left")
        repeated = _in_turn(traced.join(by_order, on="launch_index", how="anti"), traced, counted)
        typical = counted.group_by("shape_index").agg(_typical_costs())
        matched = pl.concat([by_order, repeated], how="diagonal_relaxed")
        averaged = traced.join(matched, on="launch_index", how="anti").join(typical, on="shape_index")
        work = pl.concat(
            [
                _launches_with_costs(by_order).with_columns(work_source=pl.lit(COUNTERS_SOURCE)),
                _launches_with_costs(repeated).with_columns(work_source=pl.lit(CONFIGURATION_SOURCE)),
                _launches_with_costs(averaged).with_columns(work_source=pl.lit(CONFIGURATION_SOURCE)),
            ]
        )
        total_ns, counted_ns = (int(part["duration_ns"].sum()) for part in (launches, launches.join(work, on="launch_index", how="semi")))
        used = counted.join(traced, on="shape_index", how="semi")
        missing = [name for name in report.launches["kernel_name"].unique(maintain_order=True) if name not in keys.of_report]
        return cls(
            work,
            launches.height,
            work.filter(pl.col("work_source") == COUNTERS_SOURCE).height,
            _launches_with_costs(repeated).height,
            counted_ns / total_ns if total_ns else None,
            report.launches.height,
            used.height,
            tuple(name or "one without a name" for name in missing),
        )

    def notes(self) -> list[str]:
        count_ratio = self.work.height / self.launch_count
        of_time = "" if self.time_ratio is None else f", {self.time_ratio:.1%} of their time"
        averaged_count = self.work.height - self.ordered_count - self.repeated_count
        repeated = f"{self.repeated_count} those of the launch that they repeat, " if self.repeated_count else ""
        notes = [
            f"{self.work.height} of {self.launch_count} kernels ({count_ratio:.1%}{of_time}) have counters: "
            f"{self.ordered_count} their own, by name, launch configuration and order, {repeated}"
            f"{averaged_count} the mean of others of their name and configuration.",
            f"{self.used_count} of its {self.report_launch_count} launches were found in the trace.",
        ]
        if self.missing:
            notes.append(f"Not in the trace: {_list_names(self.missing)}.")
        return notes


@dataclass(frozen=True, slots=True)
class _Keys:
    """Numbers of the kernels that report and trace share, by their names in each."""

    of_trace: Mapping[str, int]
    of_report: Mapping[str, int]


def _shared_keys(trace_names: Sequence[str], report_names: Sequence[str | None]) -> _Keys:
    """Match functions by the most detailed form of name that both sides have.

    The bare function name suffices only where one side writes no template arguments, or mangles: otherwise instances of one
    template are different kernels.
    """
    sides = [[name for name in names if name] for names in (trace_names, report_names)]
    known = [qualifiers(names) for names in sides]
    trace_groups, report_groups = (
        _by_function(names, omitted) for names, omitted in zip(sides, (known[0] - known[1], known[1] - known[0]), strict=True)
    )
    of_trace: dict[str, int] = {}
    of_report: dict[str, int] = {}
    numbers = count()
    for function in trace_groups.keys() & report_groups.keys():
        trace_group, report_group = trace_groups[function], report_groups[function]
        depth = 3 if _has_template_arguments(trace_group) and _has_template_arguments(report_group) else 4
        for level in range(depth):
            if level == 3 and any(name in of_trace for name in trace_group):
                break  # a name that is less than the others' is another kernel's
            by_form = defaultdict[str, list[str]](list)
            for name, forms in report_group.items():
                if name not in of_report:
                    by_form[forms[level]].append(name)
            shared: dict[str, int] = {}
            for name, forms in trace_group.items():
                if name not in of_trace and (form := forms[level]) in by_form:
                    of_trace[name] = shared[form] if form in shared else shared.setdefault(form, next(numbers))
            of_report.update((name, number) for form, number in shared.items() for name in by_form[form])
    return _Keys(of_trace, of_report)


def _by_function(names: Sequence[str], omitted: frozenset[str]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the spellings of each name, the most specific first, by function and name. omitted: qualifiers that the other side omits."""
    groups: dict[str, dict[str, tuple[str, ...]]] = {}
    for name in names:
        forms = KernelNameSpellings.of(name)
        groups.setdefault(forms.function, {})[name] = (forms.signature, forms.instance, template_spelling(name, omitted), forms.function)
    return groups


def _has_template_arguments(group: Mapping[str, tuple[str, ...]]) -> bool:
    return any("<" in instance for _, instance, *_ in group.values())


def _of_trace(launches: pl.DataFrame, names: pl.DataFrame, keys: _Keys) -> pl.DataFrame:
    """Return the trace's launches of kernels that the report has, in order."""
    key_of = pl.DataFrame({"name": list(keys.of_trace), "key": list(keys.of_trace.values())}, schema={"name": TEXT, "key": INDEX})
    known = names.select("name_index", "name").join(key_of, on="name").drop("name")
    traced = launches.select("launch_index", "name_index", "process_id", *LAUNCH_CONFIGURATION_COLUMNS)
    return _with_process_order(traced.join(known, on="name_index", maintain_order="left").drop("name_index"))


def _of_report(report: NcuReport, keys: _Keys) -> pl.DataFrame:
    """Return the report's launches of kernels that the trace has, in order, with their costs."""
    key_of = pl.Series("key", [keys.of_report.get(name or "") for name in report.launches["kernel_name"]], dtype=INDEX)
    launches = report.launches.select(pl.col("launch_index").cast(INDEX), process_id=pl.col("process_id").cast(COUNT, strict=False))
    work = _known_costs(_counted(report_counters(report)))
    traced = launches.hstack([key_of]).hstack(parse_dimensions(report.launches)).filter(pl.col("key").is_not_null())
    return _with_process_order(traced).join(work, on="launch_index", how="left", maintain_order="left").drop("launch_index")


def _with_process_order(launches: pl.DataFrame) -> pl.DataFrame:
    """Number the processes by order of appearance, from 0, as process ids differ from run to run."""
    processes = launches.select("process_id").unique(maintain_order=True).with_row_index("process")
    return launches.join(processes, on="process_id", nulls_equal=True, maintain_order="left").drop("process_id")


def _with_key_and_order(traced: pl.DataFrame, counted: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Replace kernel and configuration by the number of both, and add the order within it; of the trace, what the report has.

    Kernels whose configuration one side does not record are matched by name alone.
    """
    is_partial = pl.any_horizontal(pl.col(name).is_null() for name in LAUNCH_CONFIGURATION_COLUMNS)
    partial = pl.concat([side.filter(is_partial).select("key").unique() for side in (traced, counted)])["key"]
    if partial.len():
        is_recorded = ~pl.col("key").is_in(partial.implode())
        traced, counted = (
            side.with_columns(pl.when(is_recorded).then(pl.col(name)).alias(name) for name in LAUNCH_CONFIGURATION_COLUMNS)
            for side in (traced, counted)
        )
    shapes = counted.select(LAUNCH_SHAPE).unique(maintain_order=True).with_row_index("shape_index")

    def ordered(side: pl.DataFrame) -> pl.DataFrame:
        keyed = side.join(shapes, on=LAUNCH_SHAPE, nulls_equal=True, maintain_order="left").drop(LAUNCH_SHAPE)
        return keyed.with_columns(order=pl.int_range(pl.len(), dtype=INDEX).over("shape_index", "process"))

    return ordered(traced), ordered(counted)


def _in_turn(others: pl.DataFrame, traced: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """Return those of the other launches that repeat a launch of the report, with its costs.

    A trace often has several equal steps, and the report one of them: then most kernels are launched the same multiple of the report's
    launches. Such launches take their turn, for one kernel in one configuration may do different work within a step: a product of the
    same rows and columns, but of another depth.
    """
    group = ["shape_index", "process"]
    sizes = traced.group_by(group).len("traced_count").join(counted.group_by(group).len("step_count"), on=group)
    ratios = sizes.with_columns(step_ratio=pl.col("traced_count") / pl.col("step_count"))
    by_ratio = ratios.group_by("step_ratio").agg(pl.col("step_count").sum()).sort("step_count", "step_ratio", descending=True)
    if by_ratio.is_empty() or (repetitions := by_ratio["step_ratio"][0]) % 1 or 2 * by_ratio["step_count"][0] <= counted.height:
        return others.clear().join(counted, on=PLACE)
    in_step = others.join(ratios.filter(step_ratio=repetitions), on=group, maintain_order="left")
    placed = in_step.with_columns(order=(pl.col("order") % pl.col("step_count")).cast(INDEX)).select(others.columns)
    return placed.join(counted, on=PLACE, maintain_order="left")


def _typical_costs() -> list[pl.Expr]:
    return [
        *(pl.col(name).mean() for name in COST_COLUMNS),
        *(pl.col(kind).drop_nulls().mode().sort().first() for kind in COST_KIND_COLUMNS),
    ]


def _launches_with_costs(launches: pl.DataFrame) -> pl.DataFrame:
    """Return those of which some cost is known."""
    return launches.filter(_is_known()).select("launch_index", *COST_COLUMNS, *COST_KIND_COLUMNS)


def _unrelated_report(file_name: str, report: NcuReport) -> InvalidTraceError:
    kernels = [name or "one without a name" for name in report.launches["kernel_name"].unique(maintain_order=True)]
    return InvalidTraceError(
        f"report {file_name}",
        found=f"counters of {_list_names(kernels)}" if kernels else "no launch",
        expected="work of kernels that the trace has",
        remedy="Give a report of the same program, that counts flop or bytes.",
    )


def _list_names(names: Sequence[str]) -> str:
    rest = len(names) - MAX_NAMED_KERNELS
    return ", ".join(names[:MAX_NAMED_KERNELS]) + (f" and {rest} more" if rest > 0 else "")
