"""What the Roofline page and tables of results show, gathered from the runs: rows of points and the ceilings of their devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import polars as pl

from kernalyse.services.core.model import Run
from kernalyse.services.ui import theme
from kernalyse.services.ui.charts import roofline
from kernalyse.services.ui.charts.elements import OUTSIDE, Columns
from kernalyse.services.ui.charts.roofline import IDENTITY, PointsOf
from kernalyse.services.ui.charts.roofline_ceilings import CeilingChoice, LevelChoice, at_clock_of, at_level, held_against
from kernalyse.services.ui.data import filters
from kernalyse.services.ui.data.diagnosis import point_key
from kernalyse.services.ui.data.memory import Overview, RunMemory

TABLE_OF_POINTS: Final[dict[PointsOf, str]] = {"kernel": "roofline", "layer": "layer_roofline"}
COUNTED_TABLE_OF_POINTS: Final[dict[PointsOf, str]] = {"kernel": "counted_roofline", "layer": "counted_layer_roofline"}
CEILING_FIGURES: Final = ["ceiling_name", "unit", "path", "source", "value"]


@dataclass(frozen=True, slots=True)
class OfRun:
    """One run's part. rows: each point once; None: it has none yet. ceilings: of its devices, by their device_id."""

    run_id: str
    run: Run | None
    rows: pl.DataFrame | None
    ceilings: pl.DataFrame | None


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows before the filters. filter_values: what each filter can be set to. missing_count: without bytes at the chosen level."""

    rows: pl.DataFrame
    filter_values: Mapping[str, Sequence[str]]
    missing_count: int


@dataclass(frozen=True, slots=True)
class Shown:
    """What is on the page. rows: that the filters leave."""

    rows: pl.DataFrame
    listed: Sequence[ResultRow]  # the foremost of them
    listed_as: str  # what they are
    placeable: pl.DataFrame  # those that have a place on the chart
    placed: pl.DataFrame  # of these, without hidden series
    drawn: pl.DataFrame  # of these, without those that others cover
    points: Columns
    ceilings: tuple[roofline.CeilingRow, ...]
    column: str  # that colours points
    values: tuple[str, ...]  # what may occur in it
    missing_count: int  # without bytes at the chosen level
    run_titles: Mapping[str, str]  # by run_id


def rows_of_run(memory: RunMemory, points: PointsOf) -> OfRun:
    """What has arrived so far; made once for all pages that show it."""
    name = TABLE_OF_POINTS[points]
    arrived = memory.since(name, 0)
    rows = None
    if arrived.frame is not None:
        frame = arrived.frame
        rows = memory.made_of_all.get((name, arrived.position), lambda: with_share_of_pass(roofline.newest_rows(frame)))
    return OfRun(memory.run_id, memory.run, rows, memory.table("ceilings"))


def with_share_of_pass(rows: pl.DataFrame) -> pl.DataFrame:
    """Launches of a model with their share of its pass; rows of a trace have one of the trace's kernels already."""
    time_ns = pl.when(pl.col("layer_path").is_not_null()).then(pl.col("duration_median_ns"))
    share = time_ns / time_ns.sum().over("run_id", "variant")
    return rows.with_columns(share_ratio=pl.coalesce("share_ratio", share))


def held_rows(runs: Sequence[OfRun], counted: pl.DataFrame | None, level: LevelChoice, choice: CeilingChoice) -> HeldRows | None:
    """Rows of all runs, at the memory level and against the ceilings chosen, named; None without any. counted: see `at_level`."""
    found = [run.rows for run in runs if run.rows is not None]
    if not found:
        return None
    newest = pl.concat(found, how="vertical_relaxed")
    rows = held_against(at_level(newest, counted, level), choice).with_columns(pl.col("label").fill_null(OUTSIDE))
    return HeldRows(rows, filters.values_of(rows), 0 if level in ("auto", "all") else newest.height - rows.height)


def named_ceilings(runs: Sequence[OfRun], overview: Overview, choice: CeilingChoice) -> pl.DataFrame | None:
    """Ceilings of all runs, their device_id replaced by what people call the device; those at the clock at that of the run's points.

    Devices of one name and with the same ceilings are one; others of one name are told apart by their host or run.
    """
    parts: dict[str, list[tuple[str, pl.DataFrame]]] = defaultdict(list)
    for run in runs:
        if run.ceilings is None:
            continue
        known = at_clock_of(run.ceilings, run.rows) if choice == "clock" and run.rows is not None else run.ceilings
        for (device_id,), frame in known.group_by("device_id", maintain_order=True):
            parts[_device_name(run.run, str(device_id), overview)].append((_place(run), frame))
    named = [frame.with_columns(device_id=pl.lit(title)) for name, found in parts.items() for title, frame in _told_apart(name, found)]
    return pl.concat(named, how="vertical_relaxed") if named else None


def _told_apart(name: str, found: Sequence[tuple[str, pl.DataFrame]]) -> list[tuple[str, pl.DataFrame]]:
    places = dict.fromkeys(place for place, _ in found)
    if len(places) == 1 or len({_figures(frame) for _, frame in found}) == 1:
        return [(name, frame) for _, frame in found]
    return [(f"{name} · {place}", frame) for place, frame in found]


def _figures(frame: pl.DataFrame) -> tuple[tuple[object, ...], ...]:
    return tuple(frame.unique(CEILING_FIGURES).sort(CEILING_FIGURES).select(CEILING_FIGURES).rows())


def _device_name(run: Run | None, device_id: str, overview: Overview) -> str:
    nodes = [status.node for status in overview.nodes if status.node is not None and run is not None]
    names = {device.device_id: device.name for node in nodes if run and node.node_id == run.node_id for device in node.devices}
    return names.get(device_id, device_id)


def _place(run: OfRun) -> str:
    """Where the run's devices are: a host; of an imported run, nobody knows."""
    return theme.short_run_id(run.run_id) if run.run is None or run.run.is_imported else run.run.node_name


class ResultRow(NamedTuple):
    """What is shown of a row of the table roofline."""

    run_id: str
    label: str
    duration_median_ns: float | None
    duration_mean_ns: float | None
    dtype: str | None
    achieved_flop_per_s: float | None
    achieved_bytes_per_s: float | None
    intensity_flop_per_byte: float | None
    efficiency_ratio: float | None
    efficiency_category: str | None
    bound: str | None
    verification_state: str | None
    is_implausible: bool | None
    implausible_reason: str | None
    disturbance: str | None
    point: str = ""  # see point_key; empty: it cannot be chosen


_COLUMNS: Final = ResultRow._fields[:-1]


def result_rows(roofline: pl.DataFrame, *, with_points: bool = False) -> list[ResultRow]:
    """Of rows of the table roofline, in their order. with_points: a click on one chooses its point."""
    rows = [ResultRow(*values) for values in roofline.select(_COLUMNS).iter_rows()]
    if not with_points:
        return rows
    keys = [point_key(row) for row in roofline.select(*IDENTITY).iter_rows(named=True)]
    return [row._replace(point=key) for row, key in zip(rows, keys, strict=True)]
