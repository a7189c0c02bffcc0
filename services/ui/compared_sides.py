"""The two runs of the Compare page: which they are when nobody has chosen, and what they differ in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from kernalyse.services.core.model import ImportedTrace, KernelSweep, ModelRun, Run, RunState
from kernalyse.services.ui import theme
from kernalyse.services.ui.memory import Overview, RunMemory

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
