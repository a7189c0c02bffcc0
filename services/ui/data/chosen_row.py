"""Everything that is known of one configuration, or of one kernel, its sources included: asked for when somebody chooses it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl

from kernalyse.services.core.artifacts import LISTING_TITLES, listing_stem, listing_variant
from kernalyse.services.core.errors import ArtifactNotFoundError, KernalyseError, NotFoundError
from kernalyse.services.core.model import Filter, KernelSweep, ModelRun, Run, RunSpec, SortKey, TableQuery
from kernalyse.services.core.protobuf import decode_json
from kernalyse.services.core.reruns import SOURCES_ARTIFACT, SPEC_ARTIFACT
from kernalyse.services.ui.charts.metrics import ANNOUNCED, FAILED, KERNEL_SIGN, PLACED, name_digest, performance_rows
from kernalyse.services.ui.data.client import AnalyzerClient


@dataclass(frozen=True, slots=True)
class RunSources:
    """texts: by file name. missing: why there are none, one sentence; empty where there are."""

    texts: Mapping[str, str]
    missing: str = ""


async def sources_of(client: AnalyzerClient, run: Run) -> RunSources:
    """What can be had of them."""
    work = run.spec.work
    try:
        if isinstance(work, KernelSweep):
            return RunSources(await _of_sweep(client, run, work))
        if isinstance(work, ModelRun):
            return RunSources(json.loads(await client.artifact(run.run_id, SOURCES_ARTIFACT)))
    except ArtifactNotFoundError:
        return RunSources({}, "A model under ONNX Runtime leaves no sources of kernels.")
    except KernalyseError as error:
        return RunSources({}, f"The sources of {run.title} cannot be had. {error.message}")
    return RunSources({}, "Only sweeps of kernels and models on the project's own kernels have sources.")


async def _of_sweep(client: AnalyzerClient, run: Run, sweep: KernelSweep) -> Mapping[str, str]:
    if any(kernel.source is None for kernel in sweep.kernels):
        kept = decode_json(await client.artifact(run.run_id, SPEC_ARTIFACT), RunSpec).work
        assert isinstance(kept, KernelSweep)
        sweep = kept
    return {kernel.source.file_name: kernel.source.text for kernel in sweep.kernels if kernel.source is not None}


MAX_SHOWN_SAMPLES: Final = 20_000
"""What a browser's canvas draws at once without a wait."""

SAMPLE_COLUMNS: Final = ("sample_index", "duration_ns", "measured_unix_ns", "sm_clock_hz", "is_discarded")
RESULTS: Final = ("configurations", "measurements", "roofline", "failures")
NO_SAMPLES: Final = pl.DataFrame(
    schema={
        "sample_index": pl.Int64,
        "duration_ns": pl.Int64,
        "measured_unix_ns": pl.Int64,
        "sm_clock_hz": pl.Int64,
        "is_discarded": pl.Boolean,
    }
)
NO_LAUNCHES: Final = pl.DataFrame(schema={"run_id": pl.String, "kernel_name": pl.String})
MAX_CONFIGURATIONS: Final = 20_000
"""Of one kernel, asked for to find the best of them."""

OF_BEST: Final = (
    *("duration_median_ns", "achieved_flop_per_s", "achieved_bytes_per_s", "attainable_flop_per_s", "efficiency_ratio", "bound"),
    "intensity_flop_per_byte",
)

IS_IMPLAUSIBLE: Final = pl.col("is_implausible").fill_null(value=False)

Row = dict[str, Any]
RowKind = Literal["configuration", "swept kernel", "traced kernel"]


@dataclass(frozen=True, slots=True)
class Listing:
    """What a compiler left. is_own: of this configuration's constants, not of others of the kernel."""

    artifact_name: str
    title: str
    size_bytes: int
    is_own: bool


@dataclass(frozen=True, slots=True)
class ChosenRow:
    """figures: by column, of all tables that have the row. samples: with SAMPLE_COLUMNS, in order; of a trace its launches.

    configurations: of a kernel of a sweep, the best first, with the columns of `performance_rows`; of other rows None.
    """

    key: str
    run_id: str
    kernel_name: str
    label: str
    figures: Mapping[str, Any]
    samples: pl.DataFrame
    total_sample_count: int
    listings: tuple[Listing, ...] = ()
    kind: RowKind = "configuration"
    configurations: pl.DataFrame | None = None

    @property
    def is_of_trace(self) -> bool:
        return self.kind == "traced kernel"


async def ask_chosen(client: AnalyzerClient, key: str) -> ChosenRow:
    """The row that a key names, see `configuration_key`. Raises KernalyseError: also where there is none."""
    run_id, _, token = key.rpartition(".")
    if run_id and token.startswith(KERNEL_SIGN):
        return await _kernel(client, key, run_id, token.removeprefix(KERNEL_SIGN))
    if not run_id or not token.isdecimal():
        raise _unknown(key)
    return await _configuration(client, key, run_id, token)


async def _configuration(client: AnalyzerClient, key: str, run_id: str, index: str) -> ChosenRow:
    is_it = (Filter("configuration_index", index),)
    *found, samples, artifacts = await asyncio.gather(
        *(client.table(TableQuery(name, (run_id,), is_it, limit=8)) for name in RESULTS),
        client.table(TableQuery("samples", (run_id,), is_it, (SortKey("sample_index"),), limit=MAX_SHOWN_SAMPLES, columns=SAMPLE_COLUMNS)),
        client.table(TableQuery("artifacts", (run_id,), columns=("artifact_name", "size_bytes"))),
    )
    figures: Row = {}
    for part in found:
        if part.rows.height:
            figures |= {name: value for name, value in part.rows.row(-1, named=True).items() if value is not None}
    if not figures:
        raise _unknown(key)
    listings = listings_of(figures["kernel_name"], figures.get("macros"), artifacts.rows)
    return ChosenRow(key, run_id, figures["kernel_name"], figures["label"], figures, samples.rows, samples.total_row_count, listings)


async def _kernel(client: AnalyzerClient, key: str, run_id: str, digest: str) -> ChosenRow:
    kernels = (await client.table(TableQuery("kernels", (run_id,)))).rows
    kernel = next((row for row in kernels.iter_rows(named=True) if name_digest(row["kernel_name"]) == digest), None)
    if kernel is None:
        raise _unknown(key)
    ask = _swept_kernel if kernel["launch_count"] is None else _traced_kernel
    return await ask(client, key, run_id, kernel)


async def _swept_kernel(client: AnalyzerClient, key: str, run_id: str, kernel: Row) -> ChosenRow:
    name = kernel["kernel_name"]
    is_it = (Filter("kernel_name", name),)
    announced, placed, failed, artifacts = await asyncio.gather(
        client.table(TableQuery("configurations", (run_id,), is_it, limit=MAX_CONFIGURATIONS, columns=ANNOUNCED)),
        client.table(TableQuery("roofline", (run_id,), is_it, limit=MAX_CONFIGURATIONS, columns=PLACED)),
        client.table(TableQuery("failures", (run_id,), limit=MAX_CONFIGURATIONS, columns=FAILED)),
        client.table(TableQuery("artifacts", (run_id,), columns=("artifact_name", "size_bytes"))),
    )
    configurations = best_first(performance_rows(announced.rows, placed.rows, failed.rows, NO_LAUNCHES))
    best = configurations.row(0, named=True) if configurations.height else {}
    efficiency = configurations.filter(~IS_IMPLAUSIBLE)["efficiency_ratio"]
    figures = {
        **{column: value for column, value in kernel.items() if value is not None},
        **{f"best_{column}": best.get(column) for column in OF_BEST},
        "efficiency_ratio_min": efficiency.min(),
        "efficiency_ratio_median": efficiency.median(),
    }
    listings = listings_of(name, best.get("macros"), artifacts.rows)
    return ChosenRow(key, run_id, name, name, figures, NO_SAMPLES, 0, listings, "swept kernel", configurations)


def best_first(configurations: pl.DataFrame) -> pl.DataFrame:
    """In the order by which the analyzer says which one is best: what cannot be true after the rest, what was not measured last."""
    rates = ("efficiency_ratio", "achieved_flop_per_s", "achieved_bytes_per_s")
    descending = [False, False, *(True for _ in rates)]
    return configurations.sort(~pl.col("is_measured"), IS_IMPLAUSIBLE, *rates, descending=descending, nulls_last=True, maintain_order=True)


async def _traced_kernel(client: AnalyzerClient, key: str, run_id: str, kernel: Row) -> ChosenRow:
    name = kernel["kernel_name"]
    roofline, names = await asyncio.gather(
        client.table(TableQuery("roofline", (run_id,), (Filter("kernel_name", name),), limit=1)),
        client.table(TableQuery("trace_names", (run_id,), (Filter("name", name),), columns=("name_index",))),
    )
    launches = await client.table(
        TableQuery(
            "kernel_launches",
            (run_id,),
            (Filter("name_index", str(names.rows["name_index"][0])),),
            (SortKey("launch_index"),),
            limit=MAX_SHOWN_SAMPLES,
            columns=("launch_index", "start_ns", "duration_ns"),
        )
    )
    timed = launches.rows.drop_nulls("duration_ns").with_columns(
        sample_index=pl.int_range(pl.len()),
        measured_unix_ns=pl.col("start_ns"),
        sm_clock_hz=pl.lit(None, dtype=pl.Int64),
        is_discarded=pl.lit(False),
    )
    placed = roofline.rows.row(0, named=True) if roofline.rows.height else {}
    figures = {name: value for part in (placed, kernel) for name, value in part.items() if value is not None}
    return ChosenRow(key, run_id, name, name, figures, timed.select(SAMPLE_COLUMNS), launches.total_row_count, kind="traced kernel")


def listings_of(kernel_name: str, macros: str | None, artifacts: pl.DataFrame) -> tuple[Listing, ...]:
    """Those of the kernel, of the configuration's own constants first.

    Args:
        macros: JSON object of the configuration's constants.
        artifacts: rows of the run.
    """
    stem = listing_stem(kernel_name)
    variant = listing_variant(json.loads(macros)) if macros else ""
    found = []
    for artifact_name, size_bytes in artifacts.select("artifact_name", "size_bytes").iter_rows():
        for place, (ending, title) in enumerate(LISTING_TITLES.items()):
            if artifact_name.startswith(f"{stem}.") and artifact_name.endswith(f".{ending}"):
                of = artifact_name[len(stem) : -len(ending) - 1].strip(".")
                is_own = of == variant or of.startswith(f"{variant}." if variant else "")
                shown = f"{title} · {of}" if of else title
                found.append((not is_own, place, Listing(artifact_name, shown, size_bytes, is_own)))
    return tuple(listing for _, _, listing in sorted(found, key=lambda entry: entry[:2]))


def _unknown(key: str) -> NotFoundError:
    return NotFoundError(
        f"configuration {key!r}",
        found="none of that name",
        expected="a run and the number of one of its configurations",
        remedy="Its run may have been deleted: choose a row of the table.",
    )
